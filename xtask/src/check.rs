//! Task `check`: what rustfmt and clippy do not see. Lists every finding, then fails if there is one.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::exports::{self, Shim};
use crate::{coverage, figures, links, pauses, rpc, scan, structure};

/// Lines a hand-written file may have.
const LINES: usize = 800;

/// The table of what is read from the environment.
const SETTINGS: &str = "crates/control/src/settings/table.rs";
const SOFTGPU_SETTINGS: &str = "crates/softgpu/src/settings.rs";

/// Which crates of the workspace a crate may use. Tests may use any.
const EDGES: [(&str, &[&str]); 27] = [
    ("abi", &[]),
    ("ptx", &[]),
    ("graph", &["abi"]),
    ("tables", &["abi"]),
    ("softgpu", &["abi", "ptx", "graph", "tables"]),
    ("softblas", &["abi"]),
    ("wire", &["abi"]),
    ("client", &["abi", "graph", "wire", "control", "tables"]),
    ("device", &["abi"]),
    ("state", &["abi", "graph"]),
    ("store", &[]),
    (
        "engine",
        &["abi", "graph", "state", "device", "store", "ptx", "terms"],
    ),
    (
        "worker",
        &[
            "abi", "graph", "state", "wire", "control", "engine", "device", "store", "nvml",
        ],
    ),
    ("terms", &[]),
    ("control", &["terms"]),
    ("daemon", &["control", "wire", "store", "nvml", "hostmem"]),
    ("hostmem", &[]),
    ("pagefilter", &[]),
    ("nvml", &[]),
    ("ml", &["control", "nvml"]),
    ("planner", &[]),
    ("object", &["store"]),
    ("app", &["device", "store", "planner", "object"]),
    ("report", &["control", "store", "planner"]),
    ("bench", &["control", "report"]),
    ("function", &["control", "store"]),
    (
        "cli",
        &[
            "control", "store", "nvml", "planner", "report", "bench", "function", "hostmem",
            "object",
        ],
    ),
];

/// Crates without a line of unsafe code.
const SAFE: [&str; 12] = [
    "terms", "ptx", "state", "store", "engine", "planner", "cli", "graph", "report", "bench",
    "function", "object",
];

/// Crates whose unsafe code is in one file only, or two: starting processes, entering namespaces and touching a
/// caller's or another process's memory have no safe form; who is at the other end of a socket has none that knows PID namespaces.
const SAFE_BUT_FOR: [(&str, &[&str]); 4] = [
    ("daemon", &["src/sys.rs"]),
    ("app", &["src/memory.rs"]),
    ("control", &["src/credentials.rs"]),
    (
        "hostmem",
        &["src/sys.rs", "src/demand/sys.rs", "src/smaps/sys.rs"],
    ),
];

/// Runs every check.
pub fn all(root: &Path) -> Result<()> {
    let mut findings = Vec::new();
    generated(root, &mut findings)?;
    edges(root, &mut findings)?;
    safety(root, &mut findings)?;
    structure::check(root, &mut findings)?;
    let files = tracked(root)?;
    pauses::check(root, &files, &mut findings);
    links::check(root, &files, &mut findings);
    let known = std::fs::read_to_string(root.join(SETTINGS)).context("cannot read the settings")?;
    for path in &files {
        source(root, path, &mut findings);
        traces(root, path, &mut findings);
        settings(root, path, &known, &mut findings);
    }
    of_software_gpu(root, &known, &mut findings)?;
    if findings.is_empty() {
        println!("check: {} files, nothing found", files.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    bail!("check: {} findings", findings.len())
}

fn generated(root: &Path, findings: &mut Vec<String>) -> Result<()> {
    for shim in Shim::ALL {
        for file in exports::files(root, shim)? {
            if !file.is_fresh(root) {
                let path = file.path.display();
                findings.push(format!(
                    "{path}: stale, run `cargo xtask exports {}`",
                    shim.name()
                ));
            }
        }
    }
    let others = [
        (coverage::page(root)?, "coverage"),
        (figures::page(root)?, "figures"),
        (rpc::messages(root)?, "rpc"),
    ];
    for (file, task) in others {
        if !file.is_fresh(root) {
            let path = file.path.display();
            findings.push(format!("{path}: stale, run `cargo xtask {task}`"));
        }
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Manifest {
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
}

fn edges(root: &Path, findings: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join("crates")).context("cannot list `crates`")? {
        let folder = entry.context("cannot list `crates`")?.path();
        let Some(name) = folder.file_name().and_then(|n| n.to_str()) else {
            continue;
        };
        let Ok(text) = std::fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let manifest: Manifest = toml::from_str(&text)
            .with_context(|| format!("cannot understand `crates/{name}/Cargo.toml`"))?;
        let allowed = EDGES.iter().find(|(from, _)| *from == name);
        let Some((_, allowed)) = allowed else {
            findings.push(format!(
                "crates/{name}: not among the crates that `xtask check` knows"
            ));
            continue;
        };
        for dependency in manifest.dependencies.keys() {
            if let Some(to) = dependency.strip_prefix("fermata-")
                && !allowed.contains(&to)
            {
                findings.push(format!(
                    "crates/{name}/Cargo.toml: must not depend on `{dependency}`"
                ));
            }
        }
    }
    Ok(())
}

fn safety(root: &Path, findings: &mut Vec<String>) -> Result<()> {
    let roots = |name| ["lib.rs", "main.rs"].map(|file| format!("crates/{name}/src/{file}"));
    for path in SAFE.into_iter().flat_map(roots) {
        if let Ok(text) = std::fs::read_to_string(root.join(&path))
            && !text.contains("#![forbid(unsafe_code)]")
        {
            findings.push(format!("{path}: lacks #![forbid(unsafe_code)]"));
        }
    }
    for (name, exceptions) in SAFE_BUT_FOR {
        for path in roots(name) {
            if let Ok(text) = std::fs::read_to_string(root.join(&path))
                && !text.contains("#![deny(unsafe_code)]")
                && !text.contains("#![forbid(unsafe_code)]")
            {
                findings.push(format!("{path}: lacks #![deny(unsafe_code)]"));
            }
        }
        let folder = root.join("crates").join(name);
        for path in scan::rust_files(&folder)? {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let excepted = exceptions.iter().any(|it| path == folder.join(it));
            if text.contains("allow(unsafe_code)") && !excepted {
                let path = path.strip_prefix(root).unwrap_or(&path);
                findings.push(format!(
                    "{}: unsafe code outside {}",
                    path.display(),
                    exceptions.join(" and ")
                ));
            }
        }
    }
    Ok(())
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .context("cannot start `git ls-files`")?;
    ensure!(output.status.success(), "`git ls-files` failed");
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let names = text.split('\0').filter(|name| !name.is_empty());
    Ok(names
        .map(PathBuf::from)
        .filter(|path| root.join(path).is_file())
        .collect())
}

fn is_generated(path: &Path) -> bool {
    let text = path.to_string_lossy();
    scan::is_generated(path)
        || text.starts_with("crates/abi/src/sys/")
        || (text.starts_with("crates/abi/src/table/") && !text.ends_with("mod.rs"))
}

/// Every Rust file says what it is for, and stays readable.
fn source(root: &Path, path: &Path, findings: &mut Vec<String>) {
    if path.extension().is_none_or(|e| e != "rs") {
        return;
    }
    let Ok(text) = std::fs::read_to_string(root.join(path)) else {
        return;
    };
    if !text.starts_with("//!") {
        findings.push(format!("{}: does not open with //!", path.display()));
    }
    let lines = text.lines().count();
    if lines > LINES && !is_generated(path) {
        findings.push(format!("{}: {lines} lines, over {LINES}", path.display()));
    }
}

/// Every variable that a crate reads or sets is in the table of settings, or is of tests.
fn settings(root: &Path, path: &Path, known: &str, findings: &mut Vec<String>) {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let of_crate = parts.next() == Some("crates") && parts.nth(1) == Some("src");
    let the_table = Path::new(SETTINGS).parent();
    if !of_crate || path.parent() == the_table || path.extension().is_none_or(|e| e != "rs") {
        return;
    }
    let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
    for literal in text.split("\"FERMATA_").skip(1) {
        let Some((rest, _)) = literal.split_once('"') else {
            continue;
        };
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let whole = !rest.is_empty() && !rest.ends_with('_') && rest.chars().all(is_name);
        let of_tests = ["TEST_", "BENCH_", "WORKER_"]
            .iter()
            .any(|it| rest.starts_with(it));
        if whole && !of_tests && !known.contains(&format!("\"FERMATA_{rest}\"")) {
            findings.push(format!(
                "{}: FERMATA_{rest} is not in {SETTINGS}",
                path.display()
            ));
        }
    }
}

/// Every variable that the software GPU names in the head of its settings is in the table.
fn of_software_gpu(root: &Path, known: &str, findings: &mut Vec<String>) -> Result<()> {
    let text = std::fs::read_to_string(root.join(SOFTGPU_SETTINGS));
    let text = text.with_context(|| format!("cannot read {SOFTGPU_SETTINGS}"))?;
    let row = |line: &str| Some(line.strip_prefix("//! | `")?.split_once('`')?.0.to_owned());
    for name in text.lines().filter_map(row) {
        if !known.contains(&format!("\"FERMATA_SOFTGPU_{name}\"")) {
            findings.push(format!(
                "{SOFTGPU_SETTINGS}: FERMATA_SOFTGPU_{name} is not in {SETTINGS}"
            ));
        }
    }
    Ok(())
}

/// Nothing of the machine a file was written on, nor of the registry it used, may be committed.
fn traces(root: &Path, path: &Path, findings: &mut Vec<String>) {
    if path == Path::new("xtask/src/check.rs") {
        return;
    }
    let Ok(text) = std::fs::read_to_string(root.join(path)) else {
        return;
    };
    let here = root.to_string_lossy();
    for (number, line) in text.lines().enumerate() {
        let registry = line.contains("index-url")
            || line.contains("replace-with")
            || (line.starts_with("source = \"registry+")
                && line != "source = \"registry+https://github.com/rust-lang/crates.io-index\"");
        // `someone` is the user that tests make.
        let line = line.replace("/home/someone", "");
        let line = line.as_str();
        let machine = ["/root/", "/home/", &*here]
            .iter()
            .any(|it| has_path(line, it));
        if registry || machine {
            let what = if registry {
                "a registry host"
            } else {
                "a path of one machine"
            };
            findings.push(format!("{}:{}: names {what}", path.display(), number + 1));
        }
    }
}

/// Whether a line has this absolute path, not as a part of another one (`$work/root/`).
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.})".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_machine_are_told_from_folders_of_that_name() {
        assert!(has_path("cp /root/a .", "/root/") && has_path("\"/root/a\"", "/root/"));
        assert!(!has_path("cp $work/root/a ${stage}/root/b .", "/root/"));
    }

    #[test]
    fn edges_have_no_cycle() {
        // Each crate stands after those it uses, once sorted by depth.
        fn depth(name: &str, seen: &mut Vec<String>) -> usize {
            assert!(!seen.iter().any(|s| s == name), "cycle through {name}");
            seen.push(name.to_owned());
            let (_, uses) = EDGES
                .iter()
                .find(|(from, _)| *from == name)
                .expect("a known crate");
            let deepest = uses.iter().map(|to| depth(to, seen) + 1).max().unwrap_or(0);
            seen.pop();
            deepest
        }
        for (name, _) in EDGES {
            depth(name, &mut Vec::new());
        }
    }
}
