//! What kernels leave as it was, of which their code alone says whether they write there.
//!
//! ```text
//!  launch ─► words in doubt (kernel, offset in its parameters, block) ─► noted together
//!  soon after the restore, later, and at the session's end, when the device has nothing to do:
//!            hash of each block with notes ─┬─ as in the image ─► left as it was, if the same launch has changed another block:
//!                                           │                     the profile says so, and later restores keep it common
//!                                           └─ changed ─────────► the profile says that it is written: later restores load it as their own
//! ```
//! Libraries carry machine code without text. Each of their kernels is taken to write all that its parameters name, so that a
//! first instance makes its weights its own, and here it is found out that this was not needed. A word is known by its kernel, its
//! place in the parameters and the block, so that the same kernel at work on other memory, or with this block as its result, is in doubt
//! again.
//!
//! A hash that is the same does not say that nothing was written: a program that computes once more what it had computed before its
//! checkpoint writes the bytes that were there. So a launch shows something only if what it has written is seen: at least one of its blocks
//! has changed.

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

/// When it is looked, after the restore. The last look ends the notes; the session's end is a look, too.
const LOOKS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Launches that are noted at most.
const MOST: usize = 1 << 16;

/// See the module.
pub(super) struct Examination {
    blocks: Arc<Blocks>,
    /// Blocks that were asked for and are not freed: their numbers by address.
    watched: BTreeMap<Address, usize>,
    /// Blocks that were not asked for, for earlier restores have seen them written.
    written: BTreeSet<Address>,
    /// The doubts of each launch, those that are the same once.
    launches: BTreeSet<Vec<Doubt>>,
    /// Graphs whose kernels have been noted, as they are at this revision.
    graphs: HashMap<ExecId, u64>,
    begun: Instant,
    looks: usize,
}

impl Examination {
    /// Of the blocks of an image that start at `watched`; those at `written` are known to be written.
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

    /// Whether launches are to be noted.
    pub fn is_on(&self) -> bool {
        self.looks < LOOKS.len() && !self.watched.is_empty()
    }

    /// Whether the kernels of `exec`, as they are at `revision`, are not noted yet.
    pub fn is_new(&mut self, exec: ExecId, revision: u64) -> bool {
        self.graphs.insert(exec, revision) != Some(revision)
    }

    /// A kernel is launched with these doubts, of which some are known to be none.
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

    /// Looks, and tells the image's profile. The device has nothing to do, and has done all that was noted. What was as in the image
    /// at an earlier look may have changed since.
    ///
    /// # Errors
    /// The device cannot be asked; then nothing is told.
    pub fn look(
        &mut self,
        live: &mut Live,
        session: &Session,
        recorder: &Recorder,
    ) -> Result<(), EngineError> {
        let late = LOOKS.iter().filter(|it| self.begun.elapsed() >= **it);
        self.looks = late.count();
        // A context that was destroyed has taken its memory along.
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

    /// Those of `blocks` that are as they were in the image, and those that are not; of some that cannot be said.
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
