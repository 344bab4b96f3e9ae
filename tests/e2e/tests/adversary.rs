//! The adversary's short form; `e2e adversary --minutes` is the long one.

use std::time::Duration;

use anyhow::{Result, ensure};
use fermata_e2e::adversary::{Limit, run};

const SEED: u64 = 20_261_123;

/// So many cases of a kind, which must all hold.
fn hold(kind: &'static str, cases: u64) -> Result<()> {
    let limit = Limit {
        cases,
        time: Duration::MAX,
    };
    let counts = run(&[kind], SEED, 0, limit, &mut |_, _| {})?;
    println!("seed {SEED}: {counts}");
    ensure!(
        counts.all() == cases && counts.broken.is_empty(),
        "seed {SEED}: {counts}"
    );
    Ok(())
}

#[test]
fn harmed_images_give_the_right_digest_or_are_refused() -> Result<()> {
    hold("images", 48)
}

#[test]
fn a_process_killed_at_any_moment_loses_nothing_but_its_own_session() -> Result<()> {
    hold("kills", 12)
}

#[test]
fn full_and_read_only_disks_are_refused_or_do_no_harm() -> Result<()> {
    hold("disks", 9)
}

#[test]
fn hostile_bytes_end_their_own_connection_or_session_alone() -> Result<()> {
    hold("bytes", 12)
}

#[test]
fn a_second_user_gets_nothing_and_changes_nothing() -> Result<()> {
    hold("stranger", 12)
}
