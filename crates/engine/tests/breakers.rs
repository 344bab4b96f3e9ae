//! The programs that break speculation, as nvcc compiles them: their instrumented kernels report what nothing has
//! named, and what was reported is predicted from then on.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Bench, LEGACY, bench, block, launch, op};
use fermata_abi::op::{Address, FunctionId, Launch, ModuleId};
use fermata_engine::access::{AccessSet, Places, Predictor, Range, Target};
use fermata_engine::instrumented::{Guard, Instrumented, Violation};

/// The PTX of one of the programs.
fn compiled(program: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let nvcc = root.join(".deps/cuda/bin/nvcc");
    assert!(
        nvcc.exists(),
        "there is no compiler: `make deps` fetches it"
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.ptx");
    let status = Command::new(nvcc)
        .args(["-O2", "-std=c++17", "-arch=compute_75", "-ptx", "-o"])
        .arg(&out)
        .arg(root.join("programs").join(program).with_extension("cu"))
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read_to_string(out).unwrap()
}

/// The module of a program, and the function whose name contains `name`.
fn load(bench: &mut Bench, program: &str, name: &str) -> (ModuleId, FunctionId) {
    let text = compiled(program);
    let module = bench.module(&text);
    let live = &mut bench.site.live;
    live.enter(common::CONTEXT).unwrap();
    let all = live.driver.module_functions(live.modules[&module]);
    let mangled = all.iter().find(|it| it.contains(name)).unwrap().clone();
    let function = bench.function(module, &mangled);
    fermata_engine::discover_variables(&mut bench.site).unwrap();
    (module, function)
}

/// Launches the instrumented kernel with what is predicted; the prediction, and what the instrumented kernel has found.
fn check(
    bench: &mut Bench,
    predictor: &mut Predictor,
    what: Guard,
    launch: &Launch<'_>,
) -> (AccessSet, Vec<Violation>) {
    let mut instrumented = Instrumented::new(what, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let set = predictor.predict(&op(launch), &bench.site);
    let mut places = Places::default();
    let reads = set.reads.iter().filter(|_| what != Guard::Writes);
    let writes = set.writes.iter().filter(|_| what != Guard::Reads);
    let allowed: Vec<Range> = reads
        .chain(writes)
        .filter_map(|target| places.range(&bench.site.session, target))
        .collect();
    let done = instrumented.launch(&mut bench.site, launch, LEGACY, &allowed);
    assert!(done.unwrap(), "{:?}", instrumented.without(launch.function));
    let live = &mut bench.site.live;
    live.driver.synchronize_context().unwrap();
    let found = instrumented.violations(live).unwrap();
    instrumented.close(live).unwrap();
    (set, found)
}

/// That stores are missed first, into one of `hidden`, and predicted when each of these was remembered.
fn breaks(bench: &mut Bench, launch: &Launch<'_>, hidden: &[u64]) -> AccessSet {
    let mut predictor = Predictor::default();
    let (set, found) = check(bench, &mut predictor, Guard::Writes, launch);
    let first = found.first().expect("a store that nothing has named");
    let mut places = Places::default();
    let into = places.around(&bench.site.session, first.address).unwrap();
    assert!(
        hidden.contains(&into.start.raw()),
        "{first:?} is in {into:?}"
    );
    for address in hidden {
        assert!(
            !set.writes
                .contains(&Target::Around(Address::from_raw(*address)))
        );
        predictor.remember(launch.function, Address::from_raw(*address));
    }
    let (_, found) = check(bench, &mut predictor, Guard::Writes, launch);
    assert_eq!(found, []);
    set
}

#[test]
fn a_pointer_in_a_device_variable() {
    let mut bench = bench();
    let (module, function) = load(&mut bench, "hidden", "advance");
    let (from, to, table) = (
        bench.allocate(1024),
        bench.allocate(1024),
        bench.allocate(64),
    );
    bench.write_words(table, &[from; 8]);
    let (current, sources) = (
        bench.variable(module, "current"),
        bench.variable(module, "sources"),
    );
    bench.write_words(current, &[to]);
    bench.write_words(sources, &[table]);
    let params = block(&[1 << 32 | 200]);
    let set = breaks(&mut bench, &launch(function, &params), &[to]);
    assert!(!set.complete);
    let read = [
        Target::Around(Address::from_raw(current)),
        Target::Around(Address::from_raw(sources)),
    ];
    assert!(read.iter().all(|it| set.reads.contains(it)), "{set:?}");
    // What is read through pointers is as unknown.
    let launch = launch(function, &params);
    let (_, found) = check(&mut bench, &mut Predictor::default(), Guard::Reads, &launch);
    assert!(!found.is_empty());
}

#[test]
fn a_linked_list() {
    let mut bench = bench();
    let (_, function) = load(&mut bench, "chain", "walk");
    let nodes = [
        bench.allocate(4096),
        bench.allocate(4096),
        bench.allocate(4096),
    ];
    bench.write_words(nodes[0], &[nodes[1], 64]);
    bench.write_words(nodes[1], &[nodes[2], 64]);
    bench.write_words(nodes[2], &[0, 64]);
    let params = block(&[nodes[0], 1]);
    let set = breaks(&mut bench, &launch(function, &params[..12]), &nodes[1..]);
    assert_eq!(set.writes, [Target::Around(Address::from_raw(nodes[0]))]);
    assert!(!set.complete);
}

#[test]
fn a_table_of_pointers() {
    let mut bench = bench();
    let (_, function) = load(&mut bench, "ptrtable", "batched");
    let (outs, ins) = (bench.allocate(64), bench.allocate(64));
    let (out, input) = (bench.allocate(1024), bench.allocate(1024));
    bench.write_words(outs, &[out]);
    bench.write_words(ins, &[input]);
    let params = block(&[outs, ins, 3 << 32 | 200]);
    let set = breaks(&mut bench, &launch(function, &params), &[out]);
    assert!(!set.complete);
}

#[test]
fn a_kernel_that_leaves_its_arguments_buffer() {
    let mut bench = bench();
    let (_, function) = load(&mut bench, "overrun", "spread");
    let base = bench.allocate(1024);
    let others: Vec<u64> = (0..6).map(|_| bench.allocate(1024)).collect();
    let mut words = vec![base];
    let distance = |other: &u64| (other.wrapping_sub(base) as i64 / 4) as u64;
    words.extend(others.iter().map(distance));
    words.push(5 << 32 | 200);
    let params = block(&words);
    let set = breaks(&mut bench, &launch(function, &params), &others);
    // Nothing in the text tells a distance from an index: only checking finds it.
    assert!(set.complete);
    assert_eq!(set.writes, [Target::Around(Address::from_raw(base))]);
}
