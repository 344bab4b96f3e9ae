//! Level 5: checkpoints in a bucket of an S3-compatible object store.
//!
//! ```text
//!  PREFIX NAME/rank-00003/c000000000012      a checkpoint: where its chunks are (`index`)
//!  PREFIX NAME/rank-00003/p000000000012-...  chunks, one after the other; written in parts
//! ```
//! A checkpoint is there when its `c` object is, which is written last. Chunks that the newest checkpoint in
//! the bucket has are not written again, unless most of their pack is not needed any more. What several ranks have
//! alike, one of them writes, and the others' `c` objects refer to its pack (`share`). A rank writes and removes under
//! its own prefix only.

mod index;
mod plan;
mod share;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fermata_object::{Client, ObjectConfig, Place, at_once, put_pieces, reads};
use fermata_store::image::Image;
use parking_lot::Mutex;

use self::index::{ChunkPlace, Index, Pack};
use self::plan::{Base, UploadPlan, Wanted, alone, wanted};
use self::share::{Mine, agree, pack_name};
use crate::checkpoint::layout::Layout;
use crate::checkpoint::record::Record;
use crate::checkpoint::site::Site;
use crate::checkpoint::table::once;
use crate::checkpoint::transfer::{Incoming, Outgoing};
use crate::levels::peers::Behind;
use crate::ranks::comm::{in_all, lists, together};
use crate::{AppError, Result};

/// A rank's place in a bucket.
pub(crate) struct Objects {
    client: Client,
    rank: u32,
    /// The prefix of all ranks of the job.
    job: String,
    /// This rank's folder below it.
    own: String,
    bucket: String,
    /// Indexes that have been seen, by checkpoint.
    seen: Mutex<BTreeMap<u64, Index>>,
    /// Packs of checkpoints that could not be read back.
    bad: Mutex<HashSet<String>>,
    /// The checkpoints that all ranks had here after the last that they wrote together, ascending.
    common: Mutex<Option<Vec<u64>>>,
    /// The highest number of a checkpoint that has been seen.
    highest: AtomicU64,
}

impl Objects {
    /// The place of `rank` of job `name`. Asks the service nothing.
    pub(crate) fn new(config: &ObjectConfig, name: &str, rank: u32) -> Result<Self> {
        Ok(Self {
            client: Client::new(config)?,
            rank,
            job: format!("{}{name}/", config.prefix),
            own: share::folder(rank),
            bucket: config.bucket.clone(),
            seen: Mutex::default(),
            bad: Mutex::default(),
            common: Mutex::default(),
            highest: AtomicU64::new(0),
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{}{name}", self.job, self.own)
    }

    fn pack_key(&self, pack: &Pack) -> String {
        format!("{}{}", self.job, pack.name)
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
        let mut found = sequences(&self.client.list(&self.key(""), patience)?);
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
        let (manifest, _) = crate::checkpoint::transfer::decode(&self.index(sequence)?.header)?;
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
        let index = Index::decode(&self.client.get(&key, None)?, &self.own);
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

    /// Copies a checkpoint into the bucket, which then has it whole or not at all. Collective if there is a channel:
    /// then ranks share what they have alike.
    pub(crate) fn upload(
        &self,
        image: &Image,
        from: &Site,
        sequence: u64,
        behind: Option<&Behind>,
    ) -> Result<()> {
        let begun = Outgoing::open(from, image).and_then(|out| Ok((self.before(sequence)?, out)));
        let Some(behind) = behind else {
            let (there, out) = begun?;
            let chunks = wanted(out.table());
            let base = there.last().and_then(|newest| self.base(*newest));
            let unique = unique();
            let name = |n| pack_name(self.rank, sequence, n, unique);
            let bad = self.bad.lock().clone();
            let plan = alone(base, &bad, &chunks, &self.own, name);
            self.put(&out, &plan)?;
            return self.enter(&out, sequence, plan, &chunks);
        };
        let comm = behind.comm.lock();
        let (there, out) = together(&**comm, begun)?;
        let mut common = in_all(&lists(&**comm, &there)?);
        let chunks = wanted(out.table());
        let mine = Mine {
            base: common.last().and_then(|newest| self.base(*newest)),
            bad: self.bad.lock().clone(),
            chunks: &chunks,
            sequence,
            unique: unique(),
        };
        let plan = agree(&**comm, mine)?;
        // No checkpoint may refer to what another rank could not put.
        together(&**comm, self.put(&out, &plan))?;
        together(&**comm, self.enter(&out, sequence, plan, &chunks))?;
        common.push(sequence);
        *self.common.lock() = Some(common);
        Ok(())
    }

    /// The checkpoints that are there, if they are all older than the one that is to be written.
    fn before(&self, sequence: u64) -> Result<Vec<u64>> {
        let there = self.sequences()?;
        match there.last().filter(|n| **n >= sequence) {
            None => Ok(there),
            Some(newer) => Err(AppError::Object {
                op: "write",
                bucket: self.bucket.clone(),
                key: self.key(&Layout::name(sequence)),
                what: format!(
                    "there is a checkpoint {newer} of an earlier run, which could not be seen when this one began"
                ),
                hint: "the lower levels are intact, and the next checkpoint gets a higher number",
            }),
        }
    }

    /// A checkpoint whose chunks need not be written again; `None` if it cannot be read.
    fn base(&self, sequence: u64) -> Option<Base> {
        let run = self.record(sequence).ok()?.run;
        Base::of(self.index(sequence).ok()?, run)
    }

    /// Writes this rank's packs.
    fn put(&self, out: &Outgoing, plan: &UploadPlan) -> Result<()> {
        plan.puts.iter().try_for_each(|(pack, chunks)| {
            let key = self.pack_key(&plan.packs[*pack as usize]);
            let length = |at: &usize| u64::from(out.table().records()[*at].length);
            let lengths = chunks.iter().map(length);
            put_pieces(
                &self.client,
                &key,
                lengths,
                |at| out.message(&[chunks[at]]),
                |_| {},
            )
        })
    }

    /// Writes the object that says where everything is.
    fn enter(
        &self,
        out: &Outgoing,
        sequence: u64,
        plan: UploadPlan,
        chunks: &[Wanted],
    ) -> Result<()> {
        let index = Index {
            header: out.header().to_vec(),
            places: plan.places(chunks)?,
            packs: plan.packs,
        };
        let key = self.key(&Layout::name(sequence));
        self.client.put(&key, &index.encode())?;
        self.seen.lock().insert(sequence, index);
        Ok(())
    }

    /// Copies a checkpoint from the bucket to `to`; what that has already is not read, what is read is
    /// checked.
    pub(crate) fn download(&self, sequence: u64, to: &Site) -> Result<()> {
        let index = self.index(sequence)?;
        let read = self.read_all(&index, to);
        if let Err(e) = &read
            && !e.is_full()
        {
            // Whatever it is that cannot be read, no later checkpoint shall need it.
            let packs = index.packs.into_iter().map(|pack| pack.name);
            self.bad.lock().extend(packs);
        }
        read
    }

    fn read_all(&self, index: &Index, to: &Site) -> Result<()> {
        let incoming = Incoming::open(to, &index.header, true)?;
        let order = once(incoming.table());
        let mut wanted: Vec<(ChunkPlace, u64, usize)> = order
            .iter()
            .zip(&index.places)
            .filter(|(chunk, _)| incoming.lacks(**chunk))
            .map(|(chunk, place)| {
                let length = incoming.table().records()[*chunk].length;
                (*place, u64::from(length), *chunk)
            })
            .collect();
        wanted.sort_unstable_by_key(|(place, _, _)| (place.pack, place.offset));
        let reads = reads(&wanted, |(place, length, _)| Place {
            pack: place.pack,
            offset: place.offset,
            length: *length,
        });
        let incoming = Mutex::new(incoming);
        at_once(reads.len(), |at| self.read(index, reads[at], &incoming))?;
        incoming.into_inner().finish()
    }

    fn read(
        &self,
        index: &Index,
        chunks: &[(ChunkPlace, u64, usize)],
        into: &Mutex<Incoming>,
    ) -> Result<()> {
        let (first, _, _) = chunks[0];
        let bytes = chunks.iter().map(|(_, length, _)| length).sum();
        let key = self.pack_key(&index.packs[first.pack as usize]);
        let content = self.client.get(&key, Some((first.offset, bytes)))?;
        let mut rest = &content[..];
        for (_, length, chunk) in chunks {
            let (bytes, more) = rest.split_at(*length as usize);
            into.lock().take(&[*chunk], bytes);
            rest = more;
        }
        Ok(())
    }

    /// Removes all that are older than the newest `keep` checkpoints up to number `complete`, and the packs that none
    /// of the others needs. Ranks that write together count those that all of them have, so they keep the same ones.
    pub(crate) fn prune(&self, complete: u64, keep: usize) -> Result<()> {
        let names = self.client.list(&self.key(""), self.client.deadline())?;
        let mut there = sequences(&names);
        there.sort_unstable();
        let mut counted = self.common.lock().clone().unwrap_or(there.clone());
        counted.retain(|n| *n <= complete);
        let oldest = match counted.len().checked_sub(keep) {
            None => 0,
            Some(surplus) => counted.get(surplus).copied().unwrap_or(u64::MAX),
        };
        for sequence in there.iter().filter(|n| **n < oldest) {
            self.client.delete(&self.key(&Layout::name(*sequence)))?;
            self.seen.lock().remove(sequence);
        }
        let mut needed = HashSet::new();
        for sequence in there.iter().filter(|n| **n >= oldest) {
            // What needs which pack must be known of all of them before one is removed.
            needed.extend(self.index(*sequence)?.packs.into_iter().map(|p| p.name));
        }
        let packs = names.iter().filter(|n| n.starts_with('p'));
        for name in packs.filter(|n| !needed.contains(&format!("{}{n}", self.own))) {
            self.client.delete(&self.key(name))?;
        }
        Ok(())
    }
}

fn sequences(names: &[String]) -> Vec<u64> {
    let number = |n: &String| n.strip_prefix('c')?.parse::<u64>().ok();
    names.iter().filter_map(number).filter(|n| *n > 0).collect()
}

/// A number that no other attempt has used.
fn unique() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
