//! Texture and surface objects, with a worker that the test plays.

#![allow(clippy::unwrap_used)]

// Each test binary uses a part of it.
#[allow(dead_code)]
mod support;

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{cuCtxCreate_v2, cuInit};

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
