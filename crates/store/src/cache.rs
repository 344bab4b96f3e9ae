//! Copies of packs in memory, for stores that lie on a disk: what the owner of such a folder does.
//!
//! ```text
//!  folder/ID.pack   the pack, whole; its time of change is that of its last use
//!         ID.from   a link to the pack it was copied from
//!         ID.new    being copied
//!
//!  keep ─► room: the least recently used go ─► ID.from, ID.new ─► whole ─► renamed to ID.pack
//!  sweep ─► a copy goes when ID.from leads to nothing as long as it is
//! ```
//! The store stays the only truth: a copy may go at any time and is never written to. What a folder holds is all that is
//! known of it, so one that was removed, or that a dead process left, is gone on with. Reading is in `copies`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FallocateFlags;

use crate::direct::{self, AlignedBuf};
use crate::format::PackId;
use crate::memory::{self, PackFile};
use crate::{HostMemory, Result, StoreError, index, sync};

/// Bytes copied between two questions whether to go on.
const PIECE: usize = 4 << 20;
/// One part of so many of the file system, and of the host's memory, is left to others.
const LEFT: u64 = 8;

/// A folder of copies that this process looks after; no other process adds to it.
#[derive(Debug)]
pub struct PackCache {
    folder: PathBuf,
    limit: u64,
    left: u64,
}

/// What has become of a pack that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is there.
    Yes,
    /// It does not fit beside those that may not go.
    NoRoom,
    /// The caller did not want to go on, or the pack has gone.
    GivenUp,
}

/// A copy that is there.
struct Entry {
    id: PackId,
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl PackCache {
    /// Copies in `folder`, which need not be there yet, of `limit` bytes at most.
    pub fn new(folder: &Path, limit: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            limit,
            left: LEFT,
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The most bytes it may hold.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How many copies there are, and their bytes.
    pub fn used(&self) -> (usize, u64) {
        let entries = self.entries();
        (entries.len(), entries.iter().map(|it| it.bytes).sum())
    }

    /// Whether there is a copy of this pack.
    pub fn has(&self, pack: &PackFile) -> bool {
        own(&self.folder) && length(&self.path(pack.id, "pack")) == Some(pack.bytes)
    }

    /// Makes a copy of `pack`, or notes that it was used, if there is one. Others go for it, the least recently used
    /// first, but none of `beside`. `go_on` is asked every few MiB.
    ///
    /// # Errors
    /// `Io`, `Full`, or `Misuse` where the folder is another user's; nothing of the pack is kept then.
    pub fn keep(
        &self,
        pack: &PackFile,
        beside: &[PackId],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Kept> {
        self.prepare()?;
        let (to, new) = (self.path(pack.id, "pack"), self.path(pack.id, "new"));
        if self.has(pack) {
            note_use(&to);
            return Ok(Kept::Yes);
        }
        self.remove(pack.id);
        if !self.make_room(pack.bytes, beside) {
            return Ok(Kept::NoRoom);
        }
        let from = self.path(pack.id, "from");
        let link = std::os::unix::fs::symlink(&pack.path, &from);
        link.map_err(|e| StoreError::io("link", &from, 0, e))?;
        let copied = copy(pack, &new, go_on);
        let whole = copied.and_then(|whole| {
            // It may have been removed meanwhile.
            let whole = whole && length(&from) == Some(pack.bytes);
            if whole {
                note_use(&new);
                sync::rename(&new, &to)?;
            }
            Ok(whole)
        });
        if !matches!(whole, Ok(true)) {
            self.remove(pack.id);
        }
        Ok(if whole? { Kept::Yes } else { Kept::GivenUp })
    }

    /// Removes what is not whole, what its store does not have any more, and what is above the limit.
    pub fn sweep(&self) {
        if !own(&self.folder) {
            return;
        }
        for id in ["new", "from", "pack"]
            .iter()
            .flat_map(|ending| index::list(&self.folder, ending).unwrap_or_default())
        {
            let copied = length(&self.path(id, "pack"));
            if copied.is_none() || copied != length(&self.path(id, "from")) {
                self.remove(id);
            }
        }
        self.make_room(0, &[]);
    }

    /// Removes the folder and all copies.
    pub fn clear(&self) {
        if own(&self.folder) {
            // What cannot be removed is what the next owner finds.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    /// Makes the folder, if it is not there.
    fn prepare(&self) -> Result<()> {
        let made = std::fs::DirBuilder::new().mode(0o700).create(&self.folder);
        match made {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(StoreError::io("make folder", &self.folder, 0, e))
            }
            _ if own(&self.folder) => Ok(()),
            _ => Err(StoreError::Misuse {
                op: "keep packs in memory",
                what: format!(
                    "`{}` is no folder of this user alone",
                    self.folder.display()
                ),
            }),
        }
    }

    /// Removes the least recently used copies until so many bytes fit; none if that does not help.
    fn make_room(&self, bytes: u64, beside: &[PackId]) -> bool {
        let mut entries = self.entries();
        let used: u64 = entries.iter().map(|it| it.bytes).sum();
        let mut excess = (used + bytes).saturating_sub(self.most(used));
        entries.retain(|it| !beside.contains(&it.id));
        if bytes > 0 && entries.iter().map(|it| it.bytes).sum::<u64>() < excess {
            return false;
        }
        entries.sort_by_key(|it| it.used);
        for entry in entries {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(entry.bytes);
            self.remove(entry.id);
        }
        true
    }

    /// The most bytes there can be, where `used` are: the limit, or less if others need the file system or the host's memory.
    fn most(&self, used: u64) -> u64 {
        let Ok(stat) = rustix::fs::statvfs(&self.folder) else {
            return self.limit;
        };
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let memory = HostMemory::now().map_or(u64::MAX, |it| it.beyond(self.left));
        match bytes(stat.f_blocks) {
            // It has no size of its own.
            0 => self.limit.min(used.saturating_add(memory)),
            all => {
                let free = bytes(stat.f_bavail).saturating_sub(all / self.left);
                self.limit.min(used.saturating_add(free.min(memory)))
            }
        }
    }

    fn entries(&self) -> Vec<Entry> {
        if !own(&self.folder) {
            return Vec::new();
        }
        let ids = index::list(&self.folder, "pack").unwrap_or_default();
        let entry = |id| {
            let path = self.path(id, "pack");
            let meta = path.symlink_metadata().ok()?;
            Some(Entry {
                id,
                bytes: meta.len(),
                used: meta.modified().ok()?,
                path,
            })
        };
        ids.into_iter().filter_map(entry).collect()
    }

    fn remove(&self, id: PackId) {
        for ending in ["new", "pack", "from"] {
            // What cannot be removed counts on.
            let _ = sync::remove_file(&self.path(id, ending));
        }
    }

    fn path(&self, id: PackId, ending: &str) -> PathBuf {
        path(&self.folder, id, ending)
    }
}

/// A copy is used now. The kernel's own times are some milliseconds behind the clock, so that of a new file is set, too: it would look
/// older than one that was used before it was made.
fn note_use(path: &Path) {
    // One that keeps an older time only goes sooner.
    let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
}

/// The copies in a folder, to be mapped; none where it is not this user's own.
pub fn copied_packs(folder: &Path) -> Vec<PackFile> {
    let cache = PackCache::new(folder, 0);
    let file = |it: Entry| memory::pack_file(it.id, it.path, false);
    cache.entries().into_iter().filter_map(file).collect()
}

pub(crate) fn path(folder: &Path, id: PackId, ending: &str) -> PathBuf {
    folder.join(format!("{id}.{ending}"))
}

/// Whether only this user can put anything there.
pub(crate) fn own(folder: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let meta = folder.symlink_metadata();
    meta.is_ok_and(|it| it.is_dir() && it.uid() == user && it.mode() & 0o077 == 0)
}

/// The length of the file, or of that it leads to.
fn length(path: &Path) -> Option<u64> {
    let meta = std::fs::metadata(path).ok()?;
    meta.is_file().then_some(meta.len())
}

/// Copies all of a pack to a new file; false if it has another length, or not all was wanted.
fn copy(pack: &PackFile, to: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
    let from = match direct::open_regular(&pack.path, "open pack") {
        Err(e) if e.is_missing() => return Ok(false),
        other => other?,
    };
    let write = |e| StoreError::io("write", to, pack.bytes, e);
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600);
    let file = file.open(to).map_err(write)?;
    // A page that is missing would end a process that has it mapped.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, pack.bytes)
        .map_err(|e| write(e.into()))?;
    let (mut piece, mut at) = (AlignedBuf::new(PIECE), 0);
    while at < pack.bytes {
        if !go_on() {
            return Ok(false);
        }
        let got = direct::read_full(&from, &mut piece, at)
            .map_err(|e| StoreError::io("read", &pack.path, 0, e))?;
        let got = (got as u64).min(pack.bytes - at);
        if got == 0 {
            return Ok(false);
        }
        direct::write_all(&file, &piece[..got as usize], at).map_err(|e| write(e.into()))?;
        at += got;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{BufferId, ChunkTableWriter};
    use crate::{ChunkId, Store};

    const BYTES: usize = 100_000;

    /// A store of packs of one chunk each, and a cache beside it.
    struct Place {
        dir: tempfile::TempDir,
        store: Store,
        ids: Vec<ChunkId>,
    }

    fn bytes(n: u8) -> Vec<u8> {
        vec![n; BYTES]
    }

    impl Place {
        fn new(packs: u8) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(&dir.path().join("store"), true).unwrap();
            let put = |n| {
                let (id, writer) = (ChunkId::of(&bytes(n)), store.begin().unwrap());
                writer.put(&id, &bytes(n)).unwrap();
                writer.finish().unwrap();
                id
            };
            let ids = (0..packs).map(put).collect();
            Self { dir, store, ids }
        }

        fn folder(&self) -> PathBuf {
            self.dir.path().join("cache")
        }

        /// Room for so many packs.
        fn cache(&self, packs: u64) -> PackCache {
            self.cache_of(packs * self.pack(0).bytes)
        }

        /// Room for so many bytes, however full the disk of this machine is.
        fn cache_of(&self, limit: u64) -> PackCache {
            PackCache {
                left: u64::MAX,
                ..PackCache::new(&self.folder(), limit)
            }
        }

        fn pack(&self, n: usize) -> PackFile {
            let mut table = ChunkTableWriter::default();
            table
                .push(BufferId(1), 0, BYTES as u32, self.ids[n])
                .unwrap();
            self.store.packs_of(&table.into_table()).unwrap().remove(0)
        }

        fn keep(&self, cache: &PackCache, n: usize) -> Kept {
            cache.keep(&self.pack(n), &[], &mut || true).unwrap()
        }

        fn held(&self, cache: &PackCache) -> Vec<usize> {
            let held = |n: &usize| cache.has(&self.pack(*n));
            (0..self.ids.len()).filter(held).collect()
        }

        /// Where the bytes of chunk `n` come from: copies or the disk.
        fn read(&self, n: usize) -> [u64; 2] {
            let reader = self.store.reader().unwrap().with_copies(&self.folder());
            let mut into = bytes(99);
            reader.read_verified(&self.ids[n], &mut into).unwrap();
            assert_eq!(into, bytes(n as u8));
            let taken = reader.taken();
            [taken.from_copies(), taken.from_disk()]
        }
    }

    const COPY: [u64; 2] = [BYTES as u64, 0];
    const DISK: [u64; 2] = [0, BYTES as u64];

    #[test]
    fn the_least_recently_used_goes_first_and_the_limit_holds() {
        let place = Place::new(4);
        let cache = place.cache(2);
        assert_eq!(cache.used(), (0, 0));
        for n in [0, 1, 0, 2] {
            assert_eq!(place.keep(&cache, n), Kept::Yes);
            assert!(cache.used().1 <= cache.limit());
        }
        assert_eq!(place.held(&cache), [0, 2]);
        let beside = [place.pack(0).id, place.pack(2).id];
        let kept = cache.keep(&place.pack(3), &beside, &mut || true);
        assert_eq!(kept.unwrap(), Kept::NoRoom);
        assert_eq!(place.held(&cache), [0, 2], "nothing goes in vain");
        assert_eq!(place.keep(&cache, 3), Kept::Yes);
        assert_eq!(place.held(&cache), [2, 3]);
        assert_eq!((place.read(3), place.read(0)), (COPY, DISK));
        let small = place.cache_of(place.pack(0).bytes - 1);
        assert_eq!(place.keep(&small, 1), Kept::NoRoom);
        small.sweep();
        assert_eq!(small.used(), (0, 0), "what is above the limit goes");
    }

    #[test]
    fn a_part_of_the_file_system_is_left_to_others() {
        let place = Place::new(1);
        // No file system is that free.
        let cache = PackCache {
            left: 1,
            ..place.cache(1)
        };
        assert_eq!(place.keep(&cache, 0), Kept::NoRoom);
        assert_eq!(place.keep(&place.cache(1), 0), Kept::Yes);
    }

    #[test]
    fn a_wrong_copy_is_dropped_and_costs_only_a_read() {
        let place = Place::new(1);
        let cache = place.cache(1);
        place.keep(&cache, 0);
        assert_eq!(place.read(0), COPY);
        let copy = cache.path(place.pack(0).id, "pack");
        let mut wrong = std::fs::read(&copy).unwrap();
        wrong[direct::BLOCK + 5] ^= 1;
        std::fs::write(&copy, &wrong).unwrap();
        assert_eq!(place.read(0), DISK);
        assert!(!copy.exists());
        place.keep(&cache, 0);
        assert_eq!(place.read(0), COPY);
        // One that is shorter, or gone.
        std::fs::write(&copy, &wrong[..wrong.len() - direct::BLOCK]).unwrap();
        assert_eq!(place.read(0), DISK);
        assert_eq!(place.held(&cache), [0; 0]);
        std::fs::remove_dir_all(place.folder()).unwrap();
        assert_eq!(place.read(0), DISK);
        assert_eq!(place.keep(&cache, 0), Kept::Yes);
        assert_eq!(place.read(0), COPY);
    }

    #[test]
    fn what_a_dead_owner_left_is_used_if_it_is_whole() {
        let place = Place::new(4);
        let cache = place.cache(9);
        for n in 0..4 {
            place.keep(&cache, n);
        }
        let (cut, gone, half) = (place.pack(1), place.pack(2), place.pack(3));
        let copy = OpenOptions::new()
            .write(true)
            .open(cache.path(cut.id, "pack"));
        copy.unwrap().set_len(cut.bytes - 1).unwrap();
        std::fs::remove_file(&gone.path).unwrap();
        let names = ["pack", "new"].map(|it| cache.path(half.id, it));
        std::fs::rename(&names[0], &names[1]).unwrap();
        let next = place.cache(9);
        next.sweep();
        assert_eq!(next.used(), (1, place.pack(0).bytes));
        let left: Vec<_> = std::fs::read_dir(place.folder()).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!(place.read(0), COPY);
        next.clear();
        assert!(!place.folder().exists());
    }

    #[test]
    fn a_copy_that_is_given_up_leaves_nothing() {
        let place = Place::new(1);
        let cache = place.cache(1);
        let kept = cache.keep(&place.pack(0), &[], &mut || false);
        assert_eq!(kept.unwrap(), Kept::GivenUp);
        let pack = place.pack(0);
        let removed = cache.keep(&pack, &[], &mut || {
            std::fs::remove_file(&pack.path).unwrap();
            true
        });
        assert_eq!(removed.unwrap(), Kept::GivenUp);
        let again = cache.keep(&pack, &[], &mut || true);
        assert_eq!(again.unwrap(), Kept::GivenUp);
        assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_others_can_enter_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let place = Place::new(1);
        let cache = place.cache(1);
        place.keep(&cache, 0);
        let open = std::fs::Permissions::from_mode(0o770);
        std::fs::set_permissions(place.folder(), open).unwrap();
        assert_eq!(place.read(0), DISK);
        assert_eq!(cache.used(), (0, 0));
        let kept = cache.keep(&place.pack(0), &[], &mut || true);
        assert!(matches!(kept, Err(StoreError::Misuse { .. })), "{kept:?}");
        // A file, or a link to a folder, is no folder either.
        std::fs::remove_dir_all(place.folder()).unwrap();
        std::os::unix::fs::symlink(place.dir.path(), place.folder()).unwrap();
        assert!(cache.keep(&place.pack(0), &[], &mut || true).is_err());
        cache.clear();
        assert!(place.folder().exists() && copied_packs(&place.folder()).is_empty());
    }
}
