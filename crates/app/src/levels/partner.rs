//! Level 2: each rank's newest checkpoint also lies on its partner's node.
//!
//! A copy lies in `FOLDER/NAME/partner/rank-OWNER/` of the rank that keeps it, with its chunks in that
//! node's store. A rank that has lost its own gets it back from the rank that has one, before recovery begins.

use std::path::Path;

use crate::checkpoint::layout::Layout;
use crate::checkpoint::record::Record;
use crate::checkpoint::site::Site;
use crate::checkpoint::transfer::{Incoming, Outgoing};
use crate::ranks::comm::{CheckpointPart, Comm, parts, together};
use crate::ranks::ring::{Ring, send};
use crate::{AppError, Level, Result};

/// Where a rank keeps the copies of others.
pub(crate) struct Keeper {
    job: std::path::PathBuf,
    local: Site,
}

/// A copy that somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) holder: u32,
    pub(crate) part: CheckpointPart,
}

impl Keeper {
    /// The copies beside a rank's own checkpoints.
    pub(crate) fn beside(local: &Site) -> Self {
        let job = local.layout.rank.parent().unwrap_or(Path::new("/"));
        Self {
            job: job.join("partner"),
            local: local.clone(),
        }
    }

    /// The place of the copies of `owner`.
    pub(crate) fn site(&self, owner: u32) -> Site {
        Site {
            level: Level::Partner,
            layout: Layout {
                store: self.local.layout.store.clone(),
                rank: self.job.join(format!("rank-{owner:05}")),
            },
            store: self.local.store.clone(),
        }
    }

    /// Every copy that any rank has. Collective.
    pub(crate) fn all(&self, comm: &dyn Comm) -> Result<Vec<Holding>> {
        let mine = together(comm, self.own(comm.size()))?;
        let mut all = Vec::new();
        for (holder, kept) in parts(comm, &mine)?.into_iter().enumerate() {
            all.extend(kept.into_iter().map(|part| Holding {
                holder: holder as u32,
                part,
            }));
        }
        Ok(all)
    }

    fn own(&self, ranks: u32) -> Result<Vec<CheckpointPart>> {
        let mut own = Vec::new();
        for owner in 0..ranks {
            let site = self.site(owner);
            // What cannot be read is as good as lost.
            let readable = site.layout.sequences()?.into_iter().filter_map(|sequence| {
                let record = site.image(sequence).and_then(|image| Record::of(&image));
                record.ok().map(|record| CheckpointPart {
                    owner,
                    sequence,
                    run: record.run,
                })
            });
            own.extend(readable);
        }
        Ok(own)
    }

    /// Whether the newest copies here, as far as they are newer than number `than`, were written by a job of this
    /// size.
    pub(crate) fn fits(&self, (rank, ranks): (u32, u32), than: u64) -> Result<()> {
        (0..ranks).try_for_each(|owner| {
            let site = self.site(owner);
            let newest = site.layout.sequences()?.pop();
            let Some(newest) = newest.filter(|n| *n > than) else {
                return Ok(());
            };
            let record = site.image(newest).and_then(|image| Record::of(&image));
            match record {
                Ok(record) if record.ranks != ranks => {
                    Err(record.other_size(site.layout.checkpoint(newest), rank, ranks))
                }
                // One that cannot be read says nothing.
                _ => Ok(()),
            }
        })
    }

    /// The checkpoints of which this rank keeps a copy for `owner`.
    pub(crate) fn held(&self, owner: u32) -> Result<Vec<u64>> {
        self.site(owner).layout.sequences()
    }

    /// Removes the copies of every owner but the newest; see [`Site::prune`].
    pub(crate) fn prune(&self, ranks: u32, complete: u64, keep: usize) -> Result<()> {
        (0..ranks).try_for_each(|owner| self.site(owner).prune(complete, keep))
    }
}

/// Copies every rank's checkpoint of this number to the next rank in the ring. Collective.
pub(crate) fn push(comm: &dyn Comm, ring: &Ring, keeper: &Keeper, sequence: u64) -> Result<()> {
    let opened = keeper
        .local
        .image(sequence)
        .and_then(|image| Outgoing::open(&keeper.local, &image));
    let out = together(comm, opened)?;
    let site = keeper.site(ring.previous);
    let header = ring.forward(comm, out.header())?;
    let mut incoming = Incoming::open(&site, &header, false);
    let answer = incoming.as_ref().map_or(Vec::new(), Incoming::answer);
    let sending = out.groups(&ring.backward(comm, &answer)?);
    let coming = incoming.as_ref().map_or(Vec::new(), Incoming::groups);
    let mut result = Ok(());
    for step in 0..sending.len().max(coming.len()) {
        let message = match sending.get(step).map(|group| out.message(group)) {
            Some(Ok(message)) => message,
            Some(Err(e)) => {
                result = Err(e);
                Vec::new()
            }
            None => Vec::new(),
        };
        let to = sending.get(step).map(|_| (ring.next, message.as_slice()));
        let from = coming.get(step).map(|_| ring.previous);
        let received = ring.swap(comm, to, from)?;
        if let (Ok(incoming), Some(group)) = (&mut incoming, coming.get(step)) {
            incoming.take(group, &received);
        }
    }
    drop(out);
    let stored = incoming.and_then(Incoming::finish);
    together(comm, result.and(stored))
}

/// Gives rank `holding.owner` its checkpoint back. The two ranks named in it take part, others return at
/// once.
pub(crate) fn fetch(comm: &dyn Comm, keeper: &Keeper, holding: Holding) -> Result<()> {
    let Holding { holder, part } = holding;
    let CheckpointPart {
        owner, sequence, ..
    } = part;
    if comm.rank() == owner {
        return Incoming::receive(comm, holder, &keeper.local);
    }
    if comm.rank() != holder {
        return Ok(());
    }
    let site = keeper.site(owner);
    let out: Result<Outgoing, AppError> = crate::checkpoint::found::sound(&site, sequence)
        .and_then(|_| site.image(sequence))
        .and_then(|image| Outgoing::open(&site, &image));
    match out {
        Ok(out) => out.send(comm, owner),
        // An empty header says that there is nothing to give.
        Err(_) => send(comm, owner, &[]),
    }
}
