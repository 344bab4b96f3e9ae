//! The worker's end of its conversation with the keeper of common device memory, [`fermata_control::common`].
//!
//! A thread receives the keeper's messages: memory and claims go to the restore, an answer goes to the thread that waits
//! for it. The conversation ends when the session has no common memory any more, or with the process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::Connection;
use fermata_control::common::{FromKeeper, ToKeeper, Wanted};
use fermata_engine::restore::{Claim, CommonKey, Keeper, Told};
use parking_lot::{Condvar, Mutex};

/// How long the keeper may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The longest single wait for a message; the wait is then repeated.
const LISTEN: Duration = Duration::from_secs(3600);

type Tell = Box<dyn Fn(Told) + Send + Sync>;

/// See the module.
pub(crate) struct Client {
    line: Arc<Line>,
}

struct Line {
    connection: Connection<FromKeeper, ToKeeper>,
    /// Held while sending, so that messages do not mix.
    sending: Mutex<()>,
    tell: Mutex<Option<Tell>>,
    answer: Mutex<Answer>,
    answered: Condvar,
}

#[derive(Default)]
struct Answer {
    alone: Option<Vec<bool>>,
    /// No more answers will come.
    gone: bool,
}

impl Client {
    /// A client of the keeper at the other end of `socket`.
    pub fn new(socket: OwnedFd) -> Self {
        let line = Line {
            connection: Connection::new(socket, "daemon"),
            sending: Mutex::default(),
            tell: Mutex::default(),
            answer: Mutex::default(),
            answered: Condvar::new(),
        };
        Self {
            line: Arc::new(line),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The owner has nothing mapped any more. If the message is lost, the keeper waits until the process ends.
        self.line.send(&ToKeeper::Bye, None);
        self.line.connection.shutdown();
    }
}

impl Keeper for Client {
    fn claim(&self, blocks: Vec<Claim>, told: Box<dyn Fn(Told) + Send + Sync>) {
        let wanted = |claim: Claim| Wanted {
            key: claim.key.to_string(),
            bytes: claim.bytes,
            device: claim.device,
        };
        *self.line.tell.lock() = Some(told);
        let claim = ToKeeper::Claim {
            blocks: blocks.into_iter().map(wanted).collect(),
        };
        let line = Arc::clone(&self.line);
        let listens = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || line.listen());
        match listens {
            Ok(_) => self.line.send(&claim, None),
            Err(_) => self.line.end(),
        }
    }

    fn offer(&self, key: &CommonKey, memory: OwnedFd) {
        let key = key.to_string();
        self.line.send(&ToKeeper::Offer { key }, Some(memory));
    }

    fn withdraw(&self, keys: &[CommonKey]) -> Vec<bool> {
        // Without an answer the session counts as not alone with any block.
        let nobody = vec![false; keys.len()];
        let keys = keys.iter().map(CommonKey::to_string).collect();
        self.line.answer.lock().alone = None;
        self.line.send(&ToKeeper::Withdraw { keys }, None);
        let until = Instant::now() + ANSWER_TIME;
        let mut answer = self.line.answer.lock();
        while answer.alone.is_none() && !answer.gone {
            let waited = self.line.answered.wait_until(&mut answer, until);
            if waited.timed_out() {
                drop(answer);
                // If this answer still came, it would be taken for the answer to the next question.
                self.line.end();
                return nobody;
            }
        }
        let told = answer.alone.take();
        told.filter(|it| it.len() == nobody.len()).unwrap_or(nobody)
    }

    fn leave(&self, key: &CommonKey) {
        let key = key.to_string();
        self.line.send(&ToKeeper::Leave { key }, None);
    }
}

impl Line {
    fn send(&self, message: &ToKeeper, descriptor: Option<OwnedFd>) {
        let descriptors: Vec<_> = descriptor.iter().map(|it| it.as_fd()).collect();
        let _one = self.sending.lock();
        if self.connection.send(message, &descriptors).is_err() {
            self.end();
        }
    }

    fn end(&self) {
        self.connection.shutdown();
        self.answer.lock().gone = true;
        self.answered.notify_all();
    }

    fn listen(&self) {
        loop {
            match self.connection.recv(LISTEN) {
                Ok((FromKeeper::There { keys }, memory)) => {
                    for (key, memory) in keys.iter().zip(memory) {
                        if let Some(key) = decode(key) {
                            self.tell(Told::Memory(key, memory));
                        }
                    }
                }
                Ok((FromKeeper::Yours { keys }, _)) => {
                    let keys = keys.iter().filter_map(|key| decode(key));
                    keys.for_each(|key| self.tell(Told::Yours(key)));
                }
                Ok((FromKeeper::Withdrawn { alone }, _)) => {
                    self.answer.lock().alone = Some(alone);
                    self.answered.notify_all();
                }
                Err(error) if error.is_timeout() => {}
                Err(_) => break,
            }
        }
        self.end();
        self.tell(Told::Gone);
        // The callback may own a reference to this client.
        drop(self.tell.lock().take());
    }

    fn tell(&self, told: Told) {
        if let Some(tell) = &*self.tell.lock() {
            tell(told);
        }
    }
}

fn decode(key: &str) -> Option<CommonKey> {
    let mut bytes = [0; 32];
    if key.len() != 2 * bytes.len() || !key.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(key.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(CommonKey(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use super::*;

    const KEY: CommonKey = CommonKey([0xa5; 32]);

    fn ends() -> (Client, Connection<ToKeeper, FromKeeper>) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        (
            Client::new(ours.into()),
            Connection::new(theirs.into(), "worker"),
        )
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        assert_eq!(decode(&KEY.to_string()), Some(KEY));
        for wrong in ["", "a5", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_keeper_that_is_gone_leaves_nobody_alone_and_no_claim_open() {
        let (client, keeper) = ends();
        let (give, told) = mpsc::channel();
        let claim = Claim {
            key: KEY,
            bytes: 1,
            device: "GPU-0".to_owned(),
        };
        client.claim(
            vec![claim],
            Box::new(move |it| {
                let _ = give.send(matches!(it, Told::Gone));
            }),
        );
        let (asked, _) = keeper.recv(ANSWER_TIME).expect("asked");
        assert!(matches!(asked, ToKeeper::Claim { blocks } if blocks[0].key == KEY.to_string()));
        let yours = FromKeeper::Yours {
            keys: vec![KEY.to_string()],
        };
        keeper.send(&yours, &[]).expect("told");
        assert_eq!(told.recv_timeout(ANSWER_TIME), Ok(false));
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| client.withdraw(&[KEY]));
            let (asked, _) = keeper.recv(ANSWER_TIME).expect("asked");
            assert!(matches!(asked, ToKeeper::Withdraw { .. }));
            keeper
                .send(&FromKeeper::Withdrawn { alone: vec![true] }, &[])
                .expect("told");
            assert_eq!(asks.join().expect("it answers"), [true]);
        });
        drop(keeper);
        assert_eq!(told.recv_timeout(ANSWER_TIME), Ok(true));
        assert_eq!(client.withdraw(&[KEY]), [false]);
    }
}
