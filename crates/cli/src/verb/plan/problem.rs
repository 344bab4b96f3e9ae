//! Machines and problems that a user describes in files.

use std::path::Path;

use fermata_planner::Problem;

use crate::failure::{Failure, USER};

/// The longest file of a machine or a problem, in bytes.
const LARGEST: u64 = 16 << 20;

/// A machine or a problem from a JSON file.
pub(super) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let name = path.display();
    let text = fermata_store::read_named(path, LARGEST)
        .map_err(|e| Failure::io(&format!("read `{name}`"), &e))?;
    serde_json::from_slice(&text)
        .map_err(|e| Failure::new(USER, format!("`{name}` is not what was expected: {e}")))
}

/// The problem, if it has a schedule.
pub(super) fn checked(problem: Problem) -> Result<Problem, Failure> {
    problem.check()?;
    Ok(problem)
}
