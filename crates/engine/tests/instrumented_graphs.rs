//! Executable graphs on the software GPU whose kernels are instrumented for a time: they do what they did, and report
//! what is outside, until they have their own kernels back.
#![allow(clippy::unwrap_used)]

mod common;

use std::borrow::Cow;

use common::{Bench, CONTEXT, LEGACY, bench, block, chain, kernel};
use fermata_abi::op::{Address, ExecId, FunctionId, StreamId, StreamRef};
use fermata_device::{DriverError, PinnedWords};
use fermata_engine::access::Range;
use fermata_engine::instrumented::{Guard, Instrumented, Violation};
use fermata_engine::{LiveStream, Site};
use fermata_graph::update::{KernelChange, assign};
use fermata_graph::{Graph, HostCall, NodeId, NodeKind};
use fermata_state::{Executable, Stream};

/// Both add one to a word; the second calls a function that it finds through a register, so it cannot be instrumented.
const WORK: &str = ".version 8.0\n.target sm_75\n.address_size 64
.visible .entry outer(.param .u64 p)
{ .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; red.global.add.u32 [%rd1], 1; ret; }
.visible .entry inner(.param .u32 unused, .param .u64 p)
{ .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; red.global.add.u32 [%rd1], 1; ret; }";
const BARE: &str = ".version 8.0\n.target sm_75\n.address_size 64
.func hop() { ret; }
.visible .entry bare(.param .u64 p)
{ .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; red.global.add.u32 [%rd1], 1;
  mov.u64 %rd2, hop; proto: .callprototype _ (); call %rd2, (), proto; ret; }";

struct Scene {
    outer: FunctionId,
    inner: FunctionId,
    p: u64,
    q: u64,
}

impl Scene {
    fn new(bench: &mut Bench) -> Self {
        let module = bench.module(WORK);
        Self {
            outer: bench.function(module, "outer"),
            inner: bench.function(module, "inner"),
            p: bench.allocate(64),
            q: bench.allocate(64),
        }
    }

    /// `outer` adds to `p`, then `inner`, in a graph within the graph, to `q`; a host call is between them.
    fn graph(&self) -> Graph {
        let call = HostCall {
            function: 0,
            user_data: 7,
        };
        let inner = chain(vec![kernel(self.inner, block(&[0, self.q]))]);
        chain(vec![
            kernel(self.outer, block(&[self.p])),
            NodeKind::Host(call),
            NodeKind::ChildGraph(Box::new(inner)),
        ])
    }

    fn both(&self) -> [Range; 2] {
        [around(self.p), around(self.q)]
    }

    fn read(&self, bench: &mut Bench) -> (u32, u32) {
        (bench.read(self.p), bench.read(self.q))
    }
}

fn around(start: u64) -> Range {
    Range {
        start: Address::from_raw(start),
        len: 64,
    }
}

/// Makes `graph` executable, in place of what `exec` is.
fn instantiate(bench: &mut Bench, exec: ExecId, graph: Graph) {
    let live = &mut bench.site.live;
    live.instantiate(exec, CONTEXT, &graph, 0).unwrap();
    let record = Executable {
        context: CONTEXT,
        flags: 0,
        graph,
    };
    let executables = &mut bench.site.session.executables;
    let _ = executables.remove(exec);
    executables.insert(exec, record).unwrap();
}

/// Gives its kernels the parameters that they have in `graph`, each by itself.
fn update(bench: &mut Bench, exec: ExecId, graph: Graph) {
    let Site { session, live } = &mut bench.site;
    let known = session.executables.get_mut(exec).unwrap();
    let root = |graph: &Graph| NodeKind::ChildGraph(Box::new(graph.clone()));
    let mut before = root(&known.graph);
    let changed = assign(&[], NodeId(0), &mut before, &root(&graph))
        .unwrap()
        .unwrap();
    let change = |(path, node): (Vec<NodeId>, NodeId)| {
        let path = path[1..].to_vec();
        let NodeKind::Kernel(kernel) = &graph.inner(&path).unwrap().node(node).unwrap().kind else {
            panic!("a kernel")
        };
        KernelChange {
            kernel: Cow::Owned(kernel.clone()),
            path: Cow::Owned(path),
            node,
        }
    };
    let changes: Vec<_> = changed.into_iter().map(change).collect();
    for change in &changes {
        change.apply(&mut known.graph).unwrap();
    }
    assert_eq!(known.graph, graph);
    live.change_kernels(exec, &graph, &changes).unwrap();
}

/// Launches it as it is.
fn replay(bench: &mut Bench, exec: ExecId) {
    let live = &mut bench.site.live;
    let (handle, _) = live.executables[&exec];
    let on = live.stream(LEGACY).unwrap();
    live.driver.launch_exec(handle, on).unwrap();
}

fn stream(bench: &mut Bench, handle: u64) -> StreamRef {
    let (flags, priority, context) = (1, 0, CONTEXT);
    let live = &mut bench.site.live;
    live.enter(CONTEXT).unwrap();
    let made = live.driver.create_stream(flags, priority).unwrap();
    let known = LiveStream {
        handle: made,
        context,
    };
    live.streams.insert(StreamId::from_raw(handle), known);
    let record = Stream {
        context,
        flags,
        priority,
    };
    bench
        .site
        .session
        .streams
        .insert(StreamId::from_raw(handle), record)
        .unwrap();
    StreamRef {
        context,
        stream: StreamId::from_raw(handle),
    }
}

fn instrumented(bench: &mut Bench) -> Instrumented {
    let mut instrumented = Instrumented::new(Guard::Writes, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    instrumented
}

fn finish(bench: &mut Bench, instrumented: &mut Instrumented) -> Vec<(String, u64)> {
    let live = &mut bench.site.live;
    live.enter(CONTEXT).unwrap();
    live.driver.synchronize_context().unwrap();
    let named = |it: Violation| (it.kernel, it.address.raw());
    let mut found: Vec<_> = instrumented.violations(live).unwrap().into_iter().collect();
    found.sort_by_key(|it| it.address);
    found.into_iter().map(named).collect()
}

fn launch(
    bench: &mut Bench,
    instrumented: &mut Instrumented,
    (exec, stream): (u64, StreamRef),
    allowed: &[Range],
) -> Result<String, DriverError> {
    instrumented.launch_graph(&mut bench.site, ExecId::from_raw(exec), stream, allowed)
}

#[test]
fn the_kernels_of_a_graph_are_checked_until_they_are_given_back() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let (exec, all) = (0xe001, scene.both());
    let other = stream(&mut bench, 0xe002);
    instantiate(&mut bench, ExecId::from_raw(exec), scene.graph());
    let mut instrumented = instrumented(&mut bench);
    let (outer, inner) = (("outer".to_owned(), scene.p), ("inner".to_owned(), scene.q));
    let mut launches = 0;
    for (on, allowed, expected) in [
        (LEGACY, &all[..], vec![]),
        (LEGACY, &all[..1], vec![inner.clone()]),
        (LEGACY, &all[..1], vec![inner.clone()]),
        (other, &all[..1], vec![inner.clone()]),
        (other, &all[1..], vec![outer.clone()]),
        (LEGACY, &[][..], vec![outer, inner]),
        (LEGACY, &all[..], vec![]),
    ] {
        let without = launch(&mut bench, &mut instrumented, (exec, on), allowed).unwrap();
        let mut expected = expected;
        expected.sort_by_key(|(_, address)| *address);
        assert_eq!(
            (without.as_str(), finish(&mut bench, &mut instrumented)),
            ("", expected)
        );
        launches += 1;
        assert_eq!(scene.read(&mut bench), (launches, launches));
    }
    launch(&mut bench, &mut instrumented, (exec, LEGACY), &[]).unwrap();
    assert_eq!(finish(&mut bench, &mut instrumented).len(), 2);
    instrumented.put_back_all(&mut bench.site);
    replay(&mut bench, ExecId::from_raw(exec));
    assert_eq!(finish(&mut bench, &mut instrumented), []);
    assert_eq!(scene.read(&mut bench), (launches + 2, launches + 2));

    // The tables that were given back serve the next capture.
    launch(&mut bench, &mut instrumented, (exec, LEGACY), &all[..1]).unwrap();
    assert_eq!(
        finish(&mut bench, &mut instrumented),
        [("inner".to_owned(), scene.q)]
    );
    instrumented.put_back_all(&mut bench.site);
    instrumented.close(&mut bench.site.live).unwrap();
}

/// What a graph may touch changes with every launch, and a launch that has not begun goes by what it was given.
#[test]
fn a_launch_that_waits_is_checked_by_its_own_ranges() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let (exec, all) = (0xe011, scene.both());
    let (first, second) = (stream(&mut bench, 0xe012), stream(&mut bench, 0xe013));
    instantiate(&mut bench, ExecId::from_raw(exec), scene.graph());
    let mut instrumented = instrumented(&mut bench);
    let flag = PinnedWords::new(&bench.site.live.driver, 1).unwrap();
    let on = bench.site.live.stream(first).unwrap();
    let driver = bench.site.live.driver.clone();
    driver.wait_value(on, flag.address(0), 1, 0, true).unwrap();
    for (on, allowed) in [
        (first, &all[..1]),
        (second, &all[..]),
        (first, &all[1..]),
        (second, &all[..]),
    ] {
        let without = launch(&mut bench, &mut instrumented, (exec, on), allowed).unwrap();
        assert_eq!(without, "");
    }
    assert_eq!(instrumented.violations(&mut bench.site.live).unwrap(), []);
    flag.store(0, 1);
    let mut found = finish(&mut bench, &mut instrumented);
    found.sort();
    let expected = [("inner".to_owned(), scene.q), ("outer".to_owned(), scene.p)];
    assert_eq!(found, expected);
    assert_eq!(scene.read(&mut bench), (4, 4));
    instrumented.put_back_all(&mut bench.site);
    instrumented.close(&mut bench.site.live).unwrap();
}

#[test]
fn kernels_are_given_other_parameters_at_any_depth_and_while_they_are_instrumented() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let exec = 0xe031;
    // Three additions: by a kernel of the graph, of a graph in it, and of one in that.
    let of = |addresses: [u64; 3]| {
        let [first, second, third] = addresses.map(|at| kernel(scene.outer, block(&[at])));
        let innermost = NodeKind::ChildGraph(Box::new(chain(vec![third])));
        let inner = NodeKind::ChildGraph(Box::new(chain(vec![second, innermost])));
        chain(vec![first, inner])
    };
    let (p, q) = (scene.p, scene.q);
    let mut counts = (0, 0);
    let mut runs = |bench: &mut Bench, adds: (u32, u32)| {
        replay(bench, ExecId::from_raw(exec));
        bench.site.live.driver.synchronize_context().unwrap();
        counts = (counts.0 + adds.0, counts.1 + adds.1);
        assert_eq!(scene.read(bench), counts);
    };
    instantiate(&mut bench, ExecId::from_raw(exec), of([p, p, p]));
    runs(&mut bench, (3, 0));
    update(&mut bench, ExecId::from_raw(exec), of([p, p, q]));
    runs(&mut bench, (2, 1));
    update(&mut bench, ExecId::from_raw(exec), of([q, q, q]));
    runs(&mut bench, (0, 3));

    let mut instrumented = instrumented(&mut bench);
    let all = scene.both();
    launch(&mut bench, &mut instrumented, (exec, LEGACY), &all).unwrap();
    assert_eq!(finish(&mut bench, &mut instrumented), []);
    // All kernels are instrumented now; the update gives all of them back, not only the one that changes.
    update(&mut bench, ExecId::from_raw(exec), of([q, p, q]));
    instrumented.put_back_all(&mut bench.site);
    instrumented.close(&mut bench.site.live).unwrap();
    counts.1 += 3;
    let mut runs = |bench: &mut Bench, adds: (u32, u32)| {
        replay(bench, ExecId::from_raw(exec));
        bench.site.live.driver.synchronize_context().unwrap();
        counts = (counts.0 + adds.0, counts.1 + adds.1);
        assert_eq!(scene.read(bench), counts);
    };
    runs(&mut bench, (1, 2));
    update(&mut bench, ExecId::from_raw(exec), of([p, q, q]));
    runs(&mut bench, (1, 2));
    update(&mut bench, ExecId::from_raw(exec), of([q, p, p]));
    runs(&mut bench, (2, 1));
}

#[test]
fn what_the_program_changes_meanwhile_is_checked_as_it_is_then() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let exec = 0xe021;
    let of = |address: u64| chain(vec![kernel(scene.outer, block(&[address]))]);
    instantiate(&mut bench, ExecId::from_raw(exec), of(scene.p));
    let mut instrumented = instrumented(&mut bench);
    let mut check = |bench: &mut Bench, outside: Option<u64>| {
        let without = launch(bench, &mut instrumented, (exec, LEGACY), &[around(scene.p)]).unwrap();
        let found = finish(bench, &mut instrumented);
        let expected = outside.map(|at| ("outer".to_owned(), at));
        assert_eq!((without.as_str(), found), ("", Vec::from_iter(expected)));
    };
    check(&mut bench, None);
    update(&mut bench, ExecId::from_raw(exec), of(scene.q));
    check(&mut bench, Some(scene.q));
    // Another executable graph with the handle of the first, as when a node is switched off.
    instantiate(&mut bench, ExecId::from_raw(exec), of(scene.p));
    check(&mut bench, None);
    instantiate(&mut bench, ExecId::from_raw(exec), scene.graph());
    let without = launch(&mut bench, &mut instrumented, (exec, LEGACY), &[]).unwrap();
    assert_eq!(
        (
            without.as_str(),
            finish(&mut bench, &mut instrumented).len()
        ),
        ("", 2)
    );
    assert_eq!(scene.read(&mut bench), (3, 2));
    instrumented.put_back_all(&mut bench.site);
    replay(&mut bench, ExecId::from_raw(exec));
    assert_eq!(finish(&mut bench, &mut instrumented), []);
    assert_eq!(scene.read(&mut bench), (4, 3));
    instrumented.close(&mut bench.site.live).unwrap();
}

#[test]
fn a_kernel_that_cannot_be_instrumented_is_named_and_the_others_are_checked() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let module = bench.module(BARE);
    let bare = bench.function(module, "bare");
    let exec = 0xe031;
    let kinds = vec![
        kernel(bare, block(&[scene.q])),
        kernel(scene.outer, block(&[scene.p])),
    ];
    instantiate(&mut bench, ExecId::from_raw(exec), chain(kinds));
    let mut instrumented = instrumented(&mut bench);
    let without = launch(&mut bench, &mut instrumented, (exec, LEGACY), &[]).unwrap();
    assert!(without.contains("`bare`"), "{without}");
    assert_eq!(
        finish(&mut bench, &mut instrumented),
        [("outer".to_owned(), scene.p)]
    );
    assert_eq!(scene.read(&mut bench), (1, 1));
    instrumented.put_back_all(&mut bench.site);
    instrumented.close(&mut bench.site.live).unwrap();
}

/// Tables need a little device memory. A program that has taken all of it is not checked, and does not notice.
#[test]
fn without_memory_for_tables_everything_runs_unchecked() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let exec = 0xe041;
    instantiate(&mut bench, ExecId::from_raw(exec), scene.graph());
    let mut instrumented = instrumented(&mut bench);
    let driver = bench.site.live.driver.clone();
    let smallest = driver.granularity(0).unwrap();
    let (mut size, mut taken) = (1 << 40, Vec::new());
    while size >= smallest {
        match driver.create_memory(0, size) {
            Ok(memory) => taken.push(memory),
            Err(_) => size /= 2,
        }
    }
    let without = launch(&mut bench, &mut instrumented, (exec, LEGACY), &[]);
    let params = block(&[scene.p]);
    let plain = common::launch(scene.outer, &params);
    let checked = instrumented.launch(&mut bench.site, &plain, LEGACY, &[]);
    for memory in taken {
        driver.release_memory(memory).unwrap();
    }
    let without = without.unwrap();
    assert!(without.contains("MEMORY"), "{without}");
    assert!(!checked.unwrap());
    assert_eq!(finish(&mut bench, &mut instrumented), []);
    assert_eq!(scene.read(&mut bench), (1, 1));
    instrumented.close(&mut bench.site.live).unwrap();
}
