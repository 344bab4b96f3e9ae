//! Device variables over a restore: where they lie, and who knows it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, CONTEXT, LEGACY, MODULE, Program, Worker, load_anew, started, words};
use fermata_abi::op::{Blob, Op};
use fermata_control::worker::FromWorker;

const SECOND: u64 = 0x110;
const TOTAL: Op<'static> = Op::VariableGet {
    module: SECOND,
    name: "total",
};

/// A program that has loaded a module twice and unloaded the first: the next driver puts the other's variable elsewhere.
fn unloaded() -> (Worker, Program) {
    let (worker, program) = started();
    let second = Op::ModuleLoad {
        module: SECOND,
        context: CONTEXT,
        image: Blob::Inline(common::PTX),
        beside: false,
    };
    assert!(matches!(program.ask(&second), Answer::Module(_)));
    let function = Op::FunctionGet {
        function: 0x111,
        module: SECOND,
        name: "add",
    };
    assert!(matches!(program.ask(&function), Answer::Function(_)));
    assert_eq!(
        program.ask(&Op::ModuleUnload { module: MODULE }),
        Answer::None
    );
    (worker, program)
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
    let add = |program: &Program| {
        let mut params = memory.to_le_bytes().to_vec();
        params.extend([5, 0, 0, 0, 8, 0, 0, 0]);
        let launch = fermata_abi::op::Launch {
            function: 0x111,
            grid: [1, 1, 1],
            block: [32, 1, 1],
            shared: 0,
            cooperative: false,
            params: &params,
            attributes: Vec::new(),
        };
        program.post(&Op::Launch {
            launch,
            stream: LEGACY,
        });
    };
    add(&program);
    let (mut worker, answer) = load_anew(worker, program);
    assert!(matches!(answer, FromWorker::Loaded { .. }), "{answer:?}");
    let program = worker.attach();
    add(&program);
    let Answer::Pair(after, 4) = program.ask(&TOTAL) else {
        panic!("four bytes")
    };
    assert_ne!(after, before, "it has not moved, so nothing is shown");
    assert_eq!(words(&program.read(after, 4)), [80]);
}
