//! What programs ask for themselves (`fermata_control::program`): an image of their own session, and that they are ready.
//!
//! A program can ask for nothing else, and for no session but its own. Its checkpoint is taken by a thread of the daemon as
//! one of `fermata checkpoint` is, while the program runs on.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use fermata_control::program::{About, Answer, MOST_BYTES, Question, SOCKET};
use fermata_control::user::{Checkpoint, Then, Validate};
use fermata_store::image::check_name;
use parking_lot::Mutex;
use tracing::warn;

use crate::checkpoint::checkpoint;
use crate::daemon::Daemon;
use crate::priority::{self, Gpu, Need};
use crate::server::letters::{self, Letter};
use crate::session::{Member, Session};

/// How many checkpoints are known to whom they were asked for; the oldest are forgotten.
const KNOWN: usize = 256;

/// Checkpoints that programs have asked for.
#[derive(Default)]
struct Asked(Mutex<VecDeque<One>>);

struct One {
    session: Weak<Session>,
    id: String,
    answer: Answer,
}

impl Asked {
    fn find(&self, session: &Arc<Session>, id: &str) -> Option<Answer> {
        let asked = self.0.lock();
        let found = asked.iter().find(|it| it.is(session, id));
        found.map(|it| it.answer.clone())
    }

    /// Whether it was not asked for yet.
    fn begin(&self, session: &Arc<Session>, id: &str) -> bool {
        let mut asked = self.0.lock();
        if asked.iter().any(|it| it.is(session, id)) {
            return false;
        }
        if asked.len() >= KNOWN {
            asked.pop_front();
        }
        asked.push_back(One {
            session: Arc::downgrade(session),
            id: id.to_owned(),
            answer: Answer::Taking,
        });
        true
    }

    fn end(&self, session: &Arc<Session>, id: &str, answer: Answer) {
        if let Some(one) = self.0.lock().iter_mut().find(|it| it.is(session, id)) {
            one.answer = answer;
        }
    }
}

impl One {
    fn is(&self, session: &Arc<Session>, id: &str) -> bool {
        self.id == id && Weak::as_ptr(&self.session) == Arc::as_ptr(session)
    }
}

impl Daemon {
    /// Path of the socket for what programs ask for themselves.
    pub fn program_socket(&self) -> PathBuf {
        self.paths.runtime.join(SOCKET)
    }
}

/// Answers programs from now on.
///
/// # Errors
/// The socket cannot be made, or no thread be started.
pub fn serve(daemon: &Arc<Daemon>) -> anyhow::Result<()> {
    let (path, daemon) = (daemon.program_socket(), daemon.clone());
    let asked = Arc::new(Asked::default());
    letters::serve(&path, "program", MOST_BYTES, move |letter| {
        let answer = answer(&daemon, &asked, letter);
        letter.answer(answer.encode().as_bytes());
    })
}

fn answer(daemon: &Arc<Daemon>, asked: &Arc<Asked>, letter: &Letter) -> Answer {
    let question = match Question::parse(&letter.bytes) {
        Ok(question) => question,
        Err(why) => return refused(why),
    };
    let Some(session) = daemon.session_of(&question.token, letter.process) else {
        return refused("the process belongs to no session of this daemon");
    };
    match question.about {
        About::Session => Answer::Session {
            name: session.name.clone(),
            image: session.image.as_ref().map(|it| it.display().to_string()),
        },
        About::Ready => {
            session.lock().ready = true;
            Answer::Done
        }
        About::Checkpoint {
            id,
            mode,
            tcp_close,
            name,
        } => {
            if name.as_deref().is_some_and(|it| check_name(it).is_err()) {
                return refused("that cannot be the name of an image");
            }
            if asked.begin(&session, &id) {
                let request = Checkpoint {
                    session: session.name.clone(),
                    output: name.as_deref().map(Into::into),
                    mode,
                    then: Then::Run,
                    pool_bytes: None,
                    validate: Validate::default(),
                    tcp_close,
                };
                begin(daemon, asked, &session, &id, request);
            }
            asked.find(&session, &id).unwrap_or(Answer::Unknown)
        }
        About::Room {
            device,
            bytes,
            free,
        } => match room(daemon, &session, letter.process, (device, bytes, free)) {
            Ok(()) => Answer::Done,
            Err(why) => refused(&why),
        },
        About::Status { id } => asked.find(&session, &id).unwrap_or(Answer::Unknown),
    }
}

/// Has a session of lower priority paused for one that lacks device memory.
fn room(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    process: u32,
    (device, bytes, free): (u32, u64, Option<u64>),
) -> Result<(), String> {
    let (uuid, soft) = {
        let inner = session.lock();
        let of_process = |it: &&Member| it.process.pid == process;
        let member = inner.members.iter().find(of_process);
        let worker = member.or(inner.members.first());
        let worker = worker.and_then(|it| it.worker.as_ref());
        let worker = worker.ok_or("the process has no worker")?;
        let found = worker.devices.get(device as usize);
        let uuid = found.map(|it| it.uuid.clone()).ok_or("no such device")?;
        (uuid, worker.driver.soft)
    };
    let gpu = Gpu::of(soft, &session.variables).ok_or("its device is its own")?;
    let need = Need {
        name: session.name.clone(),
        priority: session.priority,
        gpu,
        device: Some(uuid),
        bytes,
        // One that is not known may be enough.
        free: free.unwrap_or(bytes),
    };
    let made = priority::make(daemon, &need);
    made.inspect_err(|it| {
        // Where no session has less priority, it is as if there were none.
        let others = daemon.sessions();
        if others
            .iter()
            .any(|it| it.live() && it.priority < session.priority)
        {
            warn!(session = %session.name, "{}", it.message);
        }
    })
    .map_err(|it| it.message)
}

fn refused(why: &str) -> Answer {
    Answer::Refused {
        why: why.to_owned(),
    }
}

/// Takes the image beside everything else.
fn begin(
    daemon: &Arc<Daemon>,
    asked: &Arc<Asked>,
    session: &Arc<Session>,
    id: &str,
    request: Checkpoint,
) {
    let work = {
        let (daemon, asked, session) = (daemon.clone(), asked.clone(), session.clone());
        let id = id.to_owned();
        move || {
            let answer = match checkpoint(&daemon, &request, &mut |_, _, _| {}) {
                Ok(taken) => Answer::Taken {
                    image: taken.image.display().to_string(),
                },
                Err(failure) => {
                    warn!(
                        session = %session.name,
                        "a checkpoint that `{}` asked for itself failed: {}",
                        session.name, failure.message
                    );
                    Answer::Failed {
                        message: failure.message,
                        hint: failure.hint,
                    }
                }
            };
            asked.end(&session, &id, answer);
        }
    };
    let thread = std::thread::Builder::new().name("own-checkpoint".into());
    if let Err(error) = thread.spawn(work) {
        let failed = Answer::Failed {
            message: format!("cannot start a thread: {error}"),
            hint: String::new(),
        };
        asked.end(session, id, failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::scene;

    #[test]
    fn what_is_asked_for_twice_is_done_once_and_belongs_to_its_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let one = daemon.add(Some("one"), "", scene::plan).expect("added");
        let two = daemon.add(Some("two"), "", scene::plan).expect("added");
        let asked = Asked::default();
        assert!(asked.begin(&one, "a") && !asked.begin(&one, "a"));
        assert_eq!(asked.find(&two, "a"), None);
        assert!(asked.begin(&two, "a"));
        let taken = Answer::Taken {
            image: "/x".to_owned(),
        };
        asked.end(&one, "a", taken.clone());
        assert_eq!(asked.find(&one, "a"), Some(taken));
        assert_eq!(asked.find(&two, "a"), Some(Answer::Taking));
        // However much one asks for, memory is bounded.
        (0..KNOWN).for_each(|n| assert!(asked.begin(&two, &format!("b{n}"))));
        assert_eq!(asked.find(&one, "a"), None);
        assert!(asked.0.lock().len() <= KNOWN);
    }
}
