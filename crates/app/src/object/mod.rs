//! Level 5: checkpoints in a bucket of an S3-compatible object store.
//!
//! ```text
//!  PREFIX NAME/rank-00003/c000000000012      a checkpoint: where its chunks are (`index`)
//!  PREFIX NAME/rank-00003/p000000000012-...  chunks, one after the other; written in parts
//! ```
//! A checkpoint is there when its `c` object is, which is written last. Chunks that the newest checkpoint in
//! the bucket has are not written again, unless most of their pack is not needed any more. A rank writes and
//! removes under its own prefix only.

mod client;
mod index;
mod upload;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fermata_store::ChunkId;
use fermata_store::image::{ChunkTable, Image};
use parking_lot::Mutex;

use self::client::Client;
use self::index::{Index, Pack, Place};
use self::upload::{PACK, put_pack};
use crate::config::ObjectConfig;
use crate::layout::Layout;
use crate::record::Record;
use crate::site::Site;
use crate::stream::once;
use crate::transfer::{Incoming, Outgoing};
use crate::{AppError, Result};

/// Requests under way at once.
const REQUESTS: usize = 4;
/// Longest piece that is read at once, in bytes.
const READ: u64 = 8 << 20;

/// A rank's place in a bucket.
pub(crate) struct Objects {
    client: Client,
    folder: String,
    bucket: String,
    /// Indexes that have been seen, by checkpoint.
    seen: Mutex<BTreeMap<u64, Index>>,
    /// The highest number of a checkpoint that has been seen.
    highest: AtomicU64,
}

impl Objects {
    /// The place of `rank` of job `name`. Asks the service nothing.
    pub(crate) fn new(config: &ObjectConfig, name: &str, rank: u32) -> Result<Self> {
        Ok(Self {
            client: Client::new(config)?,
            folder: format!("{}{name}/rank-{rank:05}/", config.prefix),
            bucket: config.bucket.clone(),
            seen: Mutex::default(),
            highest: AtomicU64::new(0),
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    /// The checkpoints that are there, ascending.
    pub(crate) fn sequences(&self) -> Result<Vec<u64>> {
        self.sequences_within(self.client.deadline())
    }

    /// The same, asked once.
    pub(crate) fn glance(&self) -> Result<Vec<u64>> {
        self.sequences_within(Duration::from_secs(5).min(self.client.deadline()))
    }

    fn sequences_within(&self, patience: Duration) -> Result<Vec<u64>> {
        let mut found = sequences(&self.client.list(&self.folder, patience)?);
        found.sort_unstable();
        let newest = found.last().copied().unwrap_or(0);
        self.highest.fetch_max(newest, Ordering::AcqRel);
        Ok(found)
    }

    /// The highest number of a checkpoint that has been seen here.
    pub(crate) fn highest(&self) -> u64 {
        self.highest.load(Ordering::Acquire)
    }

    /// What a checkpoint says of itself.
    pub(crate) fn record(&self, sequence: u64) -> Result<Record> {
        let (manifest, _) = crate::transfer::decode(&self.index(sequence)?.header)?;
        let key = self.key(&Layout::name(sequence));
        Record::in_manifest(&manifest).ok_or_else(|| self.damaged(&key))
    }

    /// Whether a checkpoint was written by a job of this size.
    pub(crate) fn fits(&self, sequence: u64, rank: u32, ranks: u32) -> Result<()> {
        match self.record(sequence) {
            Ok(record) if (record.rank, record.ranks) != (rank, ranks) => {
                let key = self.key(&Layout::name(sequence));
                Err(record.other_size(format!("{}/{key}", self.bucket).into(), rank, ranks))
            }
            // One that cannot be read says nothing.
            _ => Ok(()),
        }
    }

    fn index(&self, sequence: u64) -> Result<Index> {
        if let Some(index) = self.seen.lock().get(&sequence) {
            return Ok(index.clone());
        }
        let key = self.key(&Layout::name(sequence));
        let index = Index::decode(&self.client.get(&key, None)?);
        let index = index.ok_or_else(|| self.damaged(&key))?;
        self.seen.lock().insert(sequence, index.clone());
        Ok(index)
    }

    fn damaged(&self, key: &str) -> AppError {
        AppError::Object {
            op: "understand",
            bucket: self.bucket.clone(),
            key: key.into(),
            what: "it does not hold what was written".into(),
            hint: "an older checkpoint is used if there is one",
        }
    }

    /// Copies a checkpoint into the bucket, which then has it whole or not at all.
    pub(crate) fn upload(&self, image: &Image, from: &Site, sequence: u64) -> Result<u64> {
        let out = Outgoing::open(from, image)?;
        let order = once(out.table());
        let mut index = Index {
            header: out.header().to_vec(),
            packs: Vec::new(),
            places: Vec::new(),
        };
        let known = self.known(sequence, out.table(), &order)?;
        let mut places: HashMap<usize, Place> = HashMap::new();
        let mut new: Vec<usize> = Vec::new();
        for chunk in &order {
            let record = &out.table().records()[*chunk];
            match known.get(&record.id) {
                Some((pack, offset)) => {
                    let pack = number(&mut index.packs, pack);
                    let place = Place {
                        pack,
                        offset: *offset,
                    };
                    places.insert(*chunk, place);
                }
                None => new.push(*chunk),
            }
        }
        let mut written = 0;
        for (n, chunks) in packs(out.table(), &new).into_iter().enumerate() {
            let name = format!("p{sequence:012}-{n}-{}", unique());
            let bytes = put_pack(&self.client, &self.key(&name), &out, chunks)?;
            let pack = number(&mut index.packs, &Pack { name, bytes });
            let mut offset = 0;
            for chunk in chunks {
                places.insert(*chunk, Place { pack, offset });
                offset += u64::from(out.table().records()[*chunk].length);
            }
            written += bytes;
        }
        index.places = order
            .iter()
            .filter_map(|c| places.get(c).copied())
            .collect();
        let key = self.key(&Layout::name(sequence));
        self.client.put(&key, &index.encode())?;
        self.seen.lock().insert(sequence, index);
        Ok(written)
    }

    /// Chunks that need not be written: those of the newest checkpoint before, in packs of which at least
    /// half is needed.
    fn known(
        &self,
        sequence: u64,
        table: &ChunkTable,
        order: &[usize],
    ) -> Result<HashMap<ChunkId, (Pack, u64)>> {
        let there = self.sequences()?;
        if let Some(newer) = there.last().filter(|n| **n >= sequence) {
            return Err(AppError::Object {
                op: "write",
                bucket: self.bucket.clone(),
                key: self.key(&Layout::name(sequence)),
                what: format!(
                    "there is a checkpoint {newer} of an earlier run, which could not be seen when this one began"
                ),
                hint: "the lower levels are intact, and the next checkpoint gets a higher number",
            });
        }
        let before = there.last().copied();
        let Some(old) = before.and_then(|n| self.index(n).ok()) else {
            return Ok(HashMap::new());
        };
        let Ok(chunks) = names(&old) else {
            return Ok(HashMap::new());
        };
        let wanted: HashSet<ChunkId> = order.iter().map(|c| table.records()[*c].id).collect();
        let mut needed = vec![0u64; old.packs.len()];
        for ((id, length), place) in chunks.iter().zip(&old.places) {
            if wanted.contains(id) {
                needed[place.pack as usize] += length;
            }
        }
        let found = chunks.into_iter().zip(&old.places);
        Ok(found
            .filter(|(_, place)| {
                let pack = place.pack as usize;
                2 * needed[pack] >= old.packs[pack].bytes
            })
            .map(|((id, _), place)| (id, (old.packs[place.pack as usize].clone(), place.offset)))
            .collect())
    }

    /// Copies a checkpoint from the bucket to `to`; what that has already is not read, what is read is
    /// checked.
    pub(crate) fn download(&self, sequence: u64, to: &Site) -> Result<()> {
        let index = self.index(sequence)?;
        let incoming = Incoming::open(to, &index.header, true)?;
        let order = once(incoming.table());
        let mut wanted: Vec<(Place, u64, usize)> = order
            .iter()
            .zip(&index.places)
            .filter(|(chunk, _)| incoming.lacks(**chunk))
            .map(|(chunk, place)| {
                let length = incoming.table().records()[*chunk].length;
                (*place, u64::from(length), *chunk)
            })
            .collect();
        wanted.sort_unstable_by_key(|(place, _, _)| (place.pack, place.offset));
        let reads = reads(&wanted);
        let (incoming, next) = (Mutex::new(incoming), AtomicUsize::new(0));
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..REQUESTS.min(reads.len()) {
                scope.spawn(|| {
                    while let Some(read) = reads.get(next.fetch_add(1, Ordering::Relaxed))
                        && failure.lock().is_none()
                    {
                        if let Err(e) = self.read(&index, read, &incoming) {
                            failure.lock().get_or_insert(e);
                        }
                    }
                });
            }
        });
        match failure.into_inner() {
            Some(e) => Err(e),
            None => incoming.into_inner().finish(),
        }
    }

    fn read(
        &self,
        index: &Index,
        chunks: &[(Place, u64, usize)],
        into: &Mutex<Incoming>,
    ) -> Result<()> {
        let (first, _, _) = chunks[0];
        let bytes = chunks.iter().map(|(_, length, _)| length).sum();
        let key = self.key(&index.packs[first.pack as usize].name);
        let content = self.client.get(&key, Some((first.offset, bytes)))?;
        let mut rest = &content[..];
        for (_, length, chunk) in chunks {
            let (bytes, more) = rest.split_at(*length as usize);
            into.lock().take(&[*chunk], bytes);
            rest = more;
        }
        Ok(())
    }

    /// Removes all but the newest `keep` checkpoints up to number `complete`, and the packs that none of the
    /// others needs.
    pub(crate) fn prune(&self, complete: u64, keep: usize) -> Result<()> {
        let names = self.client.list(&self.folder, self.client.deadline())?;
        let mut there = sequences(&names);
        there.sort_unstable();
        let mut old = there.clone();
        old.retain(|n| *n <= complete);
        old.truncate(old.len().saturating_sub(keep));
        for sequence in &old {
            self.client.delete(&self.key(&Layout::name(*sequence)))?;
            self.seen.lock().remove(sequence);
        }
        let mut needed = HashSet::new();
        for sequence in there.iter().filter(|n| !old.contains(n)) {
            // What needs which pack must be known of all of them before one is removed.
            needed.extend(self.index(*sequence)?.packs.into_iter().map(|p| p.name));
        }
        let packs = names.iter().filter(|n| n.starts_with('p'));
        for name in packs.filter(|n| !needed.contains(*n)) {
            self.client.delete(&self.key(name))?;
        }
        Ok(())
    }
}

fn sequences(names: &[String]) -> Vec<u64> {
    let number = |n: &String| n.strip_prefix('c')?.parse::<u64>().ok();
    names.iter().filter_map(number).filter(|n| *n > 0).collect()
}

/// The name and length of each chunk of an index, in the order of its places.
fn names(index: &Index) -> Result<Vec<(ChunkId, u64)>> {
    let (_, table) = crate::transfer::decode(&index.header)?;
    let order = once(&table);
    let records = order.iter().map(|c| &table.records()[*c]);
    Ok(records.map(|r| (r.id, u64::from(r.length))).collect())
}

/// The pack's number among `packs`, where it is entered if need be.
fn number(packs: &mut Vec<Pack>, pack: &Pack) -> u32 {
    let found = packs.iter().position(|p| p.name == pack.name);
    let number = found.unwrap_or_else(|| {
        packs.push(pack.clone());
        packs.len() - 1
    });
    number as u32
}

/// Chunks that go into one pack each.
fn packs<'c>(table: &ChunkTable, chunks: &'c [usize]) -> Vec<&'c [usize]> {
    let mut bytes = 0;
    let chunks = chunks.chunk_by(|_, next| {
        bytes += u64::from(table.records()[*next].length);
        let fits = bytes < PACK;
        bytes *= u64::from(fits);
        fits
    });
    chunks.collect()
}

/// Chunks that lie side by side in a pack and are read at once.
fn reads(wanted: &[(Place, u64, usize)]) -> Vec<&[(Place, u64, usize)]> {
    let mut bytes = 0;
    let reads = wanted.chunk_by(|(place, length, _), (next, more, _)| {
        bytes += length;
        let follows = next.pack == place.pack && next.offset == place.offset + length;
        let fits = follows && bytes + more <= READ;
        bytes *= u64::from(fits);
        fits
    });
    reads.collect()
}

/// Letters that no other attempt has used.
fn unique() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}
