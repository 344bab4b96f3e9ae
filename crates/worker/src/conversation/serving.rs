//! The handle of the thread that serves a program, and the errands that it runs between two operations.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fermata_control::worker::{self as control, Failure, FailureKind, FromWorker};
use fermata_engine::Thread;
use fermata_wire::Kicker;

use crate::failure::failure;
use crate::server::{Ended, Held, Requests, Server};

/// The longest wait for the server to run an errand.
const ERRAND: Duration = Duration::from_secs(60);
/// Between two looks at whether there still is a server.
const TURN: Duration = Duration::from_millis(20);

/// A program that is being served, and the thread that does it.
pub(super) struct Serving {
    pub(super) thread: Thread<Option<(Held, Ended)>>,
    pub(super) requests: Arc<Requests>,
    pub(super) kicker: Kicker,
}

/// The failure of a request to a program that has ended.
pub(super) fn ended() -> Failure {
    failure(FailureKind::NotFound, "the program has ended", "")
}

/// Has the serving thread run `work` between two operations; waits for the result.
pub(super) fn on_server<T: Send + 'static>(
    serving: &Serving,
    work: impl FnOnce(&mut Server) -> T + Send + 'static,
) -> Result<T, Failure> {
    let (sender, receiver) = mpsc::channel();
    let errand = Box::new(move |server: &mut Server| {
        // The caller may have given up.
        let _ = sender.send(work(server));
    });
    serving.requests.errands.lock().push(errand);
    serving.kicker.kick();
    let until = Instant::now() + ERRAND;
    loop {
        // The thread may have ended with its program before it saw the errand.
        let over = serving.thread.is_done();
        match receiver.recv_timeout(TURN) {
            Ok(done) => return Ok(done),
            Err(_) if over => return Err(ended()),
            Err(_) if Instant::now() < until => {}
            Err(_) => {
                let silent = "the server does not answer";
                return Err(failure(FailureKind::Internal, silent, ""));
            }
        }
    }
}

/// Ends the hold of a daemon that has ended.
pub(super) fn forsake(serving: &Serving) -> Result<(), Failure> {
    on_server(serving, Server::forsake)
}

/// Holds streams of the program that is served.
pub(super) fn hold(serving: Option<&Serving>, asked: control::Hold) -> Result<FromWorker, Failure> {
    let serving = serving.ok_or_else(ended)?;
    let holding = on_server(serving, move |server| {
        let holding = server.hold(asked);
        server.site.live.forget_current();
        holding
    })?;
    Ok(FromWorker::Holding(holding))
}
