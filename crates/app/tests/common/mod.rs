//! What the tests share: configurations, memory, data.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

pub mod cuda;
pub mod job;
pub mod link;
pub mod processes;
pub mod proxy;
pub mod ranks;
#[path = "../../../object/tests/common/server.rs"]
pub mod server;

use std::ffi::c_void;
use std::path::Path;

use fermata_app::{Config, Memory, Session, Solo};

pub fn config(dir: &Path, change: impl Fn(&mut Config)) -> Config {
    let mut config = Config {
        name: "test".into(),
        local: vec![dir.into()],
        staging_bytes: 16 << 20,
        ..Config::default()
    };
    change(&mut config);
    config
}

pub fn session(dir: &Path, change: impl Fn(&mut Config)) -> Session {
    Session::init(config(dir, change), Box::new(Solo)).unwrap()
}

/// A slice as protected memory. The tests keep it alive while it is protected.
pub fn host<T>(slice: &mut [T]) -> Memory {
    let bytes = size_of_val(slice) as u64;
    // SAFETY: see above.
    unsafe { Memory::new(slice.as_mut_ptr().cast::<c_void>(), bytes) }
}

pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// An ignored test, named with its file, in a process of its own, with settings that count from its start and
/// `FERMATA_TEST_FOLDER`.
pub fn inner(test: &str, folder: &Path, settings: &[(&str, String)]) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .env("FERMATA_TEST_FOLDER", folder);
    command
}

/// Runs one to its end; what it has printed.
pub fn alone(test: &str, folder: &Path, settings: &[(&str, String)]) -> String {
    let run = inner(test, folder, settings).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let errors = String::from_utf8_lossy(&run.stderr);
    let passed = run.status.success() && text.contains("1 passed");
    assert!(passed, "{settings:?}: {text}{errors}");
    text
}

/// Pages that are really gone when dropped.
pub struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

impl Mapping {
    pub fn new(bytes: usize) -> Self {
        // SAFETY: a fresh anonymous mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start, bytes }
    }

    /// Its pages are there and cannot be touched; nothing else comes to lie where they are.
    pub fn close(&self) {
        // SAFETY: the mapping is this object's own, and nobody has a reference into it.
        let done = unsafe { libc::mprotect(self.start, self.bytes, libc::PROT_NONE) };
        assert_eq!(done, 0);
    }

    pub fn memory(&self) -> Memory {
        // SAFETY: the test that frees it expects to be refused.
        unsafe { Memory::new(self.start, self.bytes as u64) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}
