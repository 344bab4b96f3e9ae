//! Every target on mutated seeds for a bounded time: `FERMATA_FUZZ_SECONDS` each (half a second if
//! not set), with numbers from `FERMATA_FUZZ_SEED` (always the same if not set).

use std::time::Duration;

use fermata_fuzz::{TARGETS, smoke};

fn check(name: &str) {
    let number = |variable: &str| {
        std::env::var(variable)
            .ok()
            .and_then(|v| v.parse::<f64>().ok())
    };
    let seconds = number("FERMATA_FUZZ_SECONDS").unwrap_or(0.5);
    let seed = number("FERMATA_FUZZ_SEED").unwrap_or(20_261_120.0) as u64;
    let target = TARGETS
        .iter()
        .find(|t| t.name == name)
        .expect("a target of this name");
    let tries = smoke::run(target, Duration::from_secs_f64(seconds), seed);
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
