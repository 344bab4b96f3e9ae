//! How the ranks of a job agree on what each of them puts into the bucket: what several of them have, one puts.
//!
//! ```text
//!  the newest checkpoint that all have ─► what each lacks there ─► which packs are worth keeping
//!     ─► what each lacks then ─► who has it there all the same ─► who puts it ─► what each holds for others
//! ```
//! All ranks are told the same and conclude the same. A pack is the rank's that has put it, and goes when that rank's
//! kept checkpoints do not name it any more; so a rank names in its checkpoint what others have in its packs, too
//! ([decision](../../../../docs/decisions/024-replicas-once-in-a-bucket.md)).

use std::collections::{HashMap, HashSet};

use fermata_store::ChunkId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::index::Pack;
use super::plan::{Base, UploadPlan, Wanted, lay, put, worth};
use crate::ranks::comm::{Comm, exchange, numbers};
use crate::{AppError, Result};

/// What a rank brings along.
pub(super) struct Mine<'a> {
    /// Its own part of the newest checkpoint that all ranks have in the bucket.
    pub(super) base: Option<Base>,
    /// Packs that could not be read.
    pub(super) bad: HashSet<String>,
    pub(super) chunks: &'a [Wanted],
    pub(super) sequence: u64,
    /// Letters that no other attempt has used.
    pub(super) unique: u64,
}

/// A chunk that a rank has in the bucket and another one lacks.
#[derive(Serialize, Deserialize)]
struct There {
    id: [u8; 32],
    pack: Pack,
    offset: u64,
}

/// The folder of a rank below that of the job.
pub(super) fn folder(rank: u32) -> String {
    format!("rank-{rank:05}/")
}

/// The name of a pack.
pub(super) fn pack_name(rank: u32, sequence: u64, number: usize, unique: u64) -> String {
    format!("{}p{sequence:012}-{number}-{unique:016x}", folder(rank))
}

/// What this rank puts and where everything is. Collective; fails on all ranks or on none, unless the message passing
/// does.
pub(super) fn agree(comm: &dyn Comm, mine: Mine<'_>) -> Result<UploadPlan> {
    let own = folder(comm.rank());
    let mut base = common(comm, mine.base)?;
    let all = lacking(comm, &mut base, &mine.bad, mine.chunks)?;
    let there = there(comm, base.as_ref(), &own, &all)?;
    let mut plan = UploadPlan::default();
    let mut needed = HashMap::new();
    for chunk in plan.take_over(base.as_ref(), mine.chunks) {
        match there.get(&chunk.id) {
            Some((pack, offset)) => plan.place(chunk.id, pack, *offset),
            None => drop(needed.insert(chunk.id, chunk)),
        }
    }
    let held = held(comm, &plan, &own)?;
    let attempts = numbers(comm, mine.unique)?;
    let puts = puts(&all, |id| there.contains_key(id));
    for ((rank, unique), chunks) in (0..).zip(attempts).zip(puts) {
        let name = |number| pack_name(rank, mine.sequence, number, unique);
        let own = chunks.iter().filter_map(|c| needed.get(&c.id)).copied();
        if rank == comm.rank() {
            put(&mut plan, &own.collect::<Vec<_>>(), name);
            continue;
        }
        let (packs, places) = lay(&chunks, name);
        let places = chunks.iter().zip(places);
        for (chunk, (pack, offset)) in places.filter(|(c, _)| needed.contains_key(&c.id)) {
            plan.place(chunk.id, &packs[pack], offset);
        }
    }
    for pack in &held {
        plan.hold(pack);
    }
    Ok(plan)
}

/// What every rank lacks, by rank, without those packs of the base that are not worth it.
fn lacking(
    comm: &dyn Comm,
    base: &mut Option<Base>,
    bad: &HashSet<String>,
    own: &[Wanted],
) -> Result<Vec<Vec<Wanted>>> {
    let has = |base: &Option<Base>, chunk: &Wanted| {
        let found = base.as_ref().and_then(|base| base.find(&chunk.id));
        found.is_some()
    };
    let (had, absent): (Vec<Wanted>, _) = own.iter().partition(|chunk| has(base, chunk));
    let mut all = chunks(comm, &absent)?;
    if let Some(base) = base {
        choose(comm, base, bad, own, &all)?;
    }
    let more: Vec<Wanted> = had.into_iter().filter(|c| !has(base, c)).collect();
    for (list, more) in all.iter_mut().zip(chunks(comm, &more)?) {
        list.extend(more);
    }
    Ok(all)
}

/// The parts of a checkpoint, if all ranks have theirs and all are of one run.
fn common(comm: &dyn Comm, base: Option<Base>) -> Result<Option<Base>> {
    let runs = numbers(comm, base.as_ref().map_or(0, |base| base.run))?;
    Ok(base.filter(|base| base.run > 0 && runs.iter().all(|run| *run == base.run)))
}

/// Keeps those packs of which any rank finds enough that is needed, and that all could read.
fn choose(
    comm: &dyn Comm,
    base: &mut Base,
    bad: &HashSet<String>,
    own: &[Wanted],
    lacking: &[Vec<Wanted>],
) -> Result<()> {
    let wanted = own.iter().chain(lacking.iter().flatten());
    let needed = base.packs.iter().zip(base.needed(wanted.map(|c| c.id)));
    let needed: Vec<(&str, Option<u64>)> = needed
        .map(|(pack, bytes)| {
            let good = !bad.contains(&pack.name);
            (pack.name.as_str(), good.then_some(bytes))
        })
        .collect();
    let mut most: HashMap<String, Option<u64>> = HashMap::new();
    let said: Vec<Vec<(String, Option<u64>)>> = tell(comm, &needed)?;
    for (name, bytes) in said.into_iter().flatten() {
        let entry = most.entry(name).or_insert(Some(0));
        *entry = entry.zip(bytes).map(|(a, b)| a.max(b));
    }
    base.keep(|pack, _| {
        let needed = most.get(&pack.name).copied().flatten();
        needed.is_some_and(|bytes| worth(pack, bytes))
    });
    Ok(())
}

/// Every rank's chunks, by rank; their numbers are not told.
fn chunks(comm: &dyn Comm, mine: &[Wanted]) -> Result<Vec<Vec<Wanted>>> {
    let mut bytes = Vec::with_capacity(40 * mine.len());
    for chunk in mine {
        bytes.extend(chunk.id.0);
        bytes.extend(chunk.bytes.to_le_bytes());
    }
    let chunk = |entry: &[u8; 40]| {
        let (id, bytes) = entry.split_first_chunk::<32>()?;
        Some(Wanted {
            id: ChunkId(*id),
            bytes: u64::from_le_bytes(*bytes.first_chunk()?),
            number: 0,
        })
    };
    let said = exchange(comm, &bytes)?;
    let all = said
        .iter()
        .map(|bytes| bytes.as_chunks::<40>().0.iter().map(chunk).collect());
    all.collect::<Option<_>>().ok_or(UNCLEAR)
}

/// Where chunks that some ranks lack are all the same: other ranks have them in the checkpoint before. Who has put a
/// pack says so first, and of what is left any rank that knows it.
fn there(
    comm: &dyn Comm,
    base: Option<&Base>,
    own: &str,
    all: &[Vec<Wanted>],
) -> Result<HashMap<ChunkId, (Pack, u64)>> {
    let mut asked: HashSet<ChunkId> = all.iter().flatten().map(|c| c.id).collect();
    let mut there = HashMap::new();
    for of_others in [false, true] {
        let known = |id: &ChunkId| {
            let (pack, offset) = base?.find(id)?;
            (of_others || pack.name.starts_with(own)).then(|| There {
                id: id.0,
                pack: pack.clone(),
                offset,
            })
        };
        let mine: Vec<There> = asked.iter().filter_map(known).collect();
        let said: Vec<Vec<There>> = tell(comm, &mine)?;
        for chunk in said.into_iter().flatten() {
            let place = (chunk.pack, chunk.offset);
            there.entry(ChunkId(chunk.id)).or_insert(place);
        }
        asked.retain(|id| !there.contains_key(id));
    }
    Ok(there)
}

/// The packs of this rank's in which others have chunks.
fn held(comm: &dyn Comm, plan: &UploadPlan, own: &str) -> Result<Vec<Pack>> {
    let of_others = plan.packs.iter().filter(|p| !p.name.starts_with(own));
    let said: Vec<Vec<Pack>> = tell(comm, &of_others.collect::<Vec<_>>())?;
    let mut held: Vec<Pack> = said.into_iter().flatten().collect();
    held.retain(|pack| pack.name.starts_with(own));
    Ok(held)
}

/// What each rank puts, by rank: of what several lack, each about as much.
fn puts(all: &[Vec<Wanted>], there: impl Fn(&ChunkId) -> bool) -> Vec<Vec<Wanted>> {
    let mut ranks: HashMap<ChunkId, Vec<usize>> = HashMap::new();
    for (rank, chunks) in all.iter().enumerate() {
        for chunk in chunks {
            ranks.entry(chunk.id).or_default().push(rank);
        }
    }
    let puts = |rank: usize, id: &ChunkId| {
        let (first, _) = id.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let ranks = &ranks[id];
        !there(id) && ranks[(u64::from_le_bytes(*first) % ranks.len() as u64) as usize] == rank
    };
    let of = |(rank, chunks): (usize, &Vec<Wanted>)| {
        let chunks = chunks.iter().filter(|c| puts(rank, &c.id));
        chunks.copied().collect()
    };
    all.iter().enumerate().map(of).collect()
}

/// Tells all ranks something; what each of them says, by rank.
fn tell<T: Serialize, U: DeserializeOwned>(comm: &dyn Comm, mine: &T) -> Result<Vec<U>> {
    let text = serde_json::to_vec(mine).map_err(|_| UNCLEAR)?;
    let said = exchange(comm, &text)?;
    let read = said.iter().map(|text| serde_json::from_slice(text));
    read.collect::<serde_json::Result<_>>().map_err(|_| UNCLEAR)
}

const UNCLEAR: AppError = AppError::Fault("what ranks tell each other of a bucket");
