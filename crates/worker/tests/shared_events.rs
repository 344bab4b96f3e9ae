//! Events and memory that the programs of two workers share.

use std::path::Path;

use crate::common::hold::COPIES;
use crate::common::scene::{BUFFERS, CHUNK, FIRST, Scene};
use crate::common::{
    Answer, CONTEXT, ImageFolder, LEGACY, PATIENCE, Program, STREAM, Worker, started, words,
};
use fermata_abi::op::{Address, EventId, MemoryId, Op, SharedEvent, SharedMemory, Sharer};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FromWorker, ToWorker, Validate};

const EVENT: EventId = EventId::from_raw(0x300);
const OPENED: EventId = EventId::from_raw(0x310);
const BETWEEN: u32 = cu::CU_EVENT_INTERPROCESS | cu::CU_EVENT_DISABLE_TIMING;
const OWNER: Sharer = [7; 16];

fn done(program: &Program, op: &Op<'_>) {
    assert_eq!(program.ask(op), Answer::None, "{op:?}");
}

/// Says where the other workers of the session are.
fn join(worker: &mut Worker, folder: &Path) {
    let folder = folder.to_owned();
    let joined = worker.ask(ToWorker::Share {
        folder,
        number: None,
    });
    assert_eq!(joined, FromWorker::Sharing);
}

fn bytes(answer: Answer) -> Vec<u8> {
    match answer {
        Answer::Bytes(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// An owner with an event, and a user that has opened it.
struct Pair {
    folder: tempfile::TempDir,
    owner: Peer,
    user: Peer,
}

/// The program goes first: a worker that serves one does not end.
struct Peer {
    program: Program,
    worker: Worker,
}

impl Peer {
    fn of((worker, program): (Worker, Program)) -> Self {
        Self { program, worker }
    }
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (mut owner, mut user) = (Peer::of(started()), Peer::of(started()));
        join(&mut owner.worker, folder.path());
        join(&mut user.worker, folder.path());
        let create = Op::EventCreate {
            event: EVENT,
            context: CONTEXT,
            flags: BETWEEN,
        };
        done(&owner.program, &create);
        let share = Op::EventShare {
            sharer: OWNER,
            event: EVENT,
        };
        let handle = bytes(owner.program.ask(&share));
        assert_eq!(bytes(owner.program.ask(&share)), handle);
        assert!(SharedEvent::decode(&handle).is_some());
        done(&user.program, &open(&handle));
        Self {
            folder,
            owner,
            user,
        }
    }
}

fn open(handle: &[u8]) -> Op<'_> {
    Op::EventOpen {
        event: OPENED,
        context: CONTEXT,
        shared: handle,
    }
}

/// Records the event behind a callback that does not return.
fn record_held(program: &Program, id: u64) {
    let stream = STREAM;
    program.post(&Op::HostCall { stream, id });
    let record = Op::EventRecord {
        event: EVENT,
        stream,
        flags: 0,
    };
    done(program, &record);
}

fn let_go(program: &Program, id: u64) {
    assert_eq!(program.callback(), id);
    program.producer.callback_done();
}

fn query(program: &Program) -> u32 {
    match program.ask(&Op::EventQuery { event: OPENED }) {
        Answer::None => 0,
        Answer::Error(code, _) => code,
        other => panic!("{other:?}"),
    }
}

/// A record in the owner's stream is what the user's stream waits for.
fn check_order(owner: &Program, user: &Program) {
    assert_eq!(query(user), 0);
    let memory = user.alloc(64);
    record_held(owner, 1);
    assert_eq!(query(user), cu::CUDA_ERROR_NOT_READY);
    let wait = Op::StreamWait {
        stream: STREAM,
        event: OPENED,
        flags: 0,
    };
    done(user, &wait);
    user.launch_add(memory, 3, 16, STREAM);
    let busy = user.ask(&Op::StreamQuery { stream: STREAM });
    assert!(matches!(busy, Answer::Error(cu::CUDA_ERROR_NOT_READY, _)));
    let_go(owner, 1);
    done(user, &Op::StreamSync { stream: STREAM });
    assert_eq!(query(user), 0);
    assert_eq!(words(&user.read(memory, 64)), [3; 16]);
}

#[test]
fn work_of_one_process_waits_for_an_event_of_another() {
    let pair = Pair::new();
    check_order(&pair.owner.program, &pair.user.program);
    // Both record it, whichever has made it.
    let record = Op::EventRecord {
        event: OPENED,
        stream: STREAM,
        flags: 0,
    };
    done(&pair.user.program, &record);
    done(&pair.owner.program, &Op::EventSync { event: EVENT });
}

#[test]
fn a_synchronisation_waits_for_the_record_of_another_process_that_it_saw() {
    let pair = Pair::new();
    let (owner, user) = (&pair.owner.program, &pair.user.program);
    record_held(owner, 1);
    let sync = Op::EventSync { event: OPENED };
    let waits = user.producer.request(&sync, None).unwrap();
    // The worker has taken what came before.
    assert_eq!(query(user), cu::CUDA_ERROR_NOT_READY);
    record_held(owner, 2);
    let_go(owner, 1);
    assert!(waits.wait_for(PATIENCE).unwrap(), "it waits for the second");
    assert_eq!(waits.wait(&mut Vec::new()).unwrap().status, 0);
    assert_eq!(query(user), cu::CUDA_ERROR_NOT_READY);
    let_go(owner, 2);
    done(user, &sync);
}

#[test]
fn only_an_own_event_made_for_it_is_shared_and_only_a_shared_one_opened() {
    let pair = Pair::new();
    let plain = EventId::from_raw(0x320);
    let (owner, user) = (&pair.owner.program, &pair.user.program);
    done(
        owner,
        &Op::EventCreate {
            event: plain,
            context: CONTEXT,
            flags: cu::CU_EVENT_DISABLE_TIMING,
        },
    );
    let share = |program: &Program, event| {
        program.ask(&Op::EventShare {
            sharer: OWNER,
            event,
        })
    };
    assert!(matches!(share(owner, plain), Answer::Error(1, _)));
    assert!(matches!(share(user, OPENED), Answer::Error(1, _)));
    let handle = bytes(share(owner, EVENT));
    let again = user.ask(&open(&handle));
    assert!(matches!(again, Answer::Error(1, _)), "{again:?}");
    done(user, &Op::EventDestroy { event: OPENED });
    done(owner, &Op::EventDestroy { event: EVENT });
    let gone = user.ask(&open(&handle));
    assert!(
        matches!(&gone, Answer::Error(1, text) if text.contains("destroyed")),
        "{gone:?}"
    );
    let outside = SharedEvent {
        sharer: [9; 16],
        number: 1,
    };
    let outside = user.ask(&open(&outside.encode()));
    assert!(
        matches!(&outside, Answer::Error(1, text) if text.contains("outside this session")),
        "{outside:?}"
    );
}

/// Loads an image into a fresh worker of the session in `folder`.
fn load(image: &ImageFolder, folder: &Path) -> Peer {
    let mut worker = Worker::start();
    join(&mut worker, folder);
    let loaded = image.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    Peer { program, worker }
}

#[test]
fn an_event_is_shared_again_after_a_restore_whichever_worker_comes_first() {
    for owner_first in [false, true] {
        let Pair {
            folder,
            mut owner,
            mut user,
        } = Pair::new();
        check_order(&owner.program, &user.program);
        let images = [ImageFolder::new(), ImageFolder::new()];
        owner.worker.detach(owner.program);
        user.worker.detach(user.program);
        for (image, worker) in images.iter().zip([&mut owner.worker, &mut user.worker]) {
            join(worker, folder.path());
            image.save(worker);
        }
        drop((owner.worker, user.worker));
        let fresh = tempfile::tempdir().unwrap();
        let [of_owner, of_user] = &images;
        let (owner, user) = std::thread::scope(|scope| {
            let folder = fresh.path();
            let start = |image| scope.spawn(move || load(image, folder));
            let (owner, user) = match owner_first {
                true => {
                    let owner = start(of_owner);
                    (owner, start(of_user))
                }
                false => {
                    let user = start(of_user);
                    (start(of_owner), user)
                }
            };
            (owner.join().unwrap(), user.join().unwrap())
        });
        check_order(&owner.program, &user.program);
    }
}

#[test]
fn an_event_that_its_owner_has_destroyed_is_in_an_image_as_a_plain_one() {
    let Pair {
        folder,
        owner,
        mut user,
    } = Pair::new();
    done(&owner.program, &Op::EventDestroy { event: EVENT });
    user.worker.detach(user.program);
    join(&mut user.worker, folder.path());
    let image = ImageFolder::new();
    image.save(&mut user.worker);
    drop((user.worker, owner));
    // Nothing of it is waited for.
    let peer = load(&image, folder.path());
    let program = &peer.program;
    assert_eq!(query(program), 0);
    let record = Op::EventRecord {
        event: OPENED,
        stream: STREAM,
        flags: 0,
    };
    done(program, &record);
    done(program, &Op::EventSync { event: OPENED });
}

fn share(address: u64) -> Op<'static> {
    Op::MemShare {
        sharer: OWNER,
        address: Address::from_raw(address),
        memory: MemoryId::NULL,
    }
}

fn reserve(size: u64, address: Address) -> Op<'static> {
    let align = 0;
    Op::AddressReserve {
        size,
        align,
        address,
    }
}

/// Maps the memory that another program has shared; where, and what the handle says.
fn map(user: &Program, memory: MemoryId, handle: &[u8]) -> (u64, SharedMemory) {
    let given = SharedMemory::decode(handle).unwrap();
    let shared = handle;
    let device = user.ask_u64(&Op::MemFetch { memory, shared });
    let size = given.whole;
    let start = user.ask_u64(&reserve(size, Address::NULL));
    let (address, offset) = (Address::from_raw(start), 0);
    let map = Op::MemMap {
        address,
        size,
        offset,
        memory,
    };
    done(user, &map);
    let access = Op::MemSetAccess {
        address,
        size,
        access: cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        devices: vec![device as u32],
    };
    done(user, &access);
    (start, given)
}

/// The gate of a capture does not see what other processes write.
#[test]
fn memory_that_is_first_shared_during_a_capture_is_copied_before_another_process_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut scene, program) = Scene::new();
    join(&mut scene.worker, folder.path());
    let mut user = Peer::of(started());
    join(&mut user.worker, folder.path());
    scene.fill(&program, 1);
    let program = scene.begin(program, "image", Validate::Ptx);
    scene.wait_first();
    // Enough for what is on its way and for what is waited for, which comes next; not for all.
    scene.hold.up_to(COPIES, (FIRST + 16) * CHUNK);
    let last = scene.last();
    let handle = bytes(program.ask(&share(last)));
    let (address, given) = map(&user.program, MemoryId::from_raw(0x400), &handle);
    user.program
        .launch_add(address + given.offset, 1000, 16, LEGACY);
    done(&user.program, &Op::ContextSync { context: CONTEXT });
    let saved = scene.end();
    assert!(matches!(saved, FromWorker::Saved(_)), "{saved:?}");
    let before = BUFFERS as u32;
    assert_eq!(words(&program.read(last, 4)), [before + 1000]);
    scene.worker.detach(program);
    assert_eq!(scene.words_in("image"), (before, 1));
}

#[test]
fn memory_of_another_process_is_closed_when_the_stream_gets_there() {
    let pair = Pair::new();
    let (owner, user) = (&pair.owner.program, &pair.user.program);
    let memory = MemoryId::from_raw(0x400);
    let own = owner.alloc(64);
    owner.write(own, &[0; 64]);
    let handle = bytes(owner.ask(&share(own)));
    let (address, given) = map(user, memory, &handle);
    let reserve = |address| reserve(given.whole, address);
    let stream = STREAM;
    user.post(&Op::HostCall { stream, id: 1 });
    user.launch_add(address + given.offset, 5, 16, stream);
    let close = Op::MemCloseAsync {
        address: Address::from_raw(address),
        stream,
    };
    user.post(&close);
    // No other memory is there until it is gone.
    assert_ne!(user.ask_u64(&reserve(Address::NULL)), address);
    let_go(user, 1);
    done(user, &Op::ContextSync { context: CONTEXT });
    assert_eq!(words(&owner.read(own, 64)), [5; 16]);
    assert!(matches!(user.ask(&close), Answer::Error(1, _)));
    assert_eq!(user.ask_u64(&reserve(Address::from_raw(address))), address);
}
