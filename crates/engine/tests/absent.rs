//! An instrumented kernel that touches memory which is not mapped: the context is lost, and what it has told is not.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LEGACY, bench, block, launch};
use fermata_abi::op::Address;
use fermata_device::layout::PAGE;
use fermata_engine::access::Range;
use fermata_engine::instrumented::{Guard, Instrumented};

/// Every thread of several blocks loads a word of its own, as one that nobody writes, from behind the second of two
/// words that are passed.
const WORK: &str = ".version 8.0\n.target sm_75\n.address_size 64
.visible .entry far(.param .u64 p, .param .u64 q)
{
    .reg .b64 %rd<6>; .reg .b32 %r<6>;
    ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.s32 %r3, %r2, 32, %r1; mul.wide.u32 %rd3, %r3, 4;
    add.s64 %rd4, %rd2, %rd3; ld.global.nc.u32 %r4, [%rd4];
    add.s64 %rd5, %rd1, %rd3; st.global.u32 [%rd5], %r4;
    ret;
}";

/// The only test of its process: the context is of no use afterwards.
#[test]
fn what_an_instrumented_kernel_has_told_outlives_its_context() {
    let mut bench = bench();
    let module = bench.module(WORK);
    let function = bench.function(module, "far");
    let p = bench.allocate(4096);
    let driver = std::sync::Arc::clone(&bench.site.live.driver);
    let absent = driver.reserve_addresses(PAGE, PAGE, 0).unwrap();
    let all_but = |start: u64, end: u64| {
        let range = |start, end: u64| Range {
            start: Address::from_raw(start),
            len: end - start,
        };
        [range(0, start), range(end, u64::MAX)]
    };
    let mut instrumented = Instrumented::new(Guard::Accesses, 1);
    instrumented.prepare(&mut bench.site).unwrap();
    let params = block(&[p, p]);
    let here = launch(function, &params);
    let done = instrumented.launch(
        &mut bench.site,
        &here,
        LEGACY,
        &all_but(absent, absent + PAGE),
    );
    assert!(done.unwrap());
    driver.synchronize_context().unwrap();
    assert_eq!(instrumented.reported(), []);
    // Stores count as loads do.
    let q = bench.allocate(4096);
    let params = block(&[p, q]);
    let there = launch(function, &params);
    let done = instrumented.launch(&mut bench.site, &there, LEGACY, &all_but(p, p + 4096));
    assert!(done.unwrap());
    driver.synchronize_context().unwrap();
    let told = instrumented.reported();
    assert_eq!(told, instrumented.reported(), "it is not taken away");
    assert!((p..p + 128).contains(&told[0].address.raw()), "{told:?}");
    assert_eq!(instrumented.violations(&mut bench.site.live).unwrap(), told);

    let params = block(&[p, absent]);
    let mut far = launch(function, &params);
    far.grid = [8, 1, 1];
    let done = instrumented.launch(
        &mut bench.site,
        &far,
        LEGACY,
        &all_but(absent, absent + PAGE),
    );
    assert!(done.unwrap());
    driver.synchronize_context().unwrap_err();
    assert!(
        instrumented.violations(&mut bench.site.live).is_err(),
        "the device answers"
    );
    let told = instrumented.reported();
    assert_eq!(
        (told.len(), told[0].kernel.as_str(), told[0].bytes),
        (1, "far", 4)
    );
    assert!(
        (absent..absent + 8 * 128).contains(&told[0].address.raw()),
        "{told:x?}"
    );
}
