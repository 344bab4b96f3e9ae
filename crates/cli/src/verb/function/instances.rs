//! Instances of a function: leased sessions of the daemon, each in a network of its own.
//!
//! The connection that asked for a session is its lease: when this command ends, however it ends, so do its instances. A
//! daemon that dies leaves them running; they are ended through the next one.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fermata_control::user::{
    self, ArrivalStand, DeviceChoice, Endpoint, FromDaemon, Session, SessionState, Verb,
};
use fermata_function::{Host, Instance, Link, StartError};
use parking_lot::Mutex;
use rustix::process::Signal;

use super::network::Network;
use crate::daemon::{Daemon, question, unexpected};
use crate::failure::{Failure, NOT_FOUND};
use crate::printer::Printer;
use crate::progress::Progress;

/// How long a program that is taken back to its image is waited for.
const BACK_TIME: Duration = Duration::from_secs(60);
/// How often it is looked at.
const TURN: Duration = Duration::from_millis(50);

/// Starts instances of one function.
pub struct Instances {
    /// The image's folder.
    pub image: PathBuf,
    /// Where its program listens.
    pub listens: Endpoint,
    /// Which device they get.
    pub device: DeviceChoice,
    /// Their priority; none for that of the program when the image was taken.
    pub priority: Option<i32>,
    /// Tells the user.
    pub printer: Printer,
}

impl Host for Instances {
    fn start(&self) -> Result<Box<dyn Instance>, StartError> {
        let started = self.restore().map_err(|failure| self.explain(failure))?;
        Ok(Box::new(started))
    }

    fn warn(&self, text: &str) {
        self.printer.warn(text);
    }
}

impl Instances {
    /// Has workers load the image's modules, so that the first request finds them; another device's would not be used.
    pub fn warm(&self) {
        if self.device == DeviceChoice::Auto {
            let verb = Verb::Warm {
                image: self.image.as_path().into(),
                trust_owner: false,
                gpus: None,
            };
            // Of what does not work here, the first start tells.
            let _ = question(&verb, &Printer::new(false, true));
        }
    }

    fn restore(&self) -> Result<Restored, Failure> {
        let verb = Verb::Restore(user::Restore {
            device: self.device,
            own_network: true,
            leased: true,
            priority: self.priority,
            ..user::Restore::of(self.image.as_path())
        });
        let daemon = Daemon::reach(&self.printer)?;
        let silent = Printer::new(false, true);
        let restored = match daemon.ask(verb, &Progress::new(&silent))? {
            FromDaemon::Restored(restored) => restored,
            other => return Err(unexpected(&other)),
        };
        let session = restored.sessions.into_iter().next();
        let network = session.as_ref().and_then(|it| Network::of(it.pid?).ok());
        let (Some(session), Some(network)) = (session, network) else {
            let text = "the restored program has ended at once";
            return Err(Failure::new(crate::failure::USER, text)
                .hint("`fermata ps` says why, `fermata logs` what it has printed"));
        };
        Ok(Restored {
            name: session.name,
            listens: self.listens.clone(),
            place: Mutex::new((session.pid, network)),
            lease: Mutex::new(daemon),
            printer: silent,
        })
    }

    fn explain(&self, failure: Failure) -> StartError {
        let (message, hint) = match failure.status {
            NOT_FOUND => (
                format!("image `{}` is gone", self.image.display()),
                "make the function again with `fermata function create --replace`".to_owned(),
            ),
            _ => (failure.message, failure.hint),
        };
        StartError { message, hint }
    }
}

/// An instance.
struct Restored {
    name: String,
    listens: Endpoint,
    /// Its program and that one's network; a rollback changes both.
    place: Mutex<(Option<u32>, Network)>,
    /// Ends the session when it is closed.
    lease: Mutex<Daemon>,
    printer: Printer,
}

impl Restored {
    fn session(&self) -> Option<Session> {
        let name = self.name.clone();
        match question(&Verb::Session { name }, &self.printer) {
            Ok(FromDaemon::Session(session)) => Some(session),
            _ => None,
        }
    }
}

impl Instance for Restored {
    fn name(&self) -> &str {
        &self.name
    }

    fn connect(&self) -> io::Result<Link> {
        self.place.lock().1.connect(&self.listens)
    }

    fn came_back(&self) -> bool {
        let until = Instant::now() + BACK_TIME;
        loop {
            let Some(session) = self.session() else {
                return false;
            };
            let stand = session.arrival.as_ref().map(|it| it.stand);
            let mut place = self.place.lock();
            match (session.state, stand) {
                (SessionState::Running, Some(ArrivalStand::RolledBack))
                    if session.pid != place.0 =>
                {
                    let network = session.pid.and_then(|pid| Network::of(pid).ok());
                    let Some(network) = network else {
                        return false;
                    };
                    *place = (session.pid, network);
                    return true;
                }
                (_, Some(ArrivalStand::RollingBack)) if Instant::now() < until => {}
                _ => return false,
            }
            drop(place);
            // Polled: no message of the daemon tells that a program was taken back. Its end ends the pause.
            self.lease.lock().pause(TURN);
        }
    }

    fn end(&self) {
        let verb = Verb::Kill {
            name: self.name.clone(),
            signal: Signal::KILL.as_raw(),
        };
        let progress = Progress::new(&self.printer);
        let ended = self.lease.lock().ask(verb.clone(), &progress);
        // The daemon has ended: the next one has found the session. One that has ended by itself is an error, too.
        if ended.is_err_and(|failure| failure.hung_up)
            && let Ok(daemon) = Daemon::reach(&self.printer)
        {
            let _ = daemon.ask(verb, &progress);
        }
    }
}
