//! Kernels on one core of the software GPU against the same loops in C with `-O2`, as JSON lines.
//!
//! `cargo bench -p fermata-softgpu --bench kernels`; needs nvcc (as `tests/cuda.rs`) and `cc`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Loaded, Memory, Params, launch, load};

type Loop = unsafe extern "C" fn(*const u8, *mut u8, i32);
type Product = unsafe extern "C" fn(*const u8, *const u8, *mut u8, i32);

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn build(command: &mut Command) {
    let done = command.status().expect("start the compiler");
    assert!(done.success(), "{command:?}");
}

/// Processor time of this thread, seconds: both sides run on it alone, whatever else the machine does.
fn now() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid out pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// The best of several timings, seconds.
fn best(mut work: impl FnMut()) -> f64 {
    work();
    (0..7)
        .map(|_| {
            let start = now();
            work();
            now() - start
        })
        .fold(f64::INFINITY, f64::min)
}

struct Case {
    name: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Params,
}

fn soft(l: &Loaded, c: &Case) -> f64 {
    best(|| {
        launch(l, c.name, c.grid, c.block, c.shared, &c.params.0)
            .0
            .expect("launch")
    })
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ptx, library) = (
        folder.path().join("k.ptx"),
        folder.path().join("libreference.so"),
    );
    let nvcc = std::env::var_os("FERMATA_NVCC")
        .map_or_else(|| here("../../.deps/cuda/bin/nvcc"), PathBuf::from);
    build(
        Command::new(nvcc)
            .args(["-ptx", "-O3", "-arch=compute_75", "-o"])
            .arg(&ptx)
            .arg(here("tests/cuda/kernels.cu")),
    );
    build(
        Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(here("benches/reference.c"))
            .arg("-lm"),
    );
    // SAFETY: a library of ours without initialisers.
    let c = unsafe { libloading::Library::new(&library) }.expect("load the reference");
    let l = load(&std::fs::read_to_string(ptx).expect("read PTX"));
    fermata_softgpu::exec::set_threads(1);
    let n = 1024usize;
    let (a, b, o) = (
        Memory::of(&vec![0.5f32; n * n]),
        Memory::of(&vec![0.25f32; n * n]),
        Memory::new(4 * n * n),
    );
    let bytes: Vec<u8> = (0..n * n).map(|i| (i * 31 % 253) as u8).collect();
    let text = Memory::of(&bytes);
    let bodies: Vec<f32> = (0..4 * n)
        .map(|i| (i * 7919 % 1000) as f32 / 1000.0)
        .collect();
    let bodies = Memory::of(&bodies);
    let half = 256;
    let cases = [
        (
            &a,
            n as i32,
            Case {
                name: "heat",
                grid: [64, 64, 1],
                block: [16, 16, 1],
                shared: 0,
                params: Params::default().ptr(&a).ptr(&o).i32(n as i32),
            },
        ),
        (
            &a,
            half,
            Case {
                name: "matmul",
                grid: [16, 16, 1],
                block: [16, 16, 1],
                shared: 0,
                params: Params::default().ptr(&a).ptr(&b).ptr(&o).i32(half),
            },
        ),
        (
            &a,
            (n * n) as i32,
            Case {
                name: "reduce",
                grid: [16, 1, 1],
                block: [256, 1, 1],
                shared: 0,
                params: Params::default().ptr(&a).ptr(&o).i32((n * n) as i32),
            },
        ),
        (
            &text,
            (n * n) as i32,
            Case {
                name: "histogram",
                grid: [16, 1, 1],
                block: [256, 1, 1],
                shared: 1024,
                params: Params::default().ptr(&text).ptr(&o).i32((n * n) as i32),
            },
        ),
        (
            &bodies,
            n as i32,
            Case {
                name: "nbody",
                grid: [8, 1, 1],
                block: [128, 1, 1],
                shared: 0,
                params: Params::default().ptr(&bodies).ptr(&o).i32(n as i32),
            },
        ),
    ];
    for (input, size, case) in cases {
        let ours = soft(&l, &case);
        let (from, to) = (input.address as *const u8, o.address as *mut u8);
        let name = case.name.as_bytes();
        // SAFETY: the functions have these types and the buffers these sizes.
        let theirs = unsafe {
            if case.name == "matmul" {
                let f = c.get::<Product>(name).expect("symbol");
                best(|| f(from, b.address as *const u8, to, size))
            } else {
                let f = c.get::<Loop>(name).expect("symbol");
                best(|| f(from, to, size))
            }
        };
        println!(
            "{{\"kernel\":\"{}\",\"softgpu_s\":{ours:.6},\"c_s\":{theirs:.6},\"ratio\":{:.2}}}",
            case.name,
            ours / theirs
        );
    }
}
