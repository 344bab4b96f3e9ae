//! Task `figures`: the tables of docs/performance.md that come from `bench/results/` as they are: what programs of frameworks
//! cost, what their checkpoints cost, and how many came back as they were. Each row is the newest run of its program on as
//! many GPUs, with checkpoints that of each mode. The rest of the page is written by hand.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::links::RESULTS;
use crate::output::Generated;

const PAGE: &str = "docs/performance.md";

/// What stands in a row for a program of `bench/frameworks.py`; rows have this order.
const PROGRAMS: &[(&str, &str)] = &[
    ("resnet", "ResNet-50, training, bf16, batch 64"),
    ("encoder", "transformer encoder, training, bf16"),
    ("unet", "U-Net-like, training, bf16"),
    ("language", "language model, 8 layers, training"),
    (
        "language_compiled",
        "0.9 billion parameters, compiled layers, training",
    ),
    (
        "language_3b",
        "language model, 3 billion parameters, training",
    ),
    ("compiled", "`torch.compile`, training"),
    ("loader", "training from a loader with two worker processes"),
    ("generation", "generation, 0.9 billion parameters, 8 tokens"),
    ("generation_3b", "generation, 3 billion parameters"),
    ("graph", "PyTorch CUDA graph of 40 kernels"),
    (
        "green",
        "PyTorch green contexts, a part of 16 multiprocessors",
    ),
    ("nccl", "NCCL, one rank, all-reduce of 4 MiB"),
    ("ranks", "two ranks of torchrun, over gloo"),
    ("ranks_8", "eight ranks of torchrun on one GPU, over gloo"),
    ("ddp", "two ranks of torchrun, over NCCL, peer memory"),
    ("ddp_shm", "the same, over host memory"),
    (
        "ddp_graph",
        "two ranks, a CUDA graph of ten all-reduces over NCCL",
    ),
    (
        "ddp_reduces",
        "two ranks, eight all-reduces of 4 KiB to 64 MiB over NCCL",
    ),
    (
        "ddp_language",
        "two ranks, DDP of 0.9 billion parameters, over NCCL",
    ),
    (
        "fsdp",
        "two ranks, FSDP of 0.9 billion parameters, over NCCL",
    ),
    (
        "tensor",
        "two ranks, tensor-parallel generation, 0.9 billion parameters",
    ),
    ("halves", "one process, half of a model on each of two GPUs"),
    ("replicas", "one process, `DataParallel` on two GPUs"),
    ("jax", "JAX, training, a synchronisation each step"),
    ("cupy", "CuPy: product, FFT, solver"),
    ("triton", "Triton kernel of 1 Mi elements"),
    ("numba", "Numba kernel of 1 Mi elements"),
    (
        "static",
        "200 launches and a synchronisation, static runtime of CUDA 13",
    ),
    ("static12", "the same, static runtime of CUDA 12"),
    (
        "mpi",
        "two ranks of MPICH, messages of 8 MiB staged in host memory",
    ),
    (
        "mpi_direct",
        "two ranks of a CUDA-aware Open MPI, messages of 8 MiB on the device",
    ),
];

/// A file of results of `bench/frameworks.py`.
struct Run {
    /// Its file, without folder.
    file: String,
    report: Value,
}

/// The page with its tables made anew.
///
/// # Errors
/// A file that cannot be read, a program that has no row in [`PROGRAMS`], or a page that lacks a table's marks.
pub fn page(root: &Path) -> Result<Generated> {
    let runs = runs(root)?;
    let mut text = std::fs::read_to_string(root.join(PAGE))
        .with_context(|| format!("cannot read `{PAGE}`"))?;
    for (name, table) in [
        ("steps", steps(&runs)?),
        ("checkpoints", checkpoints(&runs)?),
        ("moments", moments(&runs)?),
    ] {
        text = put(&text, name, &table)?;
    }
    Ok(Generated {
        path: PathBuf::from(PAGE),
        text,
    })
}

/// All reports, the newest first.
fn runs(root: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(root.join(RESULTS))? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if !file.ends_with(".json") {
            continue;
        }
        let bytes = std::fs::read(entry.path())?;
        let report: Value = serde_json::from_slice(&bytes)
            .with_context(|| format!("`{RESULTS}/{file}` is no JSON"))?;
        // Other benches have `programs` too, but nothing that was left out.
        let marks = ["left_out", "checkpoints", "moments"];
        if marks.iter().any(|it| report.get(it).is_some()) {
            runs.push(Run { file, report });
        }
    }
    let date = |run: &Run| text(&run.report, "date").unwrap_or_default().to_owned();
    runs.sort_by_key(|run| std::cmp::Reverse((date(run), run.file.clone())));
    Ok(runs)
}

fn steps(runs: &[Run]) -> Result<String> {
    let mut rows = BTreeMap::new();
    for run in runs {
        for found in list(&run.report, "programs") {
            let place = place(run, found)?;
            if rows.contains_key(&place) {
                continue;
            }
            let native = list(found, "native")
                .iter()
                .filter_map(|it| number(it, "median_s"));
            let native = native.fold(f64::INFINITY, f64::min);
            let said = |key| found.get(key).and_then(Value::as_bool);
            let equal = match (said("equal"), said("native_repeats")) {
                (Some(true), _) => "yes",
                (None, Some(false)) => "native runs differ",
                _ => "**no**",
            };
            let row = format!(
                "| {} | {} | {} | {} | {equal} | {} |",
                PROGRAMS[place.0].1,
                time(native),
                ratio(found, "median_ratio"),
                ratio(found, "first_ratio"),
                source(run),
            );
            rows.insert(place, row);
        }
    }
    let head = "| program | native step | step | first result | equal | GPU, results, revision |\n| --- | --- | --- | --- | --- | --- |";
    Ok(table(head, rows.into_values()))
}

/// What the checkpoints of one program in one mode cost, the longest of each.
struct Cost {
    stopped: f64,
    restore: f64,
    device: f64,
    host: f64,
    images: usize,
    /// Whether workers had loaded the modules of each image before its restore.
    warm: bool,
}

fn checkpoints(runs: &[Run]) -> Result<String> {
    let mut rows: BTreeMap<Place, (Vec<&Run>, BTreeMap<&str, Cost>)> = BTreeMap::new();
    for run in runs {
        for found in list(&run.report, "checkpoints") {
            let place = place(run, found)?;
            let (from, modes) = rows.entry(place).or_default();
            let mode = text(found, "mode").unwrap_or_default();
            if modes.contains_key(mode) {
                continue;
            }
            let equal = found.get("equal").and_then(Value::as_bool);
            ensure!(
                equal == Some(true),
                "`{}`: a restored program is not equal",
                run.file
            );
            modes.insert(mode, cost(found));
            if !from.iter().any(|it| it.file == run.file) {
                from.push(run);
            }
        }
    }
    let rows = rows.into_iter().map(|(place, (from, modes))| {
        let most = |of: fn(&Cost) -> f64| modes.values().map(of).fold(f64::NAN, f64::max);
        let from: Vec<String> = from.into_iter().map(source).collect();
        let stopped = |mode: &str| {
            modes
                .get(mode)
                .map_or(String::new(), |it| format!("{:.2} s", it.stopped))
        };
        let images: usize = modes.values().map(|it| it.images).sum();
        let warm = match modes.values().all(|it| it.warm) {
            true => ", warm",
            false => "",
        };
        format!(
            "| {} | {} | {} | {} | {} | {} | {:.2} s{warm} | {images} of {images} | {} |",
            PROGRAMS[place.0].1,
            mib(most(|it| it.device)),
            mib(most(|it| it.host)),
            stopped("cow"),
            stopped("snapshot"),
            stopped("stop"),
            most(|it| it.restore),
            from.join("; "),
        )
    });
    let head = "| program | device | host memory | stands still: `cow` | `snapshot` | `stop` | restore command | equal | GPU, results, revision |\n\
                | --- | --- | --- | --- | --- | --- | --- | --- | --- |";
    Ok(table(head, rows))
}

/// Modes, in the order of their columns.
const MODES: [&str; 4] = ["cow", "snapshot", "recopy", "stop"];

/// How many checkpoints of each program and mode were restored and gave an equal result: of `bench/moments.py`. Each cell is of
/// the newest run with that mode; a row with several runs says which modes are of which.
fn moments(runs: &[Run]) -> Result<String> {
    let mut rows: BTreeMap<Place, BTreeMap<&str, (&Run, String)>> = BTreeMap::new();
    for run in runs {
        for found in list(&run.report, "moments") {
            let equal = found.get("equal").and_then(Value::as_bool);
            ensure!(
                equal == Some(true),
                "`{}`: a restored program is not equal",
                run.file
            );
            let restored = number(found, "restored").unwrap_or_default();
            let asked = list(found, "steps").len();
            ensure!(
                restored <= asked as f64,
                "`{}`: more were restored than there are `steps`",
                run.file
            );
            let mode = text(found, "mode").unwrap_or_default();
            let modes = rows.entry(place(run, found)?).or_default();
            modes
                .entry(mode)
                .or_insert_with(|| (run, format!("{restored} of {asked}")));
        }
    }
    let rows = rows.into_iter().map(|(place, modes)| {
        let cells = MODES.map(|mode| modes.get(mode).map_or("", |(_, count)| count));
        let mut files: Vec<(&Run, Vec<&str>)> = Vec::new();
        for mode in MODES {
            let Some((run, _)) = modes.get(mode) else {
                continue;
            };
            match files.iter_mut().find(|(other, _)| other.file == run.file) {
                Some((_, modes)) => modes.push(mode),
                None => files.push((run, vec![mode])),
            }
        }
        let several = files.len() > 1;
        let files = files.into_iter().map(|(run, modes)| {
            let of = match several {
                true => format!(" (`{}`)", modes.join("`, `")),
                false => String::new(),
            };
            format!("{}, `{}`{of}", gpu(run), run.file)
        });
        format!(
            "| {} | {} | {} |",
            PROGRAMS[place.0].1,
            cells.join(" | "),
            files.collect::<Vec<_>>().join("; ")
        )
    });
    let head = format!(
        "| program | `{}` | GPU, results |\n| --- | --- | --- | --- | --- | --- |",
        MODES.join("` | `")
    );
    Ok(table(&head, rows))
}

/// Of one journey: a list of its images, or the one image that there was before a journey could have several.
fn cost(found: &Value) -> Cost {
    let images = list(found, "checkpoints");
    // One without device memory came after the program's work had ended.
    let at_work = |it: &&Value| number(it, "device_bytes") > Some(0.0);
    let told = found.get("checkpoint");
    let most = |key: &str| {
        images
            .iter()
            .filter_map(|it| number(it, key))
            .fold(f64::NAN, f64::max)
    };
    match told {
        Some(told) => Cost {
            stopped: number(told, "stopped_seconds").unwrap_or(f64::NAN),
            restore: number(found, "restore_command_s").unwrap_or(f64::NAN),
            device: told
                .get("device")
                .and_then(|it| number(it, "device_bytes"))
                .unwrap_or(f64::NAN),
            host: number(told, "host_bytes").unwrap_or(f64::NAN),
            images: 1,
            warm: false,
        },
        None => Cost {
            stopped: most("stopped_s"),
            restore: most("restore_command_s"),
            device: most("device_bytes"),
            host: most("host_bytes"),
            images: images.iter().filter(at_work).count(),
            warm: found.get("warm").and_then(Value::as_bool) == Some(true),
        },
    }
}

/// A row's place: the program's, and the number of GPUs that its machine had.
type Place = (usize, usize);

fn place(run: &Run, found: &Value) -> Result<Place> {
    let name = text(found, "program").unwrap_or_default();
    let known = PROGRAMS.iter().position(|(it, _)| *it == name);
    let known = known.with_context(|| {
        format!(
            "`{}` has results of `{name}`, which has no row in xtask's figures",
            run.file
        )
    })?;
    Ok((known, gpus(run)))
}

/// How many GPUs it was.
fn gpus(run: &Run) -> usize {
    text(&run.report, "gpu").map_or(0, |it| it.lines().count())
}

/// The GPU for short, and how many.
fn gpu(run: &Run) -> String {
    let named = |it: &&str| text(&run.report, "gpu").is_some_and(|gpu| gpu.contains(it));
    let known = ["H100", "H200"].into_iter().find(named);
    match (known, gpus(run)) {
        (None, _) => "software GPU".to_owned(),
        (Some(known), 0 | 1) => known.to_owned(),
        (Some(known), many) => format!("{many} {known}"),
    }
}

/// The GPU for short, the file as pages name it, and the revision.
fn source(run: &Run) -> String {
    let revision = text(&run.report, "revision").unwrap_or("unknown");
    format!("{}, `{}`, {revision}", gpu(run), run.file)
}

/// `text` with `table` between the marks of that name.
fn put(text: &str, name: &str, table: &str) -> Result<String> {
    let (begin, end) = (
        format!("<!-- figures: {name} -->\n"),
        "<!-- end of figures -->",
    );
    let missing = || format!("`{PAGE}` has no place for the figures `{name}`");
    let (before, rest) = text.split_once(&begin).with_context(missing)?;
    let (_, after) = rest.split_once(end).with_context(missing)?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

fn table(head: &str, rows: impl Iterator<Item = String>) -> String {
    rows.fold(format!("{head}\n"), |mut all, row| {
        let _ = writeln!(all, "{row}");
        all
    })
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of.get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    of.get(key).and_then(Value::as_str)
}

fn number(of: &Value, key: &str) -> Option<f64> {
    of.get(key).and_then(Value::as_f64)
}

fn ratio(of: &Value, key: &str) -> String {
    number(of, key).map_or(String::new(), |it| format!("{it:.2}"))
}

fn time(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

fn mib(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(file: &str, report: Value) -> Run {
        Run {
            file: file.to_owned(),
            report,
        }
    }

    #[test]
    fn a_row_is_the_newest_run_of_its_program() {
        let of = |ratio: f64| {
            json!({"program": "jax", "native": [{"median_s": 0.002}, {"median_s": 0.001}], "equal": true,
                   "median_ratio": ratio, "first_ratio": 1.0})
        };
        let report =
            |ratio| json!({"gpu": "NVIDIA H200", "revision": "abc", "programs": [of(ratio)]});
        let all = [run("new.json", report(1.25)), run("old.json", report(9.0))];
        let made = steps(&all).unwrap();
        let row = "| JAX, training, a synchronisation each step | 1.000 ms | 1.25 | 1.00 | yes | H200, `new.json`, abc |";
        assert_eq!(made.lines().skip(2).collect::<Vec<_>>(), [row]);
    }

    #[test]
    fn of_several_images_the_longest_stop_is_told_and_an_unequal_one_is_refused() {
        let images = json!([{"stopped_s": 0.1, "restore_command_s": 1.0, "device_bytes": 1048576, "host_bytes": 0},
                            {"stopped_s": 0.2, "restore_command_s": 0.5, "device_bytes": 1048576, "host_bytes": 0}]);
        let report = |equal| {
            json!({"gpu": "NVIDIA H100", "revision": "abc",
                   "checkpoints": [{"program": "ddp", "mode": "cow", "equal": equal, "checkpoints": images}]})
        };
        let made = checkpoints(&[run("a.json", report(true))]).unwrap();
        assert!(
            made.contains(
                "| 1 MiB | 0 MiB | 0.20 s |  |  | 1.00 s | 2 of 2 | H100, `a.json`, abc |"
            ),
            "{made}"
        );
        let mut warm = report(true);
        warm["checkpoints"][0]["warm"] = json!(true);
        let made = checkpoints(&[run("a.json", warm)]).unwrap();
        assert!(made.contains("| 1.00 s, warm | 2 of 2 |"), "{made}");
        let mut late = report(true);
        late["checkpoints"][0]["checkpoints"][1]["device_bytes"] = json!(0);
        let made = checkpoints(&[run("a.json", late)]).unwrap();
        assert!(
            made.contains("| 0.20 s |  |  | 1.00 s | 1 of 1 |"),
            "{made}"
        );
        assert!(checkpoints(&[run("a.json", report(false))]).is_err());
    }

    #[test]
    fn moments_of_several_files_are_counted_by_mode_and_unequal_ones_are_refused() {
        let report = |mode: &str, equal| {
            json!({"gpu": "NVIDIA H100",
                   "moments": [{"program": "jax", "mode": mode, "steps": [3, 5], "restored": 2, "equal": equal}]})
        };
        let all = [
            run("b.json", report("stop", true)),
            run("a.json", report("cow", true)),
        ];
        let made = moments(&all).unwrap();
        assert!(
            made.contains(
                "| 2 of 2 |  |  | 2 of 2 | H100, `a.json` (`cow`); H100, `b.json` (`stop`) |"
            ),
            "{made}"
        );
        assert!(moments(&[run("c.json", report("cow", false))]).is_err());
        let mut stepless = report("cow", true);
        stepless["moments"][0]["steps"] = json!([]);
        assert!(moments(&[run("d.json", stepless)]).is_err());
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let page = "a\n<!-- figures: steps -->\nold\n<!-- end of figures -->\nb";
        let new = "a\n<!-- figures: steps -->\nnew\n<!-- end of figures -->\nb";
        assert_eq!(put(page, "steps", "new\n").unwrap(), new);
        assert!(put(page, "checkpoints", "new\n").is_err());
    }
}
