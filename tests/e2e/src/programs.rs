//! The programs that are crossed, and the digests their source records.

use std::path::Path;

use anyhow::{Context, Result};

use crate::case::Device;
use crate::tree::Tree;

const DIGESTS: &str = include_str!("../../../programs/digests.txt");

/// Options of a program.
pub type Options = &'static [&'static str];

/// A program with the options it is run with.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// File name in `build/programs`.
    pub name: &'static str,
    /// Options in the matrix on the software GPU, which make it work for a
    /// second or so; empty means the defaults.
    pub soft: Options,
    /// The same on a GPU.
    pub gpu: Options,
    /// Whether the quick selection holds it.
    pub quick: bool,
}

const fn plain(name: &'static str, soft: Options, gpu: Options) -> Program {
    Program {
        name,
        soft,
        gpu,
        quick: false,
    }
}

const fn quick(name: &'static str, soft: Options, gpu: Options) -> Program {
    Program {
        name,
        soft,
        gpu,
        quick: true,
    }
}

/// Every program.
pub const PROGRAMS: &[Program] = &[
    quick("heat2d", &[], &["--steps", "20000"]),
    plain("jacobi", &["--size", "1024"], &["--size", "1024"]),
    plain("nbody", &[], &["--steps", "4000"]),
    plain("bfs", &["--steps", "10"], &["--steps", "10"]),
    plain("kmeans", &["--steps", "200"], &["--steps", "4000"]),
    plain("lu", &["--steps", "40"], &["--steps", "40"]),
    plain("srad", &["--steps", "500"], &["--steps", "2000"]),
    plain("bitonic", &[], &["--steps", "600"]),
    plain("histogram", &["--steps", "60"], &["--steps", "1500"]),
    plain("scan", &[], &["--steps", "600"]),
    plain("matmul", &[], &["--steps", "8000"]),
    quick("streams", &["--steps", "150"], &["--steps", "600"]),
    quick("graphs", &["--steps", "2400"], &["--steps", "8000"]),
    quick("conditional", &["--steps", "300"], &["--steps", "4000"]),
    quick("managed", &["--steps", "500"], &["--steps", "2000"]),
    quick("pinned", &["--steps", "300"], &["--steps", "1000"]),
    quick("symbols", &["--steps", "12000"], &["--steps", "40000"]),
    quick("threads", &["--steps", "2000"], &["--steps", "10000"]),
    plain("peer", &["--steps", "3000"], &["--steps", "8000"]),
    quick("driver", &["--steps", "600"], &["--steps", "10000"]),
    quick("textures", &["--steps", "1200"], &["--steps", "20000"]),
    quick("churn", &[], &["--steps", "20000"]),
    quick("server", &["--steps", "10000"], &["--steps", "30000"]),
    quick("longkernel", &[], &["--size", "30000000"]),
    quick(
        "queued",
        &["--steps", "30"],
        &["--size", "400000", "--steps", "200"],
    ),
    plain("print", &["--steps", "40000"], &["--steps", "20000"]),
    plain("forks", &["--steps", "1000"], &["--steps", "4000"]),
    quick(
        "shared",
        &["--size", "300000", "--steps", "150"],
        &["--steps", "4000"],
    ),
    quick(
        "ipcevents",
        &["--size", "60000", "--steps", "500"],
        &["--steps", "6000"],
    ),
    quick(
        "hostshare",
        &["--size", "20000", "--steps", "200"],
        &["--steps", "6000"],
    ),
    quick("allreduce", &["--steps", "300"], &["--steps", "4000"]),
    quick("family", &["--steps", "3000"], &["--steps", "4000"]),
    plain("hidden", &["--steps", "1500"], &["--steps", "20000"]),
    plain("chain", &["--steps", "1200"], &["--steps", "6000"]),
    plain("ptrtable", &[], &["--steps", "20000"]),
    plain("batches", &["--steps", "2000"], &["--steps", "20000"]),
    quick("fed", &[], &["--steps", "2000"]),
    quick("grid", &["--steps", "400"], &["--steps", "20000"]),
    quick("green", &["--steps", "400"], &["--steps", "8000"]),
    plain("overrun", &["--steps", "2400"], &["--steps", "20000"]),
    plain(
        "seldom",
        &["--every", "7", "--steps", "2400"],
        &["--every", "7", "--steps", "20000"],
    ),
    plain("heat2d-shared", &[], &["--steps", "20000"]),
    quick("graphs-shared", &["--steps", "2400"], &["--steps", "8000"]),
    quick("heat2d-cuda12", &[], &["--steps", "20000"]),
    plain("streams-cuda12", &["--steps", "150"], &["--steps", "600"]),
    plain("graphs-cuda12", &["--steps", "2400"], &["--steps", "8000"]),
    quick("managed-cuda12", &["--steps", "500"], &["--steps", "2000"]),
    plain("pinned-cuda12", &["--steps", "300"], &["--steps", "1000"]),
    plain("heat2d-cuda11", &[], &["--steps", "20000"]),
    quick("streams-cuda11", &["--steps", "150"], &["--steps", "600"]),
];

impl Program {
    /// Options on `device`.
    pub fn options(&self, device: Device) -> Options {
        match device {
            Device::Soft => self.soft,
            Device::Gpu => self.gpu,
        }
    }

    /// The same program with its default options.
    pub fn with_defaults(self) -> Self {
        Self {
            soft: &[],
            gpu: &[],
            ..self
        }
    }

    /// The digest recorded for the default options, if `device` uses those.
    pub fn recorded_digest(&self, device: Device) -> Option<&'static str> {
        if !self.options(device).is_empty() {
            return None;
        }
        digest(self.name)
    }
}

/// The program of this name, also one built for another runtime (`NAME-RUNTIME`) that [`PROGRAMS`] does not list.
pub fn find(name: &str) -> Option<Program> {
    let listed = |name: &str| PROGRAMS.iter().copied().find(|it| it.name == name);
    listed(name).or_else(|| {
        let (plain, _runtime) = name.split_once('-')?;
        // For the rest of the run, as the names of the table.
        let name = name.to_owned().leak();
        Some(Program {
            name,
            quick: false,
            ..listed(plain)?
        })
    })
}

/// Every program of `tree` that is built for another runtime than the others (`NAME-RUNTIME`), by name.
///
/// # Errors
/// When the tree cannot be read.
pub fn of_runtimes(tree: &Tree) -> Result<Vec<Program>> {
    let folder = tree.programs();
    let entries = std::fs::read_dir(&folder).with_context(|| format!("`{}`", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<Program> = names
        .filter(|name| name.contains('-'))
        .filter_map(|name| find(&name))
        .collect();
    found.sort_unstable_by_key(|program| program.name);
    Ok(found)
}

/// The digest recorded for a program with its default options, whichever runtime it is built for.
pub fn digest(name: &str) -> Option<&'static str> {
    let (name, _runtime) = name.split_once('-').unwrap_or((name, ""));
    DIGESTS
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

/// The folder with the package `fermata` for programs in Python.
///
/// # Errors
/// When it is not there.
pub fn python_package() -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python");
    let path = path.canonicalize()?;
    Ok(path.to_str().context("path")?.to_owned())
}
