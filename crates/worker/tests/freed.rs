//! Memory that a program has freed: kept for its next allocation, and nobody else's loss.

use crate::common::{Answer, CONTEXT, ImageFolder, Program, Worker, load_anew};
use fermata_abi::op::{Address, ArrayId, Blob, ExecId, Op};
use fermata_control::worker::{FromWorker, ToWorker};
use fermata_graph::{Copy, CopyEnd, Graph, NodeKind, Place};

const MIB: u64 = 1 << 20;

fn free_bytes(program: &Program) -> u64 {
    match program.ask(&Op::MemInfo { context: CONTEXT }) {
        Answer::Pair(free, _) => free,
        other => panic!("{other:?}"),
    }
}

fn free(program: &Program, address: u64) {
    assert_eq!(
        program.ask(&Op::MemFree {
            address: Address::from_raw(address)
        }),
        Answer::None
    );
}

#[test]
fn freed_memory_counts_as_free_and_comes_back_when_it_is_needed() {
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    let before = free_bytes(&program);
    let first = program.alloc(2 * MIB);
    assert_eq!(free_bytes(&program), before - 2 * MIB);
    free(&program, first);
    assert_eq!(free_bytes(&program), before);
    // The next one of its size gets its pages, one of another size gets others.
    assert_eq!(program.alloc(2 * MIB - 5), first);
    free(&program, first);
    let other = program.alloc(3 * MIB);
    assert_eq!(free_bytes(&program), before - 4 * MIB);
    free(&program, other);

    // Nearly all memory in use: what is kept must be given up for an allocation of another size.
    let large = program.alloc(before - 512 * MIB);
    let kept = program.alloc(256 * MIB);
    free(&program, kept);
    let grown = program.alloc(500 * MIB);
    free(&program, grown);
    free(&program, large);
    assert_eq!(free_bytes(&program), before);
}

#[test]
fn an_image_holds_no_freed_memory() {
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    let live = program.alloc(2 * MIB);
    let freed = program.alloc(4 * MIB);
    program.write(live, &[1; 64]);
    program.write(freed, &[2; 64]);
    free(&program, freed);
    worker.detach(program);
    let image = ImageFolder::new();
    let totals = image.save(&mut worker);
    assert_eq!(totals.allocations, 1);
    // The allocation and the module's variable.
    assert!(
        (2 * MIB..3 * MIB).contains(&totals.device_bytes),
        "{totals:?}"
    );
    // The program goes on and finds its memory.
    let program = worker.attach();
    assert_eq!(program.alloc(4 * MIB), freed);
    assert_eq!(program.read(live, 64), [1; 64]);
    worker.detach(program);
    drop(worker);
    let mut worker = Worker::start();
    let loaded = image.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    assert_eq!(program.read(live, 64), [1; 64]);
    free(&program, live);
}

#[test]
fn a_graph_whose_array_is_gone_keeps_no_image_from_being_restored() {
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    let memory = program.alloc(64);
    program.write(memory, &[4; 64]);
    let array = Op::ArrayCreate {
        array: ArrayId::from_raw(0x400),
        context: CONTEXT,
        width: 64,
        height: 0,
        depth: 0,
        // CU_AD_FORMAT_UNSIGNED_INT8
        format: 1,
        channels: 1,
        flags: 0,
    };
    assert_eq!(program.ask(&array), Answer::None);
    let copy = Copy::linear(
        CopyEnd::linear(Place::Array, 0x400),
        CopyEnd::linear(Place::Device, memory),
        64,
    );
    let mut graph = Graph::new();
    graph.add(NodeKind::Memcpy(copy), &[]).unwrap();
    let graph = postcard::to_stdvec(&graph).unwrap();
    let instantiate = Op::GraphInstantiate {
        exec: ExecId::from_raw(0x500),
        context: CONTEXT,
        graph: Blob::Inline(&graph),
        flags: 0,
    };
    assert_eq!(program.ask(&instantiate), Answer::None);
    let destroy = Op::ArrayDestroy {
        array: ArrayId::from_raw(0x400),
    };
    assert_eq!(program.ask(&destroy), Answer::None);
    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    assert_eq!(program.read(memory, 64), [4; 64]);
    // Nobody launches it any more; its end is as ever.
    program.post(&Op::GraphDestroy {
        exec: ExecId::from_raw(0x500),
    });
    let idle = Op::ContextSync { context: CONTEXT };
    assert_eq!(program.ask(&idle), Answer::None);
}

/// Bytes of memory that the process has in use.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_worker_gives_its_memory_back_before_it_ends() {
    let mut worker = Worker::start();
    let folder = ImageFolder::new();
    let program = worker.attach();
    program.set_up();
    let address = program.alloc(48 * MIB);
    for at in (0..48 * MIB).step_by(32 << 10) {
        program.write(address + at, &[7; 32 << 10]);
    }
    worker.detach(program);
    let totals = folder.save(&mut worker);
    assert_eq!(totals.device_bytes, 48 * MIB);
    let before = resident(worker.pid());
    assert_eq!(worker.ask(ToWorker::Vacate), FromWorker::Vacated);
    let after = resident(worker.pid());
    assert!(before - after >= 40 * MIB, "{before} to {after}");
    // There is no session any more; what was written is whole.
    assert!(matches!(
        worker.ask(ToWorker::Finish),
        FromWorker::Failed(_)
    ));
    let mut second = Worker::start();
    assert!(matches!(
        folder.load(&mut second),
        FromWorker::Loaded { .. }
    ));
    assert_eq!(second.attach().read(address + 5 * MIB, 64), [7; 64]);
}
