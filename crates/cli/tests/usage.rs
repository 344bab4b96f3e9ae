//! Help, wrong usage, and errors that need no daemon.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::os::unix::fs::PermissionsExt;

use support::{Finished, Place, finish};

const VERBS: [&str; 18] = [
    "run",
    "ps",
    "logs",
    "kill",
    "pause",
    "resume",
    "wait",
    "checkpoint",
    "restore",
    "protect",
    "function",
    "images",
    "bench",
    "doctor",
    "serve",
    "shutdown",
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
    for (verb, word) in [
        ("run", "128+n"),
        ("doctor", "14 when"),
        ("shutdown", "settings"),
    ] {
        let done = place.call(&[verb, "--help"]);
        assert!(done.stdout.contains(word), "{verb}: {}", done.stdout);
    }
    for verb in ["create", "serve", "ls", "show", "rm"] {
        let done = place.call(&["function", verb, "--help"]);
        assert!(
            done.stdout.contains("Examples:\n  "),
            "function {verb}: {}",
            done.stdout
        );
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
    assert!(!done.stdout.contains("\n  migrate "), "{}", done.stdout);
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
        "host memory",
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

/// A configuration file of the test's own.
fn configured(place: &Place, text: &str, args: &[&str]) -> Finished {
    let file = place.path().join("fermata.toml");
    std::fs::write(&file, text).unwrap();
    let child = place.command(args).env("FERMATA_CONFIG", &file).spawn();
    finish(child.unwrap())
}

#[test]
fn settings_are_listed_with_the_place_they_come_from() {
    let place = Place::new();
    let file = place.path().join("fermata.toml");
    let done = configured(&place, "\ncache = \"3G\"\n", &["doctor", "--settings"]);
    assert_eq!(done.status, 0, "{}", done.stderr);
    let row = |name: &str| {
        let line = done.stdout.lines().find(|it| it.starts_with(name));
        let words = line.unwrap_or_default().split_whitespace();
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let from = format!("{}:2", file.display());
    assert_eq!(row("FERMATA_CACHE"), ["FERMATA_CACHE", "3G", &from]);
    let runtime = place.path().join("run").display().to_string();
    assert_eq!(
        row("FERMATA_RUNTIME_DIR"),
        ["FERMATA_RUNTIME_DIR", &runtime, "environment"]
    );
    let usual = ["FERMATA_SPARE_WORKERS", "1", "default"];
    assert_eq!(row("FERMATA_SPARE_WORKERS"), usual);
    let json = configured(
        &place,
        "log_limit = 7\n",
        &["doctor", "--settings", "--json"],
    );
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let rows = json["settings"].as_array().unwrap();
    let limit = rows.iter().find(|it| it["name"] == "FERMATA_LOG_LIMIT");
    assert_eq!(limit.unwrap()["value"], "7");
}

#[test]
fn a_wrong_configuration_file_is_an_error_that_names_file_line_and_key() {
    let place = Place::new();
    let file = place.path().join("fermata.toml");
    for (text, line, word) in [
        ("# mine\ncashe = 1\n", 2, "did you mean `cache`?"),
        (
            "spare_workers = 65",
            1,
            "`spare_workers` is `65`, and must be",
        ),
        ("cache = 1\ncache = 2", 2, "duplicate key"),
    ] {
        let done = configured(&place, text, &["ps"]);
        assert_eq!(done.status, 1, "{text}: {}", done.stderr);
        let start = format!("error: `{}`, line {line}: ", file.display());
        assert!(done.stderr.starts_with(&start), "{}", done.stderr);
        assert!(
            done.stderr.contains(word) && done.stderr.contains("hint: "),
            "{}",
            done.stderr
        );
        let run = configured(&place, text, &["run", "--", "/bin/true"]);
        assert_eq!(run.status, 125, "{}", run.stderr);
    }
    std::fs::remove_file(&file).unwrap();
    let child = place.command(&["ps"]).env("FERMATA_CONFIG", &file).spawn();
    let missing = finish(child.unwrap());
    assert_eq!(missing.status, 1, "{}", missing.stderr);
    assert!(
        missing.stderr.contains("there is no such file"),
        "{}",
        missing.stderr
    );
}

#[test]
fn packages_get_manual_pages_completions_and_an_example_of_the_configuration() {
    let place = Place::new();
    let folder = place.path().join("share");
    let done = place.call(&["share", folder.to_str().unwrap()]);
    assert_eq!(done.status, 0, "{}", done.stderr);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
    assert!(read("man/man1/fermata.1").contains("fermata\\-checkpoint(1)"));
    assert!(read("man/man1/fermata-checkpoint.1").contains("before\\-change"));
    for script in [
        "bash-completion/completions/fermata",
        "zsh/site-functions/_fermata",
        "fish/vendor_completions.d/fermata.fish",
    ] {
        assert!(read(script).contains("checkpoint"), "{script}");
    }
    let example = folder.join("doc/fermata/fermata.toml");
    let child = place
        .command(&["ps"])
        .env("FERMATA_CONFIG", &example)
        .spawn();
    let read = finish(child.unwrap());
    assert!(!read.stderr.contains("fermata.toml"), "{}", read.stderr);
}

#[test]
fn completions_name_the_verbs() {
    let done = Place::new().call(&["completions", "bash"]);
    assert_eq!(done.status, 0);
    assert!(done.stdout.contains("checkpoint") && done.stdout.contains("_fermata"));
}
