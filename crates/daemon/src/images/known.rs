//! Remembers large files of images, and packs with the memory of their processes, that have been checked, so that the next restore of
//! the image need not do that again.
//!
//! A file is identified by what the kernel reports: its identity, its length, and when its content and properties last changed.
//! Every write changes these, except writes through a mapping of a file on a file system in memory. Only the owner and root can
//! make such writes, and a restore trusts them with the image. Damage by the medium is found when the file is read again: an entry
//! is valid for an hour.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fermata_store::{FileKey, FileVersion};
use parking_lot::Mutex;

/// How long an entry is used.
pub(crate) const USED_FOR: Duration = Duration::from_secs(60 * 60);
/// A file that has changed so shortly before may change again, and be told to have changed at the same time.
const SETTLED: Duration = Duration::from_millis(100);
/// Entries that are kept.
const MOST: usize = 256;
/// Packs of one image. They go to the process that brings pages with its other orders, as one argument, of which the kernel takes 128 KiB
/// (`MAX_ARG_STRLEN`, execve(2)): each is less than 256 bytes there. An image of more has its memory checked again.
const MOST_PACKS: usize = 256;

/// What has been checked.
#[derive(Debug, Default)]
pub struct Known {
    /// Versions of files, and their hashes.
    files: Recent<FileKey, (FileVersion, String)>,
    /// By the hash of a chunk table: packs in which all chunks that it names were found right.
    packs: Recent<String, Vec<FileVersion>>,
}

impl Known {
    /// Whether this version was found to have this hash.
    pub fn has(&self, version: &FileVersion, blake3: &str) -> bool {
        let found = self.files.get(&version.key);
        found.is_some_and(|(known, hash)| known == *version && hash == blake3)
    }

    /// The version that was there before it was hashed, and after it, has this hash; `asked` is when it was told, since 1970.
    pub fn add(&self, version: FileVersion, blake3: &str, asked: Duration) {
        if version.is_settled(asked, SETTLED) {
            self.files.put(version.key, (version, blake3.to_owned()));
        }
    }

    /// The packs whose chunks of the table with this hash were found right.
    pub fn packs(&self, table: &str) -> Vec<FileVersion> {
        self.packs.get(table).unwrap_or_default()
    }

    /// The chunks of the table with this hash were found right while their packs were these before and after; `asked` is when their
    /// versions were told, since 1970.
    pub fn add_packs(&self, table: &str, versions: Vec<FileVersion>, asked: Duration) {
        let settled = versions.iter().all(|it| it.is_settled(asked, SETTLED));
        if settled && versions.len() <= MOST_PACKS {
            self.packs.put(table.to_owned(), versions);
        }
    }
}

/// Values that are used for [`USED_FOR`], at most [`MOST`] of them.
#[derive(Debug)]
struct Recent<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let values = self.0.lock();
        let (value, since) = values.get(key)?;
        (since.elapsed() < USED_FOR).then(|| value.clone())
    }

    fn put(&self, key: K, value: V) {
        let mut values = self.0.lock();
        values.retain(|_, (_, since)| since.elapsed() < USED_FOR);
        if values.len() >= MOST {
            let oldest = values.iter().min_by_key(|(_, (_, since))| *since);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                values.remove(&oldest);
            }
        }
        values.insert(key, (value, Instant::now()));
    }
}

/// The time since 1970.
pub fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_that_was_written_since_is_not_known() {
        let path = std::env::temp_dir().join(format!("fermata-known-{}", std::process::id()));
        let mut file = File::create(&path).expect("made");
        file.write_all(b"before").expect("written");
        let (known, version) = (Known::default(), FileVersion::of(&file).expect("told"));
        let later = now() + 2 * SETTLED;
        known.add(version, "hash", later);
        assert!(known.has(&version, "hash") && !known.has(&version, "other"));
        std::thread::sleep(2 * SETTLED);
        file.write_all(b"x").expect("written");
        std::os::unix::fs::FileExt::write_at(&file, b"y", 0).expect("written");
        assert!(!known.has(&FileVersion::of(&file).expect("told"), "hash"));
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn a_file_that_has_just_changed_is_not_remembered() {
        let path = std::env::temp_dir().join(format!("fermata-fresh-{}", std::process::id()));
        let file = File::create(&path).expect("made");
        let (known, version) = (Known::default(), FileVersion::of(&file).expect("told"));
        let [_, (seconds, nanoseconds)] = version.changed;
        let changed = Duration::new(seconds as u64, nanoseconds as u32);
        known.add(version, "hash", changed + SETTLED - Duration::from_nanos(1));
        assert!(!known.has(&version, "hash"));
        known.add(version, "hash", changed + SETTLED);
        assert!(known.has(&version, "hash"));
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn only_so_many_are_kept() {
        let known = Known::default();
        let version = |inode| FileVersion {
            key: FileKey { device: 1, inode },
            length: 0,
            changed: [(1, 0); 2],
        };
        for inode in 0..2 * MOST as u64 {
            known.add(version(inode), "hash", Duration::from_secs(9));
        }
        assert_eq!(known.files.0.lock().len(), MOST);
        assert!(known.has(&version(2 * MOST as u64 - 1), "hash"));
    }

    #[test]
    fn packs_are_known_by_table_if_all_had_settled() {
        let known = Known::default();
        let pack = |inode, seconds| FileVersion {
            key: FileKey { device: 1, inode },
            length: 0,
            changed: [(seconds, 0); 2],
        };
        let asked = Duration::from_secs(9);
        known.add_packs("table", vec![pack(1, 1), pack(2, 2)], asked);
        known.add_packs("fresh", vec![pack(1, 1), pack(2, 9)], asked);
        assert_eq!(known.packs("table"), [pack(1, 1), pack(2, 2)]);
        assert!(known.packs("fresh").is_empty());
        let largest = FileVersion {
            key: FileKey {
                device: u64::MAX,
                inode: u64::MAX,
            },
            length: i64::MAX,
            changed: [(i64::MIN, i64::MIN); 2],
        };
        let longest = serde_json::to_string(&vec![largest; MOST_PACKS]).expect("text");
        assert!(longest.len() < 64 << 10, "{} bytes", longest.len());
        known.add_packs("long", vec![pack(1, 1); MOST_PACKS], asked);
        known.add_packs("too long", vec![pack(1, 1); MOST_PACKS + 1], asked);
        assert_eq!(known.packs("long").len(), MOST_PACKS);
        assert!(known.packs("too long").is_empty());
        for number in 0..2 * MOST {
            known.add_packs(&number.to_string(), vec![pack(1, 1)], asked);
        }
        assert_eq!(known.packs.0.lock().len(), MOST);
        assert_eq!(known.packs(&(2 * MOST - 1).to_string()), [pack(1, 1)]);
    }
}
