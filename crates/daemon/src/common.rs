//! The keeper of device memory that sessions have in common: who has which block, and a descriptor of each, which holds its
//! memory.
//!
//! ```text
//!             claimed by the first           offered by it
//!  unknown ──────────────────────► loading ────────────────► there ──► given to each that claims it
//!     ▲                               │ it ends, or leaves: the next one that waits loads it
//!     └───────────────────────────────┴──────── the last one that has it leaves, ends, or wants to write to it alone
//! ```
//! A worker that has been given a block has it until it says that it has no mapping of it any more, or its process ends. Only
//! then another one may be told that it is alone. A daemon that ends takes the descriptors with it: workers go on with what they
//! have mapped, copy before they write, and a next daemon's sessions load what they need. See decision 045.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use fermata_control::common::{FromKeeper, ToKeeper, Wanted};
use fermata_control::{Connection, MAX_FDS, settings};
use parking_lot::Mutex;
use tracing::warn;

use crate::proc::ProcessId;

/// Whether sessions have memory in common.
const SETTING: &str = "FERMATA_COMMON_MEMORY";
/// How long a worker is listened to at a time.
const LISTEN: Duration = Duration::from_secs(3600);
/// Blocks that are kept at most: each takes a descriptor.
const MOST: usize = 1 << 16;

type Line = Connection<ToKeeper, FromKeeper>;

/// A connection of a worker, by number.
type User = u64;

/// See the module.
pub struct Commons {
    on: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    last: User,
    users: HashMap<User, Member>,
    blocks: HashMap<String, Block>,
}

#[derive(Clone)]
struct Member {
    /// Its process.
    worker: ProcessId,
    line: Arc<Line>,
    /// One sends at a time.
    sending: Arc<Mutex<()>>,
}

struct Block {
    bytes: u64,
    device: String,
    /// None while it is loaded by the only one of `users`.
    memory: Option<OwnedFd>,
    users: BTreeSet<User>,
    waiting: Vec<User>,
}

/// What a worker has in common with others, on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes that at least one other worker has, too.
    pub common: u64,
    /// Its part of that: a block that n workers have counts 1/n.
    pub part: u64,
}

/// Messages that are due, in their order.
type Due = Vec<(User, FromKeeper, Vec<OwnedFd>)>;

impl Commons {
    /// As the environment says.
    pub fn from_env() -> Self {
        Self {
            on: settings::is_on(SETTING),
            state: Arc::default(),
        }
    }

    /// Whether sessions have anything in common.
    pub fn are_on(&self) -> bool {
        self.on
    }

    /// The end of a connection for the worker with this process; none if sessions have nothing in common.
    pub fn connect(&self, worker: ProcessId) -> Option<OwnedFd> {
        if !self.on {
            return None;
        }
        let connected = self.serve(worker);
        connected
            .inspect_err(|error| warn!("a restore loads all data itself: {error}"))
            .ok()
    }

    fn serve(&self, worker: ProcessId) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let member = Member {
            worker,
            line: Arc::new(Connection::new(ours.into(), "worker")),
            sending: Arc::default(),
        };
        let state = Arc::clone(&self.state);
        let user = {
            let mut state = state.lock();
            state.last += 1;
            let user = state.last;
            state.users.insert(user, member.clone());
            user
        };
        let listen = move || {
            let says_bye = converse(&member.line, &state, user);
            // One that is only not heard any more still has what it has mapped.
            while !says_bye && !worker.ends_within(LISTEN) {}
            let due = state.lock().part_from(user);
            send(&state, due);
        };
        let listens = std::thread::Builder::new().name("keeper".into());
        if let Err(error) = listens.spawn(listen) {
            self.state.lock().users.remove(&user);
            return Err(error);
        }
        Ok(theirs.into())
    }

    /// What a worker has in common with others, by the identity of the device.
    pub fn of(&self, worker: ProcessId) -> BTreeMap<String, Held> {
        let state = self.state.lock();
        let its = |user: &&User| state.users.get(user).is_some_and(|it| it.worker == worker);
        let mut held: BTreeMap<String, Held> = BTreeMap::new();
        for block in state.blocks.values() {
            let users = block.users.len() as u64;
            if block.memory.is_some() && users > 1 && block.users.iter().any(|it| its(&it)) {
                let held = held.entry(block.device.clone()).or_default();
                held.common += block.bytes;
                held.part += block.bytes / users;
            }
        }
        held
    }
}

/// Takes what a worker says, to the end of the connection. Whether it has said that it has nothing any more.
fn converse(line: &Line, state: &Mutex<State>, user: User) -> bool {
    loop {
        match line.recv(LISTEN) {
            Ok((ToKeeper::Bye, _)) => return true,
            Ok((message, descriptors)) => handle(state, user, message, descriptors),
            Err(error) if error.is_timeout() => {}
            Err(_) => return false,
        }
    }
}

fn handle(state: &Mutex<State>, user: User, message: ToKeeper, descriptors: Vec<OwnedFd>) {
    let due = {
        let mut state = state.lock();
        match message {
            ToKeeper::Claim { blocks } => state.claim(user, blocks),
            ToKeeper::Offer { key } => state.offer(user, &key, descriptors.into_iter().next()),
            ToKeeper::Withdraw { keys } => {
                let alone = keys.iter().map(|key| state.withdraw(user, key)).collect();
                vec![(user, FromKeeper::Withdrawn { alone }, Vec::new())]
            }
            ToKeeper::Leave { key } => state.leave(user, &key),
            ToKeeper::Bye => Vec::new(),
        }
    };
    send(state, due);
}

/// Sends what is due. A worker that does not listen is noticed when its connection ends.
fn send(state: &Mutex<State>, due: Due) {
    for (user, message, descriptors) in due {
        let Some(member) = state.lock().users.get(&user).cloned() else {
            continue;
        };
        let descriptors: Vec<_> = descriptors.iter().map(|it| it.as_fd()).collect();
        let _one = member.sending.lock();
        if member.line.send(&message, &descriptors).is_err() {
            member.line.shutdown();
        }
    }
}

impl State {
    fn claim(&mut self, user: User, wanted: Vec<Wanted>) -> Due {
        let (mut yours, mut there) = (Vec::new(), Vec::new());
        for Wanted { key, bytes, device } in wanted {
            match self.blocks.get_mut(&key) {
                None => {
                    if self.blocks.len() < MOST {
                        let block = Block {
                            bytes,
                            device,
                            memory: None,
                            users: BTreeSet::from([user]),
                            waiting: Vec::new(),
                        };
                        self.blocks.insert(key.clone(), block);
                    }
                    // One that is not kept is offered in vain.
                    yours.push(key);
                }
                Some(block) => match copy(block.memory.as_ref()) {
                    Some(memory) => {
                        block.users.insert(user);
                        there.push((key, memory));
                    }
                    None if block.memory.is_some() => yours.push(key),
                    None => block.waiting.push(user),
                },
            }
        }
        let mut due = Vec::new();
        while !there.is_empty() {
            let some = there.drain(..there.len().min(MAX_FDS));
            let (keys, memory) = some.unzip();
            due.push((user, FromKeeper::There { keys }, memory));
        }
        if !yours.is_empty() {
            due.push((user, FromKeeper::Yours { keys: yours }, Vec::new()));
        }
        due
    }

    fn offer(&mut self, user: User, key: &str, memory: Option<OwnedFd>) -> Due {
        let Some(block) = self.blocks.get_mut(key) else {
            return Vec::new();
        };
        if block.memory.is_some() || !block.users.contains(&user) {
            return Vec::new();
        }
        block.memory = memory;
        let mut due = Vec::new();
        for waiting in std::mem::take(&mut block.waiting) {
            match copy(block.memory.as_ref()) {
                Some(memory) => {
                    block.users.insert(waiting);
                    let keys = vec![key.to_owned()];
                    due.push((waiting, FromKeeper::There { keys }, vec![memory]));
                }
                // It loads the block for itself.
                None => {
                    let keys = vec![key.to_owned()];
                    due.push((waiting, FromKeeper::Yours { keys }, Vec::new()));
                }
            }
        }
        due
    }

    /// Whether `user` alone has a block, which is forgotten then.
    fn withdraw(&mut self, user: User, key: &str) -> bool {
        let alone = self.blocks.get(key).is_some_and(|block| {
            block.memory.is_some() && block.users.len() == 1 && block.users.contains(&user)
        });
        if alone {
            self.blocks.remove(key);
        }
        alone
    }

    fn leave(&mut self, user: User, key: &str) -> Due {
        let Some(block) = self.blocks.get_mut(key) else {
            return Vec::new();
        };
        block.waiting.retain(|it| *it != user);
        if !block.users.remove(&user) || !block.users.is_empty() {
            return Vec::new();
        }
        if block.memory.is_none() && !block.waiting.is_empty() {
            let next = block.waiting.remove(0);
            block.users.insert(next);
            let keys = vec![key.to_owned()];
            return vec![(next, FromKeeper::Yours { keys }, Vec::new())];
        }
        self.blocks.remove(key);
        Vec::new()
    }

    /// A worker has nothing any more.
    fn part_from(&mut self, user: User) -> Due {
        self.users.remove(&user);
        let its = |(key, block): (&String, &Block)| {
            let has = block.users.contains(&user) || block.waiting.contains(&user);
            has.then(|| key.clone())
        };
        let keys: Vec<String> = self.blocks.iter().filter_map(its).collect();
        keys.iter().flat_map(|key| self.leave(user, key)).collect()
    }
}

/// A descriptor of the same memory; none if there is none, or no descriptor is left.
fn copy(memory: Option<&OwnedFd>) -> Option<OwnedFd> {
    memory.and_then(|it| it.try_clone().ok())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const KEY: &str = "aa";

    fn wanted(keys: &[&str]) -> Vec<Wanted> {
        let one = |key: &&str| Wanted {
            key: (*key).to_owned(),
            bytes: 10,
            device: "GPU-0".to_owned(),
        };
        keys.iter().map(one).collect()
    }

    fn memory() -> Option<OwnedFd> {
        File::open("/dev/null").ok().map(OwnedFd::from)
    }

    /// Who is told what of how many keys, and with how many descriptors.
    fn told(due: &Due) -> Vec<(User, &'static str, usize, usize)> {
        let one = |(user, message, memory): &(User, FromKeeper, Vec<OwnedFd>)| {
            let (what, keys) = match message {
                FromKeeper::There { keys } => ("there", keys.len()),
                FromKeeper::Yours { keys } => ("yours", keys.len()),
                FromKeeper::Withdrawn { .. } => ("withdrawn", 0),
            };
            (*user, what, keys, memory.len())
        };
        due.iter().map(one).collect()
    }

    #[test]
    fn the_first_loads_and_the_others_get_its_memory() {
        let mut state = State::default();
        assert_eq!(told(&state.claim(1, wanted(&[KEY]))), [(1, "yours", 1, 0)]);
        assert_eq!(told(&state.claim(2, wanted(&[KEY]))), []);
        let due = state.offer(1, KEY, memory());
        assert_eq!(told(&due), [(2, "there", 1, 1)]);
        assert_eq!(told(&state.claim(3, wanted(&[KEY]))), [(3, "there", 1, 1)]);
    }

    #[test]
    fn descriptors_come_as_many_at_once_as_a_message_carries() {
        let mut state = State::default();
        let keys: Vec<String> = (0..MAX_FDS + 1).map(|it| it.to_string()).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        state.claim(1, wanted(&keys));
        for key in &keys {
            state.offer(1, key, memory());
        }
        let due = state.claim(2, wanted(&keys));
        let expected = [(2, "there", MAX_FDS, MAX_FDS), (2, "there", 1, 1)];
        assert_eq!(told(&due), expected);
    }

    #[test]
    fn one_is_alone_only_when_every_other_has_left_or_ended() {
        let mut state = State::default();
        state.claim(1, wanted(&[KEY]));
        assert!(!state.withdraw(1, KEY), "it is not there yet");
        state.offer(1, KEY, memory());
        state.claim(2, wanted(&[KEY]));
        state.claim(3, wanted(&[KEY]));
        assert!(!state.withdraw(1, KEY));
        state.leave(2, KEY);
        assert!(!state.withdraw(1, KEY) && !state.withdraw(2, KEY));
        state.part_from(3);
        assert!(state.withdraw(1, KEY));
        assert!(state.blocks.is_empty());
        assert!(!state.withdraw(1, KEY), "it is forgotten");
    }

    #[test]
    fn when_the_one_that_loads_ends_the_next_one_loads() {
        let mut state = State::default();
        state.claim(1, wanted(&[KEY]));
        state.claim(2, wanted(&[KEY]));
        state.claim(3, wanted(&[KEY]));
        state.part_from(2);
        assert_eq!(told(&state.part_from(1)), [(3, "yours", 1, 0)]);
        assert_eq!(told(&state.offer(2, KEY, memory())), [], "it has ended");
        state.offer(3, KEY, memory());
        assert!(state.withdraw(3, KEY));
    }

    #[test]
    fn memory_goes_with_the_last_that_has_it() {
        let mut state = State::default();
        state.claim(1, wanted(&[KEY]));
        state.offer(1, KEY, memory());
        state.claim(2, wanted(&[KEY]));
        state.part_from(1);
        assert_eq!(state.blocks.len(), 1);
        state.part_from(2);
        assert!(state.blocks.is_empty());
    }
}
