//! The adversary's short form; `e2e adversary --minutes` is the long one.

use std::time::Duration;

use anyhow::{Result, ensure};
use fermata_e2e::adversary::images::Images;
use fermata_e2e::adversary::{Limit, run};

const SEED: u64 = 20_261_123;

#[test]
fn harmed_images_give_the_right_digest_or_are_refused() -> Result<()> {
    let limit = Limit {
        cases: 48,
        time: Duration::MAX,
    };
    let counts = run(vec![Box::new(Images::new()?)], SEED, 0, limit)?;
    println!("seed {SEED}: {counts}");
    ensure!(
        counts.all() == limit.cases && counts.broken.is_empty(),
        "seed {SEED}: {counts}"
    );
    Ok(())
}
