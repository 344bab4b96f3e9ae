//! Every target on mutated seeds. Without a word from outside the inputs are always the same, so a
//! revision is judged alike on every machine. `FERMATA_FUZZ_SECONDS` tries for that time instead, and
//! `FERMATA_FUZZ_SEED` draws other mutations: that is how new ones are looked for (fuzz/README.md).

use std::time::Duration;

use fermata_fuzz::{TARGETS, smoke};

/// Inputs of each target where no time is given: a quarter of a minute for the slowest.
const INPUTS: u64 = 500_000;

fn check(name: &str) {
    let number = |variable: &str| {
        std::env::var(variable)
            .ok()
            .map(|v| v.parse::<f64>().expect(variable))
    };
    let bound = match number("FERMATA_FUZZ_SECONDS") {
        Some(seconds) => smoke::Bound::Time(Duration::from_secs_f64(seconds)),
        None => smoke::Bound::Inputs(INPUTS),
    };
    let seed = number("FERMATA_FUZZ_SEED").unwrap_or(20_261_120.0) as u64;
    let target = TARGETS
        .iter()
        .find(|t| t.name == name)
        .expect("a target of this name");
    let tries = smoke::run(target, bound, seed);
    eprintln!("{name}: {tries} inputs");
    assert!(tries > 0);
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn every_target_is_here() {
            assert_eq!(TARGETS.len(), [$(stringify!($name)),*].len());
        }
    };
}

targets!(wire control manifest chunks state ptx fatbin);
