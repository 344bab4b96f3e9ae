//! Each region of shared host memory is an open file of the worker; programs have thousands of them.

use crate::common::{Answer, ImageFolder, Worker};
use fermata_abi::op::{Address, Op};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::FromWorker;

const PINNED: u64 = 0x2000_0000_0000;
const STEP: u64 = 64 << 10;
/// Open files that are allowed at first.
const FEW: u64 = 64;
/// Regions of the program.
const MANY: u64 = 2 * FEW;

fn limited(hard: u64) -> Worker {
    let soft = std::env::var_os("FERMATA_TEST_DRIVER").is_none();
    Worker::start_limited(soft, &[], Some((FEW, hard)))
}

#[test]
fn a_program_may_have_more_regions_than_a_shell_allows_files() {
    let mut worker = limited(1024);
    let program = worker.attach();
    program.set_up();
    for region in 0..MANY {
        let host = program.host_alloc(PINNED + region * STEP, 4096);
        host.write(0, &region.to_le_bytes());
    }
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    drop(worker);
    let mut worker = limited(1024);
    let loaded = image.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    assert_eq!(program.regions.len() as u64, MANY);
}

#[test]
fn a_program_that_has_too_many_regions_is_told_so_and_goes_on() {
    let mut worker = limited(FEW);
    let program = worker.attach();
    program.set_up();
    let mut made = 0;
    let refused = loop {
        assert!(made < MANY, "the limit is not reached");
        match program.try_host_alloc(PINNED + made * STEP, 4096).0 {
            Answer::None => made += 1,
            refused => break refused,
        }
    };
    let out_of_memory =
        |answer: &Answer| matches!(answer, Answer::Error(cu::CUDA_ERROR_OUT_OF_MEMORY, _));
    assert!(out_of_memory(&refused), "{refused:?}");
    // What is given back can be used again.
    let last = PINNED + (made - 1) * STEP;
    assert_eq!(
        program.ask(&Op::HostUnmap {
            address: Address::from_raw(last)
        }),
        Answer::None
    );
    program.host_alloc(last, 4096);
    let (refused, _) = program.try_host_alloc(PINNED + made * STEP, 4096);
    assert!(out_of_memory(&refused), "{refused:?}");
}
