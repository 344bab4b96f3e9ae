//! The registered memory tier: images through it are those of the ordinary way, and whatever is wrong with
//! it costs time only.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::content::{check, fill, table};
use crate::common::hold::COPIES;
use crate::common::place::{Place, keep, keep_until};
use crate::common::{PATIENCE, Worker};
use fermata_control::worker::{
    Failure, FailureKind, FromWorker, LoadCheck, Pace, PrefetchOrder, Stand, ToWorker,
};
use fermata_store::ChunkId;

/// Every chunk of the image, fills included, is sound.
fn verify(place: &Place, image: &str) {
    let reader = place.open().reader().unwrap();
    let ids: Vec<ChunkId> = table(image).iter().map(|it| it.3).collect();
    assert!(reader.check_packs(&ids).is_empty());
    let mut scratch = Vec::new();
    for id in &ids {
        reader.verify(id, &mut scratch).unwrap();
    }
}

fn load(worker: &mut Worker, place: &Place, image: &str) {
    let request = ToWorker::Load {
        store: place.store().into(),
        digests: crate::common::digests(image),
        image: image.to_owned().into(),
        pace: Pace::Eager,
        check: LoadCheck::Off,
        ignore_places: false,
    };
    let loaded = worker.ask(request);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
}

fn saved(worker: &mut Worker, place: &Place, image: &str) {
    let answer = worker.save(&place.store(), image);
    assert!(matches!(answer, FromWorker::Saved(_)), "{answer:?}");
}

/// `hashes`: whether the device hashes what it holds, as a GPU does.
fn equal_images(hashes: bool) {
    let (disk, memory) = (Place::new(), Place::new());
    memory.ready(1, 32 << 20);
    let mut first = Worker::start_with(!hashes, &[]);
    let mut spare = Worker::start_with(!hashes, &[]);
    keep_until(&mut first, &memory, 32 << 20);
    keep_until(&mut spare, &memory, 32 << 20);
    let program = first.attach();
    program.set_up();
    let buffers = fill(&program);
    first.detach(program);
    let (ordinary, through) = (disk.image("a"), memory.image("b"));
    saved(&mut first, &disk, &ordinary);
    saved(&mut first, &memory, &through);
    assert_eq!(memory.open().ready_bytes(), 0, "the ready pack was used");
    assert_eq!(table(&ordinary), table(&through));
    verify(&memory, &through);
    let again = memory.image("c");
    saved(&mut first, &memory, &again);
    assert_eq!(table(&again), table(&through));

    // The other worker has registered the pack before it was written; one that has seen since then how long the pack has
    // become registers that first.
    let until = Instant::now() + PATIENCE;
    while keep(&mut spare, &memory, 0).registered == 0 {
        assert!(Instant::now() < until);
    }
    load(&mut spare, &memory, &through);
    let program = spare.attach();
    check(&program, &buffers);
    // And the first goes on.
    let program = first.attach();
    check(&program, &buffers);
}

#[test]
fn an_image_through_the_tier_is_that_of_the_ordinary_way() {
    equal_images(false);
}

#[test]
fn so_it_is_where_the_device_hashes() {
    equal_images(true);
}

/// One bit of a chunk of the image, in the pack that workers have registered.
fn damage(place: &Place, image: &str) {
    let reader = place.open().reader().unwrap();
    let (_, _, _, id) = *table(image)
        .iter()
        .find(|it| it.2 == 4 << 20)
        .expect("a whole chunk");
    let (at, pack) = (
        reader.locate(&id).unwrap().offset + 100,
        reader.pack_of(&id).unwrap(),
    );
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(pack)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 16], at).unwrap();
}

#[test]
fn what_the_device_finds_damaged_is_never_the_programs() {
    let place = Place::new();
    place.ready(1, 32 << 20);
    let mut worker = Worker::start_with(false, &[]);
    keep_until(&mut worker, &place, 32 << 20);
    let program = worker.attach();
    program.set_up();
    fill(&program);
    worker.detach(program);
    let image = place.image("image");
    saved(&mut worker, &place, &image);
    damage(&place, &image);
    let damaged =
        |failure: &Failure| failure.kind == FailureKind::Damaged && !failure.message.is_empty();
    for pace in [Pace::Eager, Pace::Behind(PrefetchOrder::Default)] {
        let mut second = Worker::start_with(false, &[]);
        let until = Instant::now() + PATIENCE;
        while keep(&mut second, &place, 1 << 40).registered == 0 {
            assert!(Instant::now() < until);
        }
        let answer = second.ask(ToWorker::Load {
            store: place.store().into(),
            digests: crate::common::digests(&image),
            image: image.clone().into(),
            pace,
            check: LoadCheck::Off,
            ignore_places: false,
        });
        match (pace, answer) {
            (Pace::Eager, FromWorker::Failed(failure)) => assert!(damaged(&failure), "{failure:?}"),
            (Pace::Behind(_), FromWorker::Loaded { .. }) => loop {
                assert!(Instant::now() < until);
                match second.ask(ToWorker::Restoring) {
                    FromWorker::Restoring(it) => match it.stand {
                        Stand::Coming => std::thread::sleep(Duration::from_millis(5)),
                        Stand::Failed(failure) => {
                            assert!(damaged(&failure), "{failure:?}");
                            break;
                        }
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                }
            },
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_pack_that_ends_a_little_earlier_stays_registered() {
    let place = Place::new();
    place.ready(1, 17 << 20);
    let mut worker = Worker::start_with(false, &[]);
    let mut spare = Worker::start_with(false, &[]);
    keep_until(&mut worker, &place, 17 << 20);
    keep_until(&mut spare, &place, 17 << 20);
    let program = worker.attach();
    program.set_up();
    let address = program.alloc(16 << 20);
    for index in 0..16u64 {
        let bytes: Vec<u8> = (0..1 << 20)
            .map(|at: u32| (at / 7) as u8 ^ index as u8)
            .collect();
        for (part, bytes) in bytes.chunks(32 << 10).enumerate() {
            program.write(address + (index << 20) + ((part as u64) << 15), bytes);
        }
    }
    worker.detach(program);
    let image = place.image("image");
    saved(&mut worker, &place, &image);
    for worker in [&mut worker, &mut spare] {
        let until = Instant::now() + PATIENCE;
        // A worker that takes the pack's new name also sees its length.
        let tier = loop {
            let tier = keep(worker, &place, 1 << 40);
            if tier.ready == 0 {
                break tier;
            }
            assert!(Instant::now() < until, "{tier:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(tier.registered, 17 << 20, "{tier:?}");
    }
    load(&mut spare, &place, &image);
}

#[test]
fn a_full_tier_and_no_tier_cost_time_only() {
    let place = Place::new();
    place.ready(1, 6 << 20);
    for (limit, ready) in [(1 << 40, 6 << 20), (1 << 20, 0)] {
        let mut worker = Worker::start_with(false, &[]);
        match ready {
            0 => drop(keep(&mut worker, &place, limit)),
            ready => keep_until(&mut worker, &place, ready),
        }
        let program = worker.attach();
        program.set_up();
        let buffers = fill(&program);
        worker.detach(program);
        let image = place.image(&format!("image-{ready}"));
        saved(&mut worker, &place, &image);
        verify(&place, &image);
        assert!(keep(&mut worker, &place, limit).registered <= limit);
        let mut second = Worker::start_with(false, &[]);
        load(&mut second, &place, &image);
        check(&second.attach(), &buffers);
    }
}

#[test]
fn what_cannot_be_registered_is_told_and_taken_the_ordinary_way() {
    let place = Place::new();
    place.ready(1, 32 << 20);
    // No room for windows: what is mapped counts against this limit too.
    let mut worker = Worker::start_with(false, &[]);
    let pid = rustix::process::Pid::from_raw(worker.pid() as i32).unwrap();
    let now = mapped_bytes(worker.pid()) + (20 << 20);
    let limit = rustix::process::Rlimit {
        current: Some(now),
        maximum: None,
    };
    rustix::process::prlimit(Some(pid), rustix::process::Resource::As, limit).unwrap();
    let until = Instant::now() + PATIENCE;
    while keep(&mut worker, &place, 1 << 40).trouble.is_empty() {
        assert!(Instant::now() < until, "no trouble is told");
        std::thread::sleep(Duration::from_millis(20));
    }
    rustix::process::prlimit(
        Some(pid),
        rustix::process::Resource::As,
        rustix::process::Rlimit {
            current: None,
            maximum: None,
        },
    )
    .unwrap();
    let program = worker.attach();
    program.set_up();
    fill(&program);
    worker.detach(program);
    let image = place.image("image");
    saved(&mut worker, &place, &image);
    verify(&place, &image);
    // It is tried again, and no trouble is told any more.
    place.ready(2, 32 << 20);
    keep_until(&mut worker, &place, 32 << 20);
}

fn mapped_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}

/// A bit that changes between device and host: `flips` of the first copies.
fn flipped(tier: bool, flips: &str) -> (Place, String, FromWorker, Vec<(u64, Vec<u8>)>) {
    let place = Place::new();
    place.ready(1, 32 << 20);
    let mut worker = Worker::start_with(false, &[("FERMATA_SOFTGPU_FLIP_COPIES", flips)]);
    if tier {
        keep_until(&mut worker, &place, 32 << 20);
    }
    let program = worker.attach();
    program.set_up();
    let buffers = fill(&program);
    worker.detach(program);
    let image = place.image("image");
    let answer = worker.save(&place.store(), &image);
    // Whatever came of it, the program goes on.
    let program = worker.attach();
    let some = program.read(buffers[2].0, 1000);
    assert_eq!(some, buffers[2].1[..1000]);
    (place, image, answer, buffers)
}

#[test]
fn a_bit_flipped_on_every_copy_fails_the_save_and_leaves_no_chunk() {
    for tier in [false, true] {
        let (place, image, answer, _) = flipped(tier, "1000000");
        let FromWorker::Failed(failure) = &answer else {
            panic!("{answer:?}")
        };
        assert!(
            failure.message.contains("differs in host memory"),
            "{failure:?}"
        );
        assert!(!Path::new(&image).join("chunks").exists());
        let files = place.open().pack_files().unwrap();
        assert!(files.iter().all(|file| file.ready), "{files:?}");
    }
}

#[test]
fn a_bit_flipped_once_is_never_in_an_image() {
    for tier in [false, true] {
        let (place, image, answer, buffers) = flipped(tier, "1");
        // It is copied again, or found too late for that.
        if matches!(&answer, FromWorker::Failed(it) if it.message.contains("differs")) {
            continue;
        }
        assert!(matches!(answer, FromWorker::Saved(_)), "{answer:?}");
        verify(&place, &image);
        let mut second = Worker::start_with(false, &[]);
        load(&mut second, &place, &image);
        check(&second.attach(), &buffers);
    }
}

#[test]
fn a_worker_killed_while_it_fills_a_pack_leaves_the_store_sound() {
    let place = Place::new();
    place.ready(1, 16 << 20);
    let mut worker = Worker::start_with(false, &[]);
    keep_until(&mut worker, &place, 16 << 20);
    let program = worker.attach();
    program.set_up();
    fill(&program);
    worker.detach(program);
    let older = place.image("older");
    saved(&mut worker, &place, &older);
    drop(worker);

    place.ready(2, 32 << 20);
    let hold = crate::common::hold();
    let mut worker = Worker::start_with(false, &[hold.variable()]);
    keep_until(&mut worker, &place, 32 << 20);
    let program = worker.attach();
    program.set_up();
    let address = program.alloc(12 << 20);
    for index in 0..12u64 {
        program.write(address + (index << 20), &[index as u8 + 1; 100]);
    }
    worker.detach(program);
    let image = place.image("image");
    let store = place.store();
    // A part of the pack, and no more.
    hold.only(COPIES, 4 << 20);
    worker
        .daemon
        .send(
            &ToWorker::Save {
                store: store.into(),
                image: image.into(),
            },
            &[],
        )
        .unwrap();
    let tmp = PathBuf::from(place.store()).join("tmp");
    let until = Instant::now() + PATIENCE;
    while std::fs::read_dir(&tmp).unwrap().count() == 0 {
        assert!(Instant::now() < until, "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    worker.kill();

    let store = place.open();
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
    drop(store);
    verify(&place, &older);
}

/// Packs that a process has open or mapped.
fn packs_held(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = open.filter_map(|it| std::fs::read_link(it.ok()?.path()).ok());
    let names = open.map(|it| it.to_string_lossy().into_owned());
    let names = names.chain(maps.lines().map(str::to_owned));
    names.filter(|it| it.contains(".pack")).collect()
}

fn wait_until_none_is_held(worker: &Worker) {
    let until = Instant::now() + PATIENCE;
    loop {
        let held = packs_held(worker.pid());
        if held.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{held:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `collected`: the chunks are collected; else the store goes with all that it holds.
fn nothing_is_held_of_what_is_gone(collected: bool) {
    let place = Place::new();
    place.ready(1, 32 << 20);
    let mut first = Worker::start_with(false, &[]);
    keep_until(&mut first, &place, 32 << 20);
    let program = first.attach();
    program.set_up();
    fill(&program);
    first.detach(program);
    let image = place.image("image");
    saved(&mut first, &place, &image);
    // One that has served nobody, one that has taken the image, and one whose program has its data and does nothing.
    let mut spare = Worker::start_with(false, &[]);
    let mut restored = Worker::start_with(false, &[]);
    for worker in [&mut spare, &mut restored] {
        let until = Instant::now() + PATIENCE;
        while keep(worker, &place, 1 << 40).registered == 0 {
            assert!(Instant::now() < until);
        }
    }
    let loaded = restored.ask(ToWorker::Load {
        store: place.store().into(),
        digests: crate::common::digests(&image),
        image: image.clone().into(),
        pace: Pace::Behind(PrefetchOrder::Default),
        check: LoadCheck::Off,
        ignore_places: false,
    });
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let until = Instant::now() + PATIENCE;
    while !matches!(restored.ask(ToWorker::Restoring), FromWorker::Restoring(it) if it.stand == Stand::Complete)
    {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    let _idle = restored.attach();
    assert!(!packs_held(restored.pid()).is_empty() && !packs_held(spare.pid()).is_empty());
    match collected {
        true => place.remove(&image),
        false => std::fs::remove_dir_all(place.store()).unwrap(),
    }
    for worker in [&first, &spare, &restored] {
        wait_until_none_is_held(worker);
    }
}

#[test]
fn idle_workers_hold_nothing_that_a_collection_has_removed() {
    nothing_is_held_of_what_is_gone(true);
}

#[test]
fn idle_workers_hold_nothing_of_a_store_that_is_gone() {
    nothing_is_held_of_what_is_gone(false);
}
