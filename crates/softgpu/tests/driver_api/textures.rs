//! Texture and surface objects.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{array, context, copy, texture};

use crate::common::{Context, check, cuda};
use crate::streams::Gate;

/// Adds 1 to the texel of a surface in each column of row 1, then reads it by a texture.
const BOTH: &std::ffi::CStr = c"
.version 8.0
.target sm_80
.address_size 64
.visible .entry both(.param .u64 s, .param .u64 t, .param .u64 out)
{
    .reg .b32 %r<6>;
    .reg .f32 %f<6>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [s];
    ld.param.u64 %a1, [t];
    ld.param.u64 %a2, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a3, %r0, 4;
    add.u64 %a2, %a2, %a3;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, 1;
    suld.b.2d.b32.trap {%f0}, [%a0, {%r1, %r2}];
    add.f32 %f0, %f0, 0f3F800000;
    sust.b.2d.b32.trap [%a0, {%r1, %r2}], {%f0};
    cvt.rn.f32.u32 %f4, %r0;
    mov.f32 %f5, 0f3F800000;
    tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%a1, {%f4, %f5}];
    st.global.f32 [%a2], %f0;
    ret;
}
";

fn array_of(texels: &[f32; 8]) -> cu::CUarray {
    let shape = cu::CUDA_ARRAY3D_DESCRIPTOR {
        Width: 4,
        Height: 2,
        Depth: 0,
        Format: cu::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: cu::CUDA_ARRAY3D_SURFACE_LDST,
    };
    let mut made = null_mut();
    check(cuda!(array::cuArray3DCreate_v2(
        Out::from(&mut made),
        In::from(&shape)
    )));
    let whole = cu::CUDA_MEMCPY2D {
        srcMemoryType: cu::CU_MEMORYTYPE_HOST,
        srcHost: texels.as_ptr().cast(),
        srcPitch: 16,
        dstMemoryType: cu::CU_MEMORYTYPE_ARRAY,
        dstArray: made,
        WidthInBytes: 16,
        Height: 2,
        ..Default::default()
    };
    check(cuda!(copy::cuMemcpy2D_v2(In::from(&whole))));
    made
}

fn resource(array: cu::CUarray) -> cu::CUDA_RESOURCE_DESC {
    let mut resource = of_kind(cu::CU_RESOURCE_TYPE_ARRAY);
    resource.res.array.hArray = array;
    resource
}

fn of_kind(kind: cu::CUresourcetype) -> cu::CUDA_RESOURCE_DESC {
    cu::CUDA_RESOURCE_DESC {
        resType: kind,
        ..Default::default()
    }
}

fn make(resource: &cu::CUDA_RESOURCE_DESC) -> (cu::CUresult, cu::CUtexObject) {
    let mut made = 0;
    let sampling = cu::CUDA_TEXTURE_DESC::default();
    let code = cuda!(texture::cuTexObjectCreate(
        Out::from(&mut made),
        In::from(resource),
        In::from(&sampling),
        In::null()
    ));
    (code, made)
}

#[test]
fn a_kernel_writes_a_surface_and_reads_it_as_a_texture() {
    let context = Context::new();
    let array = array_of(&[0.0, 1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 40.0]);
    let resource = resource(array);
    let (code, read) = make(&resource);
    check(code);
    let mut written = 0;
    check(cuda!(texture::cuSurfObjectCreate(
        Out::from(&mut written),
        In::from(&resource)
    )));
    let out = context.upload(&[0f32; 4]);
    let kernel = context.load(BOTH).function(c"both");
    let params: [&[u8]; 3] = [
        &written.to_ne_bytes(),
        &read.to_ne_bytes(),
        &out.to_ne_bytes(),
    ];
    kernel.launch([1; 3], [4, 1, 1], 0, null_mut(), &params);
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(context.download::<f32>(out, 4), [11.0, 21.0, 31.0, 41.0]);
    assert_eq!(
        cuda!(texture::cuSurfObjectDestroy(read)),
        cu::CUDA_ERROR_INVALID_HANDLE
    );
    check(cuda!(texture::cuTexObjectDestroy(read)));
    check(cuda!(texture::cuSurfObjectDestroy(written)));
    check(cuda!(array::cuArrayDestroy(array)));
}

#[test]
fn textures_may_be_destroyed_as_soon_as_what_reads_them_is_launched() {
    let context = Context::new();
    let array = array_of(&[0.0, 0.0, 0.0, 0.0, 10.0, 20.0, 30.0, 40.0]);
    let resource = resource(array);
    let (code, read) = make(&resource);
    check(code);
    let mut written = 0;
    check(cuda!(texture::cuSurfObjectCreate(
        Out::from(&mut written),
        In::from(&resource)
    )));
    let out = context.upload(&[0f32; 4]);
    let kernel = context.load(BOTH).function(c"both");
    let params: [&[u8]; 3] = [
        &written.to_ne_bytes(),
        &read.to_ne_bytes(),
        &out.to_ne_bytes(),
    ];
    let gate = Gate::default();
    gate.close(null_mut());
    kernel.launch([1; 3], [4, 1, 1], 0, null_mut(), &params);
    let handle = context.0.addr();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let own = std::ptr::without_provenance_mut(handle);
            check(cuda!(context::cuCtxSetCurrent(own)));
            check(cuda!(texture::cuTexObjectDestroy(read)));
            check(cuda!(texture::cuSurfObjectDestroy(written)));
            tell.send(())
        });
        // Until the gate is open, the kernel does not begin, and both are needed.
        let early = told.recv_timeout(Duration::from_millis(200));
        gate.open.store(true, Ordering::SeqCst);
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
    });
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(context.download::<f32>(out, 4), [11.0, 21.0, 31.0, 41.0]);
    check(cuda!(array::cuArrayDestroy(array)));
}

#[test]
fn textures_of_what_is_not_supported_are_refused() {
    let _context = Context::new();
    let nothing = of_kind(cu::CU_RESOURCE_TYPE_ARRAY);
    assert_eq!(make(&nothing).0, cu::CUDA_ERROR_INVALID_HANDLE);
    let no_levels = of_kind(cu::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
    assert_eq!(make(&no_levels).0, cu::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(
        cuda!(texture::cuTexObjectDestroy(0)),
        cu::CUDA_ERROR_INVALID_HANDLE
    );
}

#[test]
fn a_texture_of_a_handle_that_is_none_ends_the_kernel_alone() {
    let context = Context::new();
    let kernel = context.load(BOTH).function(c"both");
    let out = context.upload(&[0f32; 4]);
    let params: [&[u8]; 3] = [
        &999_999u64.to_ne_bytes(),
        &999_999u64.to_ne_bytes(),
        &out.to_ne_bytes(),
    ];
    kernel.launch([1; 3], [1; 3], 0, null_mut(), &params);
    assert_eq!(
        cuda!(context::cuCtxSynchronize()),
        cu::CUDA_ERROR_ILLEGAL_INSTRUCTION
    );
    check(cuda!(context::cuCtxDestroy_v2(context.0)));
    std::mem::forget(context);
}
