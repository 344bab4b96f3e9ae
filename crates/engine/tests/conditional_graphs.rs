//! Graphs with conditional nodes on the software GPU: the driver's handles of conditions differ with every graph that is
//! built, and kernels that set conditions work in each of them.
#![allow(clippy::unwrap_used)]

mod common;

use std::borrow::Cow;

use common::{Bench, CONTEXT, LEGACY, bench, block, chain, kernel};
use fermata_abi::op::{Address, ExecId, FunctionId, Op};
use fermata_abi::sys::driver as cu;
use fermata_engine::access::{Predictor, Range, Target};
use fermata_engine::instrumented::{Guard, Instrumented};
use fermata_graph::update::KernelChange;
use fermata_graph::{Condition, Conditional, ConditionalKind, Graph, NodeId, NodeKind};
use fermata_state::Executable;

/// `decide` sets a condition to a word; `count` takes one from a word and sets a condition to what is left; `add` adds to a word.
const WORK: &str = ".version 8.0\n.target sm_75\n.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 h, .param .b32 v);
.visible .entry decide(.param .u64 p, .param .u64 h)
{ .reg .b64 %rd<3>; .reg .b32 %r<2>; ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [h]; ld.global.u32 %r1, [%rd1];
  { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); } ret; }
.visible .entry count(.param .u64 h, .param .u64 p)
{ .reg .b64 %rd<3>; .reg .b32 %r<2>; ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [h]; ld.global.u32 %r1, [%rd1];
  sub.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;
  { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
    call.uni cudaGraphSetConditional, (a, b); } ret; }
.visible .entry add(.param .u64 p, .param .u32 n)
{ .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];
  red.global.add.u32 [%rd1], %r1; ret; }";

const EITHER: u64 = 16;
const LOOP: u64 = 32;

struct Scene {
    decide: FunctionId,
    count: FunctionId,
    add: FunctionId,
    /// What decides; how often the loop runs; what the bodies add to, of the IF, its else and the loop.
    words: [u64; 5],
}

fn conditional(
    kind: ConditionalKind,
    number: u64,
    default: Option<u32>,
    bodies: Vec<Graph>,
) -> NodeKind {
    NodeKind::Conditional(Box::new(Conditional {
        condition: Condition::numbered(number),
        default,
        context: CONTEXT,
        kind,
        bodies,
    }))
}

impl Scene {
    fn new(bench: &mut Bench) -> Self {
        let module = bench.module(WORK);
        Self {
            decide: bench.function(module, "decide"),
            count: bench.function(module, "count"),
            add: bench.function(module, "add"),
            words: [(); 5].map(|()| bench.allocate(64)),
        }
    }

    fn adding(&self, word: usize, number: u64) -> NodeKind {
        kernel(self.add, block(&[self.words[word], number]))
    }

    /// Decides, adds 1 or 10, and then 100 in each turn of a loop within a body that always runs.
    fn graph(&self) -> Graph {
        let handle = |number| Condition::numbered(number).0;
        let decide = kernel(self.decide, block(&[self.words[0], handle(EITHER)]));
        let either = [self.adding(2, 1), self.adding(3, 10)].map(|it| chain(vec![it]));
        let count = kernel(self.count, block(&[handle(LOOP), self.words[1]]));
        let turn = chain(vec![self.adding(4, 100), count]);
        let turns = conditional(ConditionalKind::While, LOOP, Some(1), vec![turn]);
        let always = conditional(
            ConditionalKind::Switch,
            48,
            Some(0),
            vec![chain(vec![turns])],
        );
        chain(vec![
            decide,
            conditional(ConditionalKind::If, EITHER, None, either.into()),
            always,
        ])
    }

    /// What the bodies have added to after a launch with this decision and so many turns.
    fn launch(&self, bench: &mut Bench, exec: ExecId, (decision, turns): (u32, u32)) -> [u32; 3] {
        bench.write(self.words[0], &decision.to_le_bytes());
        bench.write(self.words[1], &turns.to_le_bytes());
        let live = &mut bench.site.live;
        let (handle, _) = live.executables[&exec];
        let on = live.stream(LEGACY).unwrap();
        live.driver.launch_exec(handle, on).unwrap();
        live.driver.synchronize_context().unwrap();
        [2, 3, 4].map(|word| bench.read(self.words[word]))
    }
}

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

#[test]
fn conditions_decide_in_every_graph_that_is_built_of_the_same_data() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let exec = ExecId::from_raw(0xc001);
    let mut expected = [0; 3];
    for _ in 0..3 {
        // As a new worker does with the graph of an image.
        instantiate(&mut bench, exec, scene.graph());
        for (decision, turns) in [(1, 3), (0, 1), (7, 2)] {
            let body = usize::from(decision == 0);
            expected[body] += [1, 10][body];
            expected[2] += 100 * turns;
            let found = scene.launch(&mut bench, exec, (decision, turns));
            assert_eq!(found, expected, "decision {decision}, {turns} turns");
        }
    }
}

#[test]
fn kernels_in_bodies_change_alone_and_keep_their_conditions() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let exec = ExecId::from_raw(0xc002);
    let mut graph = scene.graph();
    instantiate(&mut bench, exec, graph.clone());
    assert_eq!(scene.launch(&mut bench, exec, (1, 2)), [1, 0, 200]);
    let node = |kind: NodeKind| match kind {
        NodeKind::Kernel(kernel) => Cow::Owned(kernel),
        _ => panic!("a kernel"),
    };
    let change = |path: &[u64], at, kind| KernelChange {
        path: path.iter().copied().map(NodeId).collect(),
        node: NodeId(at),
        kernel: node(kind),
    };
    let handle = Condition::numbered(LOOP).0;
    let changes = [
        change(&[2, 0], 1, scene.adding(2, 5)),
        change(&[3, 0, 1, 0], 1, scene.adding(4, 7)),
        change(
            &[3, 0, 1, 0],
            2,
            kernel(scene.count, block(&[handle, scene.words[1]])),
        ),
    ];
    for change in &changes {
        change.apply(&mut graph).unwrap();
    }
    bench
        .site
        .live
        .change_kernels(exec, &graph, &changes)
        .unwrap();
    assert_eq!(scene.launch(&mut bench, exec, (1, 3)), [6, 0, 221]);
    // The worker makes the graph anew then.
    let refused = bench.site.live.update(exec, &graph).unwrap_err();
    assert_eq!(refused.code, cu::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    instantiate(&mut bench, exec, graph);
    assert_eq!(scene.launch(&mut bench, exec, (0, 1)), [6, 10, 228]);
}

#[test]
fn a_launch_may_touch_what_any_body_does() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let exec = ExecId::from_raw(0xc003);
    instantiate(&mut bench, exec, scene.graph());
    let stream = LEGACY;
    let call = Op::GraphLaunch { exec, stream };
    let found = Predictor::default().predict(&call, &bench.site);
    let around = |word: usize| Target::Around(Address::from_raw(scene.words[word]));
    assert!(found.complete);
    assert!(
        [1, 2, 3, 4]
            .iter()
            .all(|word| found.writes.contains(&around(*word)))
    );
    assert!(found.reads.contains(&around(0)) && !found.writes.contains(&around(0)));
}

#[test]
fn kernels_in_bodies_are_checked_until_they_are_given_back() {
    let mut bench = bench();
    let scene = Scene::new(&mut bench);
    let exec = ExecId::from_raw(0xc004);
    instantiate(&mut bench, exec, scene.graph());
    let mut instrumented = Instrumented::new(Guard::Writes, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let range = |word: usize| Range {
        start: Address::from_raw(scene.words[word]),
        len: 64,
    };
    let mut launch = |bench: &mut Bench, allowed: &[Range]| {
        bench.write(scene.words[0], &1u32.to_le_bytes());
        bench.write(scene.words[1], &2u32.to_le_bytes());
        let launched = instrumented.launch_graph(&mut bench.site, exec, LEGACY, allowed);
        assert_eq!(launched.unwrap(), "");
        let live = &mut bench.site.live;
        live.driver.synchronize_context().unwrap();
        let found = instrumented.violations(live).unwrap().into_iter();
        let mut found: Vec<_> = found.map(|it| (it.kernel, it.address.raw())).collect();
        found.sort();
        found
    };
    // The loop runs twice each time, with the conditions of the driver's graph.
    assert_eq!(launch(&mut bench, &[1, 2, 4].map(range)), []);
    let outside = [("add".to_owned(), scene.words[4])];
    assert_eq!(launch(&mut bench, &[1, 2].map(range)), outside);
    let counted = ("count".to_owned(), scene.words[1]);
    assert_eq!(launch(&mut bench, &[2, 4].map(range)), [counted]);
    let sums = [2, 3, 4].map(|word| bench.read(scene.words[word]));
    assert_eq!(sums, [3, 0, 600]);
    // A change gives all kernels back; the next launch instruments them again.
    let node = |word, number| match scene.adding(word, number) {
        NodeKind::Kernel(kernel) => kernel,
        _ => panic!("a kernel"),
    };
    let mut graph = scene.graph();
    let change = |path: &[u64], kernel| KernelChange {
        path: path.iter().copied().map(NodeId).collect(),
        node: NodeId(1),
        kernel: Cow::Owned(kernel),
    };
    let changes = [change(&[3, 0, 1, 0], node(4, 50))];
    changes[0].apply(&mut graph).unwrap();
    let live = &mut bench.site.live;
    live.change_kernels(exec, &graph, &changes).unwrap();
    assert_eq!(scene.launch(&mut bench, exec, (0, 1)), [3, 10, 650]);
    let executables = &mut bench.site.session.executables;
    executables.get_mut(exec).unwrap().graph = graph.clone();
    bench.write(scene.words[1], &1u32.to_le_bytes());
    instrumented
        .launch_graph(&mut bench.site, exec, LEGACY, &[])
        .unwrap();
    instrumented.put_back_all(&mut bench.site);
    let sums = scene.launch(&mut bench, exec, (0, 1));
    assert_eq!(sums[1], 30);
    // Its kernels can still be changed one by one.
    let changes = [change(&[2, 1], node(3, 5))];
    changes[0].apply(&mut graph).unwrap();
    let live = &mut bench.site.live;
    live.change_kernels(exec, &graph, &changes).unwrap();
    assert_eq!(scene.launch(&mut bench, exec, (0, 1))[1], 35);
    instrumented.close(&mut bench.site.live).unwrap();
}
