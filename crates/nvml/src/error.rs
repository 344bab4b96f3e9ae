//! Errors of NVML: the library cannot be loaded, or a call fails.

use std::path::PathBuf;

/// Why NVML says nothing.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// It is not on this machine.
    #[error("cannot load `{path}`: {source}")]
    Load {
        /// What was to be loaded.
        path: PathBuf,
        /// Why it could not be.
        #[source]
        source: libloading::Error,
    },
    /// A call failed.
    #[error("`{call}` answered {code}{text}")]
    Call {
        /// The function.
        call: &'static str,
        /// An `nvmlReturn_t`.
        code: i32,
        /// What the library calls it, with a separator before it; or nothing.
        text: String,
    },
}
