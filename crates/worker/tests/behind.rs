//! Images whose data comes while the program runs, and no sooner than the test says.

use std::time::{Duration, Instant};

use crate::common::hold::COPIES;
use crate::common::{
    Answer, CONTEXT, FUNCTION, Hold, LEGACY, PATIENCE, Program, TRIES, Worker, scene, words,
};
use fermata_abi::op::{
    Address, ContextId, MemoryId, Op, Place, Resource, Sampler, StreamId, StreamRef, Texture,
};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{
    FromWorker, LoadCheck, Pace, PrefetchOrder, Restoring, Stand, ToWorker,
};

const BUFFER: u64 = 16 << 20;
/// So many, that most are not even on their way when the first is asked for.
const BUFFERS: u32 = 8;
/// All but the first two buffers, or, where the first is wanted, all but the second and the third.
const MOST: u64 = (BUFFERS as u64 - 2) * BUFFER;
/// A moment for an answer that must not come.
const MOMENT: Duration = Duration::from_millis(100);
/// Far less than it takes a worker to give an operation up that waits.
const GIVEN_UP: Duration = Duration::from_secs(150);
/// How long a test waits for what comes at once if it comes at all.
const SOON: Duration = Duration::from_secs(20);

/// Buffers of 16 MiB, the n-th filled with n + 1, and a small one; in an image.
struct Image {
    folder: tempfile::TempDir,
    large: Vec<u64>,
    small: u64,
}

fn fill(program: &Program, address: u64, value: u32, bytes: u64) {
    let fill = Op::Fill {
        address: Address::from_raw(address),
        pitch: 0,
        element: 4,
        value,
        width: bytes / 4,
        height: 1,
        stream: LEGACY,
        answered: true,
    };
    assert_eq!(program.ask(&fill), Answer::None);
}

impl Image {
    fn make() -> Self {
        Self::make_with(&|_, _| {})
    }

    /// With what `more` does with the first buffer.
    fn make_with(more: &dyn Fn(&Program, u64)) -> Self {
        let mut worker = Worker::start();
        let program = worker.attach();
        program.set_up();
        let large: Vec<u64> = (0..BUFFERS).map(|_| program.alloc(BUFFER)).collect();
        let small = program.alloc(4096);
        for (value, address) in (1..).zip(&large) {
            fill(&program, *address, value, BUFFER);
        }
        fill(&program, small, 77, 4096);
        more(&program, large[0]);
        worker.detach(program);
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("image")).unwrap();
        let image = Self {
            folder,
            large,
            small,
        };
        let (store, path) = image.paths("image");
        let saved = worker.save(&store, &path);
        assert!(matches!(saved, FromWorker::Saved(_)), "{saved:?}");
        image
    }

    fn paths(&self, image: &str) -> (String, String) {
        let path = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        (path("store"), path(image))
    }

    /// A worker whose data is to come, the last buffer first, when it is let go.
    fn load(&self) -> (Worker, Hold) {
        self.load_checking(LoadCheck::Off)
    }

    /// The same, with kernels that check themselves.
    fn load_checking(&self, check: LoadCheck) -> (Worker, Hold) {
        let hold = crate::common::hold();
        let mut worker = Worker::start_with(true, &[hold.variable()]);
        hold.only(COPIES, 0);
        let (store, image) = self.paths("image");
        let pace = Pace::Behind(PrefetchOrder::Worst);
        let loaded = worker.ask(ToWorker::Load {
            store: store.into(),
            digests: crate::common::digests(&image),
            image: image.into(),
            pace,
            check,
            ignore_places: false,
        });
        assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
        assert_eq!(standing(&mut worker).stand, Stand::Coming);
        (worker, hold)
    }

    /// A worker with everything there, as a daemon makes it after a fault.
    fn start_again(&self) -> Worker {
        let mut worker = Worker::start();
        let (store, image) = self.paths("image");
        let loaded = worker.ask(ToWorker::Load {
            store: store.into(),
            digests: crate::common::digests(&image),
            image: image.into(),
            pace: Pace::Eager,
            check: LoadCheck::Ptx,
            ignore_places: false,
        });
        assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
        worker
    }
}

pub fn standing(worker: &mut Worker) -> Restoring {
    match worker.ask(ToWorker::Restoring) {
        FromWorker::Restoring(it) => it,
        other => panic!("{other:?}"),
    }
}

/// How it stands when nothing comes any more, or at this time.
fn wait(worker: &mut Worker, until: Instant) -> Stand {
    loop {
        let stand = standing(worker).stand;
        if stand != Stand::Coming || Instant::now() > until {
            return stand;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn wait_complete(worker: &mut Worker) {
    let stand = wait(worker, Instant::now() + PATIENCE);
    assert_eq!(stand, Stand::Complete);
}

/// Waits until an operation of the program waits for data.
fn wait_held(worker: &mut Worker) {
    let until = Instant::now() + PATIENCE;
    let is_held = |it: Restoring| {
        let mut steps = it.steps.iter();
        steps.any(|step| step.name == "waits" && step.seconds > 0.0)
    };
    while !is_held(standing(worker)) {
        assert!(Instant::now() < until, "it does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Needs the first buffer, and is answered when it is there.
fn wants_first(image: &Image) -> Op<'static> {
    Op::Copy {
        to: Place::Address(Address::from_raw(image.small)),
        from: Place::Address(Address::from_raw(image.large[0])),
        len: 8,
        stream: LEGACY,
        answered: true,
    }
}

/// A program whose first buffer is there, though the last come first, and two others are not.
fn first_comes(image: &Image) -> Option<(Worker, Hold, Program)> {
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    let first = program.producer.request(&wants_first(image), None).unwrap();
    wait_held(&mut worker);
    hold.up_to(COPIES, MOST);
    let came = first.wait_for(SOON).unwrap();
    drop(first);
    came.then_some((worker, hold, program))
}

#[test]
fn what_is_needed_comes_first_and_then_the_rest() {
    let image = Image::make();
    let came = (0..TRIES).find_map(|_| first_comes(&image));
    let (mut worker, hold, program) = came.expect("what is needed comes as late as the rest");
    assert_eq!(words(&program.read(image.small, 12)), [1, 1, 77]);
    assert_eq!(words(&program.read(image.large[0], 8)), [1, 1]);
    let now = standing(&mut worker);
    assert_eq!(now.stand, Stand::Coming, "the rest was waited for");
    assert!(now.done < now.total, "{now:?}");

    // Freed before it came: its memory is another's now.
    let free = Op::MemFree {
        address: Address::from_raw(image.large[1]),
    };
    let freed = program.producer.request(&free, None).unwrap();
    // A copy into it that is under way comes first.
    hold.release(COPIES);
    assert!(freed.wait_for(PATIENCE).unwrap());
    assert_eq!(freed.wait(&mut Vec::new()).unwrap().status, 0);
    let again = program.alloc(BUFFER);
    fill(&program, again, 5, BUFFER);
    let info = program.ask(&Op::MemInfo { context: CONTEXT });
    assert!(matches!(info, Answer::Pair(..)), "{info:?}");
    assert_eq!(words(&program.read(again, 8)), [5, 5]);

    program.launch_add(image.large[2], 10, 64, LEGACY);
    assert_eq!(words(&program.read(image.large[2], 8)), [13, 13]);
    wait_complete(&mut worker);
    for (value, address) in (1..).zip(&image.large).skip(3) {
        let end = address + BUFFER - 8;
        assert_eq!(words(&program.read(end, 8)), [value, value]);
    }
    assert_eq!(words(&program.read(again, 8)), [5, 5]);
    worker.detach(program);
    std::fs::create_dir(image.folder.path().join("newer")).unwrap();
    let (store, newer) = image.paths("newer");
    let saved = worker.save(&store, &newer);
    let FromWorker::Saved(totals) = saved else {
        panic!("{saved:?}")
    };
    assert_eq!(totals.allocations, u64::from(BUFFERS) + 1);
}

/// A driver makes no texture of memory that is not mapped, and such memory cannot be exported.
#[test]
fn a_texture_of_memory_and_a_share_of_it_wait_until_it_has_come() {
    let image = Image::make();
    let address = Address::from_raw(image.large[0]);
    let texture = Texture {
        resource: Resource::Linear {
            address,
            format: cu::CU_AD_FORMAT_FLOAT,
            channels: 1,
            bytes: 1024,
        },
        sampler: Some(Sampler {
            address_modes: [cu::CU_TR_ADDRESS_MODE_CLAMP; 3],
            filter: cu::CU_TR_FILTER_MODE_POINT,
            flags: 0,
            anisotropy: 0,
            level_filter: 0,
            levels: [0; 3],
            border: [0; 4],
        }),
        view: None,
    };
    let create = Op::TextureCreate {
        context: CONTEXT,
        texture: Box::new(texture),
    };
    let share = Op::MemShare {
        sharer: [7; 16],
        address,
        memory: MemoryId::NULL,
    };
    for op in [create, share] {
        let (mut worker, hold) = image.load();
        let folder = tempfile::tempdir().unwrap();
        let program = worker.attach();
        let joined = worker.ask(ToWorker::Share {
            folder: folder.path().to_owned(),
            number: None,
        });
        assert_eq!(joined, FromWorker::Sharing);
        let room = program.producer.stage(4096).unwrap();
        let asked = program.producer.request(&op, Some(&room)).unwrap();
        wait_held(&mut worker);
        hold.release(COPIES);
        assert!(asked.wait_for(PATIENCE).unwrap(), "no answer: {op:?}");
        let mut buffer = Vec::new();
        let reply = asked.wait(&mut buffer).unwrap();
        assert_eq!(reply.status, 0, "{}", reply.text);
        wait_complete(&mut worker);
    }
}

#[test]
fn a_program_that_runs_out_of_memory_loses_nothing_of_what_is_coming() {
    let image = Image::make();
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    hold.release(COPIES);
    // No device has so much, and who asks wants to know.
    let create = Op::MemCreate {
        memory: MemoryId::from_raw(0x400),
        device: 0,
        size: 1 << 46,
        flags: 0,
    };
    let refused = program.ask(&create);
    assert!(
        matches!(refused, Answer::Error(cu::CUDA_ERROR_OUT_OF_MEMORY, _)),
        "{refused:?}"
    );
    for (value, address) in (1..).zip(&image.large) {
        let end = address + BUFFER - 8;
        assert_eq!(words(&program.read(end, 8)), [value, value]);
    }
    wait_complete(&mut worker);
}

#[test]
fn a_session_whose_data_is_coming_is_not_saved() {
    let image = Image::make();
    let (mut worker, _hold) = image.load();
    std::fs::create_dir(image.folder.path().join("early")).unwrap();
    let (store, early) = image.paths("early");
    let refused = worker.save(&store, &early);
    assert!(
        matches!(&refused, FromWorker::Failed(why) if why.message.contains("coming")),
        "{refused:?}"
    );
}

/// A program whose kernel touches the buffer behind the one that it names, which is not there; the answer for which the
/// program waits must not come. How it was caught, if it was.
fn mis_speculates(image: &Image, check: LoadCheck, act: &dyn Fn(&Program)) -> Option<Restoring> {
    let (mut worker, hold) = image.load_checking(check);
    let program = worker.attach();
    act(&program);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| program.ask(&Op::ContextSync { context: CONTEXT }));
        wait_held(&mut worker);
        hold.up_to(COPIES, MOST);
        let stand = wait(&mut worker, Instant::now() + SOON);
        // The threads that bring data may be the first to notice.
        let caught = matches!(stand, Stand::Missed(_) | Stand::Failed(_));
        let now = standing(&mut worker);
        assert!(caught || stand == Stand::Coming, "{stand:?}");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!asks.is_finished(), "the program has got an answer");
        worker.kill();
        assert!(asks.join().is_err(), "the program has got an answer");
        caught.then_some(now)
    })
}

/// A few words more than the buffer has.
fn touch_absent(image: &Image, program: &Program) {
    let words = (BUFFER / 4) as u32 + 64;
    program.launch_add(image.large[0], 1, words, LEGACY);
}

#[test]
fn after_memory_is_touched_that_is_not_there_no_answer_comes() {
    let image = Image::make();
    assert_eq!(image.large[1], image.large[0] + BUFFER, "neighbours");
    let once = |_| {
        mis_speculates(&image, LoadCheck::Off, &|program| {
            touch_absent(&image, program)
        })
    };
    let caught = (0..TRIES).find_map(once).expect("it is not caught");
    assert_eq!(caught.misses, []);
    // Which kernel it was is known to the next restore, which lets it wait for everything.
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    touch_absent(&image, &program);
    let sync = program
        .producer
        .request(&Op::ContextSync { context: CONTEXT }, None);
    let sync = sync.unwrap();
    wait_held(&mut worker);
    hold.up_to(COPIES, MOST);
    assert!(!sync.wait_for(MOMENT).unwrap(), "it has not waited");
    hold.release(COPIES);
    assert!(sync.wait_for(PATIENCE).unwrap());
    assert_eq!(sync.wait(&mut Vec::new()).unwrap().status, 0);
    assert_eq!(words(&program.read(image.large[1], 8)), [3, 3]);
    wait_complete(&mut worker);
}

/// Words on either side of a buffer's end.
const SIDE: u32 = 64;

/// Adds one to the last words of the buffer at `address`, which alone is named, and to the first of the next.
fn cross(program: &Program, address: u64) {
    let from = address + BUFFER - u64::from(SIDE) * 4;
    program.launch_add(from, 1, 2 * SIDE, LEGACY);
}

/// What was caught, in the buffer behind the first and nowhere else.
fn check_miss(image: &Image, caught: &Restoring) {
    let [miss] = &caught.misses[..] else {
        panic!("{caught:?}")
    };
    let first = image.large[1]..image.large[1] + u64::from(SIDE) * 4;
    assert!(first.contains(&miss.address), "{miss:x?} {first:x?}");
    assert_eq!((miss.kernel.as_str(), miss.bytes), ("add", 4));
    // Buffers are numbered as they are made.
    assert_eq!(miss.buffer, 2);
}

/// A program whose kernel crosses the end of the first buffer, where it has been seen to reach the second and the third:
/// it runs when these are there, and others are not.
fn crosses(image: &Image, check: LoadCheck) -> Option<(Worker, Hold, Program)> {
    let (mut worker, hold) = image.load_checking(check);
    let program = worker.attach();
    cross(&program, image.large[0]);
    cross(&program, image.large[1]);
    let sync = Op::ContextSync { context: CONTEXT };
    let sync = program.producer.request(&sync, None).unwrap();
    wait_held(&mut worker);
    // All but the last piece.
    hold.up_to(COPIES, u64::from(BUFFERS) * BUFFER - 1);
    let came = sync.wait_for(SOON).unwrap();
    if came {
        assert_eq!(sync.wait(&mut Vec::new()).unwrap().status, 0);
        let now = standing(&mut worker);
        assert_eq!(now.stand, Stand::Coming, "everything was waited for");
    } else {
        drop(sync);
    }
    came.then_some((worker, hold, program))
}

/// Nothing comes free that an allocation could wait for.
fn wants_too_much(program: &Program) {
    let alloc = Op::MemAlloc {
        context: CONTEXT,
        size: 1 << 42,
    };
    let refused = program.ask(&alloc);
    assert!(
        matches!(refused, Answer::Error(cu::CUDA_ERROR_OUT_OF_MEMORY, _)),
        "{refused:?}"
    );
}

#[test]
fn a_kernel_that_checks_itself_is_named_and_waits_for_what_it_touched_and_for_no_more() {
    let image = Image::make();
    let first = image.large[0];
    let once = |_| mis_speculates(&image, LoadCheck::Ptx, &|program| cross(program, first));
    let caught = (0..TRIES).find_map(once).expect("it is not caught");
    check_miss(&image, &caught);

    // When the program starts again it is seen what else that kernel touches.
    let mut worker = image.start_again();
    let program = worker.attach();
    cross(&program, first);
    cross(&program, image.large[1]);
    let at = image.large[2] - 4;
    assert_eq!(words(&program.read(at, 8)), [3, 4]);
    wants_too_much(&program);
    worker.detach(program);
    drop(worker);

    for check in [LoadCheck::Off, LoadCheck::Ptx] {
        let came = (0..TRIES).find_map(|_| crosses(&image, check));
        let (mut worker, hold, program) = came.expect("everything was waited for");
        hold.release(COPIES);
        wait_complete(&mut worker);
        wants_too_much(&program);
        assert_eq!(words(&program.read(at, 8)), [3, 4]);
        assert_eq!(words(&program.read(image.large[1] - 4, 8)), [2, 3]);
        // All that checked itself is gone, and the program works on.
        cross(&program, first);
        assert_eq!(words(&program.read(image.large[1] - 4, 8)), [3, 4]);
        worker.detach(program);
    }
}

#[test]
fn a_replayed_graph_that_mis_speculates_is_named_by_its_kernel() {
    let image = Image::make_with(&|program, first| {
        let from = first + BUFFER - u64::from(SIDE) * 4;
        let mut params = from.to_le_bytes().to_vec();
        params.extend_from_slice(&1u32.to_le_bytes());
        params.extend_from_slice(&(2 * SIDE).to_le_bytes());
        scene::instantiate(program, &scene::kernel_graph(FUNCTION, [4, 64], params));
    });
    let launch = |program: &Program| {
        program.post(&Op::GraphLaunch {
            exec: scene::EXEC,
            stream: LEGACY,
        });
    };
    let once = |_| mis_speculates(&image, LoadCheck::Ptx, &launch);
    let caught = (0..TRIES).find_map(once).expect("it is not caught");
    check_miss(&image, &caught);
    let (mut worker, hold) = image.load_checking(LoadCheck::Ptx);
    let program = worker.attach();
    launch(&program);
    hold.release(COPIES);
    scene::replay(&program, LEGACY);
    assert_eq!(words(&program.read(image.large[1] - 4, 8)), [3, 4]);
    wait_complete(&mut worker);
    // With its own kernels.
    scene::replay(&program, LEGACY);
    assert_eq!(words(&program.read(image.large[1] - 4, 8)), [4, 5]);
    worker.detach(program);
}

/// Two contexts that the program may destroy, each with a stream.
const OTHERS: [StreamRef; 2] = [
    StreamRef {
        context: ContextId::from_raw(0x110),
        stream: StreamId::from_raw(0x111),
    },
    StreamRef {
        context: ContextId::from_raw(0x120),
        stream: StreamId::from_raw(0x121),
    },
];

/// The threads that bring data wait for the work of every context, in an order of their own: in one of the two rounds they
/// wait for the context whose host function runs before they come to the one that is destroyed.
#[test]
fn a_context_that_is_destroyed_as_soon_as_all_data_is_there_does_not_fail_the_restore() {
    let image = Image::make_with(&|program, _| {
        for own in OTHERS {
            let create = Op::ContextCreate {
                context: own.context,
                device: 0,
                flags: 0,
                primary: false,
            };
            assert_eq!(program.ask(&create), Answer::None);
            program.post(&Op::StreamCreate {
                stream: own.stream,
                context: own.context,
                flags: 1,
                priority: 0,
            });
        }
    });
    for [busy, destroyed] in [OTHERS, [OTHERS[1], OTHERS[0]]] {
        let (mut worker, hold) = image.load();
        let program = worker.attach();
        let (stream, id) = (busy, 1);
        program.post(&Op::HostCall { stream, id });
        assert_eq!(program.callback(), id);
        let destroy = Op::ContextDestroy {
            context: destroyed.context,
        };
        let destroy = program.producer.request(&destroy, None).unwrap();
        wait_held(&mut worker);
        hold.release(COPIES);
        assert!(destroy.wait_for(PATIENCE).unwrap(), "it is not destroyed");
        assert_eq!(destroy.wait(&mut Vec::new()).unwrap().status, 0);
        program.producer.callback_done();
        wait_complete(&mut worker);
        assert_eq!(words(&program.read(image.large[0], 8)), [1, 1]);
        worker.detach(program);
    }
}

/// Neither daemon nor program is there any more, and what the program has waited for will not come either.
#[test]
fn a_worker_whose_program_dies_at_the_gate_of_a_restore_ends() {
    let image = Image::make();
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    let waits = program
        .producer
        .request(&wants_first(&image), None)
        .unwrap();
    wait_held(&mut worker);
    let begun = Instant::now();
    worker.daemon.shutdown();
    program.die();
    // This waits for its end.
    drop(worker);
    assert!(begun.elapsed() < GIVEN_UP, "it has waited for the gate");
    drop((waits, hold));
}
