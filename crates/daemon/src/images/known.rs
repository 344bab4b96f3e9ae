//! Remembers large files of images that have been checked, so that the next restore of the image need not read them again.
//!
//! A file is identified by what the kernel reports: its identity, its length, and when its content and properties last changed.
//! Every write changes these, except writes through a mapping of a file on a file system in memory. Only the owner and root can
//! make such writes, and a restore trusts them with the image. Damage by the medium is found when the file is read again: an entry
//! is valid for an hour.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fermata_store::FileKey;
use parking_lot::Mutex;

/// How long an entry is used.
const USED_FOR: Duration = Duration::from_secs(60 * 60);
/// A file that has changed so shortly before may change again, and be told to have changed at the same time.
const SETTLED: Duration = Duration::from_millis(100);
/// Entries that are kept.
const MOST: usize = 256;

/// What the kernel tells of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    key: FileKey,
    length: i64,
    /// Of its content and of its properties, in seconds and nanoseconds.
    changed: [(i64, i64); 2],
}

impl Version {
    /// That of an open file.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(file: &File) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self {
            key: FileKey::of(&stat),
            length: stat.st_size,
            changed: [
                (stat.st_mtime, stat.st_mtime_nsec as i64),
                (stat.st_ctime, stat.st_ctime_nsec as i64),
            ],
        })
    }

    /// Whether it would be another one if the file changed at `now`, since 1970.
    fn is_settled(&self, now: Duration) -> bool {
        let (seconds, nanoseconds) = self.changed.into_iter().max().unwrap_or_default();
        let changed = u64::try_from(seconds)
            .ok()
            .zip(u32::try_from(nanoseconds).ok());
        changed.is_some_and(|(s, ns)| Duration::new(s, ns) + SETTLED <= now)
    }
}

#[derive(Debug)]
struct Entry {
    version: Version,
    blake3: String,
    since: Instant,
}

/// Files whose hashes are known.
#[derive(Debug, Default)]
pub struct Known(Mutex<HashMap<FileKey, Entry>>);

impl Known {
    /// Whether this version was found to have this hash.
    pub fn has(&self, version: &Version, blake3: &str) -> bool {
        self.0.lock().get(&version.key).is_some_and(|it| {
            it.version == *version && it.blake3 == blake3 && it.since.elapsed() < USED_FOR
        })
    }

    /// The version that was there before it was hashed, and after it, has this hash; `asked` is when it was told, since 1970.
    pub fn add(&self, version: Version, blake3: &str, asked: Duration) {
        if !version.is_settled(asked) {
            return;
        }
        let mut entries = self.0.lock();
        entries.retain(|_, it| it.since.elapsed() < USED_FOR);
        if entries.len() >= MOST {
            let oldest = entries.iter().min_by_key(|(_, it)| it.since);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                entries.remove(&oldest);
            }
        }
        let entry = Entry {
            version,
            blake3: blake3.to_owned(),
            since: Instant::now(),
        };
        entries.insert(version.key, entry);
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
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_that_was_written_since_is_not_known() {
        let path = std::env::temp_dir().join(format!("fermata-known-{}", std::process::id()));
        let mut file = File::create(&path).expect("made");
        file.write_all(b"before").expect("written");
        let (known, version) = (Known::default(), Version::of(&file).expect("told"));
        let later = now() + 2 * SETTLED;
        known.add(version, "hash", later);
        assert!(known.has(&version, "hash") && !known.has(&version, "other"));
        std::thread::sleep(2 * SETTLED);
        file.write_all(b"x").expect("written");
        std::os::unix::fs::FileExt::write_at(&file, b"y", 0).expect("written");
        assert!(!known.has(&Version::of(&file).expect("told"), "hash"));
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn a_file_that_has_just_changed_is_not_remembered() {
        let path = std::env::temp_dir().join(format!("fermata-fresh-{}", std::process::id()));
        let file = File::create(&path).expect("made");
        let (known, version) = (Known::default(), Version::of(&file).expect("told"));
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
        let version = |inode| Version {
            key: FileKey { device: 1, inode },
            length: 0,
            changed: [(1, 0); 2],
        };
        for inode in 0..2 * MOST as u64 {
            known.add(version(inode), "hash", Duration::from_secs(9));
        }
        assert_eq!(known.0.lock().len(), MOST);
        assert!(known.has(&version(2 * MOST as u64 - 1), "hash"));
    }
}
