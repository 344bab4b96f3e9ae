//! Programs with several contexts: what happens to one is not the other's loss.

use std::time::Duration;

use crate::common::{
    Answer, CONTEXT, LEGACY, PATIENCE, PTX, Program, STREAM, Worker, started, words,
};
use fermata_abi::op::{
    Address, Blob, ContextId, DEVICE_BASE, EventId, FunctionId, ImageRef, ModuleId, Op, Place,
    StreamId, StreamRef,
};
use fermata_abi::sys::driver as cu;

const OTHER: ContextId = ContextId::from_raw(0x110);
const OTHER_FUNCTION: FunctionId = FunctionId::from_raw(0x112);
const OTHER_EVENT: EventId = EventId::from_raw(0x114);

/// A stream of [`OTHER`].
const OWN: StreamRef = StreamRef {
    context: OTHER,
    stream: StreamId::from_raw(0x113),
};

fn done(program: &Program, op: &Op<'_>) {
    assert_eq!(program.ask(op), Answer::None, "{op:?}");
}

fn create(program: &Program, context: ContextId, device: u32, primary: bool) {
    let create = Op::ContextCreate {
        context,
        device,
        flags: 0,
        primary,
    };
    done(program, &create);
}

/// A second context with a kernel, a stream and an event.
fn second(program: &Program) {
    create(program, OTHER, 0, false);
    let load = Op::ModuleLoad {
        module: ModuleId::from_raw(0x111),
        context: OTHER,
        image: ImageRef::Blob(Blob::Inline(PTX)),
        beside: false,
    };
    assert!(matches!(program.ask(&load), Answer::None));
    let function = Op::FunctionGet {
        function: OTHER_FUNCTION,
        module: ModuleId::from_raw(0x111),
        name: "add",
    };
    assert!(matches!(program.ask(&function), Answer::Function(_)));
    program.post(&Op::StreamCreate {
        stream: OWN.stream,
        context: OTHER,
        flags: 1,
        priority: 0,
    });
    program.post(&Op::EventCreate {
        event: OTHER_EVENT,
        context: OTHER,
        flags: 0,
    });
}

/// Has a kernel of the second context write where nothing is.
fn break_second(program: &Program) {
    let nothing = DEVICE_BASE + (300 << 30);
    program.launch_adding(OTHER_FUNCTION, (nothing.raw(), 1, 1), OWN);
}

fn is_dead(program: &Program, context: ContextId) -> bool {
    match program.ask(&Op::ContextSync { context }) {
        Answer::None => false,
        Answer::Error(cu::CUDA_ERROR_ILLEGAL_ADDRESS, _) => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_given_to_a_dead_context_leaves_the_other_alive() {
    let (_worker, program) = started();
    second(&program);
    break_second(&program);
    assert!(is_dead(&program, OTHER));
    // Nobody waits for these, and each of them fails.
    break_second(&program);
    program.post(&Op::EventRecord {
        event: OTHER_EVENT,
        stream: OWN,
        flags: 0,
    });
    program.post(&Op::EventDestroy { event: OTHER_EVENT });
    program.post(&Op::StreamDestroy { stream: OWN.stream });
    assert!(!is_dead(&program, CONTEXT));
    let device = program.alloc(64);
    program.launch_add(device, 3, 16, STREAM);
    done(&program, &Op::StreamSync { stream: STREAM });
    assert_eq!(words(&program.read(device, 64)), [3; 16]);
    done(&program, &Op::ContextDestroy { context: OTHER });
    assert!(!is_dead(&program, CONTEXT));
}

#[test]
fn memory_stays_until_its_own_context_has_done_with_it_although_another_dies() {
    let (_worker, program) = started();
    second(&program);
    let device = program.alloc(2 << 20);
    let copy = program.alloc(64);
    // The free waits for this stream, which is held, and for the one whose kernel fails.
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 1,
    });
    program.launch_add(device, 7, 16, STREAM);
    program.post(&Op::Copy {
        to: Place::Address(Address::from_raw(copy)),
        from: Place::Address(Address::from_raw(device)),
        len: 64,
        stream: STREAM,
        answered: false,
    });
    assert_eq!(program.callback(), 1);
    break_second(&program);
    let free = Op::MemFree {
        address: Address::from_raw(device),
    };
    let pending = program.producer.request(&free, None).unwrap();
    // That the other context is dead is known from here on.
    assert!(is_dead(&program, OTHER));
    assert!(!pending.wait_for(Duration::from_millis(50)).unwrap());
    program.producer.callback_done();
    assert!(pending.wait_for(PATIENCE).unwrap());
    let status = pending.wait(&mut Vec::new()).unwrap().status;
    assert_eq!(status, cu::CUDA_SUCCESS);
    assert!(!is_dead(&program, CONTEXT));
    assert_eq!(words(&program.read(copy, 64)), [7; 16]);
}

#[test]
fn a_device_that_was_reset_reaches_its_peers_again() {
    let soft = std::env::var_os("FERMATA_TEST_DRIVER").is_none();
    let mut worker = Worker::start_with(soft, &[("FERMATA_SOFTGPU_DEVICES", "2")]);
    let program = worker.attach();
    program.set_up();
    create(&program, OTHER, 1, true);
    let both = |program: &Program| {
        for (context, peer) in [(CONTEXT, OTHER), (OTHER, CONTEXT)] {
            done(program, &Op::PeerEnable { context, peer });
        }
    };
    both(&program);
    done(&program, &Op::ContextDestroy { context: CONTEXT });
    create(&program, CONTEXT, 0, true);
    both(&program);
    let memory = program.alloc(64);
    program.write(memory, &[5; 64]);
    assert_eq!(program.read(memory, 64), [5; 64]);
    let again = Op::PeerEnable {
        context: CONTEXT,
        peer: OTHER,
    };
    let told = program.ask(&again);
    assert!(
        matches!(
            told,
            Answer::Error(cu::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, _)
        ),
        "{told:?}"
    );
    done(&program, &Op::ContextSync { context: CONTEXT });
}

#[test]
fn small_results_come_when_the_context_of_the_first_is_gone() {
    let mut worker = Worker::start();
    let program = worker.attach();
    create(&program, OTHER, 0, false);
    let alloc = Op::MemAlloc {
        context: OTHER,
        size: 64,
    };
    let read = |address, context| {
        let room = [0; 64];
        let copy = Op::Copy {
            to: Place::Blob(Blob::Inline(&room)),
            from: Place::Address(Address::from_raw(address)),
            len: 64,
            stream: StreamRef { context, ..LEGACY },
            answered: true,
        };
        program.ask(&copy)
    };
    let first = read(program.ask_u64(&alloc), OTHER);
    assert!(matches!(first, Answer::Bytes(_)), "{first:?}");
    done(&program, &Op::ContextDestroy { context: OTHER });
    program.set_up();
    let memory = program.alloc(64);
    program.write(memory, &[6; 64]);
    assert_eq!(read(memory, CONTEXT), Answer::Bytes(vec![6; 64]));
}
