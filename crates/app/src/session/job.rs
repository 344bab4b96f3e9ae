//! Making one checkpoint, on a thread of its own.
//!
//! ```text
//!  draft ─► capture ─► packs published ─► image has its name ─► other levels ─► old ones removed
//!              └─ captured                    └─ stored            └─ complete
//! ```
//! Everything before the image has its name leaves nothing behind when it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use fermata_store::image::{
    BufferId, CHUNKS, ChunkTableWriter, Draft, Image, Manifest, SessionTotals,
};
use fermata_store::{ChunkId, Totals};

use crate::buffer::PlainPool;
use crate::capture::device_staging::Moved;
use crate::capture::offers::{Node, Offer};
use crate::capture::run::CapturePlan;
use crate::capture::{Captured, capture};
use crate::checkpoint::layout::Layout;
use crate::checkpoint::record::{KEY, Record};
use crate::checkpoint::site::Site;
use crate::gpu::Gpu;
use crate::levels::level::Newest;
use crate::levels::object::Objects;
use crate::levels::peers::{Behind, Peers};
use crate::levels::shared::copy;
use crate::target::Target;
use crate::{AppError, Config, Level, Result};

/// How far a checkpoint is.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The other ranks are to be told this; the answer is what all of them say. At most once, before `Captured`.
    Offers(Vec<Offer>, SyncSender<Result<Vec<Vec<Offer>>>>),
    /// Nothing looks at the program's memory any more.
    Captured,
    /// It is there at the first level.
    Stored,
    /// It is there, at every level asked for.
    Complete(Outcome),
}

/// Everything a checkpoint needs.
pub(crate) struct Job {
    pub(crate) config: Config,
    pub(crate) record: Record,
    pub(crate) targets: Vec<Target>,
    pub(crate) local: Site,
    /// Where else it goes.
    pub(crate) further: Vec<Site>,
    /// The bucket it goes to, if it does.
    pub(crate) objects: Option<Arc<Objects>>,
    /// Whether ranks share the room on their devices.
    pub(crate) shares: bool,
    /// How it gets to other ranks, if that happens behind the program.
    pub(crate) behind: Option<Behind>,
    pub(crate) gpu: Option<Arc<Gpu>>,
    pub(crate) plain: PlainPool,
    /// Set when the program waits for it no more: then there shall be no checkpoint.
    pub(crate) abandoned: Arc<AtomicBool>,
    /// What this rank and others keep for each other.
    pub(crate) peers: Option<Arc<Peers>>,
    /// By level, the newest checkpoint that all ranks have; `None` for a single rank, which has what is there.
    pub(crate) complete: Option<Newest>,
}

/// What a checkpoint did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub(crate) totals: Totals,
    pub(crate) seconds: f64,
    pub(crate) moved: Moved,
}

/// A checkpoint at the first level.
struct Local {
    image: Image,
    totals: Totals,
    moved: Moved,
}

impl Job {
    /// Makes the checkpoint, then removes old ones: an error after `Complete` is about those.
    pub(crate) fn run(&self, progress: &Sender<Progress>) -> Result<()> {
        let start = Instant::now();
        let local = self.local(progress);
        let stored = local.is_ok();
        if stored {
            // Here and below: the program may have given up waiting; the checkpoint is good all the same.
            let _ = progress.send(Progress::Stored);
        }
        let made = self.levels(local);
        if let Ok(Local { totals, moved, .. }) = &made {
            let _ = progress.send(Progress::Complete(Outcome {
                totals: *totals,
                seconds: start.elapsed().as_secs_f64(),
                moved: *moved,
            }));
        }
        let full = matches!(&made, Err(e) if e.is_full());
        let freed = self.free(stored, made.is_ok());
        if full {
            // The next one finds as much room as can be had; why this one failed is said below.
            let mut sites = std::iter::once(&self.local).chain(&self.further);
            let _ = sites.try_for_each(Site::collect);
        }
        made.and(freed)
    }

    /// Gives the checkpoint to the other levels asked for.
    fn levels(&self, local: Result<Local>) -> Result<Local> {
        let local = match &self.behind {
            Some(behind) => behind.run(local)?,
            None => local?,
        };
        for site in &self.further {
            copy(&local.image, &self.local, site, self.behind.as_ref())?;
        }
        if let Some(objects) = &self.objects {
            let sequence = self.record.sequence;
            objects.upload(&local.image, &self.local, sequence, self.behind.as_ref())?;
        }
        Ok(local)
    }

    /// Removes old checkpoints, at each level up to the newest that all ranks have there. `stored` says whether
    /// this one is there at the first level, `made` whether it is at all levels asked for.
    fn free(&self, stored: bool, made: bool) -> Result<()> {
        let keep = self.config.keep_last as usize;
        let complete = |level: Level, there: bool| match &self.complete {
            Some(complete) => complete.at(level),
            None if there => self.record.sequence,
            None => 0,
        };
        let local = complete(Level::Local, stored);
        match &self.peers {
            None => self.local.prune(local, keep)?,
            Some(peers) => {
                let spread = [Level::Partner, Level::Erasure].map(|l| complete(l, made));
                let mut held = peers.prune(spread[0], spread[1])?;
                held.extend(spread);
                self.local.prune_own(local, keep, &held)?;
            }
        }
        if !made {
            return Ok(());
        }
        let mut further = self.further.iter();
        further.try_for_each(|site| site.prune(complete(Level::Shared, made), keep))?;
        match &self.objects {
            Some(objects) => objects.prune(complete(Level::Object, made), keep),
            None => Ok(()),
        }
    }

    fn local(&self, progress: &Sender<Progress>) -> Result<Local> {
        let write = AppError::store("write the checkpoint");
        let start = Instant::now();
        let store = &self.local.store;
        let name = Layout::name(self.record.sequence);
        let draft = Draft::create(store, &self.local.layout.rank, &name).map_err(&write)?;
        let writer = store.begin().map_err(&write)?;
        let tell = |mine| self.tell(mine, progress);
        let plan = CapturePlan {
            targets: &self.targets,
            block: u64::from(self.config.block_bytes),
            host_on_gpu: self.config.hash_host_on_gpu,
            verify: self.config.verify_blocks,
            limit: self.limit(),
            // Room on devices only helps a program that goes on before everything is written.
            stage: match self.config.background {
                true => self.config.stage_bytes,
                false => 0,
            },
            schedule: self.config.stage_schedule,
            tell: self.shares.then_some(&tell),
        };
        let mut stopped = 0.0;
        let Captured { names, moved } =
            capture(&plan, &writer, self.gpu.as_deref(), &self.plain, || {
                stopped = start.elapsed().as_secs_f64();
                // The program may have given up waiting; then the checkpoint is dropped below.
                let _ = progress.send(Progress::Captured);
            })?;
        let totals = writer.finish().map_err(&write)?;
        self.table(&names)?
            .write(&draft.path().join(CHUNKS))
            .map_err(&write)?;
        if self.abandoned.load(Ordering::Acquire) {
            return Err(AppError::Deadline {
                what: "capturing the program's data",
                seconds: self.config.deadline,
            });
        }
        let manifest = self.manifest(&totals, start.elapsed().as_secs_f64(), stopped)?;
        Ok(Local {
            image: draft.commit(manifest).map_err(&write)?,
            totals,
            moved,
        })
    }

    fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.config.deadline)
    }

    /// Has the program's thread, to which the message passing belongs, tell the other ranks what this one offers.
    fn tell(&self, mine: Vec<Offer>, progress: &Sender<Progress>) -> Result<Node> {
        let late = |()| AppError::Deadline {
            what: "hearing what the other ranks need",
            seconds: self.config.deadline,
        };
        let (reply, heard) = sync_channel(1);
        let asked = progress.send(Progress::Offers(mine, reply)).map_err(drop);
        asked.map_err(late)?;
        let all = heard.recv_timeout(self.limit()).map_err(drop);
        Ok(Node::of(all.map_err(late)??, self.record.rank as usize))
    }

    fn table(&self, names: &[Vec<ChunkId>]) -> Result<ChunkTableWriter> {
        let mut table = ChunkTableWriter::new();
        for (target, names) in self.targets.iter().zip(names) {
            let buffer = BufferId(u64::from(target.variable.id.0));
            let blocks = target.blocks(u64::from(self.config.block_bytes));
            for ((offset, bytes), id) in blocks.zip(names) {
                table
                    .push(buffer, offset, bytes as u32, *id)
                    .map_err(AppError::store("write the checkpoint"))?;
            }
        }
        Ok(table)
    }

    fn manifest(&self, totals: &Totals, seconds: f64, stopped: f64) -> Result<Manifest> {
        let record =
            serde_json::to_value(&self.record).map_err(|_| AppError::Fault("a record's text"))?;
        Ok(Manifest {
            fermata_version: env!("CARGO_PKG_VERSION").into(),
            session: self.record.job.clone(),
            mode: "application".into(),
            totals: SessionTotals {
                allocations: self.targets.len() as u64,
                device_bytes: totals.bytes,
                chunks: totals.chunks,
                written_bytes: totals.new_bytes,
                seconds,
                stopped_seconds: stopped,
                ..SessionTotals::default()
            },
            extra: [(KEY.to_owned(), record)].into(),
            ..Manifest::default()
        })
    }
}
