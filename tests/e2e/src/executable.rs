//! Executables that a test makes. What is open for writing cannot be executed, and a child that another test has just started
//! has everything open that this process has: so another process writes them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::fermata::COMMAND_LIMIT;

/// Copies the executable at `from` to `to`.
///
/// # Errors
/// When it cannot be copied.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut install = Command::new("install");
    install.arg("-m755").arg(from).arg(to);
    command::run(install, COMMAND_LIMIT)?.success("install")?;
    Ok(())
}

/// Makes the script `to` with this text, which stays beside it.
///
/// # Errors
/// When it cannot be written.
pub fn script(to: &Path, text: &str) -> Result<()> {
    let from = to.with_extension("text");
    fs::write(&from, text)?;
    copy(&from, to)
}
