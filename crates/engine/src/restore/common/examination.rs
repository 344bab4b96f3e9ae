//! Finds out which memory kernels without text leave unchanged, so that later restores can keep it common.
//!
//! ```text
//!  launch ─► doubts (kernel, offset in its parameters, block) ─► recorded together
//!  soon after the restore, later, and at the session's end, when the device is idle:
//!            hash of each such block ─┬─ as in the image ─► unchanged, if the same launch has changed another block:
//!                                     │                     the profile says so, and later restores keep it common
//!                                     └─ changed ─────────► the profile says written: later restores load it as their own
//! ```
//! Libraries have machine code without text. A kernel of theirs counts as writing everything that its parameters
//! name, so the first instance makes copies of its weights; the examination finds out whether that was needed. A
//! doubt is identified by kernel, offset in the parameters and block, so the same kernel on other memory, or with
//! this block as its result, is a new doubt.
//!
//! An equal hash does not prove that nothing was written: a program that repeats a computation writes the same bytes.
//! So a launch counts as evidence only if at least one of its blocks has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_abi::op::{Address, ExecId};
use fermata_state::Session;

use crate::access::Doubt;
use crate::digest::{self, Digest};
use crate::restore::blocks::Blocks;
use crate::restore::learning::recorder::Recorder;
use crate::{EngineError, Live};

/// When blocks are examined, after the restore. The last look ends the recording; the session's end is a look, too.
const LOOKS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// The most launches that are recorded.
const MOST: usize = 1 << 16;

/// See the module.
pub(super) struct Examination {
    blocks: Arc<Blocks>,
    /// Claimed blocks that have not been freed: their numbers by address.
    watched: BTreeMap<Address, usize>,
    /// Blocks that were not claimed, because earlier restores have seen them written.
    written: BTreeSet<Address>,
    /// The doubts of each launch, equal ones once.
    launches: BTreeSet<Vec<Doubt>>,
    /// Graphs whose kernels have been recorded, with the revision.
    graphs: HashMap<ExecId, u64>,
    begun: Instant,
    looks: usize,
}

impl Examination {
    /// Examines the blocks of an image that start at `watched`; those at `written` are known to be written.
    pub fn new(
        blocks: Arc<Blocks>,
        watched: impl Iterator<Item = Address>,
        written: BTreeSet<Address>,
    ) -> Self {
        let numbered = watched.filter_map(|at| Some((at, blocks.starting(at)?)));
        Self {
            watched: numbered.collect(),
            blocks,
            written,
            launches: BTreeSet::new(),
            graphs: HashMap::new(),
            begun: Instant::now(),
            looks: 0,
        }
    }

    /// Whether launches have to be recorded.
    pub fn is_on(&self) -> bool {
        self.looks < LOOKS.len() && !self.watched.is_empty()
    }

    /// Whether the kernels of `exec` at `revision` have not been recorded yet.
    pub fn is_new(&mut self, exec: ExecId, revision: u64) -> bool {
        self.graphs.insert(exec, revision) != Some(revision)
    }

    /// The program destroys a graph.
    pub fn forget_graph(&mut self, exec: ExecId) {
        self.graphs.remove(&exec);
    }

    /// Records a launch with these doubts, if one of them is about a watched block and not known to be dispelled.
    pub fn note(&mut self, doubts: &[Doubt], is_known: impl Fn(&Doubt) -> bool) {
        let is_watched = |it: &Doubt| self.watched.contains_key(&it.memory);
        if self.launches.len() >= MOST || !doubts.iter().any(|it| is_watched(it) && !is_known(it)) {
            return;
        }
        let of_image = |it: &&Doubt| is_watched(it) || self.written.contains(&it.memory);
        let launch: Vec<Doubt> = doubts.iter().filter(of_image).copied().collect();
        self.launches.insert(launch);
    }

    /// The program has freed the memory at `address`.
    pub fn freed(&mut self, address: Address) {
        if self.watched.remove(&address).is_some() | self.written.remove(&address) {
            let uses = |it: &Vec<Doubt>| it.iter().any(|it| it.memory == address);
            self.launches.retain(|it| !uses(it));
        }
    }

    /// Whether it is time to look.
    pub fn is_due(&self) -> bool {
        let next = LOOKS.get(self.looks);
        next.is_some_and(|it| self.begun.elapsed() >= *it)
    }

    /// Examines the blocks and updates the image's profile. The device must be idle, with all recorded launches done.
    /// A block that was unchanged at an earlier look may have changed since.
    ///
    /// # Errors
    /// The device cannot hash; the profile is then unchanged.
    pub fn look(
        &mut self,
        live: &mut Live,
        session: &Session,
        recorder: &Recorder,
    ) -> Result<(), EngineError> {
        let late = LOOKS.iter().filter(|it| self.begun.elapsed() >= **it);
        self.looks = late.count();
        // A destroyed context has taken its memory along.
        self.watched
            .retain(|at, _| session.allocations.contains(*at));
        if self.launches.is_empty() {
            return Ok(());
        }
        let named = self.launches.iter().flatten().map(|it| it.memory);
        let [same, changed] = self.compared(live, &named.collect())?;
        let is_written =
            |it: &Doubt| changed.contains(&it.memory) || self.written.contains(&it.memory);
        let mut harmless: BTreeMap<String, _> = BTreeMap::new();
        let telling = self.launches.iter().filter(|it| it.iter().any(is_written));
        for doubt in telling.flatten().filter(|it| same.contains(&it.memory)) {
            if let Ok(record) = session.functions.get(doubt.function) {
                let words: &mut BTreeSet<_> = harmless.entry(record.name.clone()).or_default();
                words.insert((doubt.offset, doubt.memory));
            }
        }
        let changed: Vec<Address> = changed.into_iter().collect();
        recorder.examined(harmless, &changed);
        Ok(())
    }

    /// Those of `blocks` that are as in the image, and those that are not. A block that cannot be compared is in neither.
    fn compared(
        &self,
        live: &mut Live,
        blocks: &BTreeSet<Address>,
    ) -> Result<[BTreeSet<Address>; 2], EngineError> {
        let (mut pieces, mut due) = (Vec::new(), Vec::new());
        let known = |at: &Address| self.watched.get(at).map(|it| &self.blocks.all()[*it]);
        for (at, block) in blocks.iter().filter_map(|at| Some((*at, known(at)?))) {
            for (piece, id) in &block.stored {
                pieces.push(*piece);
                due.push((at, Digest::Id(*id)));
            }
            for piece in &block.zero {
                pieces.push(*piece);
                due.push((at, Digest::Zero));
            }
        }
        let found = digest::on_any_device(live, &pieces)?;
        let mut states: BTreeMap<Address, Option<bool>> = BTreeMap::new();
        for ((at, due), found) in due.into_iter().zip(found) {
            let state = states.entry(at).or_insert(Some(true));
            *state = match (*state, found) {
                (Some(false), _) => Some(false),
                (before, found) if found == due => before,
                (_, Digest::Unknown) => None,
                _ => Some(false),
            };
        }
        let those = |what| {
            let found = states.iter().filter(|(_, state)| **state == Some(what));
            found.map(|(at, _)| *at).collect()
        };
        Ok([those(true), those(false)])
    }
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::FunctionId;

    use super::*;
    use crate::restore::blocks::Block;

    fn doubt(offset: u32, memory: u64) -> Doubt {
        Doubt {
            function: FunctionId::from_raw(1),
            offset,
            memory: Address::from_raw(memory),
        }
    }

    fn examination() -> Examination {
        let mut blocks = Blocks::default();
        for at in [0x1000, 0x2000, 0x3000] {
            blocks.insert(Block::new(Address::from_raw(at), 0x1000, 0));
        }
        let watched = [0x1000, 0x2000].map(Address::from_raw).into_iter();
        let written = BTreeSet::from([Address::from_raw(0x3000)]);
        Examination::new(Arc::new(blocks), watched, written)
    }

    #[test]
    fn a_launch_is_noted_with_what_is_of_the_image_once_and_only_if_something_is_in_doubt() {
        let mut examination = examination();
        let launch = [doubt(0, 0x1000), doubt(8, 0x3000), doubt(16, 0x9000)];
        for _ in 0..2 {
            examination.note(&launch, |_| false);
        }
        assert_eq!(examination.launches, [launch[..2].to_vec()].into());
        examination.note(&[doubt(0, 0x2000), doubt(8, 0x3000)], |it| it.offset == 0);
        examination.note(&[doubt(8, 0x3000)], |_| false);
        assert_eq!(examination.launches.len(), 1);
    }

    #[test]
    fn what_is_freed_is_not_looked_at() {
        let mut examination = examination();
        examination.note(&[doubt(0, 0x1000), doubt(8, 0x3000)], |_| false);
        examination.note(&[doubt(0, 0x2000)], |_| false);
        examination.freed(Address::from_raw(0x3000));
        assert_eq!(examination.launches, [vec![doubt(0, 0x2000)]].into());
        examination.freed(Address::from_raw(0x2000));
        // Another allocation lies there now.
        examination.note(&[doubt(0, 0x2000)], |_| false);
        assert!(examination.launches.is_empty());
    }
}
