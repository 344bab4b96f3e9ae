//! The agent thread: it serves the daemon inside the program, parks the program's threads, and detaches and reattaches.
//!
//! ```text
//!   serving ── Quiesce ──► stopped ── Detach ──► detached ── wake block ──► reattaching
//!      ▲                     │ Resume                │                          │
//!      └─────────────────────┴───────────────────────┼───── Welcome ────────────┘
//!                                                    └◄──── failed: wait for the next summons
//! ```
//! When the daemon ends while the program is attached, the program goes on, and the agent looks for the next
//! daemon at the same socket.
//!
//! While threads are parked, the agent allocates only from this library's allocator and calls no function of the C library
//! that may lock.

pub mod begin;
pub mod quiesce;

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::op::{HostKind, Op, ToProgram};
use fermata_control::agent::{FromAgent, ToAgent};
use fermata_control::{ControlError, PROTOCOL, wait};
use fermata_wire::Producer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::link;
use crate::link::callback;
use crate::link::hello::{self, Control};
use crate::link::wake;
use crate::link::wake::Summons;
use crate::notice;
use crate::object::host;
use crate::object::mirror::Kind;
use crate::object::session;
use crate::thread::block;
use crate::thread::gate;
use crate::thread::quiet;
use crate::thread::signal;

/// The interval at which the agent looks for the daemon's summons.
const WAKE_POLL: Duration = Duration::from_millis(1);
/// The interval at which the agent looks for a new daemon.
const RETURN_POLL: Duration = Duration::from_millis(200);
/// The interval at which it checks whether that time has come.
const RETURN_TURN: Duration = Duration::from_millis(40);
/// How long the worker may take to send the regions after a reattachment: as long as the daemon waits. The worker registers
/// each with the driver; its end would be noticed at once.
const REGIONS: Duration = Duration::from_secs(600);

/// The number of the control socket while it is open, for the forked child to close.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// A connection with the daemon. As long as it is open, a forked child closes its copy ([`close_descriptor`]): with a copy
/// open in a child, the daemon would not see that this process has closed it.
pub struct Attached(Control);

impl Attached {
    /// Connects with the daemon that listens at `path`.
    ///
    /// # Errors
    /// As those of [`Control::connect`].
    pub fn connect(path: &str) -> Result<Self, ControlError> {
        let control = Control::connect(path.as_ref(), "fermatad")?;
        DESCRIPTOR.store(control.as_fd().as_raw_fd(), Ordering::Relaxed);
        Ok(Self(control))
    }
}

impl Deref for Attached {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.0
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Before the socket is closed, because the number may then be another descriptor's.
        DESCRIPTOR.store(-1, Ordering::Relaxed);
    }
}

/// Starts the agent. Its thread has every signal blocked.
///
/// # Errors
/// The signal cannot be installed, or no thread can be made.
pub fn start(control: Attached, home: Summons) -> io::Result<()> {
    signal::install().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let builder = std::thread::Builder::new().name("fermata-agent".into());
    block::all(|| builder.spawn(move || run(control, home)))?;
    Ok(())
}

/// In a forked child: closes the child's copy of the control socket.
pub fn close_descriptor() {
    let fd = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: the child's agent thread, its owner, does not exist; nobody uses the number any more.
        unsafe { rustix::io::close(fd) };
    }
}

fn run(control: Attached, mut home: Summons) {
    quiet::is_ours();
    gate::is_stopper();
    let mut control = Some(control);
    let mut looked = Instant::now();
    relieve();
    loop {
        let message = match &control {
            Some(connection) => serve(connection),
            None => {
                // The daemon has ended, the worker has not. Polled: a descriptor that reports the next daemon's socket would have
                // to be known to a dump.
                control = wait::until(Duration::MAX, RETURN_TURN, || {
                    let may_look = looked.elapsed() >= RETURN_POLL && link::current().is_ok();
                    looked = if may_look { Instant::now() } else { looked };
                    may_look.then(|| come_back(&home)).flatten()
                });
                continue;
            }
        };
        let next = match message {
            Ok(ToAgent::Quiesce { deadline_ms }) => stopped(&control, deadline_ms),
            Ok(ToAgent::Prepare) => {
                on_link(Producer::prepare);
                Ok(Next::Serve)
            }
            Ok(_) => Ok(Next::Serve),
            Err(error) => Err(error),
        };
        match next {
            Ok(Next::Serve) => {}
            Ok(Next::Detached) => {
                // Dropped before the wait: a detached program holds no socket.
                drop(control.take());
                if let Some((connection, summons)) = reattach() {
                    control = Some(connection);
                    home = summons;
                }
                relieve();
            }
            Err(_) => {
                control = None;
                tell_worker();
            }
        }
    }
}

/// Does something with the link, if there is one in use.
fn on_link(work: impl FnOnce(&Producer)) {
    if let Ok(link) = link::current() {
        work(&link.producer);
    }
}

/// Work after a resume that need not be done before the threads run.
fn relieve() {
    on_link(Producer::relieve);
}

/// Tells the worker, by any message, that the program runs although its daemon has ended. A worker that loses its daemon
/// during a stop keeps what is queued back, because the program may have been told to detach with it. The program's threads
/// may all wait for what is queued.
fn tell_worker() {
    // A worker that is gone needs no message, and a full ring holds others.
    if let Ok(link) = link::current()
        && matches!(link.producer.await_room(Duration::ZERO), Ok(true))
    {
        let _ = link.producer.post(&Op::Devices);
    }
}

enum Next {
    Serve,
    Detached,
}

/// Waits for the daemon's next message.
fn serve(control: &Control) -> Result<ToAgent, ControlError> {
    loop {
        if wait_for(control, Duration::from_millis(500)) {
            return control
                .recv(Duration::from_secs(1))
                .map(|(message, _)| message);
        }
    }
}

/// Whether the control socket becomes readable within `limit`, less than a second.
fn wait_for(control: &Control, limit: Duration) -> bool {
    let time = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let mut fds = [PollFd::new(control, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&time));
    ready.is_ok() && !fds[0].revents().is_empty()
}

/// From Quiesce to Resume or Detach.
fn stopped(control: &Option<Attached>, deadline_ms: u64) -> Result<Next, ControlError> {
    let Some(control) = control else {
        return Ok(Next::Serve);
    };
    let start = Instant::now();
    let still = match quiesce::quiesce(Duration::from_millis(deadline_ms)) {
        Ok(still) => still,
        Err(quiesce::Refusal { reason, hint }) => {
            on_link(Producer::tidy);
            control.send(&FromAgent::Refused { reason, hint }, &[])?;
            return Ok(Next::Serve);
        }
    };
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let answer = control.send(
        &FromAgent::Quiesced {
            threads: still.threads,
            nanoseconds: nanoseconds(start.elapsed()),
            parking_nanoseconds: nanoseconds(still.parking),
        },
        &[],
    );
    let order = answer.and_then(|()| await_order(control));
    match order {
        Ok(ToAgent::Detach) => {
            // From here on the agent waits for a summons: the block says so to the next daemon, should this one end.
            wake::wait();
            detach();
            // The daemon takes a closed connection for the same answer.
            let _ = control.send(&FromAgent::Detached, &[]);
            Ok(Next::Detached)
        }
        Ok(_) => {
            go_on(control)?;
            on_link(Producer::tidy);
            Ok(Next::Serve)
        }
        Err(error) => {
            gate::open();
            Err(error)
        }
    }
}

fn await_order(control: &Control) -> Result<ToAgent, ControlError> {
    loop {
        match control.recv(Duration::from_secs(1)) {
            Ok((message, _)) => return Ok(message),
            Err(ControlError::Timeout { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Releases ring, socket and memory shared with the worker. Every thread is parked or rests, and the device is idle.
fn detach() {
    if let Some(session) = session::begun() {
        for block in host::shared(&session.memory) {
            let (start, mapped) = block.pages();
            if let Err(errno) = host::detach(start, mapped) {
                notice::write(&format!(
                    "cannot let go of host memory at {start:#x}: {errno}"
                ));
            }
        }
    }
    // Before the ring is released, which the callback thread uses.
    callback::leave();
    if let Err(error) = link::let_go() {
        notice::write(&format!("cannot let go of the ring: {error}"));
    }
}

/// Waits for the daemon's summons and follows it, until that succeeds; then lets the threads run. `None` if the daemon
/// has rejected the program for good: the threads run, and their calls fail.
fn reattach() -> Option<(Attached, Summons)> {
    loop {
        // Polled: the daemon writes the block from outside (`/proc/PID/mem`), which wakes no futex, and a detached program
        // has no descriptor by which the daemon could notify it.
        let come = wait::until(Duration::MAX, WAKE_POLL, || {
            let summons = wake::summons();
            if summons.is_none() {
                wake::wait();
            }
            summons
        });
        let Some(summons) = come else { continue };
        wake::reset();
        match follow(&summons) {
            Ok(control) => return Some((control, summons)),
            Err(reason) => {
                notice::write(&format!("the program could not reattach: {reason}"));
                if reason.starts_with(hello::REFUSED) {
                    gate::open();
                    return None;
                }
            }
        }
    }
}

fn follow(summons: &wake::Summons) -> Result<Attached, String> {
    let control = Attached::connect(&summons.socket).map_err(|error| error.to_string())?;
    let (ends, resume) = hello::attach(&control, &summons.token, true, REGIONS)?;
    link::enter(ends).map_err(|error| error.to_string())?;
    if let Err(reason) = map_regions() {
        detach();
        return Err(reason);
    }
    if !resume && control.send(&FromAgent::Mapped, &[]).is_ok() {
        // If the daemon has ended meanwhile, the program goes on, too: its worker serves it.
        let _ = await_order(&control);
    }
    callback::come_back();
    // From here on the worker executes queued operations.
    on_link(Producer::announce);
    // If the daemon has ended meanwhile, the next receive notices; the program runs.
    let _ = go_on(&control);
    on_link(Producer::tidy);
    Ok(control)
}

/// Reports that the threads run, then lets them run. In this order, because a program may end as soon as it runs, and the
/// daemon must be able to tell that from an end before.
fn go_on(control: &Control) -> Result<(), ControlError> {
    let said = control.send(&FromAgent::Resumed, &[]);
    gate::open();
    said
}

/// A connection to the daemon that has replaced the last one, if there is one.
fn come_back(home: &Summons) -> Option<Attached> {
    let control = Attached::connect(&home.socket).ok()?;
    let back = FromAgent::Back {
        protocol: PROTOCOL,
        pid: std::process::id(),
        token: home.token.clone(),
        wake_block: wake::address(),
        prepares: true,
    };
    control.send(&back, &[]).ok()?;
    Some(control)
}

/// Maps every region that the worker sends.
fn map_regions() -> Result<(), String> {
    let session = session::begun().ok_or("there is no session")?;
    let side = link::side().map_err(|status| format!("error {status}"))?;
    let end = Instant::now() + REGIONS;
    let mut missing = host::shared(&session.memory);
    while Instant::now() < end {
        let got = side.receive_from_worker(Duration::from_millis(200));
        match got.map_err(|error| error.to_string())? {
            Some((ToProgram::Region { address, size }, Some(file))) => {
                let known = missing
                    .iter()
                    .position(|block| block.pages() == (address, size));
                let known =
                    known.ok_or_else(|| format!("unknown region at {address:#x}, {size} bytes"))?;
                let block = missing.swap_remove(known);
                let private = block.kind == Kind::Host(HostKind::Registered);
                host::attach(address, size, file.as_fd(), !private)
                    .map_err(|_| format!("cannot map host memory at {address:#x}"))?;
            }
            Some((ToProgram::Region { address, .. }, None)) => {
                return Err(format!(
                    "the region at {address:#x} came without its memory"
                ));
            }
            Some((ToProgram::Missing { address, size }, _)) => {
                host::send_again(address, size).map_err(|status| {
                    format!(
                        "shared memory at {address:#x} cannot be registered again: error {status}"
                    )
                })?;
            }
            Some((ToProgram::RegionsEnd, _)) => {
                return match missing.first() {
                    None => Ok(()),
                    Some(block) => Err(format!(
                        "the region at {:#x} did not come back",
                        block.start
                    )),
                };
            }
            None => {}
        }
    }
    Err("the worker did not send the regions in time".into())
}

#[cfg(test)]
mod tests {
    use std::fs::{DirBuilder, Permissions, remove_dir_all, set_permissions};
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    use std::os::unix::net::UnixListener;

    use fermata_abi::sys::driver::CUDA_ERROR_UNKNOWN;

    use super::*;

    /// The test takes the part of the daemon, which answers while the gate is still closed.
    #[test]
    fn a_child_knows_the_control_socket_before_the_daemon_lets_the_threads_run() {
        let folder = std::env::temp_dir().join(format!("fermata-agent-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&folder).expect("made");
        let path = folder.join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        set_permissions(&path, Permissions::from_mode(0o600)).expect("protected");
        let daemon = std::thread::spawn(move || {
            let (socket, _) = listener.accept().expect("the agent");
            let agent =
                fermata_control::Connection::<FromAgent, ToAgent>::new(socket.into(), "agent");
            agent.recv(Duration::from_secs(60)).expect("Hello");
            let known = DESCRIPTOR.load(Ordering::Relaxed);
            let reject = ToAgent::Reject {
                status: CUDA_ERROR_UNKNOWN,
                reason: "a test".into(),
            };
            agent.send(&reject, &[]).expect("sent");
            known
        });
        let summons = Summons {
            socket: path.to_string_lossy().into_owned(),
            token: "token".into(),
        };
        let refused = follow(&summons).err().expect("refused");
        assert!(refused.starts_with(hello::REFUSED), "{refused}");
        assert!(daemon.join().expect("an answer") >= 0);
        assert_eq!(DESCRIPTOR.load(Ordering::Relaxed), -1);
        let _ = remove_dir_all(&folder);
    }
}
