//! Blocks of an image that several sessions may have in common: what a worker tells the keeper of them.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::behind::wait_complete;
use crate::common::hold::COPIES;
use crate::common::{Answer, CONTEXT, Hold, ImageFolder, LEGACY, PATIENCE, Program, Worker};
use fermata_abi::op::{Address, Op, Place};
use fermata_control::Connection;
use fermata_control::common::{FromKeeper, ToKeeper, Wanted};
use fermata_control::worker::{FromWorker, LoadCheck, Pace, PrefetchOrder, ToWorker};

const BUFFER: u64 = 16 << 20;
/// So many that the one which is granted last is not on its way when nothing has been copied.
const BUFFERS: u32 = 8;
/// The length of the block that is freed, by which the keeper knows it.
const FREED: u64 = 8 << 20;
/// Between two looks.
const TURN: Duration = Duration::from_millis(5);

fn fill(program: &Program, value: u32, bytes: u64) -> u64 {
    let address = program.alloc(bytes);
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
    address
}

/// A worker that loads an image on demand, with the test as its keeper, which has told it to load every block.
struct Scene {
    keeper: Connection<ToKeeper, FromKeeper>,
    program: Program,
    worker: Worker,
    hold: Hold,
    /// The address and the key of the block that is to be freed.
    freed: (u64, String),
    small: u64,
    _image: ImageFolder,
}

impl Scene {
    fn new() -> Self {
        let mut worker = Worker::start();
        let program = worker.attach();
        program.set_up();
        for value in 1..=BUFFERS {
            fill(&program, value, BUFFER);
        }
        let freed = fill(&program, 100, FREED);
        let small = fill(&program, 200, 4096);
        worker.detach(program);
        let image = ImageFolder::new();
        image.save(&mut worker);
        drop(worker);

        let hold = crate::common::hold();
        let mut worker = Worker::start_with(true, &[hold.variable()]);
        hold.only(COPIES, 0);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        worker
            .daemon
            .send(&ToWorker::Common, &[theirs.as_fd()])
            .unwrap();
        assert_eq!(worker.answer(), FromWorker::Common);
        let loaded = worker.ask(ToWorker::Load {
            store: image.path("store").into(),
            image: image.path("image").into(),
            digests: crate::common::digests(&image.path("image")),
            pace: Pace::Behind(PrefetchOrder::Default),
            check: LoadCheck::Off,
            ignore_places: false,
        });
        assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
        let keeper: Connection<ToKeeper, FromKeeper> = Connection::new(ours.into(), "worker");
        let (first, rest): (Vec<Wanted>, Vec<Wanted>) = match keeper.recv(PATIENCE).unwrap().0 {
            ToKeeper::Claim { blocks } => blocks.into_iter().partition(|it| it.bytes == FREED),
            other => panic!("{other:?}"),
        };
        assert_eq!((first.len(), rest.len()), (1, BUFFERS as usize));
        // The block that is freed comes last.
        let keys = rest.iter().chain(&first).map(|it| it.key.clone()).collect();
        keeper.send(&FromKeeper::Yours { keys }, &[]).unwrap();
        let program = worker.attach();
        // Answered when memory for each block has been made: the worker knows by then that it has to load them.
        let info = program.ask(&Op::MemInfo { context: CONTEXT });
        assert!(matches!(info, Answer::Pair(..)), "{info:?}");
        Self {
            keeper,
            program,
            worker,
            hold,
            freed: (freed, first[0].key.clone()),
            small,
            _image: image,
        }
    }

    fn free(&self) {
        let address = Address::from_raw(self.freed.0);
        let freed = self.program.ask(&Op::MemFree { address });
        assert_eq!(freed, Answer::None);
    }

    fn is_left(&self, message: &ToKeeper) -> bool {
        matches!(message, ToKeeper::Leave { key } if *key == self.freed.1)
    }
}

/// Another session may wait for this one to load the block.
#[test]
fn a_block_that_is_freed_before_it_is_loaded_is_left_at_once() {
    let mut scene = Scene::new();
    scene.free();
    // Nothing has been copied, so nothing has been offered before.
    let (left, _) = scene.keeper.recv(PATIENCE).unwrap();
    assert!(scene.is_left(&left), "{left:?}");
    scene.hold.release(COPIES);
    wait_complete(&mut scene.worker);
}

#[test]
fn a_common_block_that_is_freed_while_others_are_loaded_is_left() {
    let mut scene = Scene::new();
    let copy = Op::Copy {
        to: Place::Address(Address::from_raw(scene.small)),
        from: Place::Address(Address::from_raw(scene.freed.0)),
        len: 8,
        stream: LEGACY,
        answered: true,
    };
    // All but the last buffer; the block that an operation waits for comes sooner.
    let most = u64::from(BUFFERS - 1) * BUFFER + FREED;
    scene.hold.up_to(COPIES, most);
    assert_eq!(scene.program.ask(&copy), Answer::None);
    loop {
        match scene.keeper.recv(PATIENCE).unwrap().0 {
            ToKeeper::Offer { key } if key == scene.freed.1 => break,
            ToKeeper::Offer { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    scene.free();
    scene.hold.release(COPIES);
    wait_complete(&mut scene.worker);
    let until = Instant::now() + PATIENCE;
    loop {
        // The worker looks before each operation.
        let synced = scene.program.ask(&Op::StreamSync { stream: LEGACY });
        assert_eq!(synced, Answer::None);
        match scene.keeper.recv(TURN) {
            Ok((message, _)) if scene.is_left(&message) => break,
            Ok(_) => {}
            Err(error) => assert!(error.is_timeout(), "{error}"),
        }
        assert!(Instant::now() < until, "the block is not left");
    }
}
