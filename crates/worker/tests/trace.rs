//! A traced session leaves a record: what was touched, and that kernels ran instrumented with the same result.
use crate::common::{FUNCTION, LEGACY, Worker, scene, words};
use fermata_abi::op::Op;
use fermata_control::trace::{ENV_FILE, ENV_TEST_INSTRUMENTED, Trace};

/// Runs ten launches; the first word of the result and the record.
fn traced(more: &[(&str, &str)]) -> (u32, Trace) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let mut variables = vec![(ENV_FILE, file.to_str().unwrap())];
    variables.extend_from_slice(more);
    let soft = std::env::var_os("FERMATA_TEST_DRIVER").is_none();
    let mut worker = Worker::start_with(soft, &variables);
    let program = worker.attach();
    program.set_up();
    let buffer = program.alloc(4096);
    program.write(buffer, &[0; 4096]);
    for n in 1..=10 {
        program.launch_add(buffer, n, 1024, LEGACY);
    }
    let result = words(&program.read(buffer, 4))[0];
    worker.detach(program);
    let trace = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    (result, trace)
}

#[test]
fn a_record_has_every_kernel_and_every_buffer() {
    let (result, trace) = traced(&[]);
    assert_eq!(result, 55);
    let kernel = &trace.kernels[0];
    assert_eq!((kernel.name.as_str(), kernel.launches), ("add", 10));
    assert_eq!((kernel.complete, kernel.checked), (10, 10));
    assert_eq!((kernel.mispredicted, &kernel.unchecked), (0, &None));
    let sum = |counts: &[u32]| counts.iter().sum::<u32>();
    let touched = |kind: &str| {
        let of_kind = trace.buffers.iter().filter(|it| it.kind == kind);
        of_kind
            .map(|it| (sum(&it.reads), sum(&it.writes)))
            .collect::<Vec<_>>()
    };
    // A copy to it and one from it, beside the launches.
    assert_eq!(touched("allocation"), [(11, 11)]);
    assert_eq!(touched("variable"), [(10, 10)]);
}

#[test]
fn instrumented_kernels_that_may_touch_everything_find_nothing() {
    let (result, trace) = traced(&[(ENV_TEST_INSTRUMENTED, "both")]);
    assert_eq!(result, 55);
    assert_eq!(
        (trace.kernels[0].checked, trace.kernels[0].mispredicted),
        (10, 0)
    );
}

/// A program that launches a graph of one `add` so often, of so many words and blocks; the first word of the result and
/// the record.
fn replayed(times: u32, words_each: u32, blocks: u32) -> (u32, Trace) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let soft = std::env::var_os("FERMATA_TEST_DRIVER").is_none();
    let mut worker = Worker::start_with(soft, &[(ENV_FILE, file.to_str().unwrap())]);
    let program = worker.attach();
    program.set_up();
    let buffer = program.alloc(4096);
    program.write(buffer, &[0; 4096]);
    let mut params = buffer.to_le_bytes().to_vec();
    params.extend(3u32.to_le_bytes());
    params.extend(words_each.to_le_bytes());
    scene::instantiate(
        &program,
        &scene::kernel_graph(FUNCTION, [blocks, 64], params),
    );
    for nth in 1..=times {
        let (exec, stream) = (scene::EXEC, LEGACY);
        match nth % 64 {
            0 => scene::replay(&program, stream),
            _ => program.post(&Op::GraphLaunch { exec, stream }),
        }
    }
    let result = words(&program.read(buffer, 4))[0];
    worker.detach(program);
    let trace = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    (result, trace)
}

/// The kernels of a replayed graph are in the table as others are, checked for stores and for loads in turn.
#[test]
fn a_replayed_graphs_kernels_are_checked_too() {
    let (result, trace) = replayed(10, 1024, 16);
    assert_eq!(result, 30);
    assert_eq!((trace.graph_launches, trace.open_graph_launches), (10, 0));
    let kernel = &trace.kernels[0];
    assert_eq!((kernel.name.as_str(), kernel.launches), ("add", 10));
    assert_eq!(
        (kernel.complete, kernel.checked, kernel.mispredicted),
        (10, 10, 0)
    );
}

/// Checks in turn need no new tables each time, of which there are only so many.
#[test]
fn a_graph_is_checked_however_often_it_is_replayed() {
    const TIMES: u32 = 8400;
    let (result, trace) = replayed(TIMES, 64, 1);
    assert_eq!(result, 3 * TIMES);
    let kernel = &trace.kernels[0];
    let every = u64::from(TIMES);
    assert_eq!(
        (kernel.launches, kernel.checked, kernel.mispredicted),
        (every, every, 0)
    );
}
