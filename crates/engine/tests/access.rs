//! Access sets of launches and graphs, in a session on the software GPU.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, CONTEXT, LEGACY, bench, block, launch, op};
use fermata_abi::op::{
    Address, ArrayId, ContextId, EventId, ExecId, FunctionId, Op, Resource, Sampler, Texture,
    TextureId,
};
use fermata_abi::sys::driver as cu;
use fermata_engine::access::{AccessSet, Doubt, Predictor, Range, Target};
use fermata_graph::{
    Copy, CopyEnd, Graph, HostCall, KernelNode, MemsetNode, NodeKind, Place as GraphPlace,
};
use fermata_state::{Executable, TextureKey};

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

/// A function from the text of one kernel named `k`, and of what it needs beside it.
fn kernel(bench: &mut Bench, text: &str) -> FunctionId {
    let module = bench.module(&format!("{HEAD}{text}"));
    bench.function(module, "k")
}

fn predict(bench: &Bench, function: FunctionId, params: &[u8]) -> AccessSet {
    Predictor::default().predict(&op(&launch(function, params)), &bench.site)
}

fn around(addresses: &[u64]) -> Vec<Target> {
    addresses
        .iter()
        .map(|at| Target::Around(Address::from_raw(*at)))
        .collect()
}

/// The launch of an executable graph that the session knows.
fn known(bench: &mut Bench, exec: ExecId, graph: Graph) -> Op<'static> {
    let record = Executable {
        context: CONTEXT,
        flags: 0,
        graph,
    };
    bench.site.session.executables.insert(exec, record).unwrap();
    Op::GraphLaunch {
        exec,
        stream: LEGACY,
    }
}

#[test]
fn pointers_in_a_structure_and_arithmetic_on_them_are_followed() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".visible .entry k(.param .align 8 .b8 s[32]) { .reg .b64 %rd<9>; .reg .b32 %r<3>;
        ld.param.u64 %rd1, [s+8]; ld.param.u64 %rd2, [s+24]; ld.param.u32 %r1, [s+16];
        mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; ld.global.u32 %r2, [%rd4+4];
        sub.s64 %rd5, %rd2, %rd3; atom.global.add.u32 %r2, [%rd5], 1; ret; }",
    );
    let (a, b, unused) = (bench.allocate(64), bench.allocate(64), bench.allocate(64));
    // The first word is a pointer that the kernel does not use.
    let found = predict(&bench, function, &block(&[unused, a + 16, 3, b]));
    assert_eq!(found.reads, around(&[a + 16, b]));
    assert_eq!(found.writes, around(&[b]));
    assert!(found.complete);
}

/// The descriptor is opaque: only what it was made of says which memory it stands for. It may lie in several mappings.
#[test]
fn the_tensor_of_a_descriptor_in_a_parameter_counts() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".visible .entry k(.param .u64 p, .param .align 64 .b8 m[128]) { .reg .b64 %rd<3>; .reg .b32 %r<3>;
        ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1]; ret; }",
    );
    let (a, b) = (bench.allocate(64), bench.allocate(4096));
    let descriptor = [0x5a; 128];
    bench
        .site
        .session
        .tensor_maps
        .add(descriptor, Address::from_raw(b + 64), 1024);
    let mut params = block(&[a, 0, 0, 0, 0, 0, 0, 0]);
    params.extend_from_slice(&descriptor);
    let range = Range {
        start: Address::from_raw(b + 64),
        len: 1024,
    };
    let tensor = [
        Target::Exactly(range),
        Target::Around(Address::from_raw(b + 64)),
    ];
    let found = predict(&bench, function, &params);
    assert_eq!(found.writes, tensor);
    assert_eq!(found.reads, [&around(&[a])[..], &tensor].concat());
    params[64] = 0;
    assert!(predict(&bench, function, &params).writes.is_empty());
}

/// What one kernel was seen to leave as it was counts for this kernel, this word and this memory alone.
#[test]
fn a_word_that_was_seen_to_do_no_harm_is_only_read() {
    let mut bench = bench();
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 p, .param .u64 q, .param .align 64 .b8 m[128]) {{ ret; }}"
    );
    let module = bench.module_recorded_as(&text, b"machine code");
    let function = bench.function(module, "k");
    let [a, b, c] = [64, 64, 4096].map(|size| bench.allocate(size));
    let descriptor = [0x5a; 128];
    let maps = &mut bench.site.session.tensor_maps;
    maps.add(descriptor, Address::from_raw(c + 64), 1024);
    let params = |first: u64, second: u64| {
        let mut params = block(&[first, second, 0, 0, 0, 0, 0, 0]);
        params.extend_from_slice(&descriptor);
        params
    };
    let doubt = |offset, memory| Doubt {
        function,
        offset,
        memory: Address::from_raw(memory),
    };
    let mut predictor = Predictor::default();
    let given = params(a + 8, b);
    let call = op(&launch(function, &given));
    let doubts = [doubt(0, a), doubt(8, b), doubt(64, c)];
    assert_eq!(predictor.doubts(&call, &bench.site), [doubts]);
    predictor.dispel(doubts[0]);
    predictor.dispel(doubts[2]);
    let found = predictor.predict(&call, &bench.site);
    assert_eq!(found.writes, around(&[b]));
    assert!(
        around(&[a + 8, b, c + 64])
            .iter()
            .all(|it| found.reads.contains(it))
    );
    assert!(!found.complete);
    // The other way round, both are in doubt.
    let given = params(b, a);
    let call = op(&launch(function, &given));
    let others = [doubt(0, b), doubt(8, a), doubts[2]];
    assert_eq!(predictor.doubts(&call, &bench.site), [others]);
    assert_eq!(
        predictor.predict(&call, &bench.site).writes,
        around(&[b, a])
    );
    // In a graph as by itself, also in one that was known before.
    let other = bench.allocate(64);
    let graph = graph(function, &params(a, b), other, (other, other));
    let call = known(&mut bench, ExecId::from_raw(0x9020), graph);
    let around_in = |predictor: &mut Predictor| {
        let mut writes = predictor.predict(&call, &bench.site).writes;
        writes.retain(|it| matches!(it, Target::Around(_)));
        writes
    };
    assert_eq!(around_in(&mut predictor), around(&[b]));
    assert_eq!(predictor.doubts(&call, &bench.site), [doubts]);
    predictor.dispel(doubts[1]);
    assert!(doubts.iter().all(|it| predictor.is_dispelled(it)));
    assert!(around_in(&mut predictor).is_empty());
}

/// A texture is read, a surface may be written; a kernel gets either as a number among its parameters.
#[test]
fn textures_and_surfaces_count_as_what_they_are_about() {
    let mut bench = bench();
    let text = ".visible .entry k(.param .u64 t, .param .u64 s) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [t]; ret; }";
    let function = kernel(&mut bench, text);
    let a = bench.allocate(4096);
    let linear = Resource::Linear {
        address: Address::from_raw(a + 512),
        format: 32,
        channels: 1,
        bytes: 1024,
    };
    let object = |resource, sampler| Texture {
        resource,
        sampler,
        view: None,
    };
    let plain = Sampler {
        address_modes: [0; 3],
        filter: 0,
        flags: 0,
        anisotropy: 0,
        level_filter: 0,
        levels: [0; 3],
        border: [0; 4],
    };
    let key = |surface, object| TextureKey {
        context: CONTEXT,
        surface,
        object,
    };
    let textures = &mut bench.site.session.textures;
    textures.insert(
        key(false, TextureId::from_raw(3)),
        object(linear, Some(plain)),
    );
    textures.insert(
        key(true, TextureId::from_raw(4)),
        object(Resource::Array(ArrayId::from_raw(0x7770)), None),
    );
    let found = predict(&bench, function, &block(&[3, 4]));
    bench.site.session.textures.clear();
    let range = Range {
        start: Address::from_raw(a + 512),
        len: 1024,
    };
    assert_eq!(
        found.reads,
        [
            Target::Exactly(range),
            Target::Array(ArrayId::from_raw(0x7770))
        ]
    );
    assert_eq!(found.writes, [Target::Array(ArrayId::from_raw(0x7770))]);
}

/// The driver reads its own event's handle where the program has written that of its event.
#[test]
fn an_event_in_a_launch_attribute_is_the_drivers() {
    let mut bench = bench();
    let live = &mut bench.site.live;
    live.enter(CONTEXT).unwrap();
    let event = live.driver.create_event(2).unwrap();
    live.events
        .insert(EventId::from_raw(0x7770), (event, CONTEXT));
    let mut value = [0; 64];
    value[..8].copy_from_slice(&0x7770u64.to_le_bytes());
    value[8] = 7;
    let given = |id| fermata_abi::op::LaunchAttribute { id, value: &value };
    let mut asked = launch(FunctionId::from_raw(1), &[]);
    asked.attributes = vec![
        given(cu::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT),
        given(cu::CU_LAUNCH_ATTRIBUTE_PRIORITY),
    ];
    asked.cooperative = true;
    let made = live.launch_attributes(&asked).unwrap();
    assert_eq!(made[0].value[..8], event.address().to_le_bytes());
    assert_eq!((made[0].value[8], made[1].value), (7, value));
    assert_eq!(made[2].id, cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
    live.events.remove(&EventId::from_raw(0x7770));
    assert!(live.launch_attributes(&asked).is_err());
    live.driver.destroy_event(event).unwrap();
}

#[test]
fn numbers_that_are_nobodys_addresses_do_not_count() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".visible .entry k(.param .u64 p, .param .u64 q) { .reg .b64 %rd<4>;
        ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], 1; ret; }",
    );
    let a = bench.allocate(64);
    let found = predict(&bench, function, &block(&[a, 1 << 40]));
    assert_eq!(found.writes, around(&[a]));
    let freed = a + (1 << 36);
    assert!(predict(&bench, function, &block(&[freed, 7])).is_empty());
}

/// Reverse iterators begin at the end, and arrays that are counted from 1 before their start.
#[test]
fn a_pointer_beside_memory_names_it_or_leaves_the_set_open() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; .reg .b32 %r<2>;
        ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1+-4]; ret; }",
    );
    // Nothing lies directly behind it: the next one gets pages of its own.
    let a = bench.allocate((1 << 20) + 64);
    let end = a + (1 << 20) + 64;
    let found = predict(&bench, function, &block(&[end]));
    assert_eq!(found.reads, around(&[end - 1]));
    assert!(found.complete);
    let beyond = predict(&bench, function, &block(&[end + 64]));
    assert!(beyond.is_empty() && !beyond.complete, "{beyond:?}");
    // What is no device address is no pointer.
    for number in [0, 7, 1 << 40] {
        let found = predict(&bench, function, &block(&[number]));
        assert!(found.is_empty() && found.complete, "{found:?}");
    }

    let mut graph = Graph::new();
    let node = KernelNode {
        function,
        context: ContextId::NULL,
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: block(&[end]),
        attributes: Vec::new(),
    };
    graph.add(NodeKind::Kernel(node), &[]).unwrap();
    let call = known(&mut bench, ExecId::from_raw(0x9040), graph);
    let mut predictor = Predictor::default();
    let found = predictor.predict(&call, &bench.site);
    assert_eq!(found.reads, around(&[end - 1]));
    assert!(found.complete);
    let gone = bench.site.session.allocations.remove(Address::from_raw(a));
    assert!(gone.is_ok());
    let found = predictor.predict(&call, &bench.site);
    assert!(found.is_empty() && !found.complete, "{found:?}");
}

#[test]
fn stored_pointers_and_tables_leave_the_set_open() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".visible .entry k(.param .u64 t) { .reg .b64 %rd<4>; .reg .b32 %r<2>;
        ld.param.u64 %rd1, [t]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; add.s64 %rd2, %rd1, %rd2;
        ld.global.u64 %rd3, [%rd2]; st.global.u32 [%rd3], 1; ret; }",
    );
    let table = bench.allocate(64);
    let found = predict(&bench, function, &block(&[table]));
    assert_eq!(found.reads, around(&[table]));
    // A guess: the entries may lead back into the table's buffer.
    assert_eq!(found.writes, around(&[table]));
    assert!(!found.complete);
}

/// Writes where the n-th pointer of its first parameter leads.
const THROUGH_A_TABLE: &str = ".visible .entry k(.param .u64 t, .param .u64 q) { .reg .b64 %rd<5>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [t]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; add.s64 %rd2, %rd1, %rd2;
    ld.global.u64 %rd3, [%rd2]; st.global.u32 [%rd3], 1; ret; }";

/// The program's copies into a table are all that says where its entries lead; known code that loads no pointer does not
/// follow them.
#[test]
fn a_table_that_the_program_has_copied_names_what_it_points_to() {
    let mut bench = bench();
    let with_text = kernel(&mut bench, THROUGH_A_TABLE);
    let text = format!("{HEAD}{THROUGH_A_TABLE}");
    let opaque = bench.module_recorded_as(&text, b"machine code");
    let opaque = bench.function(opaque, "k");
    let tame = kernel(
        &mut bench,
        ".visible .entry k(.param .u64 t, .param .u64 q) { .reg .b64 %rd<2>;
        ld.param.u64 %rd1, [t]; st.global.u32 [%rd1], 1; ret; }",
    );
    let [table, a, b, c] = [4096, 64, 64, 64].map(|size| bench.allocate(size));
    let copied = [a + 8, 5, b, a + 16];
    let pointers = &mut bench.site.session.pointers;
    pointers.write(Address::from_raw(table + 64), &block(&copied));
    let write = |bench: &Bench, function, at| {
        let mut found = predict(bench, function, &block(&[at, c])).writes;
        found.sort();
        found
    };
    let sorted = |addresses: &[u64]| {
        let mut found = around(addresses);
        found.sort();
        found
    };
    // Each buffer is named once; the second parameter is no pointer as far as the text says.
    assert_eq!(
        write(&bench, with_text, table + 64),
        sorted(&[table + 64, a + 8, b])
    );
    assert_eq!(write(&bench, opaque, table), sorted(&[table, a + 8, b, c]));
    assert_eq!(
        write(&bench, opaque, table + 72),
        sorted(&[table + 72, a + 16, b, c])
    );
    assert_eq!(write(&bench, tame, table), sorted(&[table]));
    // Another table takes its place, and memory that is gone is not named.
    bench
        .site
        .session
        .pointers
        .write(Address::from_raw(table + 64), &block(&[c, b, 0, 0]));
    bench
        .site
        .session
        .remove_allocation(Address::from_raw(b))
        .unwrap();
    assert_eq!(write(&bench, with_text, table), sorted(&[table, c]));
    bench
        .site
        .session
        .remove_allocation(Address::from_raw(table))
        .unwrap();
    let left = bench
        .site
        .session
        .pointers
        .within(Address::from_raw(table), 4096);
    assert_eq!(left.count(), 0);
}

/// A structure that points to a table is followed to the table's entries.
#[test]
fn a_table_of_tables_is_followed() {
    let mut bench = bench();
    let function = kernel(&mut bench, THROUGH_A_TABLE);
    let [first, second, a] = [64, 4096, 64].map(|size| bench.allocate(size));
    let pointers = &mut bench.site.session.pointers;
    pointers.write(Address::from_raw(first), &block(&[second + 512]));
    pointers.write(Address::from_raw(second + 512), &block(&[a, first]));
    let found = predict(&bench, function, &block(&[first, 0])).writes;
    assert_eq!(found, around(&[first, second + 512, a]));
}

/// What a table holds is asked at each launch of a graph.
#[test]
fn a_replayed_kernel_finds_the_table_as_it_is_now() {
    let mut bench = bench();
    let function = kernel(&mut bench, THROUGH_A_TABLE);
    let [table, a, b, other] = [64, 64, 64, 64].map(|size| bench.allocate(size));
    let (exec, params) = (ExecId::from_raw(0x9010), block(&[table, 0]));
    let graph = graph(function, &params, other, (other, other));
    let call = known(&mut bench, exec, graph);
    let mut predictor = Predictor::default();
    for target in [a, b] {
        bench
            .site
            .session
            .pointers
            .write(Address::from_raw(table), &block(&[target]));
        let found = predictor.predict(&call, &bench.site).writes;
        let names = |it| found.contains(&Target::Around(it));
        assert_eq!(
            (names(Address::from_raw(a)), names(Address::from_raw(b))),
            (target == a, target == b)
        );
    }
}

#[test]
fn local_copies_and_calls_are_followed() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".func (.param .b64 r) second(.param .align 8 .b8 s[16]) { .reg .b64 %rd<2>;
          ld.param.b64 %rd1, [s+8]; st.param.b64 [r], %rd1; ret; }
        .visible .entry k(.param .u64 p, .param .u64 q) { .local .align 8 .b8 depot[16]; .reg .b64 %rd<9>;
        ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; mov.u64 %rd3, depot; cvta.local.u64 %rd4, %rd3;
        st.local.u64 [%rd3], %rd1; st.u64 [%rd4+8], %rd2; ld.local.u64 %rd5, [%rd3]; ld.u64 %rd6, [%rd4+8];
        { .param .align 8 .b8 a[16]; st.param.b64 [a], %rd5; st.param.b64 [a+8], %rd6; .param .b64 r;
          call (r), second, (a); ld.param.b64 %rd7, [r]; } st.global.u32 [%rd7], 1; ret; }",
    );
    let (a, b) = (bench.allocate(64), bench.allocate(64));
    let found = predict(&bench, function, &block(&[a, b]));
    assert!(
        found.writes.contains(&Target::Around(Address::from_raw(b))),
        "{found:?}"
    );
    assert!(found.complete);
}

#[test]
fn variables_are_named_once_they_are_known() {
    let mut bench = bench();
    let text = ".visible .global .align 4 .u32 total; .visible .const .align 4 .u32 factor;
        .visible .entry k() { .reg .b32 %r<2>; ld.const.u32 %r1, [factor]; red.global.add.u32 [total], %r1; ret; }";
    let module = bench.module(&format!("{HEAD}{text}"));
    let function = bench.function(module, "k");
    let mut predictor = Predictor::default();
    let call = launch(function, &[]);
    assert!(!predictor.predict(&op(&call), &bench.site).complete);
    let (total, factor) = (
        bench.variable(module, "total"),
        bench.variable(module, "factor"),
    );
    let found = predictor.predict(&op(&call), &bench.site);
    assert_eq!(found.writes, around(&[total]));
    assert_eq!(found.reads, around(&[factor, total]));
    assert!(found.complete);
}

#[test]
fn what_was_missed_once_is_known_from_then_on() {
    let mut bench = bench();
    let function = kernel(&mut bench, ".visible .entry k(.param .u64 p) { ret; }");
    let (a, hidden) = (bench.allocate(64), bench.allocate(64));
    let mut predictor = Predictor::default();
    let params = block(&[a]);
    let call = op(&launch(function, &params));
    assert!(predictor.predict(&call, &bench.site).is_empty());
    predictor.remember(function, Address::from_raw(hidden + 8));
    let found = predictor.predict(&call, &bench.site);
    assert_eq!(found.writes, around(&[hidden + 8]));
    bench
        .site
        .session
        .allocations
        .remove(Address::from_raw(hidden))
        .unwrap();
    assert!(predictor.predict(&call, &bench.site).is_empty());
}

fn graph(function: FunctionId, params: &[u8], fill: u64, copy: (u64, u64)) -> Graph {
    let mut inner = Graph::new();
    let end = |address| CopyEnd::linear(GraphPlace::Device, address);
    let bytes = Copy::linear(end(copy.0), end(copy.1), 48);
    inner.add(NodeKind::Memcpy(bytes), &[]).unwrap();
    let mut graph = Graph::new();
    let node = KernelNode {
        function,
        context: ContextId::from_raw(0),
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: params.to_vec(),
        attributes: Vec::new(),
    };
    let host = HostCall {
        function: 0,
        user_data: 1,
    };
    let fill = MemsetNode {
        dst: fill,
        pitch: 0,
        value: 0,
        element_size: 4,
        width: 4,
        height: 1,
    };
    for kind in [
        NodeKind::Kernel(node),
        NodeKind::Host(host),
        NodeKind::Memset(fill),
        NodeKind::ChildGraph(Box::new(inner)),
    ] {
        graph.add(kind, &[]).unwrap();
    }
    graph
}

#[test]
fn a_graph_touches_what_its_nodes_do_and_updates_are_seen() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 1; ret; }",
    );
    let buffers: Vec<u64> = (0..5).map(|_| bench.allocate(64)).collect();
    let [a, b, c, d, e] = buffers[..] else {
        panic!("five")
    };
    let (exec, params) = (ExecId::from_raw(0x9000), block(&[a]));
    let first = graph(function, &params, b, (c, d));
    let live = &mut bench.site.live;
    live.instantiate(exec, CONTEXT, &first, 0).unwrap();
    let call = known(&mut bench, exec, first);

    let mut predictor = Predictor::default();
    let exactly = |start, len| Target::Exactly(Range { start, len });
    let mut found = predictor.predict(&call, &bench.site);
    found.writes.sort();
    let mut expected = vec![
        exactly(Address::from_raw(b), 16),
        exactly(Address::from_raw(c), 48),
        Target::Around(Address::from_raw(a)),
    ];
    expected.sort();
    assert_eq!(found.writes, expected);
    assert_eq!(found.reads, [exactly(Address::from_raw(d), 48)]);
    assert!(found.complete);

    let params = block(&[e]);
    let second = graph(function, &params, b, (c, d));
    bench.site.live.update(exec, &second).unwrap();
    bench.site.session.executables.get_mut(exec).unwrap().graph = second;
    let found = predictor.predict(&call, &bench.site);
    assert!(found.writes.contains(&Target::Around(Address::from_raw(e))));
    assert!(!found.writes.contains(&Target::Around(Address::from_raw(a))));
}

#[test]
fn a_graph_that_is_updated_again_and_again_leaves_nothing_behind() {
    let mut bench = bench();
    let function = kernel(
        &mut bench,
        ".visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 1; ret; }",
    );
    let buffers: Vec<u64> = (0..4).map(|_| bench.allocate(64)).collect();
    let [a, b, c, d] = buffers[..] else {
        panic!("four")
    };
    let graph = graph(function, &block(&[a]), b, (c, d));
    let live = &mut bench.site.live;
    let update = |live: &mut fermata_engine::Live, exec: ExecId| {
        live.instantiate(exec, CONTEXT, &graph, 0).unwrap();
        live.update(exec, &graph).unwrap();
        assert_ne!(live.graph_revision(exec), 0);
        let (made, _) = live.take_executable(exec).unwrap();
        live.driver.destroy_exec(made).unwrap();
        assert_eq!(live.graph_revision(exec), 0);
    };
    update(live, ExecId::from_raw(0x9100));
    // Host nodes hold the one who is to make their calls.
    let held = std::sync::Arc::strong_count(&live.host_caller);
    for exec in 0x9101..0x9110 {
        update(live, ExecId::from_raw(exec));
    }
    assert_eq!(std::sync::Arc::strong_count(&live.host_caller), held);
}
