//! Instrumented kernels as a driver's compiler sees them: NVIDIA's assembler, which is the same one, takes every kind
//! of access with the check before it. What the programs are made of is assembled in `tests/e2e/tests/instrumented.rs`.
//!
//! The assembler is the one beside nvcc, which is `$FERMATA_NVCC`, else `.deps/cuda/bin/nvcc` in the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use fermata_ptx::parse;
use fermata_ptx::passes::{Guard, bind, guard};

const ACCESSES: &str = include_str!("assembled/accesses.ptx");

fn ptxas() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/cuda/bin/nvcc");
    let nvcc = std::env::var_os("FERMATA_NVCC").map_or(own, PathBuf::from);
    nvcc.with_file_name("ptxas")
}

/// What the assembler says of `text`; empty if it takes it.
fn assembled(text: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("instrumented.ptx");
    std::fs::write(&file, text).expect("written");
    let mut run = Command::new(ptxas());
    run.arg("-arch=sm_90a")
        .arg("-o")
        .arg(folder.path().join("instrumented.cubin"));
    let done = run.arg(&file).output();
    let done = done.expect("the assembler: set FERMATA_NVCC, or run `make deps`");
    match done.status.success() {
        true => String::new(),
        false => format!(
            "it ends with {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        ),
    }
}

#[test]
fn every_kind_of_access_is_assembled_with_its_check() {
    let module = parse(ACCESSES).expect("PTX");
    for what in [Guard::Writes, Guard::Reads, Guard::Accesses] {
        let made = guard(&module, what, &|_| true).expect("instrumented kernels");
        let bound = bind(made.module, &|_| Some(0x7f00_0000_1000));
        let refused: Vec<_> = made.refused.iter().chain(&bound.refused).collect();
        assert!(refused.is_empty(), "{what:?}: {refused:?}");
        let text = bound.module.to_string();
        assert!(text.contains("call __fermata_check"), "{text}");
        assert_eq!(assembled(&text), "", "{what:?}");
    }
}

#[test]
fn what_is_no_ptx_is_not_assembled() {
    assert_ne!(assembled("ld.global.nc"), "");
}
