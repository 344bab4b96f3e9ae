//! What starts have shown.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::model::digests;
use crate::error::BenchError;

/// What this bench is told beyond [`crate::Settings`].
#[derive(Debug, Clone)]
pub struct StartSettings {
    /// Sizes of models, in billions of parameters.
    pub sizes: Vec<f64>,
    /// How many are started at once; 1 is always measured.
    pub at_once: Vec<u32>,
    /// A folder on a disk, for images.
    pub disk: PathBuf,
}

/// A start.
pub struct Start {
    pub way: String,
    pub at_once: u32,
    /// Milliseconds from the command until the first and the last result.
    pub first: f64,
    pub last: f64,
    /// Until the command has ended.
    pub command: Option<f64>,
}

impl Start {
    /// Of one instance.
    pub fn one(way: &str, (first, last): (f64, f64), command: Option<f64>) -> Self {
        Self {
            way: way.to_owned(),
            at_once: 1,
            first,
            last,
            command,
        }
    }
}

/// What the starts of a model have shown so far.
#[derive(Default)]
pub struct Shown {
    pub starts: Vec<Start>,
    /// What the programs have printed of their results.
    pub results: BTreeSet<String>,
    /// Bytes of the image, once it is there.
    pub image: Option<u64>,
}

impl Shown {
    /// Takes down a start and the results among what its program has printed.
    pub fn take(&mut self, start: Start, printed: &str) {
        self.results.extend(digests(printed));
        self.starts.push(start);
    }
}

/// What holds for all runs.
#[derive(Default)]
pub struct Facts {
    pub devices: Vec<String>,
    pub digests: Vec<String>,
    /// What could not be measured, and why.
    pub remarks: BTreeSet<String>,
}

impl Facts {
    /// Takes down the results of a model, which must be one.
    pub fn compare(&mut self, size: f64, results: &BTreeSet<String>) -> Result<(), BenchError> {
        let all: Vec<&str> = results.iter().map(String::as_str).collect();
        let [one] = all[..] else {
            let message = format!(
                "starts of the model of {size} billion parameters have had {} results: {}",
                all.len(),
                all.join(", ")
            );
            return Err(BenchError::Unexpected(message));
        };
        self.digests.push(format!("{size}: {one}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_results_are_a_failure() {
        let mut facts = Facts::default();
        let results = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect();
        facts.compare(0.1, &results(&["digest a"])).expect("one");
        assert_eq!(facts.digests, ["0.1: digest a"]);
        let failure = facts.compare(3.0, &results(&["digest a", "digest b"]));
        assert!(failure.expect_err("two").to_string().contains("2 results"));
        facts.compare(3.0, &results(&[])).expect_err("none");
    }
}
