//! Device variables over a restore: where they lie, and who knows it.

use crate::common::{
    Answer, CONTEXT, ImageFolder, LEGACY, MODULE, Program, Worker, load_anew, started, words,
};
use fermata_abi::op::{Blob, ContextId, ExecId, FunctionId, ModuleId, Op};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::FromWorker;
use fermata_graph::{Graph, KernelNode, NodeKind};

const SECOND: ModuleId = ModuleId::from_raw(0x110);
const TOTAL: Op<'static> = Op::VariableGet {
    module: SECOND,
    name: "total",
};

/// A module of 16 MiB.
const BIG_ENOUGH: &[u8] = b".version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .b8 big[16777216];
";

/// A module that is too large to be kept once it is unloaded.
const BIG: &[u8] = b".version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 small;
.visible .global .align 4 .b8 big[67108864];
";

fn unload(program: &Program, module: ModuleId) {
    assert_eq!(program.ask(&Op::ModuleUnload { module }), Answer::None);
}

/// A program that has unloaded `image`, the first module of two with variables.
fn after_unloading(image: &[u8]) -> (Worker, Program) {
    let (worker, program) = started();
    unload(&program, MODULE);
    program.load(ModuleId::from_raw(0x120), image);
    program.load(SECOND, crate::common::PTX);
    program.kernel(FunctionId::from_raw(0x111), SECOND, "add");
    unload(&program, ModuleId::from_raw(0x120));
    (worker, program)
}

/// A program whose unloaded module is not kept: the next driver puts the other's variable elsewhere.
fn unloaded() -> (Worker, Program) {
    after_unloading(BIG)
}

fn why(answer: FromWorker) -> String {
    match answer {
        FromWorker::Failed(failure) => failure.message,
        other => panic!("{other:?}"),
    }
}

/// Where the variable lies, as another program of the same kind is told.
fn place_of_total() -> u64 {
    let (_worker, program) = unloaded();
    match program.ask(&TOTAL) {
        Answer::Pair(address, 4) => address,
        other => panic!("{other:?}"),
    }
}

/// Adds 5 to each of 8 words, so 40 to `total`.
fn add(program: &Program, memory: u64) {
    program.launch_adding(FunctionId::from_raw(0x111), (memory, 5, 8), LEGACY);
}

#[test]
fn an_unloaded_module_that_is_kept_keeps_the_others_where_they_were() {
    let (worker, program) = after_unloading(crate::common::PTX);
    let Answer::Pair(total, 4) = program.ask(&TOTAL) else {
        panic!("four bytes")
    };
    let memory = program.alloc(64);
    program.write(memory + 8, &total.to_le_bytes());
    add(&program, memory + 16);
    for gone in [
        Op::VariableGet {
            module: ModuleId::from_raw(0x120),
            name: "total",
        },
        Op::FunctionGet {
            function: FunctionId::from_raw(0x121),
            module: ModuleId::from_raw(0x120),
            name: "add",
        },
        Op::ModuleUnload {
            module: ModuleId::from_raw(0x120),
        },
    ] {
        let answer = program.ask(&gone);
        let Answer::Error(code, _) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(code, cu::CUDA_ERROR_INVALID_HANDLE);
    }
    // Twice: what is restored keeps it, too.
    let (mut worker, answer) = load_anew(worker, program);
    assert!(matches!(answer, FromWorker::Loaded { .. }), "{answer:?}");
    let program = worker.attach();
    assert_eq!(program.ask(&TOTAL), Answer::Pair(total, 4));
    let (mut worker, answer) = load_anew(worker, program);
    assert!(matches!(answer, FromWorker::Loaded { .. }), "{answer:?}");
    let program = worker.attach();
    add(&program, memory + 16);
    assert_eq!(words(&program.read(total, 4)), [80]);
}

#[test]
fn a_module_that_is_loaded_again_and_again_comes_to_its_place() {
    let (_worker, program) = started();
    let mut places = std::collections::BTreeSet::new();
    for turn in 0..20 {
        let module = 0x200 + turn;
        program.load(ModuleId::from_raw(module), BIG_ENOUGH);
        let place = Op::VariableGet {
            module: ModuleId::from_raw(module),
            name: "big",
        };
        let Answer::Pair(place, _) = program.ask(&place) else {
            panic!("a place")
        };
        places.insert(place);
        unload(&program, ModuleId::from_raw(module));
    }
    assert_eq!(places.len(), 1, "{places:x?}");
}

#[test]
fn memory_that_unloaded_modules_have_is_the_programs() {
    let mut worker = Worker::start_with(true, &[("FERMATA_SOFTGPU_MEMORY", "96M")]);
    let program = worker.attach();
    program.set_up();
    let free = || match program.ask(&Op::MemInfo { context: CONTEXT }) {
        Answer::Pair(free, _) => free,
        other => panic!("{other:?}"),
    };
    let before = free();
    program.load(ModuleId::from_raw(0x200), BIG_ENOUGH);
    program.load(SECOND, crate::common::PTX);
    unload(&program, ModuleId::from_raw(0x200));
    let after = free();
    assert_eq!(after, before);
    let size = before - (8 << 20);
    let op = Op::MemAlloc {
        context: CONTEXT,
        size,
    };
    let answer = program.ask(&op);
    assert!(matches!(answer, Answer::U64(_)), "{size} bytes: {answer:?}");
    assert_eq!(warnings(&mut worker, program), 1);
}

/// How many warnings a save gives.
fn warnings(worker: &mut Worker, program: Program) -> usize {
    worker.detach(program);
    ImageFolder::new().save(worker).warnings.len()
}

#[test]
fn a_save_says_that_its_image_may_be_refused() {
    let (mut worker, program) = unloaded();
    assert_eq!(warnings(&mut worker, program), 1);
    let (mut worker, program) = after_unloading(crate::common::PTX);
    assert_eq!(warnings(&mut worker, program), 0);
}

#[test]
fn a_variable_that_the_program_knows_must_stay_where_it_was() {
    let (worker, program) = unloaded();
    assert!(matches!(program.ask(&TOTAL), Answer::Pair(_, 4)));
    let (_worker, answer) = load_anew(worker, program);
    let why = why(answer);
    assert!(
        why.contains("device variable `total`") && why.contains("elsewhere"),
        "{why}"
    );
}

#[test]
fn a_variable_that_memory_knows_must_stay_where_it_was() {
    let total = place_of_total();
    for address in [total, total + 4] {
        let (worker, program) = unloaded();
        let memory = program.alloc(64);
        program.write(memory + 8, &address.to_le_bytes());
        let (_worker, answer) = load_anew(worker, program);
        let why = why(answer);
        assert!(
            why.contains(&format!("holds the address {address:#x}")),
            "{why}"
        );
    }
}

#[test]
fn a_variable_that_nobody_knows_may_move_with_its_content() {
    let before = place_of_total();
    let (worker, program) = unloaded();
    let memory = program.alloc(64);
    add(&program, memory);
    let (mut worker, answer) = load_anew(worker, program);
    assert!(matches!(answer, FromWorker::Loaded { .. }), "{answer:?}");
    let program = worker.attach();
    add(&program, memory);
    let Answer::Pair(after, 4) = program.ask(&TOTAL) else {
        panic!("four bytes")
    };
    assert_ne!(after, before, "it has not moved, so nothing is shown");
    assert_eq!(words(&program.read(after, 4)), [80]);
}

/// A graph that adds 5 to each of 8 words at `memory`.
fn graph_of(function: FunctionId, memory: u64) -> Vec<u8> {
    let mut params = memory.to_le_bytes().to_vec();
    params.extend([5, 0, 0, 0, 8, 0, 0, 0]);
    let kernel = KernelNode {
        function,
        context: ContextId::from_raw(0),
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params,
        attributes: Vec::new(),
    };
    let mut graph = Graph::new();
    graph.add(NodeKind::Kernel(kernel), &[]).unwrap();
    postcard::to_stdvec(&graph).unwrap()
}

#[test]
fn a_graph_of_an_unloaded_module_comes_back_when_it_is_updated() {
    let (worker, program) = started();
    let memory = program.alloc(64);
    program.write(memory, &[0; 64]);
    program.load(SECOND, crate::common::PTX);
    program.kernel(FunctionId::from_raw(0x111), SECOND, "add");
    let graph = graph_of(crate::common::FUNCTION, memory);
    let made = Op::GraphInstantiate {
        exec: ExecId::from_raw(0x600),
        context: CONTEXT,
        graph: Blob::Inline(&graph),
        flags: 0,
    };
    assert_eq!(program.ask(&made), Answer::None);
    unload(&program, MODULE);
    let (mut worker, answer) = load_anew(worker, program);
    assert!(matches!(answer, FromWorker::Loaded { .. }), "{answer:?}");
    let program = worker.attach();
    let launch = Op::GraphLaunch {
        exec: ExecId::from_raw(0x600),
        stream: crate::common::STREAM,
    };
    program.post(&launch);
    let sync = Op::StreamSync {
        stream: crate::common::STREAM,
    };
    let Answer::Error(cu::CUDA_ERROR_INVALID_VALUE, _) = program.ask(&sync) else {
        panic!("its kernel is gone")
    };
    let graph = graph_of(FunctionId::from_raw(0x111), memory);
    let update = Op::GraphUpdate {
        exec: ExecId::from_raw(0x600),
        graph: Blob::Inline(&graph),
    };
    assert_eq!(program.ask(&update), Answer::None);
    program.post(&launch);
    assert_eq!(program.ask(&sync), Answer::None);
    assert_eq!(words(&program.read(memory, 32)), [5; 8]);
}
