//! The analysis on text of the kinds that nvcc writes.

use super::*;
use crate::parse;

fn summary(body: &str) -> Summary {
    let text = format!(".version 8.0\n.target sm_75\n.address_size 64\n{body}");
    let module = parse(&text).expect("the test's text is PTX");
    let analysis = Analysis::of(&module);
    analysis.kernel("k").expect("the kernel is named k").clone()
}

fn slot(param: usize, offset: u32) -> ParamSlot {
    ParamSlot {
        param,
        offset: Some(offset),
    }
}

const TWO: &str =
    ".visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1, .param .u32 k_param_2)";

#[test]
fn a_plain_copy_reads_one_parameter_and_writes_the_other() {
    let found = summary(&format!(
        "{TWO} {{ .reg .b64 %rd<8>; .reg .b32 %r<4>; .reg .f32 %f<3>;
        ld.param.u64 %rd1, [k_param_0]; ld.param.u64 %rd2, [k_param_1]; ld.param.u32 %r3, [k_param_2];
        cvta.to.global.u64 %rd3, %rd1; cvta.to.global.u64 %rd4, %rd2;
        mov.u32 %r1, %tid.x; mul.wide.u32 %rd5, %r1, 4; add.s64 %rd6, %rd3, %rd5; add.s64 %rd7, %rd4, %rd5;
        ld.global.f32 %f1, [%rd6+16]; st.global.f32 [%rd7], %f1; ret; }}"
    ));
    assert_eq!(found.reads.params, [slot(0, 0)].into());
    assert_eq!(found.writes.params, [slot(1, 0)].into());
    assert!(!found.opaque && !found.reads.loaded && !found.writes.loaded);
}

#[test]
fn pointers_inside_a_struct_are_told_apart() {
    let found = summary(
        ".visible .entry k(.param .align 8 .b8 k_param_0[24]) { .reg .b64 %rd<4>; .reg .b32 %r<3>;
        ld.param.u64 %rd1, [k_param_0+8]; ld.param.u64 %rd2, [k_param_0+16];
        ld.global.u32 %r1, [%rd1]; red.global.add.u32 [%rd2+4], %r1; ret; }",
    );
    assert_eq!(found.reads.params, [slot(0, 8), slot(0, 16)].into());
    assert_eq!(found.writes.params, [slot(0, 16)].into());
}

#[test]
fn a_pointer_loaded_from_a_buffer_is_said_to_be_unknown() {
    let found = summary(&format!(
        "{TWO} {{ .reg .b64 %rd<4>; ld.param.u64 %rd1, [k_param_0]; ld.global.u64 %rd2, [%rd1];
        st.global.u64 [%rd2+8], %rd1; ret; }}"
    ));
    assert_eq!(found.reads.params, [slot(0, 0)].into());
    assert!(found.writes.loaded && found.writes.params.is_empty());
}

#[test]
fn module_variables_are_named() {
    let found = summary(&format!(
        ".global .u32 counter; .const .u32 table[4]; {TWO} {{ .reg .b32 %r<3>; .reg .b64 %rd<3>;
        ld.const.u32 %r1, [table+4]; mov.u64 %rd1, counter; atom.global.add.u32 %r2, [%rd1], %r1; ret; }}"
    ));
    assert_eq!(
        found
            .writes
            .symbols
            .iter()
            .map(|s| &**s)
            .collect::<Vec<_>>(),
        ["counter"]
    );
    let read: Vec<_> = found.reads.symbols.iter().map(|s| &**s).collect();
    assert_eq!(read, ["counter", "table"]);
    assert!(!found.reads.loaded && !found.writes.loaded);
}

#[test]
fn calls_carry_pointers_in_and_out() {
    let found = summary(
        ".func (.param .b64 r) pick(.param .b64 a, .param .b64 b) { .reg .b64 %rd<3>;
          ld.param.u64 %rd1, [b]; add.s64 %rd2, %rd1, 8; st.param.b64 [r], %rd2; ret; }
        .visible .entry k(.param .u64 p, .param .u64 q) { .reg .b64 %rd<4>;
          ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q];
          { .param .b64 param0; st.param.b64 [param0], %rd1; .param .b64 param1; st.param.b64 [param1], %rd2;
            .param .b64 retval0; call.uni (retval0), pick, (param0, param1); ld.param.b64 %rd3, [retval0]; }
          st.u64 [%rd3], %rd1; ret; }",
    );
    assert_eq!(found.writes.params, [slot(1, 0)].into());
    assert!(!found.opaque);
}

#[test]
fn pointers_kept_in_local_memory_are_followed() {
    let found = summary(
        ".visible .entry k(.param .u64 p) { .local .align 8 .b8 depot[16]; .reg .b64 %rd<6>;
        mov.u64 %rd1, depot; cvta.local.u64 %rd2, %rd1; ld.param.u64 %rd3, [p];
        st.u64 [%rd2+8], %rd3; ld.u64 %rd4, [%rd2+8]; st.u64 [%rd4], %rd3; ret; }",
    );
    assert!(found.writes.params.contains(&slot(0, 0)));
}

#[test]
fn a_pointer_exchanged_in_shared_memory_through_a_generic_address_is_followed() {
    let found = summary(
        ".visible .entry k(.param .u64 p) { .shared .align 8 .b8 slot[8]; .reg .b64 %rd<6>;
        mov.u64 %rd1, slot; cvta.shared.u64 %rd2, %rd1; ld.param.u64 %rd3, [p];
        st.shared.u64 [%rd1], %rd3; atom.exch.b64 %rd4, [%rd2], 0; st.global.u64 [%rd4], 7; ret; }",
    );
    assert!(found.writes.params.contains(&slot(0, 0)));
}

#[test]
fn an_indirect_call_is_opaque() {
    let found = summary(
        ".visible .entry k(.param .u64 p) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [p];
        { .param .b64 param0; st.param.b64 [param0], %rd1;
          proto: .callprototype _ (.param .b64 _); call %rd1, (param0), proto; } ret; }",
    );
    assert!(found.opaque);
}

#[test]
fn an_address_from_nowhere_is_unknown() {
    let found = summary(
        ".visible .entry k(.param .u64 p) { .reg .b64 %rd<3>; mov.u64 %rd1, 4096; st.global.u64 [%rd1], 7; ret; }",
    );
    assert!(found.writes.loaded);
}

#[test]
fn elements_of_a_vector_of_parameters_are_told_apart() {
    let found = summary(
        ".visible .entry k(.param .align 16 .b8 k_param_0[32]) { .reg .b64 %rd<5>; .reg .b32 %r<3>;
        ld.param.v2.u64 {%rd1, %rd2}, [k_param_0+16]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1; ret; }",
    );
    assert_eq!(found.reads.params, [slot(0, 16)].into());
    assert_eq!(found.writes.params, [slot(0, 24)].into());
}

#[test]
fn an_index_from_a_buffer_is_no_pointer() {
    // p[q[i]], and p[r[i]] with indices of 64 bits.
    let found = summary(&format!(
        "{TWO} {{ .reg .b64 %rd<9>; .reg .b32 %r<4>;
        ld.param.u64 %rd1, [k_param_0]; ld.param.u64 %rd2, [k_param_1];
        ld.global.u32 %r1, [%rd2]; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], 7;
        ld.global.u64 %rd5, [%rd2+8]; shl.b64 %rd6, %rd5, 2; add.s64 %rd7, %rd1, %rd6; st.global.u32 [%rd7], 7; ret; }}"
    ));
    assert_eq!(found.writes.params, [slot(0, 0)].into());
    assert!(!found.writes.loaded && !found.reads.loaded);
}

#[test]
fn a_pointer_put_together_from_halves_is_one() {
    let found = summary(&format!(
        "{TWO} {{ .reg .b64 %rd<9>; .reg .b32 %r<9>;
        ld.param.u64 %rd1, [k_param_0]; ld.global.v2.u32 {{%r1, %r2}}, [%rd1]; mov.b64 %rd2, {{%r1, %r2}};
        st.global.u32 [%rd2], 7; ld.param.u32 %r3, [k_param_1]; ld.param.u32 %r4, [k_param_1+4];
        mov.b64 %rd3, {{%r3, %r4}}; red.global.add.u32 [%rd3], 1; ret; }}"
    ));
    assert!(found.writes.loaded);
    assert_eq!(found.writes.params, [slot(1, 0), slot(1, 4)].into());
}

#[test]
fn counts_among_the_parameters_are_no_pointers() {
    let found = summary(&format!(
        "{TWO} {{ .reg .b64 %rd<9>; .reg .b32 %r<4>;
        ld.param.u64 %rd1, [k_param_0]; ld.param.u32 %r1, [k_param_2]; mul.wide.u32 %rd3, %r1, 4;
        add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], 7; ret; }}"
    ));
    assert_eq!(found.writes.params, [slot(0, 0)].into());
}

#[test]
fn a_pointer_kept_in_a_constant_is_unknown() {
    let found = summary(
        ".const .align 8 .b8 settings[16]; .visible .entry k() { .reg .b64 %rd<4>;
        ld.const.u64 %rd1, [settings+8]; cvta.to.global.u64 %rd2, %rd1; st.global.u32 [%rd2], 7; ret; }",
    );
    assert!(found.writes.loaded);
    assert_eq!(found.reads.symbols.len(), 1);
}
