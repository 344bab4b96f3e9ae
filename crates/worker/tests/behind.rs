//! Images whose data comes while the program runs, and no sooner than the test says.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::hold::COPIES;
use common::{Answer, CONTEXT, Hold, LEGACY, PATIENCE, Program, TRIES, Worker, words};
use fermata_abi::op::{Op, Place};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FromWorker, Order, Pace, Restoring, Stand, ToWorker};

const BUFFER: u64 = 16 << 20;
/// So many, that most are not even on their way when the first is asked for.
const BUFFERS: u32 = 8;
/// All but the first two buffers, or, where the first is wanted, all but the second and the third.
const MOST: u64 = (BUFFERS as u64 - 2) * BUFFER;
/// How long a worker mostly takes to see what its program wants; if it takes longer, the test is tried again.
const SEEN: Duration = Duration::from_millis(100);
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
        address,
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
        let mut worker = Worker::start();
        let program = worker.attach();
        program.set_up();
        let large: Vec<u64> = (0..BUFFERS).map(|_| program.alloc(BUFFER)).collect();
        let small = program.alloc(4096);
        for (value, address) in (1..).zip(&large) {
            fill(&program, *address, value, BUFFER);
        }
        fill(&program, small, 77, 4096);
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
        let hold = common::hold();
        let mut worker = Worker::start_with(true, &[hold.variable()]);
        hold.only(COPIES, 0);
        let (store, image) = self.paths("image");
        let pace = Pace::Behind(Order::Worst);
        let loaded = worker.ask(ToWorker::Load { store, image, pace });
        assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
        assert_eq!(standing(&mut worker).stand, Stand::Coming);
        (worker, hold)
    }
}

fn standing(worker: &mut Worker) -> Restoring {
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

fn wait_complete(worker: &mut Worker) {
    let stand = wait(worker, Instant::now() + PATIENCE);
    assert_eq!(stand, Stand::Complete);
}

/// A program whose first buffer is there, though the last come first, and two others are not.
fn first_comes(image: &Image) -> Option<(Worker, Hold, Program)> {
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    let first = Op::Copy {
        to: Place::Address(image.small),
        from: Place::Address(image.large[0]),
        len: 8,
        stream: LEGACY,
        answered: true,
    };
    let first = program.producer.request(&first, None).unwrap();
    std::thread::sleep(SEEN);
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
        address: image.large[1],
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

#[test]
fn a_program_that_runs_out_of_memory_loses_nothing_of_what_is_coming() {
    let image = Image::make();
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    hold.release(COPIES);
    // No device has so much, and who asks wants to know.
    let create = Op::MemCreate {
        memory: 0x400,
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
/// program waits must not come. Whether it was caught.
fn strays(image: &Image) -> bool {
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    stray(image, &program);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| program.ask(&Op::ContextSync { context: CONTEXT }));
        std::thread::sleep(SEEN);
        hold.up_to(COPIES, MOST);
        let stand = wait(&mut worker, Instant::now() + SOON);
        // The threads that bring data may be the first to notice.
        let caught = matches!(stand, Stand::Missed(_) | Stand::Failed(_));
        assert!(caught || stand == Stand::Coming, "{stand:?}");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!asks.is_finished(), "the program has got an answer");
        worker.kill();
        assert!(asks.join().is_err(), "the program has got an answer");
        caught
    })
}

/// A few words more than the buffer has.
fn stray(image: &Image, program: &Program) {
    let words = (BUFFER / 4) as u32 + 64;
    program.launch_add(image.large[0], 1, words, LEGACY);
}

#[test]
fn after_memory_is_touched_that_is_not_there_no_answer_comes() {
    let image = Image::make();
    assert_eq!(image.large[1], image.large[0] + BUFFER, "neighbours");
    assert!((0..TRIES).any(|_| strays(&image)), "it is not caught");
    // Which kernel it was is known to the next restore, which lets it wait for everything.
    let (mut worker, hold) = image.load();
    let program = worker.attach();
    stray(&image, &program);
    let sync = program
        .producer
        .request(&Op::ContextSync { context: CONTEXT }, None);
    let sync = sync.unwrap();
    std::thread::sleep(SEEN);
    hold.up_to(COPIES, MOST);
    assert!(!sync.wait_for(SEEN).unwrap(), "it has not waited");
    hold.release(COPIES);
    assert!(sync.wait_for(PATIENCE).unwrap());
    assert_eq!(sync.wait(&mut Vec::new()).unwrap().status, 0);
    assert_eq!(words(&program.read(image.large[1], 8)), [3, 3]);
    wait_complete(&mut worker);
}
