//! Save, Begin and Vacate: saves a session in a stop, whole or as the beginning of a capture that goes on while the
//! program runs; refuses sessions that cannot be saved; frees the device memory of one that has been saved.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fermata_abi::op::loses_device;
use fermata_control::worker::{Failure, FailureKind, FromWorker, LOAD_FAILED, Totals};
use fermata_engine::{Elsewhere, EngineError, Site, Summary, protocol};
use fermata_store::{ChunkId, Store};
use fermata_wire::claims::Claims;

use super::account::Account;
use super::serving::on_server;
use super::{Reporter, Worker, totals};
use crate::failure::{device_lost, failure, from_engine, of_session};

/// What other workers have claimed.
#[derive(Debug)]
struct Others(Claims);

impl Elsewhere for Others {
    fn is_mine(&self, id: &ChunkId) -> bool {
        self.0.claim(&id.0)
    }

    fn is_of_another(&self, id: &ChunkId) -> bool {
        self.0.is_of_another(&id.0)
    }
}

impl Worker {
    /// Sets the folder in which the session's workers find each other; a session that has memory of others needs it. With a number and
    /// a table, chunks of the next image that others have, too, are stored by one of them.
    pub(super) fn share(
        &mut self,
        folder: PathBuf,
        number: Option<u16>,
        fds: Vec<OwnedFd>,
    ) -> Result<FromWorker, Failure> {
        self.look_after_program();
        // Without it this worker stores all of its own.
        let table = number.zip(fds.first());
        let claims = table.and_then(|(number, fd)| Claims::open(fd.as_fd(), number).ok());
        let share = move |site: &mut Site| {
            site.live.elsewhere = claims.map(|it| Arc::new(Others(it)) as Arc<dyn Elsewhere>);
            site.live.sharing.set_folder(&folder, LOAD_FAILED);
            site.live.check_shared(&mut site.session)
        };
        let shared = match (&mut self.site, &self.serving) {
            (Some(site), _) => share(site),
            (None, Some(serving)) => on_server(serving, move |server| share(&mut server.site))?,
            (None, None) => return self.describe(),
        };
        shared.map_err(|error| {
            let mut failure = from_engine(&error);
            failure.hint =
                "let the process close it (`cuIpcCloseMemHandle`), or keep its owner running"
                    .to_owned();
            failure
        })?;
        Ok(FromWorker::Sharing)
    }

    /// Begins a capture of the session as it is now.
    pub(super) fn begin(&mut self, image: &Path) -> Result<FromWorker, Failure> {
        self.sound()?;
        self.idle("Begin")?;
        let Some(mut site) = self.site.take() else {
            return self.describe();
        };
        site.live.forget_current();
        let begun = self.capturing.begin(&mut site, image);
        site.live.forget_current();
        self.site = Some(site);
        let (gate, answer) = begun?;
        self.gate = Some(gate);
        Ok(answer)
    }

    /// Closes a gate that no attachment has taken.
    pub(super) fn close_gate(&mut self) {
        if let (Some(mut gate), Some(site)) = (self.gate.take(), self.site.as_mut()) {
            site.live.forget_current();
            gate.close(site);
            site.live.forget_current();
        }
    }

    /// A session whose data is still coming cannot be saved.
    pub(super) fn whole(&self) -> Result<(), Failure> {
        if self.background.as_ref().is_some_and(|it| !it.is_complete()) {
            return Err(failure(
                FailureKind::Locked,
                "the session's data is still coming from its image",
                "try again when everything is there",
            ));
        }
        Ok(())
    }

    /// A session whose context has been killed by a fault cannot be saved.
    fn sound(&self) -> Result<(), Failure> {
        match self.faults.any_fatal() {
            None => Ok(()),
            Some(error) => {
                let message = format!(
                    "a fault has ended the program's GPU context: {}",
                    error.text
                );
                if loses_device(error.code) {
                    return Err(device_lost(message));
                }
                let hint = "restore an earlier image";
                Err(failure(FailureKind::NotCheckpointable, message, hint))
            }
        }
    }

    pub(super) fn save(&mut self, store: &Path, image: &Path) -> Result<FromWorker, Failure> {
        self.sound()?;
        self.idle("Save")?;
        self.wait_for_behind()?;
        self.whole()?;
        let Some(mut site) = self.site.take() else {
            return self.describe();
        };
        site.live.forget_current();
        let mut account = Account::default();
        let captured = {
            let report = Reporter::new(&self.daemon);
            let progress = |done, total| report.tell(done, total);
            let capturing = &mut self.capturing;
            Store::open(store, true)
                .map_err(Into::into)
                .and_then(|store| Ok((store, capturing.take_ahead()?)))
                .and_then(|(store, ahead)| {
                    if let Some(ahead) = &ahead {
                        account = Account::of(&ahead.stall, &ahead.validation);
                    }
                    protocol::stop::capture(&mut site, &store, ahead, image, &progress)
                })
        };
        site.live.forget_current();
        let summary = Summary::of(&site.session);
        self.site = Some(site);
        let captured = captured.map_err(|error| of_session(&error))?;
        let steps = captured.steps().to_vec();
        let thread = std::thread::Builder::new()
            .name("finish".to_owned())
            .spawn(move || captured.finish());
        let failed = |error| {
            let message = format!("cannot start a thread that finishes the image: {error}");
            failure(FailureKind::Internal, message, "")
        };
        self.behind = Some(thread.map_err(failed)?);
        self.account = account;
        Ok(FromWorker::Captured(Totals {
            steps,
            ..totals(self.names.clone(), summary, &self.account)
        }))
    }

    /// Frees the device memory, before this process ends.
    pub(super) fn vacate(&mut self) -> Result<FromWorker, Failure> {
        self.idle("Vacate")?;
        self.wait_for_behind()?;
        let Some(mut site) = self.site.take() else {
            return self.describe();
        };
        site.live.forget_current();
        let vacated = site.live.vacate(&site.session);
        self.vacated = Some(site);
        if vacated.is_ok() {
            // No common memory is mapped any more.
            self.guard = None;
        }
        vacated.map_err(|error| of_session(&error))?;
        Ok(FromWorker::Vacated)
    }

    pub(super) fn finish(&mut self) -> Result<FromWorker, Failure> {
        let missing = || failure(FailureKind::Internal, "Finish without a Save", "");
        let summary = self.wait_for_behind()?.ok_or_else(missing)?;
        let summary = summary.map_err(|error| of_session(&error))?;
        Ok(FromWorker::Saved(totals(
            self.names.clone(),
            summary,
            &self.account,
        )))
    }

    /// Waits for the rest of the last Save; `None` if there was nothing left to do.
    pub(super) fn wait_for_behind(
        &mut self,
    ) -> Result<Option<Result<Summary, EngineError>>, Failure> {
        let Some(thread) = self.behind.take() else {
            return Ok(None);
        };
        // Each of its steps has a deadline.
        let outcome = thread.join().map_err(|_| {
            let message = "the thread that finishes the image has panicked";
            failure(FailureKind::Internal, message, "")
        })?;
        Ok(Some(outcome))
    }
}
