//! Errors that nobody has been told when the program is stopped.

use crate::common::{Answer, CONTEXT, ImageFolder, Worker};
use fermata_abi::op::{Address, Op, StreamId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::FromWorker;

/// Fails, and nobody waits for it: there is no such stream.
const WRONG: Op<'static> = Op::Fill {
    address: Address::from_raw(0x3000_0000_0000),
    pitch: 0,
    element: 4,
    value: 0,
    width: 4,
    height: 1,
    stream: StreamRef {
        context: CONTEXT,
        stream: StreamId::from_raw(0x9990),
    },
    answered: false,
};

#[test]
fn an_error_not_told_yet_is_told_after_a_restore_and_in_the_program_that_goes_on() {
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    program.post(&WRONG);
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    let sync = Op::ContextSync { context: CONTEXT };
    let told = |answer: &Answer| matches!(answer, Answer::Error(cu::CUDA_ERROR_INVALID_HANDLE, _));
    let program = worker.attach();
    let answer = program.ask(&sync);
    assert!(told(&answer), "{answer:?}");
    assert_eq!(program.ask(&sync), Answer::None);
    worker.detach(program);
    drop(worker);
    let mut worker = Worker::start();
    let loaded = image.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    let answer = program.ask(&sync);
    assert!(told(&answer), "{answer:?}");
    assert_eq!(program.ask(&sync), Answer::None);
}
