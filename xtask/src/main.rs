//! Developer tasks: generated files and checks.
//!
//! `abi` reads the toolkit's headers; every other task works from what is checked in. A task writes only
//! the files it names, and prints one line for each that changed.
mod abi;
mod check;
mod coverage;
mod ctype;
mod exports;
mod figures;
mod header;
mod imports;
mod links;
mod modules;
mod narrow;
mod output;
mod pauses;
mod rpc;
mod scan;
mod structure;
mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask TASK

  abi --cuda-include DIR [--types]  the API tables (and with --types the C types) from the headers in DIR
  exports CRATE...                  narrow.rs, unsupported.rs, per_thread.rs, proc_table.rs of softgpu, client
  coverage                          docs/coverage.md
  figures                           tables of docs/performance.md, from bench/results
  rpc                               the messages of CRIU's protocol, from crates/daemon/rpc.proto
  circles CRATE...                  files of a crate that import each other in a loop, and what ties them
  check                             generated files, crate edges, circles, names, sizes, pauses, headers, links in pages,
                                    forbidden code";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = root()?;
    let mut args = std::env::args().skip(1);
    let task = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    match task.as_str() {
        "abi" => {
            let at = rest.iter().position(|a| a == "--cuda-include");
            let include = at
                .and_then(|i| rest.get(i + 1))
                .context("abi needs --cuda-include DIR")?;
            let types = rest.iter().any(|a| a == "--types");
            abi::generate(&root, Path::new(include), types)
        }
        "exports" if !rest.is_empty() => rest.iter().try_for_each(|name| {
            let shim = exports::Shim::named(name)?;
            output::write_all(&root, exports::files(&root, shim)?)
        }),
        "coverage" => output::write_all(&root, vec![coverage::page(&root)?]),
        "figures" => output::write_all(&root, vec![figures::page(&root)?]),
        "rpc" => output::write_all(&root, vec![rpc::messages(&root)?]),
        "circles" if !rest.is_empty() => rest.iter().try_for_each(|name| {
            let of = modules::Crate::read(&root.join("crates").join(name).join("src"))?;
            let circles = imports::report(&of);
            println!("{name}: {} circles", circles.len());
            circles
                .iter()
                .for_each(|circle| println!("a circle:\n{circle}"));
            Ok(())
        }),
        "check" => check::all(&root),
        _ => bail!("{USAGE}"),
    }
}

/// The workspace folder: the parent of this package's.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here
        .parent()
        .context("xtask stands inside the workspace")?
        .to_path_buf())
}
