//! Task `abi`: the API tables and C types of the `abi` crate, from the toolkit's headers.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::header::{self, Declaration};
use crate::output::{self, Generated};

/// Driver functions without parameters that live in headers outside the packages read here.
const OTHER_DRIVER: [(&str, u32); 2] = [("cuProfilerStart", 4000), ("cuProfilerStop", 4000)];
/// Runtime functions of the same kind.
const OTHER_RUNTIME: [&str; 2] = ["cudaProfilerStart", "cudaProfilerStop"];

struct Row {
    base: String,
    symbol: String,
    since: u32,
    per_thread: Option<(String, u32)>,
    result: String,
    params: Vec<(String, String)>,
}

/// Regenerates the tables and, with `types`, the C types through `bindgen`.
pub fn generate(root: &Path, include: &Path, types: bool) -> Result<()> {
    let driver = driver_rows(include)?;
    let runtime = runtime_rows(include)?;
    output::write_all(
        root,
        vec![
            table("driver", "DRIVER", &driver)?,
            table("runtime", "RUNTIME", &runtime)?,
        ],
    )?;
    if types {
        bindgen(root, include, "cuda.h", "driver")?;
        bindgen(root, include, "cuda_runtime_api.h", "runtime")?;
    }
    Ok(())
}

fn driver_rows(include: &Path) -> Result<Vec<Row>> {
    let mut declared = header::declarations(&header::preprocess(include, "cuda.h")?, "cu")?;
    let mut versions = header::versions(&header::preprocess(include, "cudaTypedefs.h")?)?;
    for (symbol, since) in OTHER_DRIVER {
        declared.push(plain(symbol, "CUresult"));
        versions.push(header::Versioned {
            base: symbol.into(),
            since,
            suffix: String::new(),
            params: Vec::new(),
        });
    }

    // The n-th oldest symbol of a base and suffix is the one with the n-th oldest version type.
    let mut symbols: BTreeMap<(String, String), Vec<(u32, Declaration)>> = BTreeMap::new();
    for one in declared {
        let (stem, suffix) = header::split_per_thread(&one.symbol);
        let (base, number) = header::split_version(stem);
        symbols
            .entry((base.into(), suffix.into()))
            .or_default()
            .push((number, one));
    }
    let mut since: BTreeMap<(String, String), Vec<u32>> = BTreeMap::new();
    for one in versions {
        since
            .entry((one.base, one.suffix))
            .or_default()
            .push(one.since);
    }
    let mut dated: BTreeMap<String, (u32, Declaration)> = BTreeMap::new();
    for (key, mut list) in symbols {
        let mut dates = since.remove(&key).unwrap_or_default();
        ensure!(
            dates.len() == list.len(),
            "`{}{}` has {} symbols and {} version types",
            key.0,
            key.1,
            list.len(),
            dates.len()
        );
        dates.sort_unstable();
        list.sort_by_key(|(number, _)| *number);
        for (date, (_, one)) in dates.into_iter().zip(list) {
            dated.insert(one.symbol.clone(), (date, one));
        }
    }
    rows(dated)
}

fn runtime_rows(include: &Path) -> Result<Vec<Row>> {
    let declared =
        header::declarations(&header::preprocess(include, "cuda_runtime_api.h")?, "cuda")?;
    let mut dated: BTreeMap<String, (u32, Declaration)> = BTreeMap::new();
    for one in declared {
        dated.entry(one.symbol.clone()).or_insert((0, one));
    }
    for symbol in OTHER_RUNTIME {
        dated.insert(symbol.into(), (0, plain(symbol, "cudaError_t")));
    }
    rows(dated)
}

fn plain(symbol: &str, result: &str) -> Declaration {
    Declaration {
        symbol: symbol.into(),
        result: result.into(),
        params: Vec::new(),
    }
}

/// Joins each symbol with its variant for per-thread default streams.
fn rows(mut dated: BTreeMap<String, (u32, Declaration)>) -> Result<Vec<Row>> {
    let mut variants = BTreeMap::new();
    let all: Vec<String> = dated.keys().cloned().collect();
    for symbol in all {
        let (stem, suffix) = header::split_per_thread(&symbol);
        if !suffix.is_empty() {
            let (date, one) = dated.remove(&symbol).context("symbol was listed")?;
            variants.insert(stem.to_owned(), (symbol.clone(), date, one));
        }
    }
    let mut rows = Vec::new();
    for (symbol, (since, one)) in dated {
        let per_thread = variants.remove(&symbol).map(|(name, date, _)| (name, date));
        let (base, _) = header::split_version(&symbol);
        rows.push(Row {
            base: base.to_owned(),
            symbol,
            since,
            per_thread,
            result: one.result,
            params: one.params,
        });
    }
    ensure!(
        variants.is_empty(),
        "per-thread variants without a plain one: {:?}",
        variants.keys()
    );
    rows.sort_by(|a, b| (&a.base, a.since).cmp(&(&b.base, b.since)));
    Ok(rows)
}

fn table(module: &str, name: &str, rows: &[Row]) -> Result<Generated> {
    let mut text = format!(
        "//! Functions of the CUDA {module} API, generated by `cargo xtask abi`. Do not edit.\n\
         use super::{{Function, f, p}};\n\n\
         /// Every function of the CUDA {module} API, by base name and version.\n\
         pub static {name}: &[Function] = &[\n"
    );
    for row in rows {
        let params = row.params.iter().map(|(n, t)| format!("p({n:?}, {t:?})"));
        let params = params.collect::<Vec<_>>().join(", ");
        writeln!(
            text,
            "f({:?}, {:?}, {}, {:?}, {:?}, &[{params}]),",
            row.base, row.symbol, row.since, row.per_thread, row.result
        )?;
    }
    text.push_str("];\n");
    Ok(Generated {
        path: PathBuf::from(format!("crates/abi/src/table/{module}.rs")),
        text: output::rustfmt(&text)?,
    })
}

fn bindgen(root: &Path, include: &Path, header: &str, module: &str) -> Result<()> {
    let out = root.join(format!("crates/abi/src/sys/{module}.rs"));
    let made = Command::new("bindgen")
        .arg(include.join(header))
        .args([
            "--no-doc-comments",
            "--default-enum-style",
            "consts",
            "--no-prepend-enum-name",
        ])
        .args([
            "--with-derive-default",
            "--no-layout-tests",
            "--use-core",
            "--no-derive-debug",
        ])
        .args([
            "--rust-target",
            "1.85",
            "--rust-edition",
            "2024",
            "--ignore-functions",
        ])
        .args([
            "--allowlist-type",
            "CU.*|cu.*",
            "--allowlist-var",
            "CU.*|cuda.*",
        ])
        .arg("--")
        .arg("-I")
        .arg(include)
        .output()
        .context("cannot start `bindgen`")?;
    ensure!(
        made.status.success(),
        "bindgen failed on `{header}` (it needs libclang): {}",
        String::from_utf8_lossy(&made.stderr)
    );
    let body = String::from_utf8(made.stdout).context("bindgen gave no UTF-8")?;
    let body = body
        .lines()
        .skip_while(|line| line.is_empty() || line.starts_with("/* automatically"))
        .collect::<Vec<_>>()
        .join("\n");
    let text = format!(
        "//! CUDA {module} types and constants, generated by `cargo xtask abi` from the toolkit's public header. Do not edit.\n\
         #![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, clippy::all, clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn)]\n\
         {body}\n"
    );
    std::fs::write(&out, output::rustfmt(&text)?)
        .with_context(|| format!("cannot write `{}`", out.display()))
}
