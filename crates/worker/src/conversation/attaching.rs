//! Attach and Detach: hands the session to the thread that serves a program, and takes it back.
//!
//! The session belongs either to the conversation ([`Worker::idle`]) or to that thread. It is handed over only once the
//! thread exists, and returns when serving ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fermata_control::worker::{Failure, FailureKind, FromWorker};
use fermata_engine::{Site, Thread};
use fermata_wire::{Consumer, Side};

use super::Worker;
use super::serving::Serving;
use crate::failure::{failure, full_text};
use crate::output;
use crate::scratch::Staging;
use crate::server::{Ended, Held, Requests, Server};
use crate::threads::serving_thread;

/// The longest wait for the server to answer or stop.
const SERVER: Duration = Duration::from_secs(60);
/// How often a server that has to stop is woken.
const KICK: Duration = Duration::from_micros(200);

impl Worker {
    pub(super) fn attach(&mut self, fds: Vec<OwnedFd>) -> Result<FromWorker, Failure> {
        let internal = |message: String| failure(FailureKind::Internal, message, "");
        self.look_after_program();
        if self.serving.is_some() {
            return Err(internal("a program is attached already".to_owned()));
        }
        if self.preloaded.is_some() {
            let message = "this worker waits for the restore of an image".to_owned();
            return Err(internal(message));
        }
        let [ring, side, stdout]: [OwnedFd; 3] = fds
            .try_into()
            .map_err(|_| internal("Attach comes with three descriptors".to_owned()))?;
        let side = Arc::new(Side::new(side));
        drop(self.place.take());
        if let Some(thread) = self.beside.take() {
            self.staging = thread.join().ok();
        }
        let kept = self.take_staging(ring.as_fd());
        let consumer = match &kept {
            Some(staging) => Consumer::again(staging.area(), Arc::clone(&side)),
            None => Consumer::open(ring.as_fd(), Arc::clone(&side)),
        };
        let consumer = consumer.map_err(|error| {
            internal(format!(
                "cannot attach to the program's ring: {}",
                full_text(&error)
            ))
        })?;
        output::to_program(stdout.as_fd())
            .map_err(|error| internal(format!("cannot redirect output: {error}")))?;
        let requests = Arc::new(Requests::default());
        let own = Arc::clone(&requests);
        let (hand_over, taken) = mpsc::channel::<(Server, Consumer)>();
        let serve = move || {
            let (server, consumer) = taken.recv().ok()?;
            Some(server.run(consumer, &own))
        };
        // The thread is started first: if that fails, the session stays here, and the program can be attached later.
        let thread = Thread::start(serving_thread(), serve)
            .map_err(|error| internal(format!("cannot start a thread: {error}")))?;
        let site = self
            .site
            .take()
            .ok_or_else(|| internal("Attach before Open".to_owned()))?;
        self.used = true;
        if let Some(tier) = &self.tier {
            tier.serve();
        }
        let kicker = consumer.kicker();
        let faults = std::mem::take(&mut self.faults);
        let held = Held {
            site,
            faults,
            staging: kept.unwrap_or_else(|| Staging::new(consumer.staging())),
            scratch: std::mem::take(&mut self.scratch),
            guard: self.guard.take(),
        };
        let server = Server::new(
            held,
            &consumer,
            side,
            Arc::clone(&self.callbacks),
            self.devices.clone(),
            self.gate.take(),
        );
        // The thread waits for this.
        let _ = hand_over.send((server, consumer));
        self.serving = Some(Serving {
            thread,
            requests,
            kicker,
        });
        Ok(FromWorker::Attached)
    }

    /// The staging area of the last attachment if it belongs to `ring`; any other one is unregistered.
    fn take_staging(&mut self, ring: BorrowedFd<'_>) -> Option<Staging> {
        let mut staging = self.staging.take()?;
        if staging.area().is_of(ring) {
            return Some(staging);
        }
        if let Some(site) = &mut self.site {
            // A dead context cannot unregister it; the process's end does.
            let _ = site.live.at_home(|driver| staging.unregister(driver));
            site.live.forget_current();
        }
        None
    }

    pub(super) fn detach(&mut self) -> Result<FromWorker, Failure> {
        if let Some(serving) = &self.serving {
            serving.requests.stop.store(true, Ordering::Release);
            serving.kicker.kick();
            let until = Instant::now() + SERVER;
            while !serving.thread.ends_within(KICK) {
                if Instant::now() >= until {
                    return Err(failure(
                        FailureKind::Internal,
                        "the server does not stop",
                        "",
                    ));
                }
                serving.kicker.kick();
            }
        }
        self.look_after_program();
        Ok(FromWorker::Detached)
    }

    /// Takes the session back when serving has ended.
    pub(super) fn look_after_program(&mut self) {
        if !self
            .serving
            .as_ref()
            .is_some_and(|serving| serving.thread.is_done())
        {
            return;
        }
        let Some(serving) = self.serving.take() else {
            return;
        };
        let lost = |reason: String| FromWorker::Lost { reason };
        let told = match serving.thread.join() {
            Ok(Some((held, ended))) => {
                self.site = Some(held.site);
                self.faults = held.faults;
                self.staging = Some(held.staging);
                self.parked = matches!(ended, Ended::Detached | Ended::ProgramLeft);
                self.scratch = held.scratch;
                self.guard = held.guard;
                match ended {
                    Ended::Detached | Ended::ProgramLeft | Ended::ProgramGone => return,
                    Ended::Unfinished => lost(
                        "operations of the program were still waiting when it let go".to_owned(),
                    ),
                    Ended::Broken(error) => lost(format!(
                        "the program's ring is broken: {}",
                        full_text(&error)
                    )),
                }
            }
            Ok(None) | Err(_) => lost("the serving thread has panicked".to_owned()),
        };
        // The next receive notices a daemon that is gone.
        let _ = self.daemon.send(&told, &[]);
    }

    pub(super) fn idle(&mut self, operation: &str) -> Result<&mut Site, Failure> {
        self.look_after_program();
        if self.serving.is_some() {
            return Err(failure(
                FailureKind::Internal,
                format!("{operation} while the program is attached"),
                "",
            ));
        }
        let missing = || {
            failure(
                FailureKind::Internal,
                format!("{operation} without a session"),
                "",
            )
        };
        self.site.as_mut().ok_or_else(missing)
    }
}
