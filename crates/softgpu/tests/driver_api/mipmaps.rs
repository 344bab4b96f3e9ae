//! Arrays with levels, and textures of them.

use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{absent, array, batch, context, copy, device, mipmap, texture};

use crate::common::{Context, check, cuda};

/// Reads the middle of a texture, at a level of which each thread adds a quarter.
const LEVELS: &std::ffi::CStr = c"
.version 8.0
.target sm_80
.address_size 64
.visible .entry levels(.param .u64 t, .param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .f32 %f<8>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [t];
    ld.param.u64 %a1, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a2, %r0, 4;
    add.u64 %a1, %a1, %a2;
    cvt.rn.f32.u32 %f4, %r0;
    mul.f32 %f4, %f4, 0f3E800000;
    mov.f32 %f5, 0f3F000000;
    tex.level.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%a0, {%f5, %f5}], %f4;
    st.global.f32 [%a1], %f0;
    ret;
}
.visible .entry slopes(.param .u64 t, .param .u64 out)
{
    .reg .f32 %f<8>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [t];
    ld.param.u64 %a1, [out];
    mov.f32 %f5, 0f3F000000;
    tex.grad.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%a0, {%f5, %f5}], {%f5, %f5}, {%f5, %f5};
    st.global.f32 [%a1], %f0;
    ret;
}
";

/// 4 by 4 elements with three levels, each full of its number times 8.
fn made() -> (cu::CUmipmappedArray, [cu::CUarray; 3]) {
    let shape = cu::CUDA_ARRAY3D_DESCRIPTOR {
        Width: 4,
        Height: 4,
        Depth: 0,
        Format: cu::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: 0,
    };
    let mut whole = null_mut();
    // More levels than there can be.
    check(cuda!(mipmap::cuMipmappedArrayCreate(
        Out::from(&mut whole),
        In::from(&shape),
        9
    )));
    let mut levels = [null_mut(); 3];
    for (n, level) in levels.iter_mut().enumerate() {
        let out = Out::from(&mut *level);
        check(cuda!(mipmap::cuMipmappedArrayGetLevel(
            out, whole, n as u32
        )));
        let (size, texels) = (4 >> n, [8.0 * n as f32; 16]);
        let copy = cu::CUDA_MEMCPY2D {
            srcMemoryType: cu::CU_MEMORYTYPE_HOST,
            srcHost: texels.as_ptr().cast(),
            srcPitch: 4 * size,
            dstMemoryType: cu::CU_MEMORYTYPE_ARRAY,
            dstArray: *level,
            WidthInBytes: 4 * size,
            Height: size,
            ..Default::default()
        };
        check(cuda!(copy::cuMemcpy2D_v2(In::from(&copy))));
    }
    (whole, levels)
}

fn texture_of(
    whole: cu::CUmipmappedArray,
    filter: u32,
    view: In<cu::CUDA_RESOURCE_VIEW_DESC>,
) -> u64 {
    let mut resource = cu::CUDA_RESOURCE_DESC {
        resType: cu::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
        ..Default::default()
    };
    resource.res.mipmap.hMipmappedArray = whole;
    let sampling = cu::CUDA_TEXTURE_DESC {
        addressMode: [cu::CU_TR_ADDRESS_MODE_CLAMP; 3],
        flags: cu::CU_TRSF_NORMALIZED_COORDINATES,
        mipmapFilterMode: filter,
        maxMipmapLevelClamp: 10.0,
        ..Default::default()
    };
    let mut object = 0;
    check(cuda!(texture::cuTexObjectCreate(
        Out::from(&mut object),
        In::from(&resource),
        In::from(&sampling),
        view
    )));
    object
}

#[test]
fn a_texture_reads_the_level_it_is_asked_for_and_between_levels() {
    let context = Context::new();
    let (whole, levels) = made();
    let kernel = context.load(LEVELS).function(c"levels");
    let out = context.upload(&[0f32; 12]);
    let run = |object: u64| {
        let params: [&[u8]; 2] = [&object.to_ne_bytes(), &out.to_ne_bytes()];
        kernel.launch([1; 3], [12, 1, 1], 0, null_mut(), &params);
        check(cuda!(context::cuCtxSynchronize()));
        context.download::<f32>(out, 12)
    };
    let nearest = texture_of(whole, cu::CU_TR_FILTER_MODE_POINT, In::null());
    let steps = [0., 0., 8., 8., 8., 8., 16., 16., 16., 16., 16., 16.];
    assert_eq!(run(nearest), steps);
    let between = texture_of(whole, cu::CU_TR_FILTER_MODE_LINEAR, In::null());
    let slope = [0., 2., 4., 6., 8., 10., 12., 14., 16., 16., 16., 16.];
    assert_eq!(run(between), slope);
    let part = cu::CUDA_RESOURCE_VIEW_DESC {
        width: 4,
        height: 4,
        lastMipmapLevel: 1,
        ..Default::default()
    };
    let two = texture_of(whole, cu::CU_TR_FILTER_MODE_LINEAR, In::from(&part));
    assert_eq!(run(two)[4..8], [8.0; 4]);

    // Which level fits a slope is not known here: the kernel ends, and says so.
    let slopes = context.load(LEVELS).function(c"slopes");
    let params: [&[u8]; 2] = [&nearest.to_ne_bytes(), &out.to_ne_bytes()];
    slopes.launch([1; 3], [1; 3], 0, null_mut(), &params);
    let refused = cuda!(context::cuCtxSynchronize());
    assert_eq!(refused, cu::CUDA_ERROR_ILLEGAL_INSTRUCTION);
    let _ = levels;
    check(cuda!(context::cuCtxDestroy_v2(context.0)));
    std::mem::forget(context);
}

#[test]
fn levels_go_with_their_array_and_not_by_themselves() {
    let _context = Context::new();
    let (whole, levels) = made();
    let mut shape = cu::CUDA_ARRAY3D_DESCRIPTOR::default();
    check(cuda!(array::cuArray3DGetDescriptor_v2(
        Out::from(&mut shape),
        levels[1]
    )));
    assert_eq!((shape.Width, shape.Height, shape.Depth), (2, 2, 0));
    let alone = cuda!(array::cuArrayDestroy(levels[1]));
    assert_eq!(alone, cu::CUDA_ERROR_INVALID_VALUE);
    let mut none = null_mut();
    let beyond = cuda!(mipmap::cuMipmappedArrayGetLevel(
        Out::from(&mut none),
        whole,
        3
    ));
    assert_eq!(beyond, cu::CUDA_ERROR_INVALID_VALUE);
    check(cuda!(mipmap::cuMipmappedArrayDestroy(whole)));
    for level in levels {
        let gone = cuda!(array::cuArray3DGetDescriptor_v2(
            Out::from(&mut shape),
            level
        ));
        assert_eq!(gone, cu::CUDA_ERROR_INVALID_HANDLE);
    }
    let sparse = cu::CUDA_ARRAY3D_DESCRIPTOR {
        Width: 4,
        Format: cu::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: cu::CUDA_ARRAY3D_SPARSE,
        ..Default::default()
    };
    let mut made = null_mut();
    let refused = cuda!(mipmap::cuMipmappedArrayCreate(
        Out::from(&mut made),
        In::from(&sparse),
        1
    ));
    assert_eq!(refused, cu::CUDA_ERROR_NOT_SUPPORTED);
}

/// A device that says it cannot is asked no further, and a program that asks is told so.
#[test]
fn what_the_device_has_not_is_refused_as_its_attributes_say() {
    let _context = Context::new();
    for attribute in [
        cu::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
        cu::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
        cu::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
        cu::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
        cu::CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH,
    ] {
        let mut has = 1;
        check(cuda!(device::cuDeviceGetAttribute(
            Out::from(&mut has),
            attribute,
            0
        )));
        assert_eq!(has, 0, "{attribute}");
    }
    let (mut handle, properties) = (0, cu::CUmulticastObjectProp::default());
    let made = cuda!(absent::cuMulticastCreate(
        Out::from(&mut handle),
        In::from(&properties)
    ));
    assert_eq!(made, cu::CUDA_ERROR_NOT_SUPPORTED);
    let null = cuda!(absent::cuMulticastCreate(
        Out::null(),
        In::from(&properties)
    ));
    assert_eq!(null, cu::CUDA_ERROR_INVALID_VALUE);
    let bound = cuda!(absent::cuMulticastBindAddr(handle, 0, 0, 0, 0));
    assert_eq!(bound, cu::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_batch_of_boxes_is_copied_in_order() {
    let context = Context::new();
    let (_, levels) = made();
    let from = context.upload(&[1f32, 2.0, 3.0, 4.0]);
    let to = context.upload(&[0f32; 4]);
    let memory = |address: u64, row: usize| {
        let mut operand = cu::CUmemcpy3DOperand {
            type_: cu::CU_MEMCPY_OPERAND_TYPE_POINTER,
            ..Default::default()
        };
        operand.op.ptr.ptr = address;
        operand.op.ptr.rowLength = row;
        operand
    };
    let mut array = cu::CUmemcpy3DOperand {
        type_: cu::CU_MEMCPY_OPERAND_TYPE_ARRAY,
        ..Default::default()
    };
    array.op.array = Default::default();
    array.op.array.array = levels[1];
    let extent = |width, height| cu::CUextent3D {
        width,
        height,
        depth: 1,
    };
    let mut list = [cu::CUDA_MEMCPY3D_BATCH_OP::default(); 2];
    // Two rows of two into the array, whose second column then comes back.
    (list[0].src, list[0].dst, list[0].extent) = (memory(from, 0), array, extent(2, 2));
    array.op.array.offset.x = 1;
    (list[1].src, list[1].dst, list[1].extent) = (array, memory(to, 2), extent(1, 2));
    let mut failed = 0;
    let stream = null_mut();
    let out = Out::from(&mut list[..]);
    check(cuda!(batch::cuMemcpy3DBatchAsync(
        2,
        out,
        Out::from(&mut failed),
        0,
        stream
    )));
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(failed, usize::MAX);
    assert_eq!(context.download::<f32>(to, 4), [2.0, 0.0, 4.0, 0.0]);
    list[1].src.type_ = 9;
    let out = Out::from(&mut list[..]);
    let wrong = cuda!(batch::cuMemcpy3DBatchAsync(
        2,
        out,
        Out::from(&mut failed),
        0,
        stream
    ));
    assert_eq!((wrong, failed), (cu::CUDA_ERROR_INVALID_VALUE, 1));
}
