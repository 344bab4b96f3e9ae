//! The daemon's side of an agent: one connection to the agent inside a program, from Hello to its end.

pub mod arrivals;
pub mod attach;
pub mod bring_back;
pub mod loading;
pub mod wake;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use fermata_control::Connection;
use fermata_control::agent::{FromAgent, Sight, ToAgent};
use fermata_control::worker::FailureKind;
use parking_lot::Mutex;

use crate::failure::{Hint, OrFail, Result, fail, from_control};
use crate::proc::ProcessId;

/// A connection to an agent.
pub type Link = Connection<FromAgent, ToAgent>;

/// An agent that has said Hello and has not been welcomed yet.
#[derive(Debug)]
pub struct Arrival {
    /// Its connection.
    pub link: Link,
    /// Its process as the daemon sees it.
    pub process: ProcessId,
    /// Its process id as it sees it.
    pub inner_pid: u32,
    /// Address of its wake block.
    pub wake_block: u64,
    /// Whether it reports `Mapped` when everything is mapped, and then waits.
    pub says_mapped: bool,
    /// Whether it makes things ready for a stop when it is told that one is about to begin.
    pub prepares: bool,
    /// Which GPUs its process is to see; the agent says so when it connects for the first time.
    pub visible: Option<Sight>,
}

/// An agent that has been welcomed.
#[derive(Debug)]
pub struct Agent {
    /// Its process as the daemon sees it.
    pub process: ProcessId,
    /// Its process id as it sees it.
    pub inner_pid: u32,
    /// Address of its wake block.
    pub wake_block: u64,
    prepares: bool,
    link: Arc<Link>,
    messages: Mutex<Receiver<FromAgent>>,
    leaving: Arc<AtomicBool>,
    /// Stops that were given up and whose end has not been told yet: Refused, or Quiesced and then Resumed.
    given_up: AtomicU32,
}

/// How long stopping a program took.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    /// Until its threads were parked.
    pub parking: Duration,
    /// Until the work that they had launched had ended, too.
    pub whole: Duration,
}

/// How often a program that has not stopped yet is reported.
const SAYING: Duration = Duration::from_secs(2);
/// How long the daemon waits beyond the agent's own limit to stop its program, for a machine under load.
const MARGIN: Duration = Duration::from_secs(10);
/// How long detaching may take: hundreds of gigabytes may have to be unmapped.
const DETACH_TIME: Duration = Duration::from_secs(120);

impl Agent {
    /// Starts to listen to an agent. `gone` is called when its connection, which it gets, ends, unless the agent was told to detach.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        arrival: Arrival,
        gone: impl FnOnce(ProcessId, &Arc<Link>) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let link = Arc::new(arrival.link);
        let leaving = Arc::new(AtomicBool::new(false));
        let (sender, messages) = channel();
        let (process, reader, left) = (arrival.process, link.clone(), leaving.clone());
        let listen = move || {
            loop {
                match reader.recv(Duration::from_secs(3600)) {
                    Ok((message, _)) => {
                        if sender.send(message).is_err() {
                            break;
                        }
                    }
                    Err(e) if e.is_timeout() => {}
                    Err(_) => break,
                }
            }
            drop(sender);
            if !left.load(Ordering::Acquire) {
                gone(process, &reader);
            }
        };
        std::thread::Builder::new()
            .name("agent-reader".into())
            .spawn(listen)
            .or_fail(FailureKind::Internal, || {
                "cannot listen to the program".into()
            })?;
        Ok(Arc::new(Self {
            process,
            inner_pid: arrival.inner_pid,
            wake_block: arrival.wake_block,
            prepares: arrival.prepares,
            link,
            messages: Mutex::new(messages),
            leaving,
            given_up: AtomicU32::new(0),
        }))
    }

    /// Whether this is the agent at that connection, not another one of its process.
    pub fn is_at(&self, link: &Arc<Link>) -> bool {
        Arc::ptr_eq(&self.link, link)
    }

    /// Tells the agent that a stop is about to begin; it makes memory ready then while its program runs.
    pub fn prepare(&self) {
        if self.prepares {
            // One that is gone is noticed by what follows.
            let _ = self.send(&ToAgent::Prepare);
        }
    }

    /// Stops the program: on success every thread is parked and the GPU idle. Calls `waiting` every other second
    /// until then.
    ///
    /// # Errors
    /// `NotCheckpointable` with the agent's reason; the program then goes on.
    pub fn quiesce(&self, limit: Duration, waiting: &mut dyn FnMut()) -> Result<Stopped> {
        self.quiesce_within(limit, limit + MARGIN, waiting)
    }

    /// As [`Agent::quiesce`]; `patience` is how long to wait for each answer.
    fn quiesce_within(
        &self,
        limit: Duration,
        patience: Duration,
        waiting: &mut dyn FnMut(),
    ) -> Result<Stopped> {
        let deadline_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.send(&ToAgent::Quiesce { deadline_ms })?;
        loop {
            let answer = self.receive_saying(patience, waiting).inspect_err(|_| {
                // If it stops later after all, it goes on at once.
                self.given_up.fetch_add(1, Ordering::Relaxed);
                let _ = self.send(&ToAgent::Resume);
            })?;
            let late = self.given_up.load(Ordering::Relaxed) > 0;
            match answer {
                // The answer to a stop that was given up: the program has gone on, or is about to.
                FromAgent::Quiesced { .. } if late => {}
                FromAgent::Refused { .. } | FromAgent::Resumed if late => {
                    self.given_up.fetch_sub(1, Ordering::Relaxed);
                }
                FromAgent::Resumed => {}
                FromAgent::Quiesced {
                    nanoseconds,
                    parking_nanoseconds,
                    ..
                } => {
                    return Ok(Stopped {
                        parking: Duration::from_nanos(parking_nanoseconds.min(nanoseconds)),
                        whole: Duration::from_nanos(nanoseconds),
                    });
                }
                FromAgent::Refused { reason, hint } => {
                    let message = format!("the program cannot be stopped now: {reason}");
                    return Err(fail(FailureKind::NotCheckpointable, message).hint(hint));
                }
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    /// Lets a stopped program go on that was not detached.
    ///
    /// # Errors
    /// As [`Agent::resumed`].
    pub fn resume(&self, limit: Duration) -> Result<()> {
        self.go_on()?;
        self.resumed(limit)
    }

    /// As [`Agent::resume`], but does not wait for it.
    ///
    /// # Errors
    /// Its connection has ended.
    pub fn go_on(&self) -> Result<()> {
        self.send(&ToAgent::Resume)
    }

    /// Waits until everything shared is mapped; the program's threads wait for [`Agent::go_on`].
    ///
    /// # Errors
    /// It does not say so within `limit`.
    pub fn mapped(&self, limit: Duration) -> Result<()> {
        match self.receive(limit, "come back")? {
            FromAgent::Mapped => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Waits until the program's threads run again.
    ///
    /// # Errors
    /// It does not say so within `limit`.
    pub fn resumed(&self, limit: Duration) -> Result<()> {
        match self.receive(limit, "go on")? {
            FromAgent::Resumed => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Detaches a stopped program: its agent releases everything shared, this connection included.
    ///
    /// # Errors
    /// It does not in time.
    pub fn detach(&self) -> Result<()> {
        self.leaving.store(true, Ordering::Release);
        self.send(&ToAgent::Detach)?;
        let until = Instant::now() + DETACH_TIME;
        // Detached, then the end of the connection: CRIU must not meet a connected socket.
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.messages.lock().recv_timeout(left) {
                Ok(FromAgent::Detached) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(other) => return Err(self.unexpected(&other)),
                Err(RecvTimeoutError::Timeout) => return Err(self.silent("detach")),
            }
        }
    }

    fn send(&self, message: &ToAgent) -> Result<()> {
        let sent = self.link.send(message, &[]);
        sent.map_err(|e| match e.is_closed() {
            true => self.ended(),
            false => from_control(&e),
        })
    }

    /// The answer to Quiesce.
    fn receive_saying(&self, limit: Duration, waiting: &mut dyn FnMut()) -> Result<FromAgent> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.messages.lock().recv_timeout(left.min(SAYING)) {
                Err(RecvTimeoutError::Timeout) if left > SAYING => waiting(),
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Timeout) => return Err(self.silent("stop")),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    fn ended(&self) -> crate::failure::Failure {
        let message = format!("process {} has ended", self.process.pid);
        fail(FailureKind::NotFound, message)
    }

    fn receive(&self, limit: Duration, what: &str) -> Result<FromAgent> {
        self.messages
            .lock()
            .recv_timeout(limit)
            .map_err(|e| match e {
                RecvTimeoutError::Timeout => self.silent(what),
                RecvTimeoutError::Disconnected => self.ended(),
            })
    }

    fn silent(&self, what: &str) -> crate::failure::Failure {
        let message = format!("process {} does not {what} in time", self.process.pid);
        fail(FailureKind::NotCheckpointable, message)
            .hint("is it stopped by a signal or a debugger?")
    }

    fn unexpected(&self, message: &FromAgent) -> crate::failure::Failure {
        let message = format!(
            "process {} gave an answer that does not fit: {message:?}",
            self.process.pid
        );
        fail(FailureKind::Internal, message)
    }
}

#[cfg(test)]
pub(crate) mod scene {
    use std::os::unix::net::UnixStream;

    use fermata_control::agent::{WAKE_IDLE, WAKE_REATTACH, WAKE_SAYS, WAKE_WAITING, wake_block};

    use super::*;
    use crate::looks::scene::soon;
    use crate::session::{Detached, Session};

    /// The wake block of a parked program whose part the test plays.
    pub(crate) struct Block([AtomicU32; wake_block::BYTES / 4]);

    impl Block {
        pub(crate) const fn new() -> Self {
            Self([const { AtomicU32::new(0) }; wake_block::BYTES / 4])
        }

        /// Its word at that place.
        pub(crate) fn word(&self, at: u64) -> &AtomicU32 {
            &self.0[at as usize / 4]
        }

        /// Makes it known as a wake block; returns where the program is.
        pub(crate) fn begin(&'static self) -> Detached {
            let (words, _) = wake_block::MAGIC.as_chunks::<4>();
            for (word, bytes) in self.0.iter().zip(words) {
                word.store(u32::from_le_bytes(*bytes), Ordering::SeqCst);
            }
            Detached {
                process: ProcessId::of(std::process::id()).expect("it runs"),
                wake_block: self.0.as_ptr() as u64,
            }
        }

        /// Has the program wait; returns where.
        pub(crate) fn wait(&'static self) -> Detached {
            let detached = self.begin();
            let says = self.word(wake_block::SAYS);
            says.store(WAKE_SAYS, Ordering::SeqCst);
            let state = self.word(wake_block::STATE);
            state.store(WAKE_WAITING, Ordering::SeqCst);
            detached
        }

        /// Returns when the program has been woken, and has seen it.
        pub(crate) fn woken(&self) {
            let state = self.word(wake_block::STATE);
            let exchange =
                |from, to| state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
            let seen = soon(|| exchange(WAKE_REATTACH, WAKE_IDLE).is_ok(), |seen| *seen);
            assert!(seen, "it is not woken");
        }

        /// Has the program come back as soon as it is woken; returns its end of the connection.
        pub(crate) fn come(&self, session: &Session) -> Connection<ToAgent, FromAgent> {
            self.woken();
            let (arrival, program) = arrival(self.0.as_ptr() as u64);
            let expected = {
                let mut inner = session.lock();
                let member = inner.member(arrival.process);
                member.and_then(|it| it.expected.take())
            };
            let expected = expected.expect("it is waited for");
            expected.send(arrival).expect("taken");
            Connection::new(program.into(), "the daemon")
        }
    }

    /// The agent of this process, whose wake block is at that address; and the program's end of its connection.
    pub(crate) fn arrival(wake_block: u64) -> (Arrival, UnixStream) {
        let (program, link) = UnixStream::pair().expect("sockets");
        let arrival = Arrival {
            link: Connection::new(link.into(), "the program"),
            process: ProcessId::of(std::process::id()).expect("it runs"),
            inner_pid: 1,
            wake_block,
            says_mapped: true,
            prepares: true,
            visible: None,
        };
        (arrival, program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// An agent, and the program's end of its connection.
    fn pair() -> (Arc<Agent>, Connection<ToAgent, FromAgent>) {
        let (arrival, theirs) = scene::arrival(0);
        let program: Connection<ToAgent, FromAgent> = Connection::new(theirs.into(), "the daemon");
        let agent = Agent::start(arrival, |_, _| {}).expect("listens");
        (agent, program)
    }

    #[test]
    fn only_agents_that_know_of_it_are_told_to_prepare() {
        for knows in [true, false] {
            let (mut arrival, theirs) = scene::arrival(0);
            arrival.prepares = knows;
            let program: Connection<ToAgent, FromAgent> =
                Connection::new(theirs.into(), "the daemon");
            let agent = Agent::start(arrival, |_, _| {}).expect("listens");
            agent.prepare();
            agent.send(&ToAgent::Resume).expect("sent");
            let told = program.recv(PATIENCE).expect("told").0;
            assert_eq!(told == ToAgent::Prepare, knows, "{told:?}");
        }
    }

    #[test]
    fn a_program_that_has_ended_is_said_to() {
        for taken in [false, true] {
            let (agent, program) = pair();
            let asked = std::thread::scope(|scope| {
                match taken {
                    // It ends before it is asked, or instead of an answer.
                    false => drop(program),
                    true => {
                        scope.spawn(move || program.recv(PATIENCE).expect("asked"));
                    }
                }
                agent.quiesce_within(PATIENCE, PATIENCE, &mut || ())
            });
            let failure = asked.expect_err("nobody answers");
            assert_eq!(failure.kind, FailureKind::NotFound, "{}", failure.message);
            assert!(
                failure.message.ends_with("has ended"),
                "{}",
                failure.message
            );
        }
    }

    /// A program that is stopped by a debugger while it is to be checkpointed, and goes on during the next attempt.
    #[test]
    fn a_stop_that_was_given_up_is_not_taken_for_the_next() {
        let (agent, program) = pair();
        let silent = agent.quiesce_within(PATIENCE, Duration::ZERO, &mut || ());
        assert!(
            silent
                .expect_err("nobody answers")
                .message
                .contains("in time")
        );
        let quiesced = FromAgent::Quiesced {
            threads: 1,
            nanoseconds: 1,
            parking_nanoseconds: 1,
        };
        let refused = FromAgent::Refused {
            reason: "the second".to_owned(),
            hint: String::new(),
        };
        // Quiesce, Resume, and Quiesce again; what it says to each.
        let answers: [&[FromAgent]; 3] = [&[quiesced], &[FromAgent::Resumed], &[refused]];
        let second = std::thread::scope(|scope| {
            scope.spawn(|| {
                for answer in answers.into_iter() {
                    program.recv(PATIENCE).expect("asked");
                    for message in answer {
                        program.send(message, &[]).expect("sent");
                    }
                }
            });
            agent.quiesce_within(PATIENCE, PATIENCE, &mut || ())
        });
        let failure = second.expect_err("it was refused");
        assert!(
            failure.message.contains("the second"),
            "{}",
            failure.message
        );
    }

    #[test]
    fn a_program_that_takes_long_to_stop_is_said_to() {
        let (agent, program) = pair();
        let (said, saying) = channel();
        let stopped = std::thread::scope(|scope| {
            scope.spawn(move || {
                program.recv(PATIENCE).expect("asked");
                // Its kernels end only after that.
                saying.recv_timeout(PATIENCE).expect("it is said");
                let quiesced = FromAgent::Quiesced {
                    threads: 1,
                    nanoseconds: 3_000_000_000,
                    parking_nanoseconds: 1_000_000_000,
                };
                program.send(&quiesced, &[]).expect("sent");
            });
            let mut waiting = || {
                let _ = said.send(());
            };
            agent.quiesce_within(PATIENCE, PATIENCE, &mut waiting)
        });
        let stopped = stopped.expect("it has stopped");
        assert_eq!(stopped.parking, Duration::from_secs(1));
        assert_eq!(stopped.whole, Duration::from_secs(3));
    }
}
