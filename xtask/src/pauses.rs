//! What `check` asks of waits: few sleeps and few polls, each with its reason.
//!
//! | what is waited for | how |
//! | --- | --- |
//! | another thread of the process | a condition variable, a channel, a futex, all with a deadline |
//! | the end of a process, a line, a connection | its descriptor (`control::wait`) |
//! | what nothing tells | a poll (`control::wait::until`) or a sleep, with the reason in a comment just before |
use std::path::{Path, PathBuf};

/// Sleeps that sources may have outside tests.
const SLEEPS: usize = 20;
/// Polls by `wait::until`, likewise.
const POLLS: usize = 15;
/// The comment with the reason ends at most so many lines before.
const NEAR: usize = 4;

/// A line that lets time pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    Sleep,
    Poll,
}

/// Looks at the sources among `files`.
pub fn check(root: &Path, files: &[PathBuf], findings: &mut Vec<String>) {
    let (mut sleeps, mut polls) = (Vec::new(), Vec::new());
    for path in files.iter().filter(|path| is_source(path)) {
        let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        for (line, pause, has_reason) in pauses(&text) {
            let place = format!("{}:{line}", path.display());
            if !has_reason {
                findings.push(format!(
                    "{place}: a pause without its reason: say in a comment before it why nothing tells what is waited for"
                ));
            }
            match pause {
                Pause::Sleep => sleeps.push(place),
                Pause::Poll => polls.push(place),
            }
        }
    }
    for (what, places, most) in [("sleeps", sleeps, SLEEPS), ("polls", polls, POLLS)] {
        if places.len() > most {
            findings.push(format!(
                "{} {what} in sources outside tests, at most {most} may be: wait for a condition or a descriptor instead \
                 (crates/control/src/wait.rs says how); they are at {}",
                places.len(),
                places.join(", ")
            ));
        }
    }
}

/// Whether a file is part of what is installed, or of the tools: no test.
fn is_source(path: &Path) -> bool {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let [top, .., name] = parts[..] else {
        return false;
    };
    let of_tests = ["tests", "benches", "fuzz", "examples"];
    let is_test = parts.iter().any(|part| of_tests.contains(part)) || name == "tests.rs";
    ["crates", "bindings", "xtask"].contains(&top) && name.ends_with(".rs") && !is_test
}

/// The pauses in a source before its tests: line from 1, kind, and whether a comment stands before it.
fn pauses(text: &str) -> Vec<(usize, Pause, bool)> {
    let own = text
        .split("\n#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let lines: Vec<&str> = own.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(pause) = pause_in(line) else {
            continue;
        };
        let before = &lines[at.saturating_sub(NEAR)..at];
        let has_reason = before.iter().any(|line| line.starts_with("//"));
        found.push((at + 1, pause, has_reason));
    }
    found
}

fn pause_in(line: &str) -> Option<Pause> {
    if line.starts_with("//") {
        return None;
    }
    // Not a method, nor a function, of the name.
    let calls = |name: &str| {
        line.match_indices(name).any(|(at, _)| {
            let before = &line[..at];
            let part_of_a_name = |c: char| c.is_alphanumeric() || "_.\"".contains(c);
            !before.ends_with(part_of_a_name) && !before.ends_with("fn ")
        })
    };
    match () {
        () if calls("sleep(") || calls("nanosleep(") || calls("usleep(") => Some(Pause::Sleep),
        () if calls("wait::until(") => Some(Pause::Poll),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_and_polls_are_found_with_or_without_a_reason() {
        let text = "fn a() {\n    // Why.\n    std::thread::sleep(T);\n}\n\n\n\nfn sleep() {}\nfn b() {\n\n    self.sleep(T);\n    \
                    sleep(T);\n    let c = wait::until(L, T, || None);\n    // sleep(T)\n}\n#[cfg(test)]\nmod tests { sleep(T); }";
        let found = pauses(text);
        let expected = [
            (3, Pause::Sleep, true),
            (12, Pause::Sleep, false),
            (13, Pause::Poll, false),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn only_sources_count() {
        let counts = |path: &str| is_source(Path::new(path));
        assert!(counts("crates/wire/src/wait.rs") && counts("xtask/src/main.rs"));
        for test in [
            "crates/wire/tests/pair.rs",
            "tests/e2e/src/lib.rs",
            "crates/ptx/src/parser/tests.rs",
            "crates/wire/build.c",
        ] {
            assert!(!counts(test), "{test}");
        }
    }

    #[test]
    fn one_more_than_may_be_is_refused_with_all_places() {
        let folder = std::env::temp_dir().join(format!("fermata-pauses-{}", std::process::id()));
        let source = PathBuf::from("crates/a/src/b.rs");
        let path = folder.join(&source);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let sleeps = |count: usize| "// Why.\nsleep(T);\n".repeat(count);
        let mut told = Vec::new();
        for (count, findings) in [(SLEEPS, 0), (SLEEPS + 1, 1)] {
            std::fs::write(&path, sleeps(count)).expect("written");
            check(&folder, std::slice::from_ref(&source), &mut told);
            assert_eq!(told.len(), findings, "{told:?}");
        }
        assert!(told[0].contains("21 sleeps") && told[0].contains("crates/a/src/b.rs:42"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
