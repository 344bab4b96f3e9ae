//! What these tests are made of does what it says: it reads programs' output, ends processes, draws moments, and names all that a
//! case has left.
//!
//! They stand here, and not in the library's files, so that all that `cargo test` runs of this package is one executable: `make
//! test` runs it beside those of the other packages.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fermata_e2e::case::Device;
use fermata_e2e::command::run;
use fermata_e2e::moment::Moment;
use fermata_e2e::output::Output;
use fermata_e2e::processes::{MARK, end, marked};
use fermata_e2e::programs::PROGRAMS;
use fermata_e2e::sandbox::{SHARED_MEMORY, Sandbox, own_group};

const RUN: &str = "run ab\nstep 1 of 2\nwords\nstep 2 of 2\ndone ab\ndigest x 12\n";

#[test]
fn a_complete_run_matches_itself() {
    let out = Output::parse(RUN).unwrap();
    assert_eq!(out.steps, [1, 2]);
    assert_eq!(out.digest.as_deref(), Some("12"));
    out.check_complete(&out).unwrap();
}

#[test]
fn a_half_written_line_does_not_count() {
    let out = Output::parse("run ab\nstep 1 of 2\nstep 2 o").unwrap();
    assert_eq!(out.steps, [1]);
}

#[test]
fn a_second_beginning_is_an_error() {
    assert!(Output::parse("run ab\nstep 1 of 2\nrun cd\n").is_err());
}

#[test]
fn a_repeated_step_or_another_process_is_an_error() {
    let reference = Output::parse(RUN).unwrap();
    let twice = RUN.replace("words", "step 1 of 2");
    assert!(
        Output::parse(&twice)
            .unwrap()
            .check_complete(&reference)
            .is_err()
    );
    let other = RUN.replace("done ab", "done cd");
    assert!(
        Output::parse(&other)
            .unwrap()
            .check_complete(&reference)
            .is_err()
    );
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn status_output_and_signal_are_told() {
    let limit = Duration::from_secs(300);
    let done = run(shell("echo a; echo b >&2; exit 3"), limit).unwrap();
    assert_eq!(
        (done.status, done.stdout.as_str(), done.stderr.as_str()),
        (3, "a\n", "b\n")
    );
    assert_eq!(run(shell("kill -9 $$"), limit).unwrap().status, 137);
}

#[test]
fn a_deadline_ends_the_command() {
    let begun = Instant::now();
    let mark = format!("deadline-{}", std::process::id());
    let mut command = shell("exec sleep 1000");
    command.env(MARK, &mark);
    assert!(run(command, Duration::from_millis(50)).is_err());
    assert!(begun.elapsed() < Duration::from_secs(300));
    assert!(marked(&mark).is_empty());
}

#[test]
fn every_program_has_a_recorded_digest() {
    for program in PROGRAMS {
        let digest = program
            .with_defaults()
            .recorded_digest(Device::Soft)
            .unwrap_or_default();
        assert_eq!(digest.len(), 16, "`{}`", program.name);
    }
}

#[test]
fn a_marked_process_is_found_and_ended() {
    let mark = format!("unit-{}", std::process::id());
    let mut child = Command::new("sleep")
        .arg("60")
        .env(MARK, &mark)
        .spawn()
        .unwrap();
    // It has its environment a moment later than its program.
    let mut found = marked(&mark);
    while found.is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended unseen");
        found = marked(&mark);
    }
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].pid, child.id() as i32);
    end(&found[0]);
    child.wait().unwrap();
    assert!(marked(&mark).is_empty());
}

#[test]
fn moments_are_repeatable_ordered_and_end_before_the_run() {
    let second = Duration::from_secs(1);
    let moments: Vec<_> = (0..20)
        .map(|i| Moment::seeded(7, i, 20, 40, second))
        .collect();
    let again: Vec<_> = (0..20)
        .map(|i| Moment::seeded(7, i, 20, 40, second))
        .collect();
    assert_eq!(moments, again);
    let place = |m: &Moment| m.steps as f64 + m.delay_us as f64 / 25_000.0;
    assert!(moments.windows(2).all(|w| place(&w[0]) < place(&w[1])));
    assert!(moments.iter().all(|m| place(m) <= 36.0));
}

#[test]
fn an_earlier_moment_is_earlier_until_there_is_none() {
    let late = Moment {
        steps: 9,
        delay_us: 500,
        call: None,
    };
    assert_eq!(late.earlier().steps, 6);
    let first = Moment {
        steps: 0,
        delay_us: 500,
        call: None,
    };
    assert_eq!(first.earlier().delay_us, 250);
    let call = Moment {
        steps: 0,
        delay_us: 0,
        call: Some(1),
    };
    assert_eq!(call.earlier().call, Some(1));
}

#[test]
fn calls_are_spread_over_the_whole_run() {
    let calls: Vec<_> = (0..50)
        .filter_map(|i| Moment::at_call(3, i, 50, 500).call)
        .collect();
    assert_eq!(calls.len(), 50);
    for (i, call) in calls.iter().enumerate() {
        assert!((i as u64 * 10 + 1..=i as u64 * 10 + 10).contains(call));
    }
    let few: Vec<_> = (0..9)
        .filter_map(|i| Moment::at_call(3, i, 9, 3).call)
        .collect();
    assert!(few.iter().all(|call| (1..=3).contains(call)));
    assert!(few.contains(&1) && few.contains(&3));
}

#[test]
fn only_shared_memory_of_the_case_is_left_behind() {
    let sandbox = Sandbox::new().unwrap();
    let names = ["fermata-ours", "fermata-others"].map(|name| {
        let name = format!("{name}-{}", std::process::id());
        Path::new(SHARED_MEMORY).join(name)
    });
    let [ours, others] = &names;
    fs::write(others, "").unwrap();
    let mut touch = Command::new("touch");
    sandbox.enter(&mut touch);
    assert!(touch.arg(ours).status().unwrap().success());
    let left = sandbox.close();
    let others_stay = others.exists();
    fs::remove_file(others).unwrap();
    assert!(others_stay);
    if own_group(0).is_some() {
        assert_eq!(left, [format!("shared memory `{}`", ours.display())]);
        assert!(!ours.exists());
    }
}
