//! Whether a file system has space for the chunks that a writer is about to write.

use std::path::Path;

use crate::direct::blocks;
use crate::free_space::FreeSpace;
use crate::{HostMemory, Result, Store, StoreError};

impl Store {
    /// Refuses when there is no room for chunks of these lengths, before the first is written. That there is
    /// room now does not mean that there will be: others write too.
    ///
    /// # Errors
    /// `Full`; `op` is what the chunks are written for.
    pub fn check_room(&self, op: &'static str, lengths: impl Iterator<Item = u64>) -> Result<()> {
        let needed: u64 = lengths.map(blocks).sum();
        match FreeSpace::of(self.dir()) {
            Some(left) if left.bytes.saturating_add(self.ready_bytes()) < needed => {
                Err(StoreError::full(op, self.dir(), needed))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses to take `bytes` of memory for a file at `path`, unless one part of `parts` of the host's memory is left then. A file system in
/// memory may be larger than that, and the kernel ends processes when memory is used up.
///
/// # Errors
/// `Full`, with what could be taken.
pub(crate) fn check_memory(op: &'static str, path: &Path, bytes: u64, parts: u64) -> Result<()> {
    let left = HostMemory::now().map_or(u64::MAX, |it| it.beyond(parts));
    lasts(op, path, bytes, left)
}

fn lasts(op: &'static str, path: &Path, needed: u64, left: u64) -> Result<()> {
    if needed <= left {
        return Ok(());
    }
    Err(StoreError::Full {
        op,
        path: path.into(),
        needed,
        left: Some(FreeSpace {
            bytes: left,
            files: None,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_does_not_last_is_refused_with_what_could_be_taken() {
        let path = Path::new("/store/tmp/a.pack");
        lasts("write", path, 100, 100).unwrap();
        let refused = lasts("write", path, 101, 100).unwrap_err().to_string();
        let words = ["/store/tmp/a.pack", "101 bytes more", "100 bytes left"];
        assert!(words.iter().all(|it| refused.contains(it)), "{refused}");
        check_memory("write", path, 1, 64).unwrap();
        check_memory("write", path, u64::MAX, 64).unwrap_err();
    }

    #[test]
    fn a_full_disk_is_described() {
        let error = |needed, left| StoreError::Full {
            op: "make folder",
            path: "/a/b".into(),
            needed,
            left,
        };
        let left = |bytes, files| Some(FreeSpace { bytes, files });
        assert_eq!(
            error(0, left(10, Some(5))).to_string(),
            "no space left to make folder `/a/b`: its file system has 10 bytes left"
        );
        assert_eq!(
            error(4096, left(10, None)).to_string(),
            "no space left to make folder `/a/b`: 4096 bytes more are needed, its file system has 10 bytes left"
        );
        let text = error(0, left(1 << 30, Some(0))).to_string();
        assert!(text.ends_with("takes no more files"), "{text}");
    }

    #[test]
    fn room_is_asked_for_where_a_folder_will_be() {
        let dir = tempfile::tempdir().unwrap();
        let here = FreeSpace::of(dir.path()).unwrap();
        assert!(here.bytes > 0);
        assert!(FreeSpace::of(&dir.path().join("not/yet")).is_some());
        let store = Store::open(dir.path(), true).unwrap();
        store.check_room("store it", [1, 5000].into_iter()).unwrap();
        let error = store
            .check_room("store it", [1 << 62].into_iter())
            .unwrap_err();
        assert!(
            matches!(error, StoreError::Full { needed, .. } if needed == 1 << 62),
            "{error}"
        );
        assert!(error.to_string().contains("no space left to store it"));
    }
}
