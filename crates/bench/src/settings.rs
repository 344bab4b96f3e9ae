//! What a bench is asked to do.

use std::ffi::OsString;
use std::path::PathBuf;

/// What all benches are told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether programs get the software GPU.
    pub is_soft: bool,
    /// Device memory of the program, in bytes.
    pub bytes: u64,
    /// Runs of each case.
    pub runs: u32,
    /// Where images are kept meanwhile.
    pub images: PathBuf,
    /// A program instead of Fermata's own, and its arguments; empty for Fermata's own.
    pub command: Vec<OsString>,
    /// The values of `fermata checkpoint --validate`.
    pub validators: Vec<String>,
}
