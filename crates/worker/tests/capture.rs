//! Captures behind a running program, with the very operations that break them: one kernel that stores where
//! no argument points, just before the last chunk is copied.

use std::time::{Duration, Instant};

use crate::common;
use crate::common::hold::COPIES;
use crate::common::scene::{self, BUFFERS, CHUNK, EXEC, FIRST, Scene, kernel_graph, replay};
use crate::common::{Answer, CONTEXT, FUNCTION, LEGACY, STREAM as OTHER, TRIES, Worker, words};
use fermata_abi::op::{Blob, FunctionId, ModuleId, Op};
use fermata_control::worker::{FromWorker, ToWorker, Validate, Way};

/// A replayed graph whose kernel stores where no argument points is found by the kernel's instrumented form, whether
/// the graph was there when the capture began or not, and foreseen the next time.
#[test]
fn a_graph_whose_kernel_stores_outside_is_found_by_its_instrumented_form_and_it_is_learnt() {
    for (known, validate) in [
        (true, Validate::Ptx),
        (false, Validate::Ptx),
        (true, Validate::Both),
    ] {
        let (mut scene, program) = Scene::new();
        scene.fill(&program, 1);
        if known {
            scene.instantiate(&program, 1000);
        }
        let program = scene.begin(program, "first", validate);
        scene.wait_first();
        if !known {
            scene.instantiate(&program, 1000);
        }
        scene.replay(&program);
        let ended = scene.end();
        assert_eq!(ended, FromWorker::Overtaken { buffers: 1 }, "{known}");
        let (program, totals) = scene.stop(program, "first");
        let told = &totals.validation;
        let counts = (told.checked, told.unchecked, told.violations);
        assert_eq!(counts, (1, 0, 1), "{told:?}");
        let (miss, last) = (&told.misses[0], scene.last());
        assert_eq!((miss.kernel.as_str(), miss.address), ("outside", last));
        assert_eq!(scene.words_in("first"), (1000, 1), "known: {known}");

        scene.fill(&program, 101);
        let program = scene.begin(program, "second", validate);
        scene.wait_first();
        scene.replay(&program);
        let FromWorker::Saved(totals) = scene.end() else {
            panic!("it was overtaken again")
        };
        let told = &totals.validation;
        assert_eq!((told.by, told.note.as_str()), (validate, ""));
        assert_eq!((told.checked, told.unchecked, told.violations), (1, 0, 0));
        assert!(totals.stall.isolated_bytes >= CHUNK, "{:?}", totals.stall);
        assert_eq!(scene.words_in("second"), (100 + BUFFERS as u32, 101));
        assert_eq!(words(&program.read(scene.last(), 4)), [1000]);
        scene.worker.detach(program);
    }
}

/// A graph that is updated, and made anew with another parameter under the same handle, as when a node is switched
/// off, is checked and kept from the image as it is at each launch; after the capture it works on.
#[test]
fn a_graph_that_is_changed_during_a_capture_is_vouched_for_by_its_instrumented_kernels() {
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let create = Op::StreamCreate {
        stream: OTHER.stream,
        context: CONTEXT,
        flags: 1,
        priority: 0,
    };
    assert_eq!(program.ask(&create), Answer::None);
    let targets: Vec<u64> = scene.buffers.iter().rev().take(3).copied().collect();
    let adding = |address: u64| {
        let mut params = address.to_le_bytes().to_vec();
        params.extend_from_slice(&[5u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
        kernel_graph(FUNCTION, [1, 64], params)
    };
    scene::instantiate(&program, &adding(targets[0]));
    let program = scene.begin(program, "image", Validate::Ptx);
    replay(&program, LEGACY);
    let update = postcard::to_stdvec(&adding(targets[1])).unwrap();
    let update = Op::GraphUpdate {
        exec: EXEC,
        graph: Blob::Inline(&update),
    };
    assert_eq!(program.ask(&update), Answer::None);
    replay(&program, OTHER);
    replay(&program, LEGACY);
    program.post(&Op::GraphDestroy { exec: EXEC });
    scene::instantiate(&program, &adding(targets[2]));
    replay(&program, OTHER);
    let saved = scene.end();
    let FromWorker::Saved(totals) = saved else {
        panic!("{saved:?}")
    };
    let told = &totals.validation;
    assert_eq!((told.by, told.note.as_str()), (Validate::Ptx, ""));
    assert_eq!((told.unchecked, told.violations), (0, 0));
    assert_eq!(told.checked, 4, "{told:?}");
    replay(&program, LEGACY);
    let now = |address: &u64| words(&program.read(*address, 4))[0];
    let last = BUFFERS as u32;
    assert_eq!(now(&targets[0]), last + 5);
    assert_eq!(now(&targets[1]), last - 1 + 10);
    assert_eq!(now(&targets[2]), last - 2 + 10);
    scene.worker.detach(program);
    // The image shows the moment of its beginning.
    let found = scene.first_words_in("image", &targets);
    assert_eq!(found, [last, last - 1, last - 2]);
}

/// A kernel that cannot be instrumented, of a module that comes while data is copied: a graph of it is not validated,
/// and a stop takes everything.
#[test]
fn a_graph_that_cannot_be_instrumented_is_named_and_not_vouched_for() {
    const CALLS: &[u8] = b".version 7.0
.target sm_75
.address_size 64
.func hop() { ret; }
.visible .entry calls(.param .u64 p)
{
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [p];
    st.global.u32 [%d1], 7;
    mov.u64 %d2, hop;
    proto: .callprototype _ ();
    call %d2, (), proto;
    ret;
}
";
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let program = scene.begin(program, "image", Validate::Ptx);
    let (module, function) = (ModuleId::from_raw(0x701), FunctionId::from_raw(0x702));
    program.load(module, CALLS);
    program.kernel(function, module, "calls");
    let params = scene.last().to_le_bytes().to_vec();
    scene::instantiate(&program, &kernel_graph(function, [1, 1], params));
    scene.replay(&program);
    let ended = scene.end();
    assert!(matches!(ended, FromWorker::Overtaken { .. }), "{ended:?}");
    let (program, totals) = scene.stop(program, "image");
    let told = &totals.validation;
    assert_eq!(told.by, Validate::Content);
    assert_eq!((told.checked, told.unchecked), (0, 1), "{told:?}");
    let named = told.note.contains("graph") && told.note.contains("`calls`");
    assert!(named, "{told:?}");
    assert_eq!(scene.words_in("image"), (7, 1));
    scene.worker.detach(program);
}

/// A store that nobody has foreseen, before the last chunk is copied: found, taken in a stop, and foreseen the
/// next time.
fn found_and_learnt(validate: Validate) {
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let program = scene.begin(program, "first", validate);
    scene.wait_first();
    scene.store_outside(&program, 1000);
    let ended = scene.end();
    assert_eq!(ended, FromWorker::Overtaken { buffers: 1 });
    let (program, totals) = scene.stop(program, "first");
    let told = &totals.validation;
    assert!(told.by == Validate::Content || told.by == Validate::Both);
    if validate != Validate::Content {
        assert_eq!((told.checked, told.unchecked, told.violations), (1, 0, 1));
        assert_eq!(told.misses[0].kernel, "outside");
        assert_eq!(told.misses[0].address, scene.last());
    }
    assert_eq!(scene.words_in("first"), (1000, 1));

    // As late as before, and now it is copied aside first.
    scene.fill(&program, 101);
    let program = scene.begin(program, "second", validate);
    scene.wait_first();
    scene.store_outside(&program, 2000);
    let FromWorker::Saved(totals) = scene.end() else {
        panic!("it was overtaken again")
    };
    assert_eq!(totals.validation.by, validate);
    assert_eq!(totals.validation.violations, 0);
    assert!(totals.stall.isolated_bytes >= CHUNK, "{:?}", totals.stall);
    assert_eq!(scene.words_in("second"), (100 + BUFFERS as u32, 101));
    assert_eq!(words(&program.read(scene.last(), 4)), [2000]);
    scene.worker.detach(program);
}

#[test]
fn content_finds_what_overtakes_the_last_chunk_and_it_is_learnt() {
    found_and_learnt(Validate::Content);
}

#[test]
fn the_kernel_itself_finds_what_overtakes_the_last_chunk_and_it_is_learnt() {
    found_and_learnt(Validate::Ptx);
}

#[test]
fn both_find_it() {
    found_and_learnt(Validate::Both);
}

/// Without a validator the image is wrong, which shows that the others are needed.
#[test]
fn nothing_finds_nothing() {
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let program = scene.begin(program, "image", Validate::Off);
    scene.wait_first();
    scene.store_outside(&program, 1000);
    let FromWorker::Saved(totals) = scene.end() else {
        panic!("there is an image")
    };
    assert_eq!(totals.validation.by, Validate::Off);
    // It should show the chunk's number, as the stop has found it.
    assert_eq!(scene.words_in("image"), (1000, 1));
    scene.worker.detach(program);
}

/// A snapshot whose session has grown since it was made ready for says that it goes as `cow`, with all of its pool.
#[test]
fn a_snapshot_that_has_outgrown_its_pool_is_named_for_what_it_is() {
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let prepare = ToWorker::Prepare {
        store: scene.path("store").into(),
        way: Some(Way::Snapshot),
        pool_bytes: Some(0),
        validate: Validate::Content,
    };
    let way = Way::Snapshot;
    assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
    let late = program.alloc(2 * CHUNK);
    program.write(late, &[7; 4]);
    scene.worker.detach(program);
    let image = scene.path("image");
    std::fs::create_dir(&image).unwrap();
    // Once for its digests, and the first chunks again.
    scene.hold.only(COPIES, (BUFFERS + 2 + FIRST) * CHUNK);
    let begun = scene.worker.ask(ToWorker::Begin {
        image: image.into(),
    });
    let is_cow = matches!(begun, FromWorker::Begun { way: Way::Cow, .. });
    assert!(is_cow, "{begun:?}");
    let program = scene.worker.attach();
    program.launch_add(scene.last(), 5, 1, LEGACY);
    let FromWorker::Saved(totals) = scene.end() else {
        panic!("there is an image")
    };
    assert!(totals.stall.isolated_bytes >= CHUNK, "{:?}", totals.stall);
    assert_eq!(scene.words_in("image"), (BUFFERS as u32, 1));
    assert_eq!(words(&program.read(scene.last(), 4)), [BUFFERS as u32 + 5]);
    scene.worker.detach(program);
}

/// Chunks that are copied, with a pool of so many, until a program has written all that it was about to write.
fn copied_before(pool: u64) -> u64 {
    /// Bytes a second: a chunk takes a sixteenth of a second.
    const LINK: (&str, &str) = ("FERMATA_SOFTGPU_HOST_LINK", "64M");
    let worker = Worker::start_with(true, &[LINK]);
    let (mut scene, program) = Scene::over(worker, crate::common::hold(), COUNT);
    scene.fill(&program, 1);
    let program = scene.begin_with(program, "image", Validate::Content, pool * CHUNK);
    let Some(begun) = scene.copied() else {
        return COUNT;
    };
    for address in &scene.buffers[COUNT as usize - HOT..] {
        program.launch_add(*address, 5, 1, LEGACY);
    }
    let synced = program.ask(&Op::StreamSync { stream: LEGACY });
    assert_eq!(synced, Answer::None);
    let Some(copied) = scene.copied() else {
        return COUNT;
    };
    if pool == 0 {
        assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
    } else {
        let FromWorker::Saved(totals) = scene.look(u64::MAX) else {
            panic!("there is an image")
        };
        assert!(totals.stall.waits > 0, "{:?}", totals.stall);
        assert_eq!(scene.words_in("image"), (COUNT as u32, 1));
    }
    scene.worker.detach(program);
    copied - begun
}

/// Chunks of that program, and how many of them it writes.
const COUNT: u64 = 48;
const HOT: usize = 6;

/// What a program waits for goes over the link alone: with a pool that is too small as without one, little else is
/// copied before the program has written all that it was about to write.
#[test]
fn a_small_pool_holds_a_program_no_longer_than_none() {
    // Eight copies are under way when the first has to wait, and eight more may slip in between two. If they did
    // before each of them, which a busy machine can do now and then, it would be all.
    let most = HOT as u64 + 8 + 3 * 8;
    for pool in [0, 2] {
        let mut before = Vec::new();
        while before.last().is_none_or(|chunks| *chunks > most) {
            assert!(before.len() < TRIES, "with {pool}: {before:?}");
            before.push(copied_before(pool));
        }
    }
}

/// Chunks that staging buffers hold.
const STAGED: u64 = 32;

/// Nothing is written, every staging buffer is in use, and no memory beside them is granted: what a program is about to
/// write is copied all the same, and it goes on.
#[test]
fn a_program_does_not_wait_for_storage() {
    // A byte a second.
    let settings = [("FERMATA_WRITE_RATE", "1"), ("FERMATA_HOST_BUFFER", "0")];
    let mut seen = Vec::new();
    // A machine that stands still for five seconds lets it go in another way.
    while seen.len() < TRIES {
        let worker = Worker::start_with(true, &settings);
        let (mut scene, program) = Scene::over(worker, crate::common::hold(), COUNT);
        scene.fill(&program, 1);
        let program = scene.begin_with(program, "image", Validate::Content, 0);
        // Some hold what is no whole chunk.
        let full = scene.look((STAGED - 4) * CHUNK);
        assert!(matches!(full, FromWorker::Capturing { .. }), "{full:?}");
        for address in &scene.buffers[COUNT as usize - HOT..] {
            program.launch_add(*address, 5, 1, LEGACY);
        }
        let synced = program.ask(&Op::StreamSync { stream: LEGACY });
        assert_eq!(synced, Answer::None);
        let looked = scene.look(0);
        let begun = Instant::now();
        assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
        // Nor is what is given up taken to its end: a chunk takes this storage days, and a step may take two minutes.
        assert!(begun.elapsed() < Duration::from_secs(60));
        scene.worker.detach(program);
        if matches!(looked, FromWorker::Capturing { done, .. } if done > STAGED * CHUNK) {
            return;
        }
        seen.push(looked);
    }
    panic!("it has waited: {seen:?}");
}

/// What was put aside is named where it lies, some pieces at a time, and what the store has does not go over the
/// link again.
#[test]
fn a_snapshot_copies_what_the_store_does_not_have() {
    const MANY: u64 = 150;
    const SMALL: u64 = 16 << 10;
    let hold = crate::common::hold();
    let mut worker = Worker::start_with(false, &[hold.variable()]);
    let mut program = worker.attach();
    program.set_up();
    let buffers: Vec<u64> = (0..MANY).map(|_| program.alloc(SMALL)).collect();
    for (value, address) in (1u8..).zip(&buffers) {
        program.write(*address, &[value; SMALL as usize]);
    }
    let mut scene = Scene {
        worker,
        folder: tempfile::tempdir().unwrap(),
        buffers: buffers.clone(),
        table: 0,
        hold,
    };
    let first = "first";
    for image in [first, "second"] {
        let prepare = ToWorker::Prepare {
            store: scene.path("store").into(),
            way: Some(Way::Snapshot),
            pool_bytes: Some(0),
            validate: Validate::Content,
        };
        let way = Way::Snapshot;
        assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
        scene.worker.detach(program);
        let path = scene.path(image);
        std::fs::create_dir(&path).unwrap();
        let half = MANY / 2 * SMALL;
        scene
            .hold
            .only(COPIES, if image == first { half } else { 0 });
        let begun = scene.worker.ask(ToWorker::Begin { image: path.into() });
        let is_snapshot = matches!(
            begun,
            FromWorker::Begun {
                way: Way::Snapshot,
                ..
            }
        );
        assert!(is_snapshot, "{begun:?}");
        program = scene.worker.attach();
        let saved = if image == first {
            let looked = scene.look(half);
            let there = matches!(looked, FromWorker::Capturing { done, .. } if done == half);
            assert!(there, "{looked:?}");
            scene.end()
        } else {
            scene.look(u64::MAX)
        };
        let FromWorker::Saved(totals) = saved else {
            panic!("{saved:?}")
        };
        assert_eq!(totals.chunks, MANY);
    }
    scene.worker.detach(program);
}

/// `auto` copies on the device where there is room for that, else what is about to be written.
#[test]
fn auto_is_a_snapshot_if_it_fits_and_cow_if_not() {
    for (memory, way) in [("1G", Way::Snapshot), ("160M", Way::Cow)] {
        let worker = Worker::start_with(true, &[("FERMATA_SOFTGPU_MEMORY", memory)]);
        let (mut scene, program) = Scene::over(worker, crate::common::hold(), BUFFERS);
        let prepare = ToWorker::Prepare {
            store: scene.path("store").into(),
            way: None,
            pool_bytes: Some(2 * CHUNK),
            validate: Validate::Content,
        };
        assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
        assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
        scene.worker.detach(program);
    }
}

/// What is written while everything is copied ahead is copied again ahead; the stop copies the chunks that were written
/// since then, and no others.
#[test]
fn recopy_takes_written_chunks_again_and_no_others() {
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let prepare = ToWorker::Prepare {
        store: scene.path("store").into(),
        way: Some(Way::Recopy),
        pool_bytes: Some(0),
        validate: Validate::Content,
    };
    let way = Way::Recopy;
    assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
    scene.hold.only(COPIES, FIRST * CHUNK);
    let begun = scene.worker.ask(ToWorker::Ahead);
    assert!(matches!(begun, FromWorker::Begun { .. }), "{begun:?}");
    scene.wait_first();
    // One that has been copied, and one that is to be; both once more ahead.
    for address in [scene.buffers[0], scene.last()] {
        program.launch_add(address, 5, 1, LEGACY);
    }
    let synced = program.ask(&Op::StreamSync { stream: LEGACY });
    assert_eq!(synced, Answer::None);
    assert_eq!(scene.end(), FromWorker::Ahead);
    program.launch_add(scene.buffers[1], 5, 1, LEGACY);
    let synced = program.ask(&Op::StreamSync { stream: LEGACY });
    assert_eq!(synced, Answer::None);
    scene.worker.detach(program);
    let (store, image) = (scene.path("store"), scene.path("image"));
    std::fs::create_dir(&image).unwrap();
    let FromWorker::Captured(totals) = scene.worker.ask(ToWorker::Save {
        store: store.into(),
        image: image.into(),
    }) else {
        panic!("there is an image")
    };
    let copied = totals
        .steps
        .iter()
        .find(|step| step.name == "copy")
        .unwrap();
    // The kernel's variable, too.
    assert!((CHUNK..2 * CHUNK).contains(&copied.bytes), "{copied:?}");
    let saved = scene.worker.ask(ToWorker::Finish);
    assert!(matches!(saved, FromWorker::Saved(_)), "{saved:?}");
    let (first, second, last) = (scene.buffers[0], scene.buffers[1], scene.last());
    let found = scene.first_words_in("image", &[first, second, last]);
    assert_eq!(found, [1 + 5, 2 + 5, BUFFERS as u32 + 5]);
}

/// After two captures that were overtaken `auto` takes the image of the end, which nothing can overtake.
#[test]
fn what_is_overtaken_twice_is_captured_at_its_end() {
    let (mut scene, mut program) = Scene::new();
    for (nth, image) in (0..).zip(["first", "second"]) {
        scene.fill(&program, 1 + 100 * nth as u32);
        program = scene.begin(program, image, Validate::Content);
        scene.wait_first();
        // Another buffer each time, so that what was learnt does not help.
        let other = scene.buffers[BUFFERS as usize - 1 - nth];
        let halves = other.to_le_bytes();
        program.write(scene.table, &halves[..4]);
        program.write(scene.table + 4, &halves[4..]);
        scene.store_outside(&program, 1000);
        let ended = scene.end();
        assert_eq!(ended, FromWorker::Overtaken { buffers: 1 }, "{image}");
        (program, _) = scene.stop(program, image);
    }
    let prepare = ToWorker::Prepare {
        store: scene.path("store").into(),
        way: None,
        pool_bytes: Some(64 << 20),
        validate: Validate::Content,
    };
    let way = Way::Recopy;
    assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
    assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
    scene.worker.detach(program);
}

/// A kernel adds to a variable that none of its parameters names: the image has what it was at the start, also where devices hash.
#[test]
fn variables_are_in_an_image_as_they_were_at_its_start() {
    for hashes in [false, true] {
        let hold = common::hold();
        let worker = Worker::start_with(!hashes, &[hold.variable()]);
        let (mut scene, program) = Scene::over(worker, hold, BUFFERS);
        scene.fill(&program, 1);
        let (module, add) = (ModuleId::from_raw(0x401), FunctionId::from_raw(0x402));
        program.load(module, common::PTX);
        program.kernel(add, module, "add");
        let variable = Op::VariableGet {
            module,
            name: "total",
        };
        let Answer::Pair(total, 4) = program.ask(&variable) else {
            panic!("four bytes")
        };
        let memory = program.alloc(64);
        program.launch_adding(add, (memory, 5, 8), LEGACY);
        assert_eq!(words(&program.read(total, 4)), [40]);
        let program = if hashes {
            scene.hold.only(COPIES, FIRST * CHUNK);
            scene.begin_with(program, "image", Validate::Content, 64 << 20)
        } else {
            scene.begin(program, "image", Validate::Content)
        };
        scene.wait_first();
        program.launch_adding(add, (memory, 5, 8), LEGACY);
        assert_eq!(words(&program.read(total, 4)), [80]);
        let ended = scene.end();
        assert!(matches!(ended, FromWorker::Saved(_)), "{ended:?}");
        let other = Worker::start_with(!hashes, &[]);
        let found = scene.first_words_by(other, "image", &[total]);
        assert_eq!(found, [40], "{hashes}");
        scene.worker.detach(program);
    }
}
