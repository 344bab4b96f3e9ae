//! Runs every scheduler over a trace: the paper's figures 6, 7 and 10b as numbers.

use serde::Serialize;

use crate::model::{Problem, ProblemError, Topology};
use crate::{baseline::local_only, greedy::greedy, min_time::min_time, optimum::optimum};

/// Unit of the published flow algorithm in the paper's evaluation: 1 MB.
pub const PAPER_UNIT: u64 = 1_000_000;

/// Blocking times at one snapshot, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Index in the trace.
    pub snapshot: usize,
    /// Everything to the host.
    pub local_only: f64,
    /// Algorithm 1.
    pub greedy: f64,
    /// Algorithm 2, in units of [`PAPER_UNIT`].
    pub min_time: f64,
    /// The optimum.
    pub optimum: f64,
}

impl Row {
    /// Seconds of local-only, greedy, min-time and the optimum.
    pub fn seconds(&self) -> [f64; 4] {
        [self.local_only, self.greedy, self.min_time, self.optimum]
    }
}

/// Blocking times over a trace with `free` bytes of room on every GPU.
///
/// # Errors
/// The topology does not suit the trace.
pub fn run(trace: &[Vec<u64>], topology: &Topology, free: u64) -> Result<Vec<Row>, ProblemError> {
    trace
        .iter()
        .enumerate()
        .map(|(snapshot, sizes)| {
            let problem = Problem::from_sizes(topology.clone(), sizes, &vec![free; sizes.len()]);
            problem.check()?;
            Ok(Row {
                snapshot,
                local_only: local_only(&problem).seconds,
                greedy: greedy(&problem).seconds,
                min_time: min_time(&problem, PAPER_UNIT).seconds,
                optimum: optimum(&problem).seconds,
            })
        })
        .collect()
}
