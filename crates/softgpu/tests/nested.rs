//! Kernels that launch kernels.
#![allow(clippy::unwrap_used)]

mod support;

use fermata_softgpu::exec::Fault;
use support::{Memory, Params, launch, load};

/// `spawn(f, a, n, stream)` launches two blocks of one thread of the kernel `f(a, n)`. `add` adds n to word b of a in
/// block b; `look` puts the sum of words 0 and 1 into word 2.
const TEXT: &str = ".version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2
    (.param .b64 f, .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p, .param .b64 s);
.func spawn(.param .b64 f, .param .b64 a, .param .b32 n, .param .b64 stream)
{
    .reg .b64 %rd<8>; .reg .b32 %r<8>;
    ld.param.b64 %rd0, [f];
    ld.param.b64 %rd1, [a];
    ld.param.b32 %r1, [n];
    ld.param.b64 %rd2, [stream];
    mov.u32 %r2, 1;
    mov.u32 %r3, 2;
    {
    .param .b64 p0; .param .align 4 .b8 p1[12]; .param .align 4 .b8 p2[12]; .param .b32 p3; .param .b64 result;
    st.param.b64 [p0], %rd0;
    st.param.b32 [p1+0], %r3; st.param.b32 [p1+4], %r2; st.param.b32 [p1+8], %r2;
    st.param.b32 [p2+0], %r2; st.param.b32 [p2+4], %r2; st.param.b32 [p2+8], %r2;
    st.param.b32 [p3], 0;
    call (result), __cudaCDP2GetParameterBufferV2, (p0, p1, p2, p3);
    ld.param.b64 %rd4, [result];
    }
    st.b64 [%rd4], %rd1;
    st.b32 [%rd4+8], %r1;
    {
    .param .b64 q0; .param .b64 q1; .param .b32 code;
    st.param.b64 [q0], %rd4;
    st.param.b64 [q1], %rd2;
    call (code), __cudaCDP2LaunchDeviceV2, (q0, q1);
    }
    ret;
}
.visible .entry add(.param .u64 a, .param .u32 n)
{
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd0, [a];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd1, %rd0, %rd1;
    red.global.add.u32 [%rd1], %r0;
    ret;
}
.visible .entry look(.param .u64 a, .param .u32 n)
{
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd0, [a];
    ld.global.u32 %r0, [%rd0];
    ld.global.u32 %r1, [%rd0+4];
    add.u32 %r0, %r0, %r1;
    st.global.u32 [%rd0+8], %r0;
    ret;
}
.visible .entry each(.param .u64 a)
{
    .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p;
    ld.param.u64 %rd0, [a];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r1, %r1, 2, %r2;
    mul.wide.u32 %rd1, %r1, 8;
    add.u64 %rd2, %rd0, %rd1;
    mov.u64 %rd3, add;
    {
    .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3;
    st.param.b64 [p0], %rd3; st.param.b64 [p1], %rd2; st.param.b32 [p2], 3; st.param.b64 [p3], 0;
    call spawn, (p0, p1, p2, p3);
    }
    ld.global.u32 %r3, [%rd2];
    setp.ne.u32 %p, %r3, 0;
    @%p trap;
    ret;
}
.visible .entry chain(.param .u64 a, .param .u32 n)
{
    .reg .b64 %rd<8>; .reg .b32 %r<8>;
    ld.param.u64 %rd0, [a];
    mov.u64 %rd1, look;
    mov.u64 %rd3, add;
    {
    .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3;
    st.param.b64 [p0], %rd1; st.param.b64 [p1], %rd0; st.param.b32 [p2], 0; st.param.b64 [p3], 3;
    call spawn, (p0, p1, p2, p3);
    }
    {
    .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3;
    st.param.b64 [p0], %rd3; st.param.b64 [p1], %rd0; st.param.b32 [p2], 5; st.param.b64 [p3], 0;
    call spawn, (p0, p1, p2, p3);
    }
    ret;
}
.visible .entry wild(.param .u64 a)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [a];
    {
    .param .b64 q0; .param .b64 q1; .param .b32 code;
    st.param.b64 [q0], %rd0;
    st.param.b64 [q1], 0;
    call (code), __cudaCDP2LaunchDeviceV2, (q0, q1);
    }
    ret;
}
";

#[test]
fn what_threads_launch_runs_when_their_grid_has_ended() {
    let l = load(TEXT);
    let words = Memory::new(32);
    let params = Params::default().ptr(&words).0;
    launch(&l, "each", [2, 1, 1], [2, 1, 1], 0, &params)
        .0
        .unwrap();
    assert_eq!(words.read::<u32>(), [3; 8]);
}

#[test]
fn a_tail_launch_waits_for_the_others() {
    let l = load(TEXT);
    let words = Memory::new(12);
    let params = Params::default().ptr(&words).i32(0).0;
    launch(&l, "chain", [1; 3], [1; 3], 0, &params).0.unwrap();
    assert_eq!(words.read::<u32>(), [5, 5, 10]);
}

#[test]
fn a_launch_from_memory_that_was_not_given_for_it_ends_the_kernel() {
    let l = load(TEXT);
    let words = Memory::new(4096);
    let params = Params::default().ptr(&words).0;
    let (result, _) = launch(&l, "wild", [1; 3], [1; 3], 0, &params);
    assert!(matches!(result, Err(Fault::Illegal { .. })), "{result:?}");
}
