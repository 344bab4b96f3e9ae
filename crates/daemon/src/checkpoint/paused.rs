//! Takes an image of a paused session: CRIU dumps its parked processes, and its GPU data is copied from its entry.
//!
//! ```text
//!  CRIU: dump ─► parts and chunks: entry ─► draft, store ─► commit       the session stays paused
//! ```
//! The entry is only read, so after a failure the session is paused as before.

use std::path::PathBuf;

use fermata_control::user::{Checkpointed, Mode, Then, Totals};
use fermata_store::{PartDigests, Store};
use parking_lot::Mutex;

use super::parts::Parts;
use super::stop::all_there;
use super::taking::Taking;
use crate::failure::{Result, from_store};
use crate::images::record::{AgentRecord, Record};
use crate::pause::data::{Entry, EntryPart};
use crate::proc;
use crate::progress::Report;
use crate::session::Member;

impl Taking<'_> {
    /// Takes the image.
    pub(super) fn paused(
        mut self,
        entry: Entry,
        then: Then,
        report: &mut Report<'_>,
    ) -> Result<Checkpointed> {
        // A process that has ended meanwhile is in no image.
        let living = entry.all().filter(|(part, _)| !part.process.is_ending());
        let living: Vec<_> = living.map(|(part, from)| (part.clone(), from)).collect();
        for _ in 1..living.len() {
            let folder = self.draft.add_part().map_err(|e| from_store(&e))?;
            self.folders.push(folder);
        }
        let record = self.record_of(&living);
        let ahead = self.ahead(None, report)?;
        let dumped = self.phases.time("host", || self.host(&record, ahead))?;
        all_there(&self.draft.host(), &record)?;
        let device = self
            .phases
            .time("device", || self.copy(&entry, living, report))?;
        self.phases
            .moved("device", device.device_bytes + device.host_bytes);
        // How long the program has stood still before is no matter of the image.
        let parts = Parts {
            copy: dumped.copy,
            held: dumped.held,
            device,
            paused: Some(entry),
            resumed: true,
            saved: true,
            ..Parts::new(record, Mode::Stop)
        };
        self.finish(parts, then, report)
    }

    /// What a restore must know: its processes are parked, and have no agent that could tell.
    fn record_of(&self, parts: &[(EntryPart, PathBuf)]) -> Record {
        let record = self.record(&[]);
        let (places, soft): (Vec<_>, _) = {
            let inner = self.session.lock();
            let place = |it: &Member| Some((it.detached?, it.visible.clone()));
            (
                inner.members.iter().filter_map(place).collect(),
                inner.soft(),
            )
        };
        let agent = |(part, _): &(EntryPart, PathBuf)| {
            let mut places = places.iter();
            let place = places.find(|(it, _)| it.process == part.process);
            let pid = part.process.pid;
            AgentRecord {
                pid: proc::inner_pid(pid).unwrap_or(pid),
                wake_block: place.map_or(0, |(it, _)| it.wake_block),
                kernels_first: part.kernels_first,
                visible: place.and_then(|(_, visible)| visible.clone()),
            }
        };
        let mut agents = parts.iter().map(agent);
        let first = agents.next();
        Record {
            kernels_first: first.as_ref().is_some_and(|it| it.kernels_first),
            agent: first,
            others: agents.collect(),
            soft,
            ..record
        }
    }

    /// Copies its parts, and their chunks into the store of images.
    fn copy(
        &self,
        entry: &Entry,
        parts: Vec<(EntryPart, PathBuf)>,
        report: &mut Report<'_>,
    ) -> Result<Totals> {
        let from = Store::open(&entry.data.folder, false).map_err(|e| from_store(&e))?;
        let to = self.daemon.store()?;
        let parts: Vec<_> = parts
            .into_iter()
            .zip(&self.folders)
            .map(|((part, from), to)| {
                let digests = PartDigests {
                    state: part.state,
                    chunks: part.chunks,
                };
                (from, to.clone(), digests)
            })
            .collect();
        let report = Mutex::new(report);
        let progress = |done, total| report.lock()("device", done, total);
        let copied = to
            .copy_parts(&from, &parts, &progress)
            .map_err(|e| from_store(&e))?;
        Ok(Totals {
            written_bytes: copied.new_bytes,
            ..entry.totals.clone()
        })
    }
}
