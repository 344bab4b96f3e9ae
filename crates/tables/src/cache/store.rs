//! Where compiled code is kept: a file an entry in one folder, shared by every process of the user.
//!
//! ```text
//!   name     BLAKE3 of all that the code was compiled from, in hexadecimal
//!   content  ┌───────────┬────────────────────────┬─────────────────┐
//!            │ magic, 8  │ BLAKE3 of the code, 32 │ the code        │
//!            └───────────┴────────────────────────┴─────────────────┘
//! ```
//! Files appear whole, by rename, and are never changed. A damaged one is no entry. When the folder grows
//! beyond its limit, the entries that were used longest ago go first. The user's settings for the driver's
//! own cache hold here too: `CUDA_CACHE_DISABLE`, `CUDA_CACHE_PATH`, `CUDA_CACHE_MAXSIZE` (*CUDA C++
//! Programming Guide*, "CUDA Environment Variables").

use std::fs::{self, File, FileTimes};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"FERMCODE";
const HEADER: usize = 40;

/// What the driver allows its own cache.
const LIMIT: u64 = 1 << 30;

/// The name of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry(blake3::Hash);

impl Entry {
    /// The entry for code of a kind, compiled for an architecture from a key, with options, by a compiler of
    /// that platform and build.
    pub fn new(kind: u32, architecture: u32, key: &[u8], texts: [&[u8]; 3]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("fermata compiled code 1");
        hasher.update(&kind.to_le_bytes());
        hasher.update(&architecture.to_le_bytes());
        for part in std::iter::once(key).chain(texts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.finalize())
    }
}

/// A folder of compiled code.
#[derive(Debug)]
pub struct CodeCache {
    folder: PathBuf,
    limit: u64,
}

impl CodeCache {
    /// A cache in `folder`, which is made when the first entry is written, of at most `limit` bytes.
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit }
    }

    /// The cache that the environment asks for; `None` where it is switched off or has no place.
    pub fn of_environment(get: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<Self> {
        if get("CUDA_CACHE_DISABLE").is_some_and(|it| it == "1") {
            return None;
        }
        let limit = get("CUDA_CACHE_MAXSIZE").and_then(|it| it.to_str()?.trim().parse().ok());
        let absolute = |name: &str| get(name).map(PathBuf::from).filter(|it| it.is_absolute());
        let folder = absolute("CUDA_CACHE_PATH")
            .or_else(|| absolute("XDG_CACHE_HOME"))
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(Self::new(
            folder.join("fermata-code"),
            limit.unwrap_or(LIMIT),
        ))
    }

    /// The code of an entry, if it is there and whole.
    pub fn read(&self, entry: &Entry) -> Option<Vec<u8>> {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.path(entry))
            .ok()?;
        let found = file.metadata().ok()?;
        let user = rustix::process::geteuid().as_raw();
        if !found.is_file() || found.uid() != user || found.len() > self.limit {
            return None;
        }
        let mut content = Vec::with_capacity(usize::try_from(found.len()).ok()?);
        (&file).take(self.limit).read_to_end(&mut content).ok()?;
        let (header, code) = content.split_at_checked(HEADER)?;
        let (magic, hash) = header.split_at(MAGIC.len());
        if magic != MAGIC || blake3::hash(code).as_bytes() != hash {
            return None;
        }
        // The entry was used now; where that cannot be noted, it only goes earlier.
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        content.drain(..HEADER);
        Some(content)
    }

    /// Keeps the code of an entry.
    ///
    /// # Errors
    /// The folder cannot be made or written.
    pub fn write(&self, entry: &Entry, code: &[u8]) -> io::Result<()> {
        let size = (HEADER + code.len()) as u64;
        if size > self.limit {
            return Ok(());
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        self.make_room(size)?;
        let mut file = tempfile::Builder::new()
            .prefix(".new-")
            .tempfile_in(&self.folder)?;
        file.write_all(MAGIC)?;
        file.write_all(blake3::hash(code).as_bytes())?;
        file.write_all(code)?;
        file.persist(self.path(entry))
            .map_err(|error| error.error)?;
        Ok(())
    }

    fn path(&self, entry: &Entry) -> PathBuf {
        self.folder.join(entry.0.to_hex().as_str())
    }

    /// Removes the entries that were used longest ago until `size` more bytes fit.
    fn make_room(&self, size: u64) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for found in fs::read_dir(&self.folder)? {
            let found = found?;
            // Another process may have removed it meanwhile.
            let Ok(about) = found.metadata() else {
                continue;
            };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push((used, about.len(), found.path()));
        }
        let mut held: u64 = files.iter().map(|(_, length, _)| length).sum();
        if held + size <= self.limit {
            return Ok(());
        }
        files.sort();
        for (_, length, path) in files {
            remove(&path)?;
            held = held.saturating_sub(length);
            if held + size <= self.limit {
                break;
            }
        }
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(key: &[u8]) -> Entry {
        Entry::new(1, 90, key, [b"-arch=sm_90", b"HOST64", b"build"])
    }

    #[test]
    fn code_comes_back_for_the_same_entry_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = CodeCache::new(folder.path().join("deep/er"), LIMIT);
        assert_eq!(cache.read(&entry(b"k")), None);
        cache.write(&entry(b"k"), b"machine code").expect("kept");
        assert_eq!(
            cache.read(&entry(b"k")).as_deref(),
            Some(&b"machine code"[..])
        );
        let texts: [&[u8]; 3] = [b"-arch=sm_90", b"HOST64", b"build"];
        let others = [
            Entry::new(2, 90, b"k", texts),
            Entry::new(1, 80, b"k", texts),
            Entry::new(1, 90, b"k-arch=sm_90", [b"", b"HOST64", b"build"]),
        ];
        for other in others {
            assert_eq!(cache.read(&other), None);
        }
    }

    #[test]
    fn a_damaged_file_is_no_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = CodeCache::new(folder.path().to_owned(), LIMIT);
        cache.write(&entry(b"k"), b"machine code").expect("kept");
        let path = cache.path(&entry(b"k"));
        let whole = fs::read(&path).expect("the file");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).expect("damage");
            assert_eq!(cache.read(&entry(b"k")), None, "byte {at}");
            fs::write(&path, &whole[..at]).expect("damage");
            assert_eq!(cache.read(&entry(b"k")), None, "cut at {at}");
        }
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("a folder in its place");
        assert_eq!(cache.read(&entry(b"k")), None);
    }

    #[test]
    fn the_entries_used_longest_ago_make_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = CodeCache::new(folder.path().to_owned(), 3 * (HEADER as u64 + 100));
        for (age, key) in [(30, b"a"), (20, b"b"), (10, b"c")] {
            cache.write(&entry(key), &[7; 100]).expect("kept");
            let file = File::options().write(true).open(cache.path(&entry(key)));
            let time = SystemTime::now() - Duration::from_secs(age);
            let times = FileTimes::new().set_modified(time);
            file.and_then(|file| file.set_times(times)).expect("aged");
        }
        assert!(cache.read(&entry(b"a")).is_some(), "used again");
        cache.write(&entry(b"d"), &[7; 100]).expect("kept");
        let there = [b"a", b"b", b"c", b"d"].map(|key| cache.read(&entry(key)).is_some());
        assert_eq!(there, [true, false, true, true]);
        cache
            .write(&entry(b"e"), &[7; 1000])
            .expect("too large to keep");
        assert_eq!(cache.read(&entry(b"e")), None);
    }

    #[test]
    fn the_environment_says_where_and_whether() {
        let of = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> = set
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            CodeCache::of_environment(move |name| {
                set.iter()
                    .find(|(known, _)| known == name)
                    .map(|(_, value)| value.into())
            })
            .map(|cache| (cache.folder.display().to_string(), cache.limit))
        };
        assert_eq!(
            of(&[("HOME", "/h")]),
            Some(("/h/.cache/fermata-code".into(), LIMIT))
        );
        let set = [
            ("CUDA_CACHE_PATH", "/c"),
            ("HOME", "/h"),
            ("CUDA_CACHE_MAXSIZE", "4096"),
        ];
        assert_eq!(of(&set), Some(("/c/fermata-code".into(), 4096)));
        assert_eq!(of(&[("CUDA_CACHE_DISABLE", "1"), ("HOME", "/h")]), None);
        assert_eq!(of(&[("HOME", "relative")]), None);
    }
}
