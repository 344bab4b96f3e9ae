//! The profile of an image: the order of first use of its memory, begun by the capture and improved by each restore, and what restores have
//! learnt of its kernels' mis-speculations.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `FERMPROF` |
//! | 4 | version, 4; 1 ends with the names, 2 with what is known by address, 3 with what is written |
//! | 4 | number of blocks, n |
//! | 8 n | their addresses, in the order of first use |
//! | 4 | number of kernels, k |
//! | each: 4 + length | length and bytes of the name |
//! | 4 | number of kernels whose mis-speculations are known by address, s |
//! | each: 4 + length, 4 + 8 n | length and bytes of the name, number and addresses of memory |
//! | 4 | number of blocks that the program writes, w |
//! | 8 w | their addresses |
//! | 4 | number of kernels of which it is known what they leave as it was, h |
//! | each: 4 + length, 4 + 12 n | length and bytes of the name, number of words, of each the offset in the parameter block and the address of the memory it names |
//! | 32 | BLAKE3 of everything before |
//!
//! All numbers are little-endian. The file is advice: one that is missing or damaged changes nothing but
//! the order in which data comes, and it is no part of what an image's hashes cover.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fermata_abi::op::Address;
use fermata_store::image::{read_profile, write_profile};

const MAGIC: &[u8; 8] = b"FERMPROF";
const VERSION: u32 = 4;
const HASH: usize = 32;
/// The longest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// Kernels that are remembered, at most.
const MOST_KERNELS: usize = 4096;
/// Addresses that are remembered of a kernel; a kernel with more is unpredictable.
const MOST_PLACES: usize = 256;
/// Blocks that are remembered as written.
const MOST_WRITTEN: usize = 1 << 16;
/// Words that are remembered of all kernels together.
const MOST_WORDS: usize = 1 << 17;

/// Words of a kernel's parameter block: their offsets, and the memory that they named.
pub type Words = BTreeSet<(u32, Address)>;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Addresses of blocks, first used first.
    pub order: Vec<Address>,
    /// Kernels whose mis-speculations cannot be listed; all data is present before one of them runs.
    pub unpredictable: Vec<String>,
    /// Kernels that have mis-speculated, with an address in each buffer outside their access set: these are present
    /// before one of them runs.
    pub mis_speculations: BTreeMap<String, Vec<Address>>,
    /// Addresses of blocks that the program writes: it has nothing of them in common with other sessions for long.
    pub written: Vec<Address>,
    /// What kernels have left as it was although their code alone says whether they write there.
    pub harmless: BTreeMap<String, Words>,
}

impl Profile {
    /// The profile of the image in `folder`; an empty one if there is none that can be used.
    pub fn load(folder: &Path) -> Self {
        let bytes = read_profile(folder, MOST_BYTES);
        bytes.and_then(|it| Self::decode(&it)).unwrap_or_default()
    }

    /// Puts it into the image's folder, whole or not at all.
    ///
    /// # Errors
    /// The folder cannot be written; nothing has changed then.
    pub fn store(&self, folder: &Path) -> std::io::Result<()> {
        write_profile(folder, &self.encode())
    }

    /// This restore's order of first use, followed by what it has not used in the order known before.
    pub fn improve(&mut self, used: &[Address]) {
        let fresh: std::collections::HashSet<Address> = used.iter().copied().collect();
        let old = std::mem::take(&mut self.order);
        self.order = used.to_vec();
        self.order
            .extend(old.into_iter().filter(|at| !fresh.contains(at)));
    }

    /// These kernels wait for all data from now on.
    pub fn add_unpredictable(&mut self, kernels: impl IntoIterator<Item = String>) {
        for kernel in kernels {
            if self.unpredictable.len() < MOST_KERNELS && !self.unpredictable.contains(&kernel) {
                self.unpredictable.push(kernel);
            }
        }
    }

    /// A kernel has mis-speculated: it has touched `address`. True if that was not known.
    pub fn add_mis_speculation(&mut self, kernel: &str, address: Address) -> bool {
        if self.unpredictable.iter().any(|it| it == kernel) {
            return false;
        }
        let known = self.mis_speculations.get(kernel);
        if known.is_some_and(|it| it.contains(&address)) {
            return false;
        }
        let full = match known {
            Some(places) => places.len() >= MOST_PLACES,
            None => self.mis_speculations.len() >= MOST_KERNELS,
        };
        if full {
            self.mis_speculations.remove(kernel);
            self.add_unpredictable([kernel.to_owned()]);
        } else {
            let places = self.mis_speculations.entry(kernel.to_owned()).or_default();
            places.push(address);
        }
        true
    }

    /// What another restore of the image has learnt of its kernels and its blocks.
    pub fn join(&mut self, other: Self) {
        self.add_unpredictable(other.unpredictable);
        for (kernel, places) in other.mis_speculations {
            for address in places {
                self.add_mis_speculation(&kernel, address);
            }
        }
        self.add_written(&other.written);
        for (kernel, words) in other.harmless {
            self.add_harmless(&kernel, words);
        }
    }

    /// The program writes the blocks at these addresses. True if that was not known.
    pub fn add_written(&mut self, blocks: &[Address]) -> bool {
        let before = self.written.len();
        for at in blocks {
            if self.written.len() < MOST_WRITTEN && !self.written.contains(at) {
                self.written.push(*at);
            }
        }
        self.written.len() != before
    }

    /// The kernel has left what these words name as it was. True if that was not known.
    pub fn add_harmless(
        &mut self,
        kernel: &str,
        words: impl IntoIterator<Item = (u32, Address)>,
    ) -> bool {
        let mut count: usize = self.harmless.values().map(BTreeSet::len).sum();
        let before = count;
        let known = self.harmless.entry(kernel.to_owned()).or_default();
        for word in words {
            if count < MOST_WORDS && known.insert(word) {
                count += 1;
            }
        }
        if known.is_empty() {
            self.harmless.remove(kernel);
        }
        count != before
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.order.len() as u32).to_le_bytes());
        for address in &self.order {
            bytes.extend(address.raw().to_le_bytes());
        }
        bytes.extend((self.unpredictable.len() as u32).to_le_bytes());
        for name in &self.unpredictable {
            put_name(&mut bytes, name);
        }
        bytes.extend((self.mis_speculations.len() as u32).to_le_bytes());
        for (name, places) in &self.mis_speculations {
            put_name(&mut bytes, name);
            bytes.extend((places.len() as u32).to_le_bytes());
            for address in places {
                bytes.extend(address.raw().to_le_bytes());
            }
        }
        bytes.extend((self.written.len() as u32).to_le_bytes());
        for address in &self.written {
            bytes.extend(address.raw().to_le_bytes());
        }
        bytes.extend((self.harmless.len() as u32).to_le_bytes());
        for (name, words) in &self.harmless {
            put_name(&mut bytes, name);
            bytes.extend((words.len() as u32).to_le_bytes());
            for (offset, memory) in words {
                bytes.extend(offset.to_le_bytes());
                bytes.extend(memory.raw().to_le_bytes());
            }
        }
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH)?)?;
        if blake3::hash(body).as_bytes() != hash {
            return None;
        }
        let mut rest = body.strip_prefix(MAGIC)?;
        let version = number(&mut rest)?;
        if !(1..=VERSION).contains(&version) {
            return None;
        }
        let order = addresses(&mut rest)?;
        let mut unpredictable = Vec::new();
        for _ in 0..number(&mut rest)? {
            unpredictable.push(name(&mut rest)?);
        }
        let mut mis_speculations = BTreeMap::new();
        let count = if version > 1 { number(&mut rest)? } else { 0 };
        for _ in 0..count {
            mis_speculations.insert(name(&mut rest)?, addresses(&mut rest)?);
        }
        let written = match version {
            ..3 => Vec::new(),
            _ => addresses(&mut rest)?,
        };
        let mut harmless = BTreeMap::new();
        let count = if version > 3 { number(&mut rest)? } else { 0 };
        for _ in 0..count {
            harmless.insert(name(&mut rest)?, words(&mut rest)?);
        }
        rest.is_empty().then_some(Self {
            order,
            unpredictable,
            mis_speculations,
            written,
            harmless,
        })
    }
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    bytes.extend((name.len() as u32).to_le_bytes());
    bytes.extend(name.as_bytes());
}

fn name(rest: &mut &[u8]) -> Option<String> {
    let length = number(rest)? as usize;
    let (name, further) = rest.split_at_checked(length)?;
    *rest = further;
    String::from_utf8(name.to_vec()).ok()
}

fn addresses(rest: &mut &[u8]) -> Option<Vec<Address>> {
    let count = number(rest)? as usize;
    let (bytes, further) = rest.split_at_checked(count.checked_mul(8)?)?;
    *rest = further;
    let words = bytes.as_chunks::<8>().0;
    Some(
        words
            .iter()
            .map(|it| Address::from_raw(u64::from_le_bytes(*it)))
            .collect(),
    )
}

fn words(rest: &mut &[u8]) -> Option<Words> {
    let count = number(rest)?;
    let word = |_| Some((number(rest)?, address(rest)?));
    (0..count).map(word).collect()
}

fn address(rest: &mut &[u8]) -> Option<Address> {
    let (first, further) = rest.split_first_chunk::<8>()?;
    *rest = further;
    Some(Address::from_raw(u64::from_le_bytes(*first)))
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let (first, further) = rest.split_first_chunk::<4>()?;
    *rest = further;
    Some(u32::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Profile {
        Profile {
            order: [0x3000, 0x1000, 0x2000].map(Address::from_raw).to_vec(),
            unpredictable: vec!["chase".to_owned()],
            mis_speculations: BTreeMap::from([(
                "spread".to_owned(),
                [0x2000, 0x3004].map(Address::from_raw).to_vec(),
            )]),
            written: vec![Address::from_raw(0x3000)],
            harmless: BTreeMap::from([(
                "product".to_owned(),
                [(16, 0x1000), (16, 0x2000), (64, 0x1000)]
                    .map(|(offset, memory)| (offset, Address::from_raw(memory)))
                    .into(),
            )]),
        }
    }

    #[test]
    fn a_profile_of_an_earlier_release_is_read() {
        let mut bytes = [b"FERMPROF".as_slice(), &1u32.to_le_bytes()].concat();
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(0x7000u64.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        put_name(&mut bytes, "chase");
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        let read = Profile::decode(&bytes).expect("it is whole");
        assert_eq!(
            (read.order, read.unpredictable),
            (vec![Address::from_raw(0x7000)], some().unpredictable)
        );
        assert!(read.mis_speculations.is_empty() && read.written.is_empty());
        assert!(read.harmless.is_empty());
    }

    #[test]
    fn what_two_restores_have_learnt_is_kept() {
        let mut profile = some();
        let mut other = Profile::default();
        other.add_unpredictable(["walk".to_owned()]);
        let [last, block] = [0x9000, 0x5000].map(Address::from_raw);
        other.add_mis_speculation("spread", last);
        other.add_written(&[block]);
        other.add_harmless("product", [(8, block)]);
        profile.join(other);
        assert_eq!(profile.unpredictable, ["chase", "walk"]);
        let touched = [0x2000, 0x3004, 0x9000].map(Address::from_raw);
        assert_eq!(profile.mis_speculations["spread"], touched);
        assert_eq!(profile.written, [0x3000, 0x5000].map(Address::from_raw));
        assert_eq!(profile.harmless["product"].len(), 4);
        let before = profile.clone();
        profile.join(some());
        assert_eq!(profile, before);
    }

    #[test]
    fn a_written_block_is_remembered_once() {
        let mut profile = some();
        let blocks = [0x3000, 0x5000].map(Address::from_raw);
        assert!(profile.add_written(&blocks) && !profile.add_written(&blocks[1..]));
        assert_eq!(profile.written, [0x3000, 0x5000].map(Address::from_raw));
    }

    #[test]
    fn what_a_kernel_leaves_as_it_was_is_remembered_once_and_not_without_end() {
        let mut profile = some();
        let word = (16, Address::from_raw(0x1000));
        assert!(!profile.add_harmless("product", [word]));
        assert!(!profile.add_harmless("sum", []));
        assert_eq!(profile.harmless.len(), 1, "nothing is known of the other");
        let many = (0..MOST_WORDS as u64).map(|it| (0, Address::from_raw(it)));
        assert!(profile.add_harmless("sum", many));
        assert!(!profile.add_harmless("more", [word]), "there is no room");
        assert_eq!(
            profile.harmless.values().map(BTreeSet::len).sum::<usize>(),
            MOST_WORDS
        );
    }

    #[test]
    fn a_kernel_that_mis_speculates_everywhere_waits_for_everything() {
        let mut profile = some();
        assert!(
            !profile.add_mis_speculation("chase", Address::from_raw(1)),
            "it waits for everything"
        );
        for first in [true, false] {
            assert_eq!(profile.add_mis_speculation("wide", Address::NULL), first);
        }
        for address in 1..=MOST_PLACES as u64 {
            assert!(profile.add_mis_speculation("wide", Address::from_raw(address)));
        }
        assert_eq!(profile.unpredictable, ["chase", "wide"]);
        assert_eq!(profile.mis_speculations, some().mis_speculations);
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Profile::load(folder.path()), Profile::default());
        some().store(folder.path()).expect("written");
        assert_eq!(Profile::load(folder.path()), some());
        let names: Vec<_> = std::fs::read_dir(folder.path()).expect("listed").collect();
        assert_eq!(names.len(), 1, "nothing else is left");
    }

    #[test]
    fn a_damaged_one_is_as_good_as_none() {
        let whole = some().encode();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert_eq!(Profile::decode(&bytes), None, "byte {at}");
            assert_eq!(Profile::decode(&whole[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn a_later_restore_improves_what_it_has_seen() {
        let mut profile = some();
        profile.improve(&[0x2000, 0x4000].map(Address::from_raw));
        assert_eq!(
            profile.order,
            [0x2000, 0x4000, 0x3000, 0x1000].map(Address::from_raw)
        );
        profile.add_unpredictable(["chase".to_owned(), "walk".to_owned()]);
        assert_eq!(profile.unpredictable, ["chase", "walk"]);
    }
}
