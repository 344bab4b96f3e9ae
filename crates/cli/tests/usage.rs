//! Help, wrong usage, and errors that need no daemon.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt;

use support::Place;

const VERBS: [&str; 13] = [
    "run",
    "ps",
    "logs",
    "kill",
    "wait",
    "checkpoint",
    "restore",
    "images",
    "bench",
    "doctor",
    "serve",
    "version",
    "completions",
];

#[test]
fn every_verb_has_help_with_examples() {
    let place = Place::new();
    for verb in VERBS {
        let done = place.call(&[verb, "--help"]);
        assert_eq!(done.status, 0, "{verb}: {}", done.stderr);
        assert!(
            done.stdout.contains("Examples:\n  "),
            "{verb} has no examples: {}",
            done.stdout
        );
        assert!(done.stdout.contains(&format!("fermata {verb}")), "{verb}");
        assert!(done.stderr.is_empty());
    }
    for verb in ["ls", "inspect", "verify", "diff", "rm", "gc"] {
        let done = place.call(&["images", verb, "--help"]);
        assert!(
            done.stdout.contains("Examples:\n  "),
            "images {verb}: {}",
            done.stdout
        );
    }
}

#[test]
fn a_bench_without_its_program_says_so_and_leaves_nothing() {
    let place = Place::new();
    for bench in ["pool", "moment", "validator", "overhead", "restore"] {
        let done = place.call(&["bench", bench, "--device", "soft", "--images", "."]);
        assert_eq!(done.status, 1, "{bench}: {}", done.stderr);
        assert!(
            done.stderr.contains("there is no program"),
            "{bench}: {}",
            done.stderr
        );
        assert!(done.stderr.contains("hint: "), "{bench}: {}", done.stderr);
        let help = place.call(&["bench", bench, "--help"]).stdout;
        assert!(help.contains("FERMATA_BENCH_STEPS"), "{help}");
    }
    let left = std::fs::read_dir(place.path()).unwrap().flatten();
    let left: Vec<_> = left
        .map(|it| it.file_name())
        .filter(|it| it.to_string_lossy().contains("bench"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_overview_lists_what_exists_and_nothing_else() {
    let done = Place::new().call(&["--help"]);
    for verb in VERBS {
        assert!(
            done.stdout.contains(&format!("\n  {verb} ")),
            "{verb}: {}",
            done.stdout
        );
    }
    for later in ["pause", "migrate", "protect"] {
        assert!(!done.stdout.contains(&format!("\n  {later} ")), "{later}");
    }
    assert!(done.stdout.contains("13 this host cannot"));
}

#[test]
fn wrong_usage_is_status_2_and_on_stderr() {
    let place = Place::new();
    for args in [
        &["nonsense"][..],
        &["checkpoint", "--no-such-option"],
        &["run"],
        &["kill", "x", "--signal", "NONE"],
        &["restore", "x", "--copies", "0"],
        &["bench"],
        &["bench", "pool", "--runs", "0"],
        &["bench", "pool", "--bytes", "much"],
        &["images"],
    ] {
        let done = place.call(args);
        assert_eq!(done.status, 2, "{args:?}: {}", done.stderr);
        assert!(done.stdout.is_empty(), "{args:?}: {}", done.stdout);
        assert!(!done.stderr.is_empty());
    }
    let done = place.call(&["checkpoint", "--no-such-option"]);
    assert!(done.stderr.contains("--no-such-option"), "{}", done.stderr);
}

#[test]
fn a_program_that_cannot_start_has_the_shells_status() {
    let place = Place::new();
    let done = place.call(&["run", "--", "/no/such/program"]);
    assert_eq!(done.status, 127);
    assert_eq!(
        done.stderr,
        "error: there is no program `/no/such/program`\n"
    );
    let plain = place.path().join("plain");
    std::fs::write(&plain, "text").unwrap();
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    let done = place.call(&["run", "--", "./plain"]);
    assert_eq!(done.status, 126, "{}", done.stderr);
    assert!(
        done.stderr
            .starts_with("error: `./plain` cannot be executed\n\nhint: ")
    );
}

#[test]
fn a_missing_daemon_executable_is_named() {
    let place = Place::new();
    let done = place.call(&["ps"]);
    assert_eq!(done.status, 1, "{}", done.stderr);
    assert!(done.stderr.contains("cannot start `"), "{}", done.stderr);
    assert!(done.stderr.contains("fermatad`"), "{}", done.stderr);
    assert_eq!(place.call(&["run", "--", "true"]).status, 125);
}

#[test]
fn errors_are_a_document_too_with_json() {
    let done = Place::new().call(&["images", "inspect", "nothing", "--json"]);
    assert_eq!(done.status, 10);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["error"]["exit_status"], 10);
    assert!(
        json["error"]["message"]
            .as_str()
            .unwrap()
            .contains("images/nothing")
    );
    assert!(
        done.stderr.starts_with("error: no image at `"),
        "{}",
        done.stderr
    );
}

#[test]
fn doctor_says_what_is_missing_and_the_fix() {
    let place = Place::new();
    let done = place.call(&["doctor"]);
    assert_eq!(done.status, 13, "{}{}", done.stdout, done.stderr);
    for name in [
        "CHECK",
        "kernel",
        "lazy pages",
        "privileges",
        "criu",
        "gpu",
        "space",
        "daemon",
    ] {
        assert!(
            done.stdout.contains(&format!("{name} ")),
            "{name}: {}",
            done.stdout
        );
    }
    assert!(
        done.stdout.contains("fix: install the whole tree"),
        "{}",
        done.stdout
    );
    let json = place.call(&["doctor", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["able"], false);
}

#[test]
fn completions_name_the_verbs() {
    let done = Place::new().call(&["completions", "bash"]);
    assert_eq!(done.status, 0);
    assert!(done.stdout.contains("checkpoint") && done.stdout.contains("_fermata"));
}
