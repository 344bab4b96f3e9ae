//! Level 3: a Reed-Solomon code across the ranks of a group, after the third level of *FTI* (its section II)
//! with parity that rotates over the members, so that it takes `losses / (members - losses)` of the data's
//! space and not all of it.
//!
//! ```text
//!  encode    every checkpoint, as a stream ─► blocks ─► leader of the stripe ─► parity ─► its holders
//!  rebuild   what is left of a stripe ─► a member that has lost its data ─► blocks ─► its stream
//! ```
//! A rank's parity lies in `FOLDER/NAME/erasure/rank-RANK/`, an image of the node's store like a checkpoint,
//! and is checked like one. A stripe is one piece of memory at a time, whatever the checkpoints' sizes.

mod code;
mod encode;
mod group;
mod parity;
mod rebuild;

use crate::checkpoint::layout::Layout;
use crate::checkpoint::site::Site;
use crate::ranks::comm::{CheckpointPart, Comm, parts, together};
use crate::{AppError, Config, Level, Result};

pub(crate) use encode::encode;
pub(crate) use rebuild::rebuild;

/// A rank's group and the place of its parity.
#[derive(Clone)]
pub(crate) struct Erasure {
    local: Site,
    parity: Site,
    /// The group's ranks, ascending; empty if there are too few for the losses asked for.
    members: Vec<u32>,
    losses: usize,
}

impl Erasure {
    /// The place beside a rank's own checkpoints. `hosts` says where every rank is.
    pub(crate) fn new(local: &Site, config: &Config, hosts: &[Vec<u8>], rank: u32) -> Self {
        let job = local.layout.rank.parent().unwrap_or(&local.layout.rank);
        let losses = config.erasure_losses as usize;
        let groups = group::groups(hosts, config.erasure_group as usize);
        let own = groups.into_iter().find(|g| g.contains(&rank));
        Self {
            local: local.clone(),
            parity: Site {
                level: Level::Erasure,
                layout: Layout {
                    store: local.layout.store.clone(),
                    rank: job.join("erasure").join(format!("rank-{rank:05}")),
                },
                store: local.store.clone(),
            },
            members: own.filter(|g| g.len() > losses).unwrap_or_default(),
            losses,
        }
    }

    /// Whether the group is large enough.
    ///
    /// # Errors
    /// `Level`.
    pub(crate) fn check(&self) -> Result<()> {
        match self.members.is_empty() {
            false => Ok(()),
            true => Err(AppError::Level {
                level: Level::Erasure.number(),
                name: Level::Erasure.name(),
                what: "needs a job of more ranks than `erasure.losses`",
            }),
        }
    }

    /// Whose checkpoints' parity any rank holds. Collective.
    pub(crate) fn all(&self, comm: &dyn Comm) -> Result<Vec<CheckpointPart>> {
        let mine = together(comm, self.own())?;
        Ok(parts(comm, &mine)?.concat())
    }

    fn own(&self) -> Result<Vec<CheckpointPart>> {
        let mut own = Vec::new();
        for sequence in self.held()? {
            // What cannot be read is as good as lost.
            let Ok(image) = self.parity.image(sequence) else {
                continue;
            };
            if let Ok(parity) = parity::Parity::of(&image) {
                own.extend(parity.members.iter().map(|owner| CheckpointPart {
                    owner: *owner,
                    sequence,
                    run: parity.run,
                }));
            }
        }
        Ok(own)
    }

    /// The checkpoints of which this rank holds parity.
    pub(crate) fn held(&self) -> Result<Vec<u64>> {
        self.parity.layout.sequences()
    }

    /// Removes the parity of a checkpoint that did not come to an end.
    pub(crate) fn forget(&self, sequence: u64) -> Result<()> {
        self.parity.clear(sequence)
    }

    /// Removes all parity but the newest; see [`Site::prune`].
    pub(crate) fn prune(&self, complete: u64, keep: usize) -> Result<()> {
        self.parity.prune(complete, keep)
    }
}
