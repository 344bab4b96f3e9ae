//! A store in memory, and what a worker says of its registered tier there.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fermata_control::worker::{FromWorker, Tier, ToWorker};
use fermata_store::Store;

use super::{PATIENCE, Worker};

/// A store in memory, and folders for images.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = Self { folder };
        drop(place.open());
        place
    }

    pub fn store(&self) -> String {
        self.path("store")
    }

    pub fn open(&self) -> Store {
        Store::open(Path::new(&self.store()), true).unwrap()
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    pub fn image(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// Sets a pack of this length aside, as `prepare` does with longer ones.
    pub fn ready(&self, number: u8, bytes: u64) {
        let folder = PathBuf::from(self.store()).join("ready");
        std::fs::create_dir_all(&folder).unwrap();
        // Under its name once it is whole.
        let new = self.path("new");
        let file = std::fs::File::create_new(&new).unwrap();
        // What it held before must not matter.
        file.write_all_at(&vec![0xee; bytes as usize], 0).unwrap();
        std::fs::rename(new, folder.join(format!("{number:032x}.pack"))).unwrap();
    }

    /// The same, of nothing: only its length is there.
    pub fn ready_hollow(&self, number: u8, bytes: u64) {
        let folder = PathBuf::from(self.store()).join("ready");
        std::fs::create_dir_all(&folder).unwrap();
        let new = self.path("new");
        std::fs::File::create_new(&new)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        std::fs::rename(new, folder.join(format!("{number:032x}.pack"))).unwrap();
    }

    /// Removes a folder of an image, and all chunks that no image needs.
    pub fn remove(&self, image: &str) {
        std::fs::remove_dir_all(image).unwrap();
        let options = fermata_store::GcOptions::default();
        fermata_store::gc(self.folder.path(), &self.open(), &options).unwrap();
    }
}

pub fn keep(worker: &mut Worker, place: &Place, limit: u64) -> Tier {
    let store = place.store();
    match worker.ask(ToWorker::Keep {
        store: store.into(),
        copies: String::new().into(),
        limit,
    }) {
        FromWorker::Kept(tier) => tier,
        other => panic!("{other:?}"),
    }
}

/// Waits until so much is ready in the worker.
pub fn keep_until(worker: &mut Worker, place: &Place, ready: u64) {
    let until = Instant::now() + PATIENCE;
    while keep(worker, place, 1 << 40).ready < ready {
        assert!(Instant::now() < until, "{:?}", keep(worker, place, 0));
        std::thread::sleep(Duration::from_millis(20));
    }
}
