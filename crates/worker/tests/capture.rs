//! Captures behind a running program, with the very operations that break them: one kernel that stores where
//! no argument points, just before the last chunk is copied.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{Answer, CONTEXT, LEGACY, Program, Worker, words};
use fermata_abi::op::{Blob, Launch, Op};
use fermata_control::worker::{FromWorker, Pace, ToWorker, Totals, Validate, Way};
use fermata_graph::{Graph, KernelNode, NodeKind};

const CHUNK: u64 = 4 << 20;
/// So many that the last is not on its way when the first ones are there.
const BUFFERS: u64 = 24;
/// Bytes a second: a chunk takes an eighth of a second.
const LINK: (&str, &str) = ("FERMATA_SOFTGPU_HOST_LINK", "32M");
const MODULE: u64 = 0x301;
const STRAY: u64 = 0x302;
const EXEC: u64 = 0x600;

/// Stores `value` where the address in `table` leads.
const PTX: &[u8] = b".version 7.0
.target sm_75
.address_size 64
.visible .entry stray(.param .u64 table, .param .u32 value)
{
    .reg .b32 %r1;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [table];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %d2, %d1;
    ld.global.u64 %d3, [%d2];
    st.global.u32 [%d3], %r1;
    ret;
}
";

/// A session of [`BUFFERS`] chunks, and a table with the address of the last.
struct Scene {
    worker: Worker,
    folder: tempfile::TempDir,
    buffers: Vec<u64>,
    table: u64,
}

impl Scene {
    fn new() -> (Self, Program) {
        Self::of(BUFFERS, LINK)
    }

    /// A session of `count` chunks.
    fn of(count: u64, link: (&str, &str)) -> (Self, Program) {
        let mut worker = Worker::start_with(true, &[link]);
        let program = worker.attach();
        program.set_up();
        let load = Op::ModuleLoad {
            module: MODULE,
            context: CONTEXT,
            image: Blob::Inline(PTX),
            beside: false,
        };
        assert!(matches!(program.ask(&load), Answer::Module(_)));
        let get = Op::FunctionGet {
            function: STRAY,
            module: MODULE,
            name: "stray",
        };
        assert!(matches!(program.ask(&get), Answer::Function(_)));
        let table = program.alloc(4096);
        let buffers: Vec<u64> = (0..count).map(|_| program.alloc(CHUNK)).collect();
        program.write(table, &buffers[count as usize - 1].to_le_bytes());
        let scene = Self {
            worker,
            folder: tempfile::tempdir().unwrap(),
            buffers,
            table,
        };
        (scene, program)
    }

    /// Fills the n-th chunk with `base` + n, so that the store has none of them.
    fn fill(&self, program: &Program, base: u32) {
        for (value, address) in (base..).zip(&self.buffers) {
            let fill = Op::Fill {
                address: *address,
                pitch: 0,
                element: 4,
                value,
                width: CHUNK / 4,
                height: 1,
                stream: LEGACY,
                answered: true,
            };
            assert_eq!(program.ask(&fill), Answer::None);
        }
    }

    fn last(&self) -> u64 {
        self.buffers[self.buffers.len() - 1]
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Begins a capture with `cow`; the program runs on.
    fn begin(&mut self, program: Program, image: &str, validate: Validate) -> Program {
        self.begin_with(program, image, validate, 64 << 20)
    }

    /// The same with a pool of so many bytes.
    fn begin_with(
        &mut self,
        program: Program,
        image: &str,
        validate: Validate,
        pool_bytes: u64,
    ) -> Program {
        let (store, image) = (self.path("store"), self.path(image));
        std::fs::create_dir(&image).unwrap();
        let prepare = ToWorker::Prepare {
            store,
            way: Some(Way::Cow),
            pool_bytes,
            validate,
        };
        let way = Way::Cow;
        assert_eq!(self.worker.ask(prepare), FromWorker::Prepared { way });
        self.worker.detach(program);
        let begun = self.worker.ask(ToWorker::Begin { image });
        assert_eq!(begun, FromWorker::Begun { way });
        self.worker.attach()
    }

    /// Looks until `enough` bytes are copied, or the end.
    fn look(&mut self, enough: u64) -> FromWorker {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < until, "the capture does not end");
            match self.worker.ask(ToWorker::Look) {
                FromWorker::Capturing { done, .. } if done < enough => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                other => return other,
            }
        }
    }

    /// Chunks that a capture under way has copied.
    fn copied(&mut self) -> u64 {
        match self.look(0) {
            FromWorker::Capturing { done, .. } => done / CHUNK,
            other => panic!("{other:?}"),
        }
    }

    /// Ends an overtaken capture as the daemon does; what the image says of its validation.
    fn stop(&mut self, program: Program, image: &str) -> (Program, Totals) {
        self.worker.detach(program);
        let (store, image) = (self.path("store"), self.path(image));
        match self.worker.save(&store, &image) {
            FromWorker::Saved(totals) => (self.worker.attach(), totals),
            other => panic!("{other:?}"),
        }
    }

    /// The first word of the last buffer in an image, and of the first.
    fn words_in(&self, image: &str) -> (u32, u32) {
        let mut worker = Worker::start();
        let (store, image) = (self.path("store"), self.path(image));
        let pace = Pace::Eager;
        let loaded = worker.ask(ToWorker::Load { store, image, pace });
        assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
        let program = worker.attach();
        let first = |address| words(&program.read(address, 4))[0];
        let found = (first(self.last()), first(self.buffers[0]));
        worker.detach(program);
        found
    }

    fn stray(&self, program: &Program, value: u32) {
        let mut params = self.table.to_le_bytes().to_vec();
        params.extend_from_slice(&value.to_le_bytes());
        program.post(&Op::Launch {
            launch: Launch {
                function: STRAY,
                grid: [1, 1, 1],
                block: [1, 1, 1],
                shared: 0,
                cooperative: false,
                params: &params,
                attributes: Vec::new(),
            },
            stream: LEGACY,
        });
        assert_eq!(
            program.ask(&Op::StreamSync { stream: LEGACY }),
            Answer::None
        );
    }
}

impl Scene {
    /// Instantiates a graph of the kernel, which is to store `value`.
    fn instantiate(&self, program: &Program, value: u32) {
        let mut params = self.table.to_le_bytes().to_vec();
        params.extend_from_slice(&value.to_le_bytes());
        let mut graph = Graph::new();
        let kernel = KernelNode {
            function: STRAY,
            context: 0,
            grid: [1, 1, 1],
            block: [1, 1, 1],
            shared_bytes: 0,
            params,
            attributes: Vec::new(),
        };
        graph.add(NodeKind::Kernel(kernel), &[]).unwrap();
        let graph = postcard::to_stdvec(&graph).unwrap();
        let instantiate = Op::GraphInstantiate {
            exec: EXEC,
            context: CONTEXT,
            graph: Blob::Inline(&graph),
            flags: 0,
        };
        assert_eq!(program.ask(&instantiate), Answer::None);
    }

    fn replay(&self, program: &Program) {
        program.post(&Op::GraphLaunch {
            exec: EXEC,
            stream: LEGACY,
        });
        let synced = program.ask(&Op::StreamSync { stream: LEGACY });
        assert_eq!(synced, Answer::None);
    }
}

/// Kernels of a replayed graph have no twins. Where twins are to vouch for the image, content does if the graph is
/// there when the capture begins, and nobody if it comes later: then a stop takes everything.
#[test]
fn a_graph_whose_kernel_strays_is_not_vouched_for_by_twins() {
    for (known, overtaken) in [(true, 1), (false, 0)] {
        let (mut scene, program) = Scene::new();
        scene.fill(&program, 1);
        if known {
            scene.instantiate(&program, 1000);
        }
        let program = scene.begin(program, "image", Validate::Ptx);
        let looked = scene.look(4 * CHUNK);
        assert!(matches!(looked, FromWorker::Capturing { .. }), "{looked:?}");
        if !known {
            scene.instantiate(&program, 1000);
        }
        scene.replay(&program);
        let ended = scene.look(u64::MAX);
        let buffers = overtaken;
        assert_eq!(ended, FromWorker::Overtaken { buffers }, "known: {known}");
        let (program, totals) = scene.stop(program, "image");
        let told = &totals.validation;
        assert_eq!((told.by, told.checked), (Validate::Content, 0), "{told:?}");
        assert!(told.note.contains("graph"), "{told:?}");
        assert_eq!(scene.words_in("image"), (1000, 1), "known: {known}");
        scene.worker.detach(program);
    }
}

/// A store that nobody has foreseen, before the last chunk is copied: found, taken in a stop, and foreseen the
/// next time.
fn found_and_learnt(validate: Validate) {
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let program = scene.begin(program, "first", validate);
    let looked = scene.look(4 * CHUNK);
    assert!(matches!(looked, FromWorker::Capturing { .. }), "{looked:?}");
    scene.stray(&program, 1000);
    let ended = scene.look(u64::MAX);
    assert_eq!(ended, FromWorker::Overtaken { buffers: 1 });
    let (program, totals) = scene.stop(program, "first");
    let told = &totals.validation;
    assert!(told.by == Validate::Content || told.by == Validate::Both);
    if validate != Validate::Content {
        assert_eq!((told.checked, told.unchecked, told.violations), (1, 0, 1));
        assert_eq!(told.misses[0].kernel, "stray");
        assert_eq!(told.misses[0].address, scene.last());
    }
    assert_eq!(scene.words_in("first"), (1000, 1));

    // As late as before, and now it is copied aside first.
    scene.fill(&program, 101);
    let program = scene.begin(program, "second", validate);
    assert!(matches!(
        scene.look(4 * CHUNK),
        FromWorker::Capturing { .. }
    ));
    scene.stray(&program, 2000);
    let FromWorker::Saved(totals) = scene.look(u64::MAX) else {
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
    assert!(matches!(
        scene.look(4 * CHUNK),
        FromWorker::Capturing { .. }
    ));
    scene.stray(&program, 1000);
    let FromWorker::Saved(totals) = scene.look(u64::MAX) else {
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
        store: scene.path("store"),
        way: Some(Way::Snapshot),
        pool_bytes: 0,
        validate: Validate::Content,
    };
    let way = Way::Snapshot;
    assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
    let late = program.alloc(2 * CHUNK);
    program.write(late, &[7; 4]);
    scene.worker.detach(program);
    let image = scene.path("image");
    std::fs::create_dir(&image).unwrap();
    let begun = scene.worker.ask(ToWorker::Begin { image });
    assert_eq!(begun, FromWorker::Begun { way: Way::Cow });
    let program = scene.worker.attach();
    program.launch_add(scene.last(), 5, 1, LEGACY);
    let FromWorker::Saved(totals) = scene.look(u64::MAX) else {
        panic!("there is an image")
    };
    assert!(totals.stall.isolated_bytes >= CHUNK, "{:?}", totals.stall);
    assert_eq!(scene.words_in("image"), (BUFFERS as u32, 1));
    assert_eq!(words(&program.read(scene.last(), 4)), [BUFFERS as u32 + 5]);
    scene.worker.detach(program);
}

/// What a program waits for goes over the link alone: with a pool that is too small as without one, little else is
/// copied before the program has written all that it was about to write.
#[test]
fn a_small_pool_holds_a_program_no_longer_than_none() {
    const COUNT: u64 = 48;
    const HOT: usize = 6;
    /// Bytes a second: a chunk takes a sixteenth of a second.
    const FASTER: (&str, &str) = ("FERMATA_SOFTGPU_HOST_LINK", "64M");
    let mut before = Vec::new();
    for pool in [0, 2] {
        let (mut scene, program) = Scene::of(COUNT, FASTER);
        scene.fill(&program, 1);
        let program = scene.begin_with(program, "image", Validate::Content, pool * CHUNK);
        let begun = scene.copied();
        for address in &scene.buffers[COUNT as usize - HOT..] {
            program.launch_add(*address, 5, 1, LEGACY);
        }
        let synced = program.ask(&Op::StreamSync { stream: LEGACY });
        assert_eq!(synced, Answer::None);
        before.push(scene.copied() - begun);
        if pool == 0 {
            assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
            scene.worker.detach(program);
            continue;
        }
        let FromWorker::Saved(totals) = scene.look(u64::MAX) else {
            panic!("there is an image")
        };
        assert!(totals.stall.waits > 0, "{:?}", totals.stall);
        assert_eq!(scene.words_in("image"), (COUNT as u32, 1));
        scene.worker.detach(program);
    }
    // Eight copies are under way when the first has to wait; on a busy machine eight more may slip in between two,
    // a few times. Before each of them it would be all.
    let most = HOT as u64 + 8 + 3 * 8;
    assert!(before.iter().all(|chunks| *chunks <= most), "{before:?}");
}

/// What was put aside is named where it lies, some pieces at a time, and what the store has does not go over the
/// link again.
#[test]
fn a_snapshot_copies_what_the_store_does_not_have() {
    const MANY: u64 = 150;
    const SMALL: u64 = 16 << 10;
    // 2.4 s for all of it.
    let slow = ("FERMATA_SOFTGPU_HOST_LINK", "1M");
    let mut worker = Worker::start_with(false, &[slow]);
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
    };
    let mut seconds = Vec::new();
    for image in ["first", "second"] {
        let prepare = ToWorker::Prepare {
            store: scene.path("store"),
            way: Some(Way::Snapshot),
            pool_bytes: 0,
            validate: Validate::Content,
        };
        let way = Way::Snapshot;
        assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
        scene.worker.detach(program);
        let image = scene.path(image);
        std::fs::create_dir(&image).unwrap();
        let begun = scene.worker.ask(ToWorker::Begin { image });
        assert_eq!(begun, FromWorker::Begun { way });
        program = scene.worker.attach();
        let saved = scene.look(u64::MAX);
        let FromWorker::Saved(totals) = saved else {
            panic!("{saved:?}")
        };
        assert_eq!(totals.chunks, MANY);
        seconds.push(totals.seconds);
    }
    assert!(seconds[0] > 2.0 && seconds[1] < 1.0, "{seconds:?}");
    scene.worker.detach(program);
}

/// After two captures that were overtaken `auto` takes the image of the end, which nothing can overtake.
#[test]
fn what_is_overtaken_twice_is_captured_at_its_end() {
    let (mut scene, mut program) = Scene::new();
    for (nth, image) in (0..).zip(["first", "second"]) {
        scene.fill(&program, 1 + 100 * nth as u32);
        program = scene.begin(program, image, Validate::Content);
        scene.look(2 * CHUNK);
        // Another buffer each time, so that what was learnt does not help.
        let other = scene.buffers[BUFFERS as usize - 1 - nth];
        program.write(scene.table, &other.to_le_bytes());
        scene.stray(&program, 1000);
        let ended = scene.look(u64::MAX);
        assert_eq!(ended, FromWorker::Overtaken { buffers: 1 }, "{image}");
        (program, _) = scene.stop(program, image);
    }
    let prepare = ToWorker::Prepare {
        store: scene.path("store"),
        way: None,
        pool_bytes: 64 << 20,
        validate: Validate::Content,
    };
    let way = Way::Recopy;
    assert_eq!(scene.worker.ask(prepare), FromWorker::Prepared { way });
    assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
    scene.worker.detach(program);
}
