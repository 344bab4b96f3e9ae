//! CUDA arrays: their content comes back with the session, also where new arrays hold anything.

use crate::common::{Answer, CONTEXT, ImageFolder, LEGACY, Program, Worker};
use fermata_abi::op::{ArrayId, Blob, Op, Place};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::FromWorker;

const ZEROS: ArrayId = ArrayId::from_raw(0x9000);
const SEVENS: ArrayId = ArrayId::from_raw(0x9001);
const BYTES: u64 = 4096;

fn place(array: ArrayId) -> Place<'static> {
    let (x, y, z) = (0, 0, 0);
    Place::Array { array, x, y, z }
}

/// An array of one row, whose bytes are all `value`.
fn array(program: &Program, array: ArrayId, value: u8) {
    let create = Op::ArrayCreate {
        array,
        context: CONTEXT,
        width: BYTES,
        height: 0,
        depth: 0,
        format: cu::CU_AD_FORMAT_UNSIGNED_INT8,
        channels: 1,
        flags: 0,
    };
    assert_eq!(program.ask(&create), Answer::None);
    let bytes = [value; BYTES as usize];
    let fill = Op::Copy {
        to: place(array),
        from: Place::Blob(Blob::Inline(&bytes)),
        len: BYTES,
        stream: LEGACY,
        answered: true,
    };
    assert_eq!(program.ask(&fill), Answer::None);
}

fn read(program: &Program, array: ArrayId) -> Vec<u8> {
    let room = [0; BYTES as usize];
    let copy = Op::Copy {
        to: Place::Blob(Blob::Inline(&room)),
        from: place(array),
        len: BYTES,
        stream: LEGACY,
        answered: true,
    };
    match program.ask(&copy) {
        Answer::Bytes(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// An image has no chunk for zeros, and a driver does not clear the arrays that it makes.
#[test]
fn an_array_of_zeros_is_one_after_a_restore_whatever_the_driver_gives() {
    let dirty = [("FERMATA_SOFTGPU_DIRTY_ARRAYS", "1")];
    let mut worker = Worker::start_with(true, &dirty);
    let program = worker.attach();
    program.set_up();
    array(&program, ZEROS, 0);
    array(&program, SEVENS, 7);
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    drop(worker);
    let mut worker = Worker::start_with(true, &dirty);
    let loaded = image.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    assert_eq!(read(&program, ZEROS), [0; BYTES as usize]);
    assert_eq!(read(&program, SEVENS), [7; BYTES as usize]);
    worker.detach(program);
}
