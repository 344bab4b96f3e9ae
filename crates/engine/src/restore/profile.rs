//! What earlier restores of an image have learnt: which memory is used first, and which kernels reach
//! further than can be foreseen.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `FERMPROF` |
//! | 4 | version, 2; 1 ends with the names |
//! | 4 | number of blocks, n |
//! | 8 n | their addresses, in the order of first use |
//! | 4 | number of kernels, k |
//! | each: 4 + length | length and bytes of the name |
//! | 4 | number of kernels that were seen where they strayed to, s |
//! | each: 4 + length, 4 + 8 n | length and bytes of the name, number and addresses of memory |
//! | 32 | BLAKE3 of everything before |
//!
//! All numbers are little-endian. The file is advice: one that is missing or damaged changes nothing but
//! the order in which data comes, and it is no part of what an image's hashes cover.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fermata_store::image::PROFILE;
use fermata_store::read_limited;

const MAGIC: &[u8; 8] = b"FERMPROF";
const VERSION: u32 = 2;
const HASH: usize = 32;
/// The longest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// Kernels that are remembered, at most.
const MOST_KERNELS: usize = 4096;
/// Addresses that are remembered of a kernel; one that strays further waits for everything.
const MOST_PLACES: usize = 256;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Addresses of blocks, first used first.
    pub order: Vec<u64>,
    /// Kernels that have touched memory nobody foresaw; before one of them runs, everything is there.
    pub wary: Vec<String>,
    /// Kernels that have touched memory nobody foresaw, and an address in each such buffer: before one of them runs,
    /// these are there.
    pub strays: BTreeMap<String, Vec<u64>>,
}

impl Profile {
    /// The profile of the image in `folder`; an empty one if there is none that can be used.
    pub fn load(folder: &Path) -> Self {
        let bytes = read_limited(&folder.join(PROFILE), MOST_BYTES).ok();
        bytes.and_then(|it| Self::decode(&it)).unwrap_or_default()
    }

    /// Puts it into the image's folder, whole or not at all.
    ///
    /// # Errors
    /// The folder cannot be written; nothing has changed then.
    pub fn store(&self, folder: &Path) -> std::io::Result<()> {
        let name = format!(".{PROFILE}-{}", std::process::id());
        let beside = folder.join(name);
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)
            .and_then(|mut file| {
                file.write_all(&self.encode())?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&beside, folder.join(PROFILE)));
        if written.is_err() {
            // What is left of it helps nobody.
            let _ = fs::remove_file(&beside);
        }
        written
    }

    /// This restore's order of first use, followed by what it has not used in the order known before.
    pub fn improve(&mut self, used: &[u64]) {
        let fresh: std::collections::HashSet<u64> = used.iter().copied().collect();
        let old = std::mem::take(&mut self.order);
        self.order = used.to_vec();
        self.order
            .extend(old.into_iter().filter(|at| !fresh.contains(at)));
    }

    /// Remembers kernels; each once.
    pub fn beware(&mut self, kernels: impl IntoIterator<Item = String>) {
        for kernel in kernels {
            if self.wary.len() < MOST_KERNELS && !self.wary.contains(&kernel) {
                self.wary.push(kernel);
            }
        }
    }

    /// A kernel has touched what is at `address`, which nobody had foreseen. Whether that is news.
    pub fn stray(&mut self, kernel: &str, address: u64) -> bool {
        if self.wary.iter().any(|it| it == kernel) {
            return false;
        }
        let known = self.strays.get(kernel);
        if known.is_some_and(|it| it.contains(&address)) {
            return false;
        }
        let full = match known {
            Some(places) => places.len() >= MOST_PLACES,
            None => self.strays.len() >= MOST_KERNELS,
        };
        if full {
            self.strays.remove(kernel);
            self.beware([kernel.to_owned()]);
        } else {
            let places = self.strays.entry(kernel.to_owned()).or_default();
            places.push(address);
        }
        true
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.order.len() as u32).to_le_bytes());
        for address in &self.order {
            bytes.extend(address.to_le_bytes());
        }
        bytes.extend((self.wary.len() as u32).to_le_bytes());
        for name in &self.wary {
            put_name(&mut bytes, name);
        }
        bytes.extend((self.strays.len() as u32).to_le_bytes());
        for (name, places) in &self.strays {
            put_name(&mut bytes, name);
            bytes.extend((places.len() as u32).to_le_bytes());
            for address in places {
                bytes.extend(address.to_le_bytes());
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
        let mut wary = Vec::new();
        for _ in 0..number(&mut rest)? {
            wary.push(name(&mut rest)?);
        }
        let mut strays = BTreeMap::new();
        let count = if version > 1 { number(&mut rest)? } else { 0 };
        for _ in 0..count {
            strays.insert(name(&mut rest)?, addresses(&mut rest)?);
        }
        rest.is_empty().then_some(Self {
            order,
            wary,
            strays,
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

fn addresses(rest: &mut &[u8]) -> Option<Vec<u64>> {
    let count = number(rest)? as usize;
    let (bytes, further) = rest.split_at_checked(count.checked_mul(8)?)?;
    *rest = further;
    let words = bytes.as_chunks::<8>().0;
    Some(words.iter().map(|it| u64::from_le_bytes(*it)).collect())
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
            order: vec![0x3000, 0x1000, 0x2000],
            wary: vec!["chase".to_owned()],
            strays: BTreeMap::from([("spread".to_owned(), vec![0x2000, 0x3004])]),
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
        assert_eq!((read.order, read.wary), (vec![0x7000], some().wary));
        assert!(read.strays.is_empty());
    }

    #[test]
    fn a_kernel_that_strays_everywhere_waits_for_everything() {
        let mut profile = some();
        assert!(!profile.stray("chase", 1), "it waits for everything");
        assert!(profile.stray("wide", 0) && !profile.stray("wide", 0));
        for address in 1..=MOST_PLACES as u64 {
            assert!(profile.stray("wide", address));
        }
        assert_eq!(profile.wary, ["chase", "wide"]);
        assert_eq!(profile.strays, some().strays);
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Profile::load(folder.path()), Profile::default());
        some().store(folder.path()).expect("written");
        assert_eq!(Profile::load(folder.path()), some());
        let names: Vec<_> = fs::read_dir(folder.path()).expect("listed").collect();
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
        profile.improve(&[0x2000, 0x4000]);
        assert_eq!(profile.order, [0x2000, 0x4000, 0x3000, 0x1000]);
        profile.beware(["chase".to_owned(), "walk".to_owned()]);
        assert_eq!(profile.wary, ["chase", "walk"]);
    }
}
