//! What a rank's neighbours keep for it and it for them: levels 2 and 3.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::comm::{Comm, exchange, numbers, together};
use crate::erasure::{Erasure, encode, rebuild};
use crate::partner::{Holding, Keeper, fetch, push};
use crate::ring::Ring;
use crate::site::Site;
use crate::{AppError, Config, Level, Result};

/// A rank's place among the others.
pub(crate) struct Peers {
    ring: Ring,
    keeper: Keeper,
    erasure: Erasure,
    keep: usize,
    ranks: u32,
}

/// What the other ranks have of which checkpoint, by rank and number.
pub(crate) struct Kept {
    copies: Vec<Holding>,
    parity: Vec<(u32, u64)>,
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
        match level {
            Level::Partner => push(comm, &self.ring, &self.keeper, sequence),
            Level::Erasure => encode(comm, &self.erasure, sequence),
            _ => Ok(()),
        }
    }

    /// Removes what is older than the last `complete` ones that are kept, as the configuration says.
    pub(crate) fn prune(&self, complete: u64) -> Result<()> {
        self.prune_to(complete, self.keep)
    }

    /// Removes all but the newest; see [`Site::prune`].
    pub(crate) fn prune_to(&self, complete: u64, keep: usize) -> Result<()> {
        self.keeper.prune(self.ranks, complete, keep)?;
        self.erasure.prune(complete, keep)
    }

    /// What other ranks keep. Collective.
    pub(crate) fn kept(&self, comm: &dyn Comm) -> Result<Kept> {
        Ok(Kept {
            copies: self.keeper.all(comm)?,
            parity: self.erasure.all(comm)?,
        })
    }

    /// Gets this rank's checkpoint of this number back if it has lost it, and helps the others to get theirs:
    /// from copies, one after the other, then from parity. `sound` says whether this rank has it. The level
    /// that it came back from; an error if it could not. Collective.
    pub(crate) fn mend(
        &self,
        comm: &dyn Comm,
        kept: &Kept,
        sequence: u64,
        sound: bool,
    ) -> Result<Option<Result<Level>>> {
        let mut back = None;
        for (rank, _) in whole(comm, sound)?
            .iter()
            .enumerate()
            .filter(|(_, sound)| !**sound)
        {
            let wanted = |h: &&Holding| (h.owner as usize, h.sequence) == (rank, sequence);
            let Some(holding) = kept.copies.iter().find(wanted) else {
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
            && let Some(rebuilt) = rebuild(comm, &self.erasure, sequence, &at)?
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
    /// The checkpoints of which something is kept for `rank`.
    pub(crate) fn of(&self, rank: u32) -> impl Iterator<Item = u64> {
        let copies = self.copies.iter().filter(move |h| h.owner == rank);
        let parity = self.parity.iter().filter(move |(owner, _)| *owner == rank);
        copies.map(|h| h.sequence).chain(parity.map(|(_, s)| *s))
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
