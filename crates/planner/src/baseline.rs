//! The local-only schedule: every remainder goes to the host (section V.A of the paper, "baseline").

use crate::model::{Destination, Problem, Schedule, Transfer};

/// Sends every remainder to host memory.
pub fn local_only(problem: &Problem) -> Schedule {
    let to_host = |(from, &bytes)| Transfer {
        from,
        to: Destination::Host,
        bytes,
    };
    problem.schedule(problem.remainder.iter().enumerate().map(to_host).collect())
}
