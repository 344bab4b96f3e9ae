//! Fuzz targets: each takes any bytes, hands them to a decoder of hostile input, and panics when a
//! promise is broken. Decoders may refuse; what they accept must survive encoding and decoding.
//!
//! `fuzz/` runs them under libFuzzer; `cargo test -p fermata-fuzz-smoke` runs them on mutated seeds
//! for a bounded time.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

mod control;
mod images;
mod ptx;
pub mod smoke;
mod wire;

/// A target, by name, with inputs that decoders accept.
pub struct Target {
    /// Name, as that of the file in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// The target.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// What to start from: the seeds, and what longer runs have found worth keeping.
    pub fn inputs(&self) -> Vec<Vec<u8>> {
        let mut inputs = (self.seeds)();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let kept = fs::read_dir(folder.join(self.name)).into_iter().flatten();
        let mut kept: Vec<_> = kept.flatten().map(|entry| entry.path()).collect();
        kept.sort();
        inputs.extend(kept.iter().filter_map(|path| fs::read(path).ok()));
        inputs
    }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "wire",
        run: wire::run,
        seeds: wire::seeds,
    },
    Target {
        name: "control",
        run: control::run,
        seeds: control::seeds,
    },
    Target {
        name: "manifest",
        run: images::manifest,
        seeds: images::manifest_seeds,
    },
    Target {
        name: "chunks",
        run: images::chunks,
        seeds: images::chunks_seeds,
    },
    Target {
        name: "state",
        run: images::state,
        seeds: images::state_seeds,
    },
    Target {
        name: "ptx",
        run: ptx::text,
        seeds: ptx::text_seeds,
    },
    Target {
        name: "fatbin",
        run: ptx::fatbin,
        seeds: ptx::fatbin_seeds,
    },
];

/// Runs the target of this name.
///
/// # Panics
/// When there is none, or when it finds a broken promise.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|t| t.name == name);
    (target.expect("the name is that of a target").run)(data);
}
