//! The passes on text of the kinds that nvcc writes.

use super::*;
use crate::ast::Module;
use crate::parse;

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

const TEXT: &str = "
    .global .u32 counter; .const .align 4 .b8 table[64]; .global .align 1 .b8 $str[3] = {120, 10, 0};
    .visible .entry k(.param .u64 k_param_0) { .reg .b64 %rd<5>; .reg .pred %p<2>; .reg .f32 %f<6>;
    .shared .f32 tile[4]; ld.param.u64 %rd1, [k_param_0]; setp.eq.u64 %p1, %rd1, 0;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+16]; st.shared.f32 [tile], %f1; ld.const.f32 %f5, [table+8];
    mov.u64 %rd2, table; mov.u64 %rd3, $str; cvta.global.u64 %rd4, counter;
    @!%p1 st.global.v2.f32 [%rd1+8], {%f1, %f2}; red.global.add.u32 [counter], 1; st.f32 [%rd4], %f5; ret; }";

fn module(text: &str) -> Module {
    parse(&format!("{HEAD}{text}")).expect("PTX")
}

fn instrumented(what: Guard) -> String {
    let made = guard(&module(TEXT), what, &|_| true).expect("it can be instrumented");
    assert!(made.refused.is_empty());
    made.module.to_string()
}

#[test]
fn stores_and_atomics_are_checked_with_their_size_and_condition() {
    let text = instrumented(Guard::Writes);
    assert_eq!(text.matches("call __fermata_check, ").count(), 2);
    assert_eq!(text.matches("call __fermata_check_generic, ").count(), 1);
    assert!(text.contains("@!%p1 call __fermata_check"), "{text}");
    assert!(text.contains("st.param.b32 [fermata_bytes], 8"), "{text}");
    assert!(text.contains("k_fermata_ranges"));
    parse(&text).expect("an instrumented module parses again");
}

#[test]
fn loads_are_checked_for_restores() {
    let text = instrumented(Guard::Reads);
    assert!(text.contains("st.param.b32 [fermata_bytes], 16"), "{text}");
    assert_eq!(text.matches("call __fermata_check, ").count(), 2);
}

#[test]
fn every_access_is_checked_and_reported_before_it_is_made_where_memory_may_be_absent() {
    let text = instrumented(Guard::Accesses);
    // The loads of restores and the stores of checkpoints; one of them is an atomic.
    assert_eq!(text.matches("call __fermata_check, ").count(), 3);
    assert_eq!(text.matches("call __fermata_check_generic, ").count(), 1);
    assert_eq!(text.matches("membar.sys").count(), 4, "{text}");
    assert_eq!(instrumented(Guard::Writes).matches("membar.sys").count(), 2);
}

#[test]
fn a_load_that_no_fence_holds_back_is_made_one_that_is() {
    let text = ".visible .entry k() { .reg .b64 %rd<3>; .reg .f32 %f<6>; .reg .pred %p<2>;
        @%p1 ld.global.nc.L1::no_allocate.v2.f32 {%f1, %f2}, [%rd1+8]; ldu.global.f32 %f3, [%rd1]; ret; }";
    let instrumented = |what| {
        let made = guard(&module(text), what, &|_| true).expect("an instrumented module");
        made.module.to_string()
    };
    let ordered = instrumented(Guard::Accesses);
    for load in [
        "@%p1 ld.global.L1::no_allocate.v2.f32 {%f1, %f2}, [%rd1+8]",
        "ld.global.f32 %f3, [%rd1]",
    ] {
        assert!(ordered.contains(load), "{load} in {ordered}");
    }
    assert!(!ordered.contains(".nc") && !ordered.contains("ldu"));
    let looked_at = instrumented(Guard::Reads);
    assert!(looked_at.contains("ld.global.nc.L1") && looked_at.contains("ldu.global"));
}

#[test]
fn an_instrumented_kernel_announces_no_debug_information() {
    let text = ".version 8.0\n.target sm_90, debug\n.address_size 64\n.visible .entry k() { ret; }";
    let made = guard(&parse(text).expect("PTX"), Guard::Accesses, &|_| true)
        .expect("an instrumented module");
    let text = made.module.to_string();
    assert!(text.contains(".target sm_90\n"), "{text}");
}

#[test]
fn a_tensor_map_that_is_copied_to_global_memory_counts_as_written() {
    let text = ".visible .entry k() { .reg .b64 %rd<3>; tensormap.cp_fenceproxy.global.shared::cta\
        .tensormap::generic.release.gpu.sync.aligned [%rd1], [%rd2], 128; ret; }";
    let refused = |what| {
        let made = guard(&module(text), what, &|_| true).expect("a module");
        made.refused.len()
    };
    let all = [Guard::Writes, Guard::Accesses, Guard::Reads].map(refused);
    assert_eq!(all, [1, 1, 0]);
}

#[test]
fn copies_are_checked_where_they_touch_global_memory() {
    let copy = |to: &str, from: &str, size| {
        let text = format!(
            ".visible .entry k() {{ .reg .b64 %rd<3>; cp.async{to}{from} [%rd1], [%rd2], {size}; ret; }}"
        );
        let made =
            guard(&module(&text), Guard::Accesses, &|_| true).expect("an instrumented module");
        assert!(made.refused.is_empty(), "{:?}", made.refused);
        let text = made.module.to_string();
        ["%rd1", "%rd2"].map(|at| text.contains(&format!("mov.u64 %fermata_a, {at}")))
    };
    assert_eq!(copy(".ca.shared", ".global", 16), [false, true]);
    let out = copy(".bulk.global", ".shared::cta.bulk_group", 64);
    assert_eq!(out, [true, false]);
}

#[test]
fn a_copy_that_fills_with_zeros_is_checked_for_what_it_reads() {
    let made = |copy: &str| {
        let text = format!(
            ".visible .entry k() {{ .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p<3>;
            {copy}; ret; }}"
        );
        guard(&module(&text), Guard::Reads, &|_| true).expect("a module")
    };
    let checked = |copy: &str| {
        let made = made(copy);
        assert!(made.refused.is_empty(), "{:?}", made.refused);
        let text = made.module.to_string();
        parse(&text).expect("it parses again");
        text
    };
    const COPY: &str = "cp.async.cg.shared.global";
    let text = checked(&format!("{COPY} [%r1], [%rd1], 16, 8"));
    assert!(text.contains("st.param.b32 [fermata_bytes], 8"), "{text}");
    let text = checked(&format!("{COPY} [%r1], [%rd1], 16, %r2"));
    for part in [
        "st.param.b32 [fermata_bytes], %r2",
        "setp.ne.u32 %fermata_z, %r2, 0",
        "@%fermata_z call __fermata_check",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = checked(&format!("@!%p1 {COPY} [%r1], [%rd1], 16, %r2"));
    assert!(
        text.contains("setp.ne.and.u32 %fermata_z, %r2, 0, !%p1"),
        "{text}"
    );
    let text = checked(&format!("{COPY}.L2::cache_hint [%r1], [%rd1], 16, %rd2"));
    assert!(text.contains("st.param.b32 [fermata_bytes], 16"), "{text}");
    let text = checked(&format!("{COPY}.L2::cache_hint [%r1], [%rd1], 16, 4, %rd2"));
    assert!(text.contains("st.param.b32 [fermata_bytes], 4"), "{text}");
    let text = checked(&format!("{COPY} [%r1], [%rd1], 16, 0"));
    assert!(!text.contains("call __fermata_check"), "{text}");
    for predicate in ["%p2", "!%p2"] {
        let made = made(&format!("{COPY} [%r1], [%rd1], 16, {predicate}"));
        assert_eq!(made.refused.len(), 1);
    }
}

#[test]
fn what_cannot_be_checked_is_refused_by_name_and_the_rest_is_kept() {
    let text = ".visible .entry k(.param .u64 p)
        { .reg .b64 %rd<3>; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%rd2], 16; ret; }
        .func helper() { .reg .b64 %rd<3>; frobnicate.global [%rd1]; ret; }
        .visible .entry calls(.param .u64 p) { call helper; ret; }
        .visible .entry plain(.param .u64 p) { ret; }";
    let made =
        guard(&module(text), Guard::Writes, &|_| true).expect("one kernel can be instrumented");
    let refused: Vec<String> = made
        .refused
        .iter()
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    assert_eq!(refused.len(), 2);
    assert!(refused[0].contains("k: ") && refused[0].contains("cp.reduce.async.bulk"));
    assert!(refused[1].contains("calls: ") && refused[1].contains("frobnicate"));
    let kept: Vec<&str> = made.kernels().map(|name| &**name).collect();
    assert_eq!(kept, ["plain"]);
    assert!(!made.module.to_string().contains("helper"));
}

#[test]
fn a_kernel_that_says_how_many_registers_it_has_is_refused_and_no_other() {
    let text = ".visible .entry k() { setmaxnreg.dec.sync.aligned.u32 40; ret; } .visible .entry l() { ret; }";
    for what in [Guard::Writes, Guard::Reads, Guard::Accesses] {
        let made = guard(&module(text), what, &|_| true).expect("one kernel can be instrumented");
        let why = made.refused[0].1.to_string();
        assert!(why.contains("setmaxnreg.dec"), "{why}");
        let kept: Vec<&str> = made.kernels().map(|name| &**name).collect();
        assert_eq!(kept, ["l"]);
    }
}

#[test]
fn code_outside_the_text_is_refused() {
    for (body, what) in [
        ("call %rd1, (), proto;", "register"),
        ("call elsewhere;", "elsewhere"),
        ("mov.u64 %rd1, other;", "address of `other`"),
    ] {
        let text = format!(
            ".extern .func elsewhere; .func other() {{ ret; }}
            .visible .entry k() {{ .reg .b64 %rd<3>; {body} ret; }}"
        );
        let made = guard(&module(&text), Guard::Writes, &|_| true).expect("a module");
        let why = made.refused[0].1.to_string();
        assert!(why.contains(what), "{why}");
    }
}

#[test]
fn called_functions_find_the_table_too() {
    let text = ".func f(.param .b64 a) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [a]; st.u32 [%rd1], 1; ret; }
        .visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p];
        { .param .b64 a0; st.param.b64 [a0], %rd1; call f, (a0); } ret; }";
    let made = guard(&module(text), Guard::Writes, &|_| true).expect("an instrumented module");
    let text = made.module.to_string();
    assert!(text.contains("st.shared.u64 [__fermata_table], %fermata_t"));
    assert!(text.contains("ld.shared.u64 %fermata_t, [__fermata_table]"));
}

#[test]
fn only_the_kernels_asked_for_are_made() {
    let text = ".visible .entry a() { ret; } .visible .entry b() { ret; }";
    let made =
        guard(&module(text), Guard::Writes, &|name| name == "b").expect("an instrumented module");
    assert_eq!(made.kernels().count(), 1);
    assert!(!made.module.to_string().contains(".entry a"));
}

fn addresses(name: &str) -> Option<u64> {
    match name {
        "counter" => Some(0x7000),
        "table" => Some(0x9000),
        _ => None,
    }
}

#[test]
fn variables_are_bound_and_strings_kept() {
    let made = guard(&module(TEXT), Guard::Writes, &|_| true).expect("an instrumented module");
    let bound = bind(made.module, &addresses);
    assert!(bound.refused.is_empty());
    let text = bound.module.to_string();
    for gone in ["counter", "table[", ".const", "mov.u64 %rd2, table"] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    for there in [
        "mov.u64 %rd2, 36864",
        "mov.u64 %rd4, 28672",
        "mov.u64 %rd3, $str",
        "ld.global.f32 %f5, [%fermata_b+8]",
        "red.global.add.u32 [%fermata_b], 1",
        ".b8 $str[3] = {120, 10, 0}",
    ] {
        assert!(text.contains(there), "{there} in {text}");
    }
    parse(&text).expect("it parses again");
}

#[test]
fn kernels_with_unknown_variables_are_refused() {
    let text = ".global .u32 counter; .global .u32 hidden;
        .visible .entry k() { red.global.add.u32 [hidden], 1; ret; }
        .visible .entry l() { red.global.add.u32 [counter], 1; ret; }";
    let bound = bind(module(text), &addresses);
    assert_eq!(&*bound.refused[0].0, "k");
    assert!(bound.refused[0].1.to_string().contains("hidden"));
    assert_eq!(bound.kernels().count(), 1);
}

#[test]
fn a_name_declared_again_is_not_the_variable() {
    let text = ".global .u32 counter; .visible .entry k(.param .u64 counter) { .reg .b64 %rd<2>;
        ld.param.u64 %rd1, [counter]; st.global.u32 [%rd1], 1; ret; }";
    let bound = bind(module(text), &addresses);
    assert!(
        bound
            .module
            .to_string()
            .contains("ld.param.u64 %rd1, [counter]")
    );
}
