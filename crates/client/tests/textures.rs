//! Texture and surface objects, with a worker that the test plays.

#![allow(clippy::unwrap_used)]

// Each test binary uses a part of it.
#[allow(dead_code)]
mod support;

use core::ffi::c_uint;

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{cuCtxCreate_v2, cuInit, cuModuleLoadData};

unsafe extern "C" {
    fn cuArrayCreate_v2(array: *mut CUarray, desc: *const CUDA_ARRAY_DESCRIPTOR) -> CUresult;
    fn cuTexObjectCreate(
        object: *mut CUtexObject,
        resource: *const CUDA_RESOURCE_DESC,
        texture: *const CUDA_TEXTURE_DESC,
        view: *const CUDA_RESOURCE_VIEW_DESC,
    ) -> CUresult;
    fn cuTexObjectDestroy(object: CUtexObject) -> CUresult;
    fn cuTexObjectGetResourceDesc(
        resource: *mut CUDA_RESOURCE_DESC,
        object: CUtexObject,
    ) -> CUresult;
    fn cuTexObjectGetTextureDesc(texture: *mut CUDA_TEXTURE_DESC, object: CUtexObject) -> CUresult;
    fn cuTexObjectGetResourceViewDesc(
        view: *mut CUDA_RESOURCE_VIEW_DESC,
        object: CUtexObject,
    ) -> CUresult;
    fn cuSurfObjectCreate(
        object: *mut CUsurfObject,
        resource: *const CUDA_RESOURCE_DESC,
    ) -> CUresult;
    fn cuSurfObjectDestroy(object: CUsurfObject) -> CUresult;
    fn cuSurfObjectGetResourceDesc(
        resource: *mut CUDA_RESOURCE_DESC,
        object: CUsurfObject,
    ) -> CUresult;
}

/// A call that must succeed.
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: every pointer in these programs is to a live variable of the right type.
        let status = unsafe { $call };
        assert_eq!(status, CUDA_SUCCESS, stringify!($call));
    }};
}

#[test]
#[ignore = "a program for its stage"]
fn objects() {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    let shape = CUDA_ARRAY_DESCRIPTOR {
        Width: 16,
        Height: 16,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
    };
    let mut array = std::ptr::null_mut();
    ok!(cuArrayCreate_v2(&mut array, &shape));
    let mut of_array = CUDA_RESOURCE_DESC {
        resType: CU_RESOURCE_TYPE_ARRAY,
        ..Default::default()
    };
    of_array.res.array.hArray = array;
    let mut linear = CUDA_RESOURCE_DESC {
        resType: CU_RESOURCE_TYPE_LINEAR,
        ..Default::default()
    };
    linear.res.linear = CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3 {
        devPtr: 0x3000_0000_0000,
        format: CU_AD_FORMAT_FLOAT,
        numChannels: 4,
        sizeInBytes: 4096,
    };
    let sampler = CUDA_TEXTURE_DESC {
        addressMode: [1, 2, 3],
        filterMode: CU_TR_FILTER_MODE_LINEAR,
        mipmapLevelBias: -0.5,
        borderColor: [0.25, 0.5, 0.75, 1.0],
        ..Default::default()
    };
    let view = CUDA_RESOURCE_VIEW_DESC {
        format: 9,
        width: 8,
        lastLayer: 3,
        ..Default::default()
    };
    let (mut texture, mut plain, mut surface) = (0, 0, 0);
    let none = std::ptr::null();
    ok!(cuTexObjectCreate(&mut texture, &of_array, &sampler, &view));
    ok!(cuTexObjectCreate(&mut plain, &linear, &sampler, none));
    ok!(cuSurfObjectCreate(&mut surface, &of_array));
    assert_eq!((texture, plain, surface), (1, 2, 3));
    // SAFETY: a surface of linear memory is refused.
    let refused = unsafe { cuSurfObjectCreate(&mut surface, &linear) };
    assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);

    let mut found = CUDA_RESOURCE_DESC::default();
    ok!(cuTexObjectGetResourceDesc(&mut found, plain));
    // SAFETY: the type says which member it is.
    let memory = unsafe { found.res.linear };
    assert_eq!(found.resType, CU_RESOURCE_TYPE_LINEAR);
    assert_eq!(
        (memory.devPtr, memory.sizeInBytes),
        (0x3000_0000_0000, 4096)
    );
    ok!(cuSurfObjectGetResourceDesc(&mut found, surface));
    // SAFETY: as above.
    assert_eq!(unsafe { found.res.array.hArray }, array);
    let mut read = CUDA_TEXTURE_DESC::default();
    ok!(cuTexObjectGetTextureDesc(&mut read, texture));
    assert_eq!(read.addressMode, [1, 2, 3]);
    assert_eq!(
        (read.mipmapLevelBias, read.borderColor),
        (-0.5, [0.25, 0.5, 0.75, 1.0])
    );
    let mut shown = CUDA_RESOURCE_VIEW_DESC::default();
    ok!(cuTexObjectGetResourceViewDesc(&mut shown, texture));
    assert_eq!((shown.format, shown.width, shown.lastLayer), (9, 8, 3));
    // SAFETY: it has no view.
    let missing = unsafe { cuTexObjectGetResourceViewDesc(&mut shown, plain) };
    assert_eq!(missing, CUDA_ERROR_INVALID_VALUE);

    ok!(cuTexObjectDestroy(texture));
    ok!(cuSurfObjectDestroy(surface));
    // SAFETY: it is gone, and no surface object has this number.
    unsafe {
        assert_eq!(cuTexObjectDestroy(texture), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cuSurfObjectDestroy(plain), CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn textures_are_made_by_the_worker_and_remembered() {
    let stage = Stage::start("objects");
    let device = stage.device.clone();
    assert!(stage.finish());
    let device = device.lock().unwrap();
    assert_eq!((device.questions.len(), device.released), (3, 2));
    assert!(device.questions[0].contains("border: [1048576000,"));
}

unsafe extern "C" {
    fn cuModuleUnload(module: CUmodule) -> CUresult;
    fn cuModuleGetTexRef(
        reference: *mut CUtexref,
        module: CUmodule,
        name: *const core::ffi::c_char,
    ) -> CUresult;
    fn cuModuleGetSurfRef(
        reference: *mut CUsurfref,
        module: CUmodule,
        name: *const core::ffi::c_char,
    ) -> CUresult;
    fn cuTexRefCreate(reference: *mut CUtexref) -> CUresult;
    fn cuTexRefDestroy(reference: CUtexref) -> CUresult;
    fn cuTexRefSetArray(reference: CUtexref, array: CUarray, flags: c_uint) -> CUresult;
    fn cuTexRefGetArray(array: *mut CUarray, reference: CUtexref) -> CUresult;
    fn cuTexRefSetFlags(reference: CUtexref, flags: c_uint) -> CUresult;
    fn cuTexRefGetFlags(flags: *mut c_uint, reference: CUtexref) -> CUresult;
    fn cuTexRefGetFilterMode(mode: *mut CUfilter_mode, reference: CUtexref) -> CUresult;
    fn cuSurfRefSetArray(reference: CUsurfref, array: CUarray, flags: c_uint) -> CUresult;
    fn cuArrayDestroy(array: CUarray) -> CUresult;
    fn cuMipmappedArrayCreate(
        mipmap: *mut CUmipmappedArray,
        desc: *const CUDA_ARRAY3D_DESCRIPTOR,
        levels: c_uint,
    ) -> CUresult;
    fn cuMipmappedArrayGetLevel(
        array: *mut CUarray,
        mipmap: CUmipmappedArray,
        level: c_uint,
    ) -> CUresult;
    fn cuMipmappedArrayDestroy(mipmap: CUmipmappedArray) -> CUresult;
    fn cuArray3DGetDescriptor_v2(desc: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) -> CUresult;
    fn cuMemAlloc(address: *mut c_uint, size: c_uint) -> CUresult;
    fn cuMemcpyHtoA(
        array: CUarray,
        offset: c_uint,
        from: *const core::ffi::c_void,
        size: c_uint,
    ) -> CUresult;
    fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) -> CUresult;
    fn cuCtxDetach(context: CUcontext) -> CUresult;
}

fn begun() -> CUcontext {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    context
}

fn array_of(width: usize) -> CUarray {
    let shape = CUDA_ARRAY_DESCRIPTOR {
        Width: width,
        Height: 16,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
    };
    let mut array = std::ptr::null_mut();
    ok!(cuArrayCreate_v2(&mut array, &shape));
    array
}

#[test]
#[ignore = "a program for its stage"]
fn references() {
    let context = begun();
    let array = array_of(16);
    let mut module = std::ptr::null_mut();
    ok!(cuModuleLoadData(
        &mut module,
        c".version 8.0".as_ptr().cast()
    ));
    let (mut image, mut again, mut canvas) = (
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    );
    ok!(cuModuleGetTexRef(&mut image, module, c"image".as_ptr()));
    ok!(cuModuleGetTexRef(&mut again, module, c"image".as_ptr()));
    assert_eq!(image, again);
    ok!(cuModuleGetSurfRef(&mut canvas, module, c"canvas".as_ptr()));
    // SAFETY: there is no such reference; the pointers are good.
    let missing = unsafe { cuModuleGetTexRef(&mut again, module, c"none".as_ptr()) };
    assert_eq!(missing, CUDA_ERROR_NOT_FOUND);

    let (mut flags, mut filter) = (0, 0);
    ok!(cuTexRefGetFilterMode(&mut filter, image));
    assert_eq!(filter, 1, "what the driver has");
    // Nothing is bound yet: the worker is not asked.
    ok!(cuTexRefSetFlags(image, CU_TRSF_READ_AS_INTEGER));
    ok!(cuTexRefSetArray(image, array, CU_TRSA_OVERRIDE_FORMAT));
    ok!(cuTexRefSetFlags(image, 0));
    ok!(cuTexRefGetFlags(&mut flags, image));
    assert_eq!(flags, 0);
    ok!(cuSurfRefSetArray(canvas, array, 0));
    let mut bound = std::ptr::null_mut();
    ok!(cuTexRefGetArray(&mut bound, image));
    assert_eq!(bound, array);
    // A program's own reference is no kernel's.
    let mut own = std::ptr::null_mut();
    ok!(cuTexRefCreate(&mut own));
    ok!(cuTexRefSetArray(own, array, CU_TRSA_OVERRIDE_FORMAT));
    ok!(cuTexRefDestroy(own));
    ok!(cuModuleUnload(module));
    // SAFETY: stale handles are looked up, never followed.
    unsafe {
        assert_eq!(cuTexRefDestroy(image), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            cuTexRefGetFlags(&mut flags, image),
            CUDA_ERROR_INVALID_VALUE
        );
    }

    let mut address = 5;
    let row = [1f32; 16];
    // SAFETY: the row has as many bytes as are said.
    unsafe {
        assert_eq!(cuMemAlloc(&mut address, 64), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(address, 5);
    }
    ok!(cuMemcpyHtoA(array, 0, row.as_ptr().cast(), 64));
    let mut attached = std::ptr::null_mut();
    ok!(cuCtxAttach(&mut attached, 0));
    assert_eq!(attached, context);
    ok!(cuCtxDetach(attached));
    ok!(cuCtxDetach(attached));
    // SAFETY: the pointer is good; no context is current any more.
    let none = unsafe { cuCtxAttach(&mut attached, 0) };
    assert_eq!(none, CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn a_reference_is_sent_whole_when_it_is_bound_and_when_a_bound_one_changes() {
    let stage = Stage::start("references");
    let device = stage.device.clone();
    assert!(stage.finish());
    let device = device.lock().unwrap();
    let asked: Vec<_> = device.questions.iter().map(|it| &it[..8]).collect();
    assert_eq!(asked, ["image: T", "image: T", "canvas: "]);
    assert!(
        device.questions[0].contains("flags: 1"),
        "{:?}",
        device.questions
    );
    assert!(device.questions[1].contains("flags: 0"));
    assert!(device.questions[2].contains("sampler: None"));
}

#[test]
#[ignore = "a program for its stage"]
fn levels() {
    begun();
    let shape = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 16,
        Height: 4,
        Depth: 0,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: 0,
    };
    let mut mipmap = std::ptr::null_mut();
    ok!(cuMipmappedArrayCreate(&mut mipmap, &shape, 99));
    let (mut first, mut third, mut none) = (
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    );
    ok!(cuMipmappedArrayGetLevel(&mut first, mipmap, 0));
    ok!(cuMipmappedArrayGetLevel(&mut third, mipmap, 2));
    let mut told = CUDA_ARRAY3D_DESCRIPTOR::default();
    ok!(cuArray3DGetDescriptor_v2(&mut told, third));
    assert_eq!((told.Width, told.Height, told.Depth), (4, 1, 0));
    let mut resource = CUDA_RESOURCE_DESC {
        resType: CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
        ..Default::default()
    };
    resource.res.mipmap.hMipmappedArray = mipmap;
    let (mut object, sampler) = (0, CUDA_TEXTURE_DESC::default());
    ok!(cuTexObjectCreate(
        &mut object,
        &resource,
        &sampler,
        std::ptr::null()
    ));
    let mut found = CUDA_RESOURCE_DESC::default();
    ok!(cuTexObjectGetResourceDesc(&mut found, object));
    // SAFETY: the type says which member it is.
    assert_eq!(unsafe { found.res.mipmap.hMipmappedArray }, mipmap);
    // SAFETY: handles are looked up, never followed.
    unsafe {
        let beyond = cuMipmappedArrayGetLevel(&mut none, mipmap, 5);
        assert_eq!(beyond, CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cuArrayDestroy(first), CUDA_ERROR_INVALID_VALUE);
    }
    ok!(cuMipmappedArrayDestroy(mipmap));
    // SAFETY: as above.
    unsafe {
        let gone = cuArray3DGetDescriptor_v2(&mut told, third);
        assert_eq!(gone, CUDA_ERROR_INVALID_HANDLE);
        let sparse = CUDA_ARRAY3D_DESCRIPTOR {
            Flags: CUDA_ARRAY3D_SPARSE,
            ..shape
        };
        let refused = cuMipmappedArrayCreate(&mut mipmap, &sparse, 1);
        assert_eq!(refused, CUDA_ERROR_NOT_SUPPORTED);
    }
}

#[test]
fn an_array_with_levels_is_made_with_them_and_they_go_with_it() {
    let stage = Stage::start("levels");
    let device = stage.device.clone();
    assert!(stage.finish());
    let device = device.lock().unwrap();
    assert_eq!((device.questions.len(), device.released), (2, 1));
    assert!(device.questions[0].starts_with("Mipmap { width: 16, height: 4"));
    let levels = device.questions[0].split("levels: ").nth(1).unwrap();
    assert_eq!(levels.split(", ").count(), 5);
}
