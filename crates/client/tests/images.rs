//! How module images travel: from the file they are mapped from, and in a memory file wherever that is not certain to
//! hold the same bytes. The program is an ignored test of this binary, which its stage starts.

#![allow(clippy::unwrap_used)]

// Each test binary uses a part of it.
#[allow(dead_code)]
mod support;

use core::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{
    cuCtxCreate_v2, cuCtxSynchronize, cuInit, cuLibraryGetKernel, cuLibraryLoadData,
    cuModuleLoadData,
};

unsafe extern "C" {
    fn cuLibraryUnload(library: CUlibrary) -> CUresult;
}

/// Where an image begins in its file.
const AT: usize = 4096 + 64;
const LEN: usize = 3 << 20;

/// A fat binary of [`LEN`] bytes, its body filled with `fill`.
fn fat(fill: u8) -> Vec<u8> {
    let mut image = 0xba55_ed50u32.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((LEN as u64 - 16).to_le_bytes());
    image.resize(LEN, fill);
    image
}

fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("fermata-images-{}", std::process::id()))
}

/// A file with an image in it, mapped; and the image there.
fn mapped(path: &Path, fill: u8, protection: i32) -> (*mut u8, usize) {
    let mut bytes = vec![0; AT];
    bytes.extend(fat(fill));
    std::fs::write(path, &bytes).unwrap();
    let file = File::open(path).unwrap();
    // SAFETY: a fresh private mapping.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes.len(),
            protection,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    (at.cast(), bytes.len())
}

fn load(image: *const u8) -> Result<CUlibrary, CUresult> {
    let mut library = std::ptr::null_mut();
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: the image is a whole one, or has been cut by a test of just that.
    let status = unsafe {
        cuLibraryLoadData(
            &mut library,
            image.cast(),
            none.cast(),
            none.cast(),
            0,
            none.cast(),
            none.cast(),
            0,
        )
    };
    if status == 0 {
        Ok(library)
    } else {
        Err(status)
    }
}

#[test]
#[ignore = "a program for its stage"]
fn images() {
    let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    let folder = folder();
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name);
    let (mut context, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: every pointer is to a live variable, a mapping or a buffer.
    unsafe {
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuCtxCreate_v2(&mut context, 0, 0), 0);

        // 1: a mapped file; the mapping is gone before the library is used.
        let (at, len) = mapped(&path("plain"), 1, read);
        let library = load(at.add(AT)).unwrap();
        libc::munmap(at.cast(), len);
        assert_eq!(
            cuLibraryGetKernel(&mut kernel, library, c"first".as_ptr()),
            0
        );
        assert_eq!(cuLibraryUnload(library), 0);

        // 2: memory; it is changed before the library is used.
        let mut image = fat(2);
        let library = load(image.as_ptr()).unwrap();
        image.fill(0);
        assert_eq!(
            cuLibraryGetKernel(&mut kernel, library, c"first".as_ptr()),
            0
        );

        // 3: a mapped file, one page of which has been written to.
        let (at, _) = mapped(&path("written"), 3, write);
        at.add(2 << 20).write(33);
        let total = AT + LEN;
        assert_eq!(libc::mprotect(at.cast(), total, libc::PROT_READ), 0);
        load(at.add(AT)).unwrap();

        // 4: the file is no longer at its path; 5: another one is.
        let (at, _) = mapped(&path("gone"), 4, read);
        std::fs::remove_file(path("gone")).unwrap();
        load(at.add(AT)).unwrap();
        let (at, _) = mapped(&path("replaced"), 5, read);
        std::fs::write(path("other"), vec![9; AT + LEN]).unwrap();
        std::fs::rename(path("other"), path("replaced")).unwrap();
        load(at.add(AT)).unwrap();

        // A file that has been cut: an error, no signal.
        let (at, _) = mapped(&path("cut"), 6, read);
        let cut = File::options().write(true).open(path("cut")).unwrap();
        cut.set_len(1 << 20).unwrap();
        assert_eq!(load(at.add(AT)), Err(CUDA_ERROR_OUT_OF_MEMORY));

        // 6: straight to a module.
        let (at, _) = mapped(&path("module"), 7, read);
        let mut module = std::ptr::null_mut();
        assert_eq!(cuModuleLoadData(&mut module, at.add(AT).cast()), 0);
        assert_eq!(cuCtxSynchronize(), 0);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_image_in_a_file_goes_by_its_descriptor_and_what_is_not_the_files_in_a_memory_file() {
    let stage = Stage::start("images");
    let device = stage.device.clone();
    assert!(stage.finish());
    let came = &device.lock().unwrap().images;
    let mut written = fat(3);
    written[(2 << 20) - AT] = 33;
    let expected = [
        ("file", fat(1)),
        ("held", Vec::new()),
        ("memory file", fat(2)),
        ("held", Vec::new()),
        ("memory file", written),
        ("memory file", fat(4)),
        ("memory file", fat(5)),
        ("file", fat(7)),
    ];
    let ways: Vec<_> = came.iter().map(|it| it.0).collect();
    assert_eq!(ways, expected.each_ref().map(|it| it.0));
    assert!(came.iter().zip(&expected).all(|(came, it)| came.1 == it.1));
}
