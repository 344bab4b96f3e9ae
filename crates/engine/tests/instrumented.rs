//! Instrumented kernels on the software GPU: they do what their originals do, and report what is outside.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, LEGACY, bench, block, launch};
use fermata_abi::op::{Address, FunctionId};
use fermata_engine::access::Range;
use fermata_engine::instrumented::{Guard, Instrumented, Violation};

const EVERYTHING: [Range; 1] = [Range {
    start: Address::NULL,
    len: u64::MAX,
}];

/// Adds a constant to each word of a buffer, counts in a variable, and calls a function that stores.
const WORK: &str = ".version 8.0\n.target sm_75\n.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .const .align 4 .b8 table[16] = {1,0,0,0, 2,0,0,0, 3,0,0,0, 4,0,0,0};
.func store(.param .b64 at, .param .b32 value)
{ .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [at]; ld.param.u32 %r1, [value]; st.u32 [%rd1], %r1; ret; }
.visible .entry work(.param .u64 p, .param .u64 q)
{
    .reg .b64 %rd<9>; .reg .b32 %r<9>;
    ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q];
    mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r2, [%rd4];
    and.b32 %r3, %r1, 3; mul.wide.u32 %rd6, %r3, 4; mov.u64 %rd7, table; add.s64 %rd8, %rd7, %rd6;
    ld.const.u32 %r4, [%rd8]; ld.const.u32 %r5, [table+4]; add.s32 %r6, %r2, %r4; add.s32 %r6, %r6, %r5;
    st.global.u32 [%rd4], %r6;
    red.global.add.u32 [counter], 1;
    { .param .b64 a0; st.param.b64 [a0], %rd5; .param .b32 a1; st.param.b32 [a1], %r6; call store, (a0, a1); }
    ret;
}";

struct Scene {
    function: FunctionId,
    p: u64,
    q: u64,
    counter: u64,
}

fn scene(bench: &mut Bench) -> Scene {
    let module = bench.module(WORK);
    Scene {
        function: bench.function(module, "work"),
        p: bench.allocate(256),
        q: bench.allocate(256),
        counter: bench.variable(module, "counter"),
    }
}

fn range(start: u64, len: u64) -> Range {
    Range {
        start: Address::from_raw(start),
        len,
    }
}

fn finish(bench: &mut Bench, instrumented: &mut Instrumented) -> Vec<Violation> {
    let live = &mut bench.site.live;
    live.enter(common::CONTEXT).unwrap();
    live.driver.synchronize_context().unwrap();
    instrumented.violations(live).unwrap()
}

#[test]
fn an_instrumented_kernel_does_what_its_original_does_with_the_same_variables() {
    let mut bench = bench();
    let scene = scene(&mut bench);
    let params = block(&[scene.p, scene.q]);
    for what in [Guard::Writes, Guard::Reads, Guard::Accesses] {
        let mut instrumented = Instrumented::new(what, 1);
        let prepared = instrumented.prepare(&mut bench.site).unwrap();
        assert!(
            instrumented.without(scene.function).is_none(),
            "{prepared:?}"
        );
        let before = (bench.read(scene.p), bench.read(scene.counter));
        let done = instrumented
            .launch(
                &mut bench.site,
                &launch(scene.function, &params),
                LEGACY,
                &EVERYTHING,
            )
            .unwrap();
        assert!(done);
        assert_eq!(finish(&mut bench, &mut instrumented), []);
        // Thread 0 adds table[0] + table[1].
        let after = (bench.read(scene.p), bench.read(scene.counter));
        assert_eq!(after, (before.0 + 3, before.1 + 32));
        assert_eq!(bench.read(scene.q + 4), bench.read(scene.p + 4));
        instrumented.close(&mut bench.site.live).unwrap();
    }
}

#[test]
fn stores_outside_the_ranges_are_reported_once_with_their_address() {
    let mut bench = bench();
    let scene = scene(&mut bench);
    let params = block(&[scene.p, scene.q]);
    let mut instrumented = Instrumented::new(Guard::Writes, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let mut run = |bench: &mut Bench, allowed: &[Range]| {
        let launch = launch(scene.function, &params);
        assert!(
            instrumented
                .launch(&mut bench.site, &launch, LEGACY, allowed)
                .unwrap()
        );
        finish(bench, &mut instrumented)
    };
    let (p, q) = (range(scene.p, 256), range(scene.q, 256));
    let counter = range(scene.counter, 4);
    assert_eq!(run(&mut bench, &[p, q, counter]), []);

    // The called function stores to q; all of its 32 stores are outside.
    let found = run(&mut bench, &[p, counter]);
    assert_eq!(found.len(), 1);
    let first = &found[0];
    assert!(
        (scene.q..scene.q + 128).contains(&first.address.raw()),
        "{first:?}"
    );
    assert_eq!(first.bytes, 4);
    assert_eq!(
        (first.function, first.kernel.as_str()),
        (scene.function, "work")
    );

    // Half of p is outside; the report has been reset in between.
    let found = run(&mut bench, &[range(scene.p, 64), q, counter]);
    assert_eq!(found.len(), 1);
    assert!((scene.p + 64..scene.p + 128).contains(&found[0].address.raw()));

    let found = run(&mut bench, &[p, q]);
    assert_eq!((found.len(), found[0].address.raw()), (1, scene.counter));
    assert_eq!(
        run(
            &mut bench,
            &[range(scene.p, 8), range(scene.p + 8, 248), q, counter]
        ),
        []
    );
}

#[test]
fn loads_outside_are_reported_by_kernels_instrumented_for_restores() {
    let mut bench = bench();
    let scene = scene(&mut bench);
    let params = block(&[scene.p, scene.q]);
    let mut instrumented = Instrumented::new(Guard::Reads, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let launch = launch(scene.function, &params);
    let allowed = [range(scene.q, 256), range(scene.counter, 4)];
    assert!(
        instrumented
            .launch(&mut bench.site, &launch, LEGACY, &allowed)
            .unwrap()
    );
    let found = finish(&mut bench, &mut instrumented);
    assert_eq!(found.len(), 1);
    assert!((scene.p..scene.p + 128).contains(&found[0].address.raw()));
}

#[test]
fn kernels_that_cannot_be_instrumented_are_named_and_left_to_the_original() {
    let mut bench = bench();
    let text = ".version 8.0\n.target sm_75\n.address_size 64
        .func hop() { ret; }
        .visible .entry indirect(.param .u64 p) { .reg .b64 %rd<3>; mov.u64 %rd1, hop;
        proto: .callprototype _ (); call %rd1, (), proto; ret; }
        .visible .entry direct(.param .u64 p) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 7; ret; }";
    let module = bench.module(text);
    let (indirect, direct) = (
        bench.function(module, "indirect"),
        bench.function(module, "direct"),
    );
    let p = bench.allocate(64);
    let params = block(&[p]);
    let mut instrumented = Instrumented::new(Guard::Writes, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let why = &instrumented.without(indirect).expect("it has none").why;
    assert!(why.contains("hop") || why.contains("register"), "{why}");
    let allowed = [range(p, 64)];
    assert!(
        !instrumented
            .launch(
                &mut bench.site,
                &launch(indirect, &params),
                LEGACY,
                &allowed
            )
            .unwrap()
    );
    assert!(
        instrumented
            .launch(&mut bench.site, &launch(direct, &params), LEGACY, &allowed)
            .unwrap()
    );
    assert_eq!(finish(&mut bench, &mut instrumented), []);
    assert_eq!(bench.read(p), 7);
}

/// As much shared memory as a block has without asking for more; the instrumented kernel, which calls a function, keeps
/// a word there.
#[test]
fn a_launch_that_leaves_its_instrumented_form_no_room_is_left_to_the_original() {
    let mut bench = bench();
    let scene = scene(&mut bench);
    let params = block(&[scene.p, scene.q]);
    let mut instrumented = Instrumented::new(Guard::Accesses, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let mut launch = launch(scene.function, &params);
    launch.shared = 48 << 10;
    let done = instrumented.launch(&mut bench.site, &launch, LEGACY, &EVERYTHING);
    assert!(!done.expect("the program's launch is possible"));
    let before = bench.read(scene.counter);
    bench.run(&launch);
    assert_eq!(bench.read(scene.counter), before + 32);
    launch.shared -= 8;
    let done = instrumented.launch(&mut bench.site, &launch, LEGACY, &EVERYTHING);
    assert!(done.unwrap(), "one that has room");
    assert_eq!(finish(&mut bench, &mut instrumented), []);
}

#[test]
fn many_ranges_and_streams_of_launches_keep_their_own_tables() {
    let mut bench = bench();
    let scene = scene(&mut bench);
    let params = block(&[scene.p, scene.q]);
    let mut instrumented = Instrumented::new(Guard::Writes, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let base = [
        range(scene.p, 256),
        range(scene.q, 256),
        range(scene.counter, 4),
    ];
    for many in [0u64, 3, 40, 1000, 2] {
        let more = (0..many).map(|n| range(0x1000_0000 + n * 64, 32));
        let allowed: Vec<Range> = base.into_iter().chain(more).collect();
        let launch = launch(scene.function, &params);
        assert!(
            instrumented
                .launch(&mut bench.site, &launch, LEGACY, &allowed)
                .unwrap()
        );
        assert_eq!(
            finish(&mut bench, &mut instrumented),
            [],
            "{many} more ranges"
        );
    }
}

#[test]
fn launches_are_told_apart_as_deep_as_asked() {
    let mut bench = bench();
    let scene = scene(&mut bench);
    let params = block(&[scene.p, scene.q]);
    let mut instrumented = Instrumented::new(Guard::Writes, 4);
    instrumented.prepare(&mut bench.site).unwrap();
    let (p, q) = (range(scene.p, 256), range(scene.q, 256));
    let counter = range(scene.counter, 4);
    let all = [p, q, counter];
    for allowed in [
        &all[..],
        &all[..2],
        &all[..],
        &all[..2],
        &all[..],
        &all[..2],
    ] {
        let launch = launch(scene.function, &params);
        let done = instrumented.launch(&mut bench.site, &launch, LEGACY, allowed);
        assert!(done.unwrap());
        bench.read(scene.p);
    }
    // Three of six were outside; the first two of them by the time their tables were used again.
    let found = finish(&mut bench, &mut instrumented);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found
            .iter()
            .all(|it| it.address == Address::from_raw(scene.counter))
    );
    assert_eq!(finish(&mut bench, &mut instrumented), []);
}
