//! Plans: of known machines, of machines in files, of this one as NVML describes it; and the paper's figures.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::Place;

/// What the command does beside a management library that describes `machine`.
fn beside(place: &Place, machine: &str, args: &[&str]) -> (i32, String, String) {
    let library = place.path().join("libtest-nvml.so");
    if !library.exists() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml.c");
        let mut compiler = Command::new("gcc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        assert!(
            compiler
                .args([&library, &source])
                .status()
                .unwrap()
                .success()
        );
    }
    let done = Command::new(place.path().join("home/bin/fermata"))
        .args(args)
        .env("FERMATA_NVML", library)
        .env("NVML_MACHINE", machine)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = done.status.code().unwrap();
    (code, text(&done.stdout), text(&done.stderr))
}

#[test]
fn every_plan_has_help_with_examples() {
    let place = Place::new();
    for what in ["interval", "schedule", "simulate", "topology"] {
        let done = place.call(&["plan", what, "--help"]);
        assert_eq!(done.status, 0, "{what}: {}", done.stderr);
        let example = format!("Examples:\n  fermata plan {what}");
        assert!(done.stdout.contains(&example), "{what}: {}", done.stdout);
    }
}

#[test]
fn this_machine_is_planned_for_as_nvml_describes_it() {
    let place = Place::new();
    let schedule = [
        "plan",
        "schedule",
        "--machine",
        "here",
        "--sizes",
        "52,8,8,8",
        "--json",
    ];
    let (code, said, errors) = beside(&place, "switch", &schedule);
    assert_eq!(code, 0, "{errors}");
    // 34 GiB are free and 2 of 64 stay so: 20 GiB leave, over the port and to the host at once.
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    let moved = |to: &str| -> u64 {
        let all = answer["transfers"].as_array().unwrap().iter();
        let matching = all.filter(|t| (t["to"] == "host") == (to == "host"));
        matching.map(|t| t["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(moved("host") + moved("peers"), 20 << 30, "{said}");
    let seconds = answer["seconds"].as_f64().unwrap();
    let rate = f64::from(20 << 10) * f64::from(1 << 20) / seconds;
    assert!((rate - (397e9 + 55.5e9)).abs() < 2e9, "{rate}");

    // The same by way of a file.
    let (code, topology, errors) = beside(&place, "switch", &["plan", "topology", "--json"]);
    assert_eq!(code, 0, "{errors}");
    let file = place.path().join("machine.json");
    std::fs::write(&file, topology).unwrap();
    let file = file.to_str().unwrap();
    let sizes = ["--sizes", "52,8,8,8", "--free", "32,32,32,32", "--json"];
    let by_file = [&["plan", "schedule", "--topology", file][..], &sizes].concat();
    let done = place.call(&by_file);
    assert_eq!((done.status, done.stdout), (0, said), "{}", done.stderr);
}

#[test]
fn links_between_two_gpus_are_only_theirs() {
    let place = Place::new();
    let (code, said, errors) = beside(&place, "direct", &["plan", "topology"]);
    assert_eq!(code, 0, "{errors}");
    let rows: Vec<Vec<&str>> = said
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    // Two links of 25 GB/s, and one; PCI Express of which nobody knows.
    assert_eq!(rows[1], ["0", "13.9", "-", "-", "41.5", "20.8"], "{said}");
    assert_eq!(rows[2][3..], ["41.5", "-", "-"], "{said}");
    assert_eq!(rows[3][3..], ["20.8", "-", "-"], "{said}");
    assert!(
        said.contains("GPU 2: Test GPU, 32.0 GiB may be used"),
        "{said}"
    );
}

#[test]
fn gpus_of_others_are_left_out_with_their_links() {
    let place = Place::new();
    let (code, said, errors) = beside(&place, "lent", &["plan", "topology"]);
    assert_eq!(code, 0, "{errors}");
    let rows: Vec<Vec<&str>> = said
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    // What is linked to the GPU between them is no switch's.
    assert_eq!(rows[1], ["0", "13.9", "-", "-", "20.8"], "{said}");
    assert_eq!(rows[2], ["1", "13.9", "-", "20.8", "-"], "{said}");
    assert!(!said.contains("GPU 2:"), "{said}");
}

#[test]
fn a_machine_without_nvml_says_what_else_there_is() {
    let place = Place::new();
    let (code, _, errors) = beside(&place, "none", &["plan", "topology"]);
    assert_eq!(code, 13, "{errors}");
    assert!(
        errors.contains("`nvmlInit_v2` answered 9: Driver Not Loaded"),
        "{errors}"
    );
    assert!(errors.contains("--topology FILE"), "{errors}");
    let missing = Command::new(place.path().join("home/bin/fermata"))
        .args(["plan", "schedule", "--machine", "here", "--sizes", "1"])
        .env("FERMATA_NVML", "/not/there.so")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(13), "{errors}");
    assert!(errors.contains("cannot load `/not/there.so`"), "{errors}");
}

/// The numbers of a figure, by column.
fn columns(folder: &Path, name: &str) -> Vec<(String, Vec<f64>)> {
    let svg = std::fs::read_to_string(folder.join(format!("{name}.svg"))).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("<polyline"),
        "{name}"
    );
    let csv = std::fs::read_to_string(folder.join(format!("{name}.csv"))).unwrap();
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let rows: Vec<Vec<f64>> = lines
        .map(|row| row.iter().map(|cell| cell.parse().unwrap()).collect())
        .collect();
    let column = |(i, name): (usize, &&str)| {
        let numbers = rows.iter().map(|row| row[i]).collect();
        ((*name).to_owned(), numbers)
    };
    header.iter().enumerate().map(column).collect()
}

fn column(folder: &Path, figure: &str, name: &str) -> Vec<f64> {
    let all = columns(folder, figure);
    let found = all.into_iter().find(|(column, _)| column == name);
    found.unwrap_or_else(|| panic!("{figure} has no {name}")).1
}

fn most(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn the_papers_figures_are_made_and_say_what_it_says() {
    let place = Place::new();
    let folder: PathBuf = place.path().join("figures");
    let done = place.call(&["plan", "simulate", "--figures", folder.to_str().unwrap()]);
    assert_eq!(done.status, 0, "{}", done.stderr);
    let parts = |figure: u32| ["a", "b", "c"].map(|part| format!("figure-{figure}{part}"));
    for name in [3, 5].map(|n| format!("figure-{n}")) {
        assert_eq!(columns(&folder, &name)[0].1.len(), 776, "{name}");
    }
    assert_eq!(columns(&folder, "figure-4").len(), 6);
    for name in [6, 7].into_iter().flat_map(parts) {
        let of = |what| column(&folder, &name, what);
        assert_eq!(of("snapshot").len(), 776, "{name}");
        assert!(most(&of("local_only")) > most(&of("greedy")), "{name}");
        // Nothing is shorter than the optimum, to a byte on each link.
        for other in ["local_only_s", "greedy_s", "min_time_s"] {
            let pairs = of(other).into_iter().zip(of("optimum_s"));
            assert!(
                pairs.into_iter().all(|(o, best)| o >= best - 1e-9),
                "{name} {other}"
            );
        }
    }
    // With 80 MB everybody fits before snapshot 340, and around 400 local-only takes three times as long.
    let local = column(&folder, "figure-6a", "local_only");
    assert!(local[..340].iter().all(|p| *p == 0.0));
    assert!(most(&local[350..450]) > 200.0);
    // Sizes that jump from one snapshot to the next leave more to gain.
    let jumping = most(&column(&folder, "figure-7c", "local_only"));
    assert!(jumping > most(&local), "{jumping}");
    for name in [8, 9].into_iter().flat_map(parts) {
        for (what, times) in columns(&folder, &name) {
            assert!(
                what == "snapshot" || times.iter().all(|t| *t > 0.0),
                "{name} {what}"
            );
        }
    }
    assert_eq!(column(&folder, "figure-10a", "mb").len(), 128);
    let over = |what| column(&folder, "figure-10b", what);
    assert_eq!(over("gpus"), column(&folder, "figure-10c", "gpus"));
    assert_eq!((over("gpus")[0], most(&over("gpus"))), (8.0, 128.0));
    assert!(most(&over("local_only")) > 100.0 && most(&over("greedy")) > 0.0);
}

#[test]
fn intervals_follow_either_papers_equations() {
    let place = Place::new();
    let plan = |more: &[&str]| -> (f64, f64) {
        let costs = [
            "--checkpoint",
            "0.5",
            "--restart",
            "62",
            "--failures-every",
            "3600",
        ];
        let args = [
            &["plan", "interval", "--duration", "4", "--json"],
            &costs[..],
            more,
        ]
        .concat();
        let done = place.call(&args);
        assert_eq!(done.status, 0, "{}", done.stderr);
        let answer: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let number = |key: &str| answer[key].as_f64().unwrap();
        (number("interval_seconds"), number("waste"))
    };
    let (interval, waste) = plan(&[]);
    assert!((interval - 3600f64.sqrt()).abs() < 1e-9, "{interval}");
    let by_hand = 0.5 / interval + (interval / 2.0 + 62.0) / 3600.0;
    assert!((waste - by_hand).abs() < 1e-12, "{waste}");
    let (interval, waste) = plan(&["--model", "fti"]);
    assert!(
        (interval - (2.0f64 * (3600.0 - 62.0) * 4.0).sqrt()).abs() < 1e-9,
        "{interval}"
    );
    let by_hand = 1.0 - (1.0 - 0.5 / interval) * (1.0 - (62.0 + interval / 2.0) / 3600.0);
    assert!((waste - by_hand).abs() < 1e-12, "{waste}");
    let wrong = [
        "plan",
        "interval",
        "--model",
        "fti",
        "--checkpoint=-1",
        "--failures-every",
        "9",
    ];
    assert_eq!(place.call(&wrong).status, 1);
}

#[test]
fn files_that_never_end_are_refused() {
    let place = Place::new();
    for words in [
        &["plan", "schedule", "--problem", "/dev/zero"][..],
        &[
            "plan",
            "schedule",
            "--sizes",
            "1",
            "--topology",
            "/dev/zero",
        ],
    ] {
        let done = place.call(words);
        assert_eq!(done.status, 1, "{}", done.stderr);
        assert!(done.stderr.contains("no regular file"), "{}", done.stderr);
    }
}
