//! What a rank's neighbours keep for it and it for them: levels 2 and 3.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::checkpoint::site::Site;
use crate::levels::erasure::{Erasure, encode, rebuild};
use crate::levels::partner::{Holding, Keeper, fetch, push};
use crate::ranks::comm::{CheckpointPart, Comm, exchange, numbers, together};
use crate::ranks::ring::Ring;
use crate::{AppError, Config, Level, Result};

/// A rank's place among the others.
pub(crate) struct Peers {
    ring: Ring,
    keeper: Keeper,
    erasure: Erasure,
    keep: usize,
    ranks: u32,
}

/// What all ranks have of each other's checkpoints.
pub(crate) struct Kept {
    copies: Vec<Holding>,
    parity: Vec<CheckpointPart>,
}

impl Peers {
    /// From where all ranks say they are. Collective. `None` for a single rank.
    pub(crate) fn new(
        comm: &dyn Comm,
        local: &Site,
        config: &Config,
        host: &str,
    ) -> Result<Option<Self>> {
        if comm.size() < 2 {
            return Ok(None);
        }
        let hosts = exchange(comm, host.as_bytes())?;
        Ok(Some(Self {
            ring: Ring::new(&hosts, comm.rank()),
            keeper: Keeper::beside(local),
            erasure: Erasure::new(local, config, &hosts, comm.rank()),
            keep: config.keep_last as usize,
            ranks: comm.size(),
        }))
    }

    /// Whether checkpoints of this level can be made.
    ///
    /// # Errors
    /// `Level`.
    pub(crate) fn check(&self, level: Level) -> Result<()> {
        match level {
            Level::Erasure => self.erasure.check(),
            _ => Ok(()),
        }
    }

    /// Gives the checkpoint of this number to the level's other ranks. `local` says whether this rank has it.
    /// Collective.
    pub(crate) fn spread(
        &self,
        comm: &dyn Comm,
        level: Level,
        sequence: u64,
        local: Result<()>,
    ) -> Result<()> {
        together(comm, local)?;
        let made = match level {
            Level::Partner => push(comm, &self.ring, &self.keeper, sequence),
            Level::Erasure => encode(comm, &self.erasure, sequence),
            _ => Ok(()),
        };
        if made.is_err() {
            // Some ranks may have made their part: as it is of no use, it must not count as the newest one.
            let _ = match level {
                Level::Partner => self.keeper.site(self.ring.previous).clear(sequence),
                Level::Erasure => self.erasure.forget(sequence),
                _ => Ok(()),
            };
        }
        made
    }

    /// Removes what is older than the last ones that are kept, as the configuration says. `complete` says for both
    /// levels which one all ranks have. Returns those checkpoints of which this rank keeps something for others:
    /// with it belongs what every rank has of its own.
    pub(crate) fn prune(&self, partner: u64, erasure: u64) -> Result<BTreeSet<u64>> {
        self.keeper.prune(self.ranks, partner, self.keep)?;
        self.erasure.prune(erasure, self.keep)?;
        let mut held = BTreeSet::from_iter(self.keeper.held(self.ring.previous)?);
        held.extend(self.erasure.held()?);
        Ok(held)
    }

    /// Removes everything, for a job that is done.
    pub(crate) fn remove(&self) -> Result<()> {
        self.keeper.prune(self.ranks, u64::MAX, 0)?;
        self.erasure.prune(u64::MAX, 0)
    }

    /// Whether what is kept here for others, and is newer than number `than`, was written by a job of this size.
    pub(crate) fn fits(&self, rank: u32, than: u64) -> Result<()> {
        self.keeper.fits((rank, self.ranks), than)
    }

    /// What other ranks keep. Collective.
    pub(crate) fn kept(&self, comm: &dyn Comm) -> Result<Kept> {
        Ok(Kept {
            copies: self.keeper.all(comm)?,
            parity: self.erasure.all(comm)?,
        })
    }

    /// Gets this rank's checkpoint of this number and run back if it has lost it, and helps the others to get
    /// theirs: from copies, one after the other, then from parity. `sound` says whether this rank has it. The
    /// level that it came back from; an error if it could not. Collective.
    pub(crate) fn mend(
        &self,
        comm: &dyn Comm,
        kept: &Kept,
        (sequence, run): (u64, u64),
        sound: bool,
    ) -> Result<Option<Result<Level>>> {
        let mut back = None;
        for (rank, _) in whole(comm, sound)?
            .iter()
            .enumerate()
            .filter(|(_, sound)| !**sound)
        {
            let wanted = CheckpointPart {
                owner: rank as u32,
                sequence,
                run,
            };
            let Some(holding) = kept.copies.iter().find(|h| h.part == wanted) else {
                continue;
            };
            let fetched = fetch(comm, &self.keeper, *holding);
            if comm.rank() as usize == rank {
                back = Some(fetched.map(|()| Level::Partner));
            }
        }
        let own = sound || matches!(back, Some(Ok(_)));
        let at = whole(comm, own)?;
        if at.contains(&false)
            && let Some(rebuilt) = rebuild(comm, &self.erasure, (sequence, run), &at)?
            && !own
        {
            back = Some(rebuilt.map(|()| Level::Erasure));
        }
        Ok(back)
    }
}

/// What every rank says, by rank.
fn whole(comm: &dyn Comm, mine: bool) -> Result<Vec<bool>> {
    let said = numbers(comm, u64::from(mine))?;
    Ok(said.iter().map(|n| *n != 0).collect())
}

impl Kept {
    fn parts(&self) -> impl Iterator<Item = CheckpointPart> {
        let copies = self.copies.iter().map(|h| h.part);
        copies.chain(self.parity.iter().copied())
    }

    /// The checkpoints of which something is kept for `rank`.
    pub(crate) fn of(&self, rank: u32) -> impl Iterator<Item = u64> {
        let own = self.parts().filter(move |part| part.owner == rank);
        own.map(|part| part.sequence)
    }

    /// The runs of which something is kept for `rank` of this checkpoint.
    pub(crate) fn runs(&self, rank: u32, sequence: u64) -> impl Iterator<Item = u64> {
        let wanted = move |part: &CheckpointPart| (part.owner, part.sequence) == (rank, sequence);
        self.parts().filter(wanted).map(|part| part.run)
    }

    /// The highest number of a checkpoint of which anything is kept.
    pub(crate) fn highest(&self) -> u64 {
        self.parts().map(|part| part.sequence).max().unwrap_or(0)
    }
}

/// What ranks do together behind the program, over a channel of its own.
#[derive(Clone)]
pub(crate) struct Behind {
    pub(crate) peers: Arc<Peers>,
    pub(crate) comm: Arc<Mutex<Box<dyn Comm>>>,
    pub(crate) level: Level,
    pub(crate) sequence: u64,
}

impl Behind {
    /// See [`Peers::spread`].
    pub(crate) fn run<T>(&self, local: Result<T>) -> Result<T> {
        let comm = self.comm.lock();
        let (value, local) = match local {
            Ok(value) => (Some(value), Ok(())),
            Err(e) => (None, Err(e)),
        };
        self.peers
            .spread(&**comm, self.level, self.sequence, local)?;
        value.ok_or(AppError::Fault("a checkpoint's way to other ranks"))
    }
}
