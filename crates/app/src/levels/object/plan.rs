//! Which chunks of a checkpoint are in the bucket already, and in which packs the others are put.

use std::collections::{HashMap, HashSet};

use fermata_object::LARGE;
use fermata_store::ChunkId;
use fermata_store::image::ChunkTable;

use super::index::{ChunkPlace, Index, Pack};
use crate::checkpoint::table::once;
use crate::{AppError, Result};

/// A chunk of the checkpoint that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) id: ChunkId,
    pub(super) bytes: u64,
    /// Its number in the checkpoint's table.
    pub(super) number: usize,
}

/// The chunks of a checkpoint, each once.
pub(super) fn wanted(table: &ChunkTable) -> Vec<Wanted> {
    let of = |number: usize| {
        let record = table.records()[number];
        Wanted {
            id: record.id,
            bytes: u64::from(record.length),
            number,
        }
    };
    once(table).into_iter().map(of).collect()
}

/// The checkpoint in the bucket of which chunks are taken over.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) run: u64,
    pub(super) packs: Vec<Pack>,
    places: HashMap<ChunkId, ChunkPlace>,
    lengths: HashMap<ChunkId, u64>,
}

impl Base {
    /// `None` if the index does not fit its own table.
    pub(super) fn of(index: Index, run: u64) -> Option<Self> {
        let (_, table) = crate::checkpoint::transfer::decode(&index.header).ok()?;
        let chunks = wanted(&table);
        (chunks.len() == index.places.len()).then(|| Self {
            run,
            packs: index.packs,
            places: chunks.iter().map(|c| c.id).zip(index.places).collect(),
            lengths: chunks.iter().map(|c| (c.id, c.bytes)).collect(),
        })
    }

    /// How many bytes of each pack are needed for these chunks.
    pub(super) fn needed(&self, chunks: impl Iterator<Item = ChunkId>) -> Vec<u64> {
        let mut needed = vec![0; self.packs.len()];
        for id in chunks.collect::<HashSet<_>>() {
            if let Some(place) = self.places.get(&id) {
                needed[place.pack as usize] += self.lengths[&id];
            }
        }
        needed
    }

    /// Refers to those packs only, by their number, that are `good`.
    pub(super) fn keep(&mut self, good: impl Fn(&Pack, usize) -> bool) {
        let packs = self.packs.iter().enumerate();
        let good: Vec<bool> = packs.map(|(number, pack)| good(pack, number)).collect();
        self.places.retain(|_, place| good[place.pack as usize]);
    }

    /// Where a chunk is.
    pub(super) fn find(&self, id: &ChunkId) -> Option<(&Pack, u64)> {
        let place = self.places.get(id)?;
        Some((&self.packs[place.pack as usize], place.offset))
    }
}

/// Whether a pack of which so many bytes are needed is worth keeping.
pub(super) fn worth(pack: &Pack, needed: u64) -> bool {
    2 * needed >= pack.bytes
}

/// Where each chunk of a checkpoint is or will be, and what this rank puts.
#[derive(Debug, Default)]
pub(super) struct UploadPlan {
    pub(super) packs: Vec<Pack>,
    numbers: HashMap<String, u32>,
    places: HashMap<ChunkId, ChunkPlace>,
    /// Packs to put, by their number, with the numbers of their chunks in the table.
    pub(super) puts: Vec<(u32, Vec<usize>)>,
}

impl UploadPlan {
    /// Says that the checkpoint needs a pack.
    pub(super) fn hold(&mut self, pack: &Pack) -> u32 {
        if let Some(number) = self.numbers.get(&pack.name) {
            return *number;
        }
        let number = self.packs.len() as u32;
        self.numbers.insert(pack.name.clone(), number);
        self.packs.push(pack.clone());
        number
    }

    /// Says where a chunk is.
    pub(super) fn place(&mut self, id: ChunkId, pack: &Pack, offset: u64) {
        let pack = self.hold(pack);
        self.places.insert(id, ChunkPlace { pack, offset });
    }

    /// Takes over the chunks that are in the bucket already; those that are not.
    pub(super) fn take_over(&mut self, base: Option<&Base>, chunks: &[Wanted]) -> Vec<Wanted> {
        let mut lacking = Vec::new();
        for chunk in chunks {
            match base.and_then(|base| base.find(&chunk.id)) {
                Some((pack, offset)) => self.place(chunk.id, pack, offset),
                None => lacking.push(*chunk),
            }
        }
        lacking
    }

    /// The places of all these chunks, in their order.
    pub(super) fn places(&self, chunks: &[Wanted]) -> Result<Vec<ChunkPlace>> {
        let of = |chunk: &Wanted| {
            let place = self.places.get(&chunk.id).copied();
            place.ok_or(AppError::Fault("a chunk's place in the bucket"))
        };
        chunks.iter().map(of).collect()
    }
}

/// Packs for these chunks, by a name for each pack's number, and where in which of them each chunk is.
pub(super) fn lay(
    chunks: &[Wanted],
    name: impl Fn(usize) -> String,
) -> (Vec<Pack>, Vec<(usize, u64)>) {
    let mut packs: Vec<Pack> = Vec::new();
    let mut places = Vec::new();
    for chunk in chunks {
        if packs.last().is_none_or(|pack| pack.bytes >= LARGE) {
            packs.push(Pack {
                name: name(packs.len()),
                bytes: 0,
            });
        }
        let last = packs.len() - 1;
        places.push((last, packs[last].bytes));
        packs[last].bytes += chunk.bytes;
    }
    (packs, places)
}

/// The plan of a rank that puts all that it lacks itself. It takes over only what it has put itself, in packs that are
/// worth it and not `bad`: what others have put goes when they need it no more.
pub(super) fn alone(
    mut base: Option<Base>,
    bad: &HashSet<String>,
    chunks: &[Wanted],
    own: &str,
    name: impl Fn(usize) -> String,
) -> UploadPlan {
    if let Some(base) = &mut base {
        let needed = base.needed(chunks.iter().map(|c| c.id));
        base.keep(|pack, number| {
            let own = pack.name.starts_with(own) && !bad.contains(&pack.name);
            own && worth(pack, needed[number])
        });
    }
    let mut plan = UploadPlan::default();
    let lacking = plan.take_over(base.as_ref(), chunks);
    put(&mut plan, &lacking, name);
    plan
}

/// Adds packs with these chunks, which this rank puts.
pub(super) fn put(plan: &mut UploadPlan, chunks: &[Wanted], name: impl Fn(usize) -> String) {
    let (packs, places) = lay(chunks, name);
    let first = plan.puts.len();
    for pack in &packs {
        let number = plan.hold(pack);
        plan.puts.push((number, Vec::new()));
    }
    for (chunk, (pack, offset)) in chunks.iter().zip(places) {
        plan.place(chunk.id, &packs[pack], offset);
        plan.puts[first + pack].1.push(chunk.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(number: usize, bytes: u64) -> Wanted {
        Wanted {
            id: ChunkId([number as u8; 32]),
            bytes,
            number,
        }
    }

    #[test]
    fn a_new_pack_begins_when_one_is_full() {
        let chunks: Vec<_> = (0..5).map(|n| chunk(n, LARGE / 2)).collect();
        let (packs, places) = lay(&chunks, |n| format!("p{n}"));
        let bytes: Vec<_> = packs.iter().map(|p| (p.name.as_str(), p.bytes)).collect();
        assert_eq!(bytes, [("p0", LARGE), ("p1", LARGE), ("p2", LARGE / 2)]);
        let half = LARGE / 2;
        assert_eq!(places, [(0, 0), (0, half), (1, 0), (1, half), (2, 0)]);
        assert_eq!(lay(&[], |_| String::new()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn alone_a_rank_takes_over_its_own_packs_that_are_worth_it() {
        let pack = |name: &str| Pack {
            name: name.into(),
            bytes: 40,
        };
        let at = |pack, offset| ChunkPlace { pack, offset };
        let chunks: Vec<_> = (0..6).map(|n| chunk(n, 10)).collect();
        let places = [(0, 0), (0, 30), (1, 0), (2, 0), (3, 0), (3, 30)];
        let places = places.map(|(pack, offset)| at(pack, offset));
        let base = Base {
            run: 1,
            packs: ["a/1", "a/2", "b/1", "a/3"].map(pack).to_vec(),
            places: chunks.iter().map(|c| c.id).zip(places).collect(),
            lengths: chunks.iter().map(|c| (c.id, c.bytes)).collect(),
        };
        // Half of a/1 is needed, a quarter of a/2, b/1 is another rank's, and a/3 cannot be read.
        let bad = HashSet::from(["a/3".to_owned()]);
        let name = |n| format!("a/new{n}");
        let plan = alone(Some(base), &bad, &chunks, "a/", name);
        let names: Vec<_> = plan.packs.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a/1", "a/new0"]);
        assert_eq!(plan.puts, [(1, vec![2, 3, 4, 5])]);
        let want = [(0, 0), (0, 30), (1, 0), (1, 10), (1, 20), (1, 30)];
        let want = want.map(|(pack, offset)| at(pack, offset));
        assert_eq!(plan.places(&chunks).unwrap(), want);
        plan.places(&[chunk(9, 1)]).unwrap_err();
    }
}
