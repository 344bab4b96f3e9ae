//! Copies of packs in memory, of a store on a disk: a restore takes what is right of them, registered or not, and the
//! packs for the rest.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::content::{check, fill, table};
use crate::common::{PATIENCE, Worker};
use fermata_control::worker::{FromWorker, LoadCheck, Pace, PrefetchOrder, Stand, Step, ToWorker};
use fermata_store::image::ChunkTable;
use fermata_store::{Kept, PackCache, PackFile, Store};

/// What registers nothing, and what registers all.
const LIMITS: [u64; 2] = [0, 1 << 40];

/// Bytes of the chunk that the image has twice: while one copy of a chunk is under way as part of a longer one, another
/// is read.
const TWICE: u64 = 4 << 20;

/// An image on a disk, what it holds, and room for copies in memory.
struct Scene {
    disk: tempfile::TempDir,
    memory: tempfile::TempDir,
    buffers: Vec<(u64, Vec<u8>)>,
}

impl Scene {
    /// `hashes`: whether devices hash what they hold, as a GPU does.
    fn new(hashes: bool) -> Self {
        let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut worker = Worker::start_with(!hashes, &[]);
        let program = worker.attach();
        program.set_up();
        let buffers = fill(&program);
        worker.detach(program);
        let scene = Self {
            disk,
            memory: tempfile::tempdir_in("/dev/shm").unwrap(),
            buffers,
        };
        drop(Store::open(Path::new(&scene.path("store")), true).unwrap());
        std::fs::create_dir(scene.path("image")).unwrap();
        let answer = worker.save(&scene.path("store"), &scene.path("image"));
        assert!(matches!(answer, FromWorker::Saved(_)), "{answer:?}");
        scene
    }

    fn path(&self, name: &str) -> String {
        let path = self.disk.path().join(name);
        path.to_string_lossy().into_owned()
    }

    fn copies(&self) -> PathBuf {
        self.memory.path().join("copies")
    }

    fn packs(&self) -> Vec<PackFile> {
        let store = Store::open(Path::new(&self.path("store")), false).unwrap();
        let table = ChunkTable::read(Path::new(&self.path("image/chunks"))).unwrap();
        store.packs_of(&table).unwrap()
    }

    /// Copies all packs.
    fn warm(&self) {
        let cache = PackCache::new(&self.copies(), 1 << 40);
        for pack in self.packs() {
            let kept = cache.keep(&pack, &[], &mut || true);
            assert_eq!(kept.unwrap(), Kept::Yes);
        }
    }

    /// Bytes of the image's data.
    fn data(&self) -> u64 {
        let records = table(&self.path("image"));
        records.iter().map(|it| u64::from(it.2)).sum()
    }

    /// Bytes that came from copies, and from the disk, for a worker that registers `limit` bytes of copies; and those
    /// that did not come straight out of registered memory. Everything is right in the end.
    fn load(&self, hashes: bool, limit: u64, pace: Pace) -> [u64; 3] {
        let mut worker = Worker::start_with(!hashes, &[]);
        let copies = self.copies().to_string_lossy().into_owned();
        let keep = ToWorker::Keep {
            store: String::new().into(),
            copies: copies.into(),
            limit,
        };
        let held: u64 = self.packs().iter().map(|it| it.bytes).sum();
        let wanted = held.min(limit);
        let until = Instant::now() + PATIENCE;
        loop {
            match worker.ask(keep.clone()) {
                FromWorker::Kept(tier) if tier.registered >= wanted => break,
                FromWorker::Kept(tier) => assert!(Instant::now() < until, "{tier:?}"),
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let loaded = worker.ask(ToWorker::Load {
            store: self.path("store").into(),
            digests: crate::common::digests(&self.path("image")),
            image: self.path("image").into(),
            pace,
            check: LoadCheck::default(),
            ignore_places: false,
        });
        let FromWorker::Loaded { steps, .. } = loaded else {
            panic!("{loaded:?}")
        };
        let later = arrived(&mut worker);
        check(&worker.attach(), &self.buffers);
        ["cache", "disk", "read"].map(|name| {
            let named = steps.iter().chain(&later).filter(|it| it.name == name);
            named.map(|it| it.bytes).sum()
        })
    }
}

/// What it took until all data was there.
fn arrived(worker: &mut Worker) -> Vec<Step> {
    let until = Instant::now() + PATIENCE;
    let noted = worker.ask(ToWorker::HostMemoryThere);
    assert_eq!(noted, FromWorker::Noted);
    loop {
        let FromWorker::Restoring(it) = worker.ask(ToWorker::Restoring) else {
            panic!("no answer to Restoring")
        };
        match it.stand {
            Stand::Complete => return it.steps,
            Stand::Coming => assert!(Instant::now() < until),
            other => panic!("{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

const PACES: [Pace; 2] = [Pace::Eager, Pace::Behind(PrefetchOrder::Default)];

fn copies_are_taken(hashes: bool) {
    let scene = Scene::new(hashes);
    let data = scene.data();
    let [cache, disk, _] = scene.load(hashes, 0, Pace::Eager);
    assert_eq!([cache, disk], [0, data]);
    scene.warm();
    let [cache, disk, read] = scene.load(hashes, LIMITS[0], Pace::Eager);
    assert!(
        [cache, disk] == [data, 0] && read > TWICE,
        "{cache} {disk} {read}"
    );
    for pace in PACES {
        let [cache, disk, read] = scene.load(hashes, LIMITS[1], pace);
        assert!(
            [cache, disk] == [data, 0] && read <= TWICE,
            "{pace:?}: {cache} {disk} {read}"
        );
    }
}

#[test]
fn what_is_in_memory_is_not_read_from_the_disk() {
    copies_are_taken(false);
}

#[test]
fn nor_where_the_device_hashes() {
    copies_are_taken(true);
}

/// Flips a bit in each chunk of each copy.
fn damage(scene: &Scene) {
    for pack in scene.packs() {
        let copy = scene.copies().join(format!("{}.pack", pack.id));
        let mut bytes = std::fs::read(&copy).unwrap();
        // Behind the header's block.
        bytes[4096..]
            .iter_mut()
            .step_by(4096)
            .for_each(|it| *it ^= 4);
        // In place, as damage comes: a process that has it mapped sees it.
        std::fs::write(&copy, bytes).unwrap();
    }
}

fn damage_costs_a_read(hashes: bool) {
    let scene = Scene::new(hashes);
    for (limit, pace) in LIMITS.into_iter().zip(PACES) {
        scene.warm();
        damage(&scene);
        let from = scene.load(hashes, limit, pace);
        assert_eq!(from[1], scene.data(), "{limit} {pace:?}: {from:?}");
        let left = fermata_store::copied_packs(&scene.copies());
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_damaged_copy_goes_and_the_restore_is_right() {
    damage_costs_a_read(false);
}

#[test]
fn so_it_is_where_the_device_finds_it() {
    damage_costs_a_read(true);
}
