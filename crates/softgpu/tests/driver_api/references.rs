//! Texture and surface references, and other ways of programs from before CUDA 4.

use std::ffi::c_int;
use std::ptr::null_mut;

use fermata_abi::narrow;
use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Name, Out};
use fermata_softgpu::api::narrow as old;
use fermata_softgpu::api::{array, context as contexts, copy, launch_old, module, reference};

use crate::common::{Context, check, cuda};

/// Reads column `tid` of row 1 by a texture reference, writes it doubled into row 0 by a surface reference, and what a
/// second reference, to linear memory, has at `tid` into `out`.
const TEXT: &std::ffi::CStr = c"
.version 8.0
.target sm_80
.address_size 64
.global .texref image;
.global .texref line;
.global .surfref canvas;
.visible .entry look(.param .u64 out)
{
    .reg .b32 %r<6>;
    .reg .f32 %f<10>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a1, %r0, 4;
    add.u64 %a0, %a0, %a1;
    cvt.rn.f32.u32 %f4, %r0;
    mov.f32 %f5, 0f3F800000;
    tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [image, {%f4, %f5}];
    add.f32 %f0, %f0, %f0;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, 0;
    sust.b.2d.b32.trap [canvas, {%r1, %r2}], {%f0};
    tex.1d.v4.f32.s32 {%f6, %f7, %f8, %f9}, [line, {%r0}];
    st.global.f32 [%a0], %f6;
    ret;
}
";

fn named(name: &std::ffi::CStr) -> Name {
    Name::from(name)
}

/// A floating-point array of 4 columns and 2 rows.
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
    let whole = whole(texels.as_ptr().cast_mut(), made, true);
    check(cuda!(copy::cuMemcpy2D_v2(In::from(&whole))));
    made
}

fn whole(host: *mut f32, array: cu::CUarray, to_array: bool) -> cu::CUDA_MEMCPY2D {
    let mut copy = cu::CUDA_MEMCPY2D {
        WidthInBytes: 16,
        Height: 2,
        ..Default::default()
    };
    let (memory, texels) = (cu::CU_MEMORYTYPE_HOST, cu::CU_MEMORYTYPE_ARRAY);
    if to_array {
        (copy.srcMemoryType, copy.srcHost, copy.srcPitch) = (memory, host.cast(), 16);
        (copy.dstMemoryType, copy.dstArray) = (texels, array);
    } else {
        (copy.srcMemoryType, copy.srcArray) = (texels, array);
        (copy.dstMemoryType, copy.dstHost, copy.dstPitch) = (memory, host.cast(), 16);
    }
    copy
}

fn texels_of(array: cu::CUarray) -> [f32; 8] {
    let mut texels = [0f32; 8];
    check(cuda!(copy::cuMemcpy2D_v2(In::from(&whole(
        texels.as_mut_ptr(),
        array,
        false
    )))));
    texels
}

fn texture_reference(of: cu::CUmodule, name: &std::ffi::CStr) -> cu::CUtexref {
    let mut found = null_mut();
    check(cuda!(reference::cuModuleGetTexRef(
        Out::from(&mut found),
        of,
        named(name)
    )));
    found
}

/// As samples of CUDA 2 did it: references are set, a launch takes its shape and parameters one by one.
#[test]
fn kernels_use_what_their_references_are_bound_to_when_they_are_launched() {
    let context = Context::new();
    let loaded = context.load(TEXT).0;
    let (image, line) = (
        texture_reference(loaded, c"image"),
        texture_reference(loaded, c"line"),
    );
    assert_eq!(
        texture_reference(loaded, c"image"),
        image,
        "it is the same one"
    );
    let mut canvas = null_mut();
    check(cuda!(reference::cuModuleGetSurfRef(
        Out::from(&mut canvas),
        loaded,
        named(c"canvas")
    )));
    let mut none = null_mut();
    for absent in [c"canvas", c"nothing"] {
        let missing = cuda!(reference::cuModuleGetTexRef(
            Out::from(&mut none),
            loaded,
            named(absent)
        ));
        assert_eq!(missing, cu::CUDA_ERROR_NOT_FOUND, "{absent:?}");
    }
    let mut address = 0u64;
    let hidden = cuda!(module::cuModuleGetGlobal_v2(
        Out::from(&mut address),
        Out::null(),
        loaded,
        named(c"image")
    ));
    assert_eq!(hidden, cu::CUDA_ERROR_NOT_FOUND, "it is no memory");

    let first = array_of(&[0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    let second = array_of(&[0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 7.0, 8.0]);
    let painted = array_of(&[0.0; 8]);
    let numbers = context.upload(&[10f32, 20.0, 30.0, 40.0]);
    let out = context.upload(&[0f32; 4]);
    let format = cu::CU_TRSA_OVERRIDE_FORMAT;
    check(cuda!(reference::cuTexRefSetArray(image, first, format)));
    check(cuda!(reference::cuSurfRefSetArray(canvas, painted, 0)));
    check(cuda!(reference::cuTexRefSetFormat(
        line,
        cu::CU_AD_FORMAT_FLOAT,
        1
    )));
    let mut offset = 9;
    check(cuda!(reference::cuTexRefSetAddress_v2(
        Out::from(&mut offset),
        line,
        numbers,
        16
    )));
    assert_eq!(offset, 0);

    let kernel = crate::common::Module(loaded).function(c"look").0;
    check(cuda!(reference::cuParamSetTexRef(
        kernel,
        cu::CU_PARAM_TR_DEFAULT,
        image
    )));
    check(cuda!(launch_old::cuFuncSetBlockShape(kernel, 4, 1, 1)));
    check(cuda!(launch_old::cuParamSetSize(kernel, 8)));
    let value = crate::common::out((&raw const out).cast_mut().cast());
    check(cuda!(launch_old::cuParamSetv(kernel, 0, value, 8)));
    check(cuda!(launch_old::cuLaunchGrid(kernel, 1, 1)));
    // Bound again while the first launch may still run.
    check(cuda!(reference::cuTexRefSetArray(image, second, format)));
    assert_eq!(texels_of(painted)[..4], [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(context.download::<f32>(out, 4), [10.0, 20.0, 30.0, 40.0]);
    check(cuda!(launch_old::cuLaunch(kernel)));
    assert_eq!(texels_of(painted)[..4], [10.0, 12.0, 14.0, 16.0]);

    let mut bound = null_mut();
    check(cuda!(reference::cuTexRefGetArray(
        Out::from(&mut bound),
        image
    )));
    assert_eq!(bound, second);
    check(cuda!(reference::cuTexRefGetAddress_v2(
        Out::from(&mut address),
        line
    )));
    assert_eq!(address, numbers);
    let wrong = cuda!(reference::cuTexRefGetArray(Out::from(&mut bound), line));
    assert_eq!(wrong, cu::CUDA_ERROR_INVALID_VALUE, "it is bound to memory");
    check(cuda!(module::cuModuleUnload(loaded)));
    let gone = cuda!(reference::cuTexRefSetArray(image, first, format));
    assert_eq!(gone, cu::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn what_is_set_on_a_reference_is_told_again() {
    let _context = Context::new();
    let mut made = null_mut();
    check(cuda!(reference::cuTexRefCreate(Out::from(&mut made))));
    check(cuda!(reference::cuTexRefSetAddressMode(
        made,
        1,
        cu::CU_TR_ADDRESS_MODE_MIRROR
    )));
    check(cuda!(reference::cuTexRefSetFilterMode(
        made,
        cu::CU_TR_FILTER_MODE_LINEAR
    )));
    check(cuda!(reference::cuTexRefSetFlags(
        made,
        cu::CU_TRSF_NORMALIZED_COORDINATES
    )));
    check(cuda!(reference::cuTexRefSetMipmapLevelClamp(
        made, 1.0, 2.5
    )));
    let mut color = [0.25f32, 0.5, 0.75, 1.0];
    check(cuda!(reference::cuTexRefSetBorderColor(
        made,
        Out::from(&mut color[..])
    )));
    let (mut mode, mut filter, mut flags) = (0, 0, 0);
    check(cuda!(reference::cuTexRefGetAddressMode(
        Out::from(&mut mode),
        made,
        1
    )));
    check(cuda!(reference::cuTexRefGetFilterMode(
        Out::from(&mut filter),
        made
    )));
    check(cuda!(reference::cuTexRefGetFlags(
        Out::from(&mut flags),
        made
    )));
    assert_eq!((mode, filter, flags), (cu::CU_TR_ADDRESS_MODE_MIRROR, 1, 2));
    let (mut least, mut most) = (0f32, 0f32);
    check(cuda!(reference::cuTexRefGetMipmapLevelClamp(
        Out::from(&mut least),
        Out::from(&mut most),
        made
    )));
    assert_eq!((least, most), (1.0, 2.5));
    let mut told = [0f32; 4];
    check(cuda!(reference::cuTexRefGetBorderColor(
        Out::from(&mut told[..]),
        made
    )));
    assert_eq!(told, color);
    for (dimension, flags) in [(3, 0), (-1, 0), (0, 1 << 9)] {
        let bad = match flags {
            0 => cuda!(reference::cuTexRefSetAddressMode(
                made,
                dimension as c_int,
                0
            )),
            flags => cuda!(reference::cuTexRefSetFlags(made, flags)),
        };
        assert_eq!(bad, cu::CUDA_ERROR_INVALID_VALUE);
    }
    check(cuda!(reference::cuTexRefDestroy(made)));
    assert_eq!(
        cuda!(reference::cuTexRefDestroy(made)),
        cu::CUDA_ERROR_INVALID_VALUE
    );
}

/// The functions without `_v2` have 32-bit numbers: what fits works, and what does not is an error, never a part of it.
#[test]
fn the_32_bit_functions_give_what_fits_and_refuse_the_rest() {
    let _context = Context::new();
    let mut address = narrow::DevicePointer(7);
    let refused = cuda!(old::cuMemAlloc(&raw mut address, narrow::Size(64)));
    assert_eq!((refused, address.0), (cu::CUDA_ERROR_OUT_OF_MEMORY, 7));
    let nothing = cuda!(old::cuMemAlloc(&raw mut address, narrow::Size(0)));
    assert_eq!(nothing, cu::CUDA_ERROR_INVALID_VALUE);
    let mut total = narrow::Size(0);
    check(cuda!(old::cuDeviceTotalMem(&raw mut total, 0)));
    assert!(total.0 > 1 << 20);

    let shape = narrow::ArrayDescriptor {
        Width: 4,
        Height: 2,
        Format: cu::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
    };
    let mut array = null_mut();
    check(cuda!(old::cuArrayCreate(&raw mut array, &raw const shape)));
    let mut told = narrow::ArrayDescriptor { Width: 0, ..shape };
    check(cuda!(old::cuArrayGetDescriptor(&raw mut told, array)));
    assert_eq!((told.Width, told.Height), (4, 2));
    let row = [1f32, 2.0, 3.0, 4.0];
    check(cuda!(old::cuMemcpyHtoA(
        array,
        narrow::Size(0),
        row.as_ptr().cast(),
        narrow::Size(16)
    )));
    let mut back = [0f32; 2];
    let room = back.as_mut_ptr().cast();
    check(cuda!(old::cuMemcpyAtoH(
        room,
        array,
        narrow::Size(8),
        narrow::Size(8)
    )));
    assert_eq!(back, [3.0, 4.0]);
    let both = narrow::Memcpy2d {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: cu::CU_MEMORYTYPE_ARRAY,
        srcHost: std::ptr::null(),
        srcDevice: narrow::DevicePointer(0),
        srcArray: array,
        srcPitch: 0,
        dstXInBytes: 4,
        dstY: 0,
        dstMemoryType: cu::CU_MEMORYTYPE_HOST,
        dstHost: back.as_mut_ptr().cast(),
        dstDevice: narrow::DevicePointer(0),
        dstArray: null_mut(),
        dstPitch: 8,
        WidthInBytes: 4,
        Height: 1,
    };
    check(cuda!(old::cuMemcpy2D(&raw const both)));
    assert_eq!(back, [3.0, 1.0]);
    let from = row.as_ptr().cast();
    let wrong = cuda!(old::cuMemcpyHtoD(
        narrow::DevicePointer(0x1000),
        from,
        narrow::Size(16)
    ));
    assert_eq!(wrong, cu::CUDA_ERROR_INVALID_VALUE);
    let null = cuda!(old::cuMemcpy2D(std::ptr::null()));
    assert_eq!(null, cu::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_context_that_was_attached_to_ends_with_its_last_holder() {
    let own = Context::new();
    let mut attached = null_mut();
    check(cuda!(contexts::cuCtxAttach(Out::from(&mut attached), 0)));
    let flags = cuda!(contexts::cuCtxAttach(Out::from(&mut attached), 1));
    assert_eq!(flags, cu::CUDA_ERROR_INVALID_VALUE);
    check(cuda!(contexts::cuCtxDetach(attached)));
    let mut device = 9;
    check(cuda!(contexts::cuCtxGetDevice(Out::from(&mut device))));
    assert_eq!(device, 0);
    check(cuda!(contexts::cuCtxDetach(attached)));
    let mut current = attached;
    check(cuda!(contexts::cuCtxGetCurrent(Out::from(&mut current))));
    assert!(current.is_null());
    std::mem::forget(own);
}
