//! Why an operation on the object graph was refused.

use fermata_abi::sys::driver as cu;

/// An operation that does not fit what exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No such object.
    #[error("there is no {kind} {handle:#x}")]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        /// Its handle or address.
        handle: u64,
        /// The `CUresult` for it.
        code: cu::CUresult,
    },
    /// The handle or address is taken.
    #[error("there is a {kind} {handle:#x} already")]
    Exists {
        /// What was to be made.
        kind: &'static str,
        /// Its handle or address.
        handle: u64,
    },
    /// Something else does not fit.
    #[error("{kind} {handle:#x}: {reason}")]
    Invalid {
        /// The object's kind.
        kind: &'static str,
        /// Its handle or address.
        handle: u64,
        /// What is wrong.
        reason: &'static str,
    },
}

impl StateError {
    /// The `CUresult` a program is told.
    pub fn code(&self) -> cu::CUresult {
        match self {
            Self::Unknown { code, .. } => *code,
            Self::Exists { .. } | Self::Invalid { .. } => cu::CUDA_ERROR_INVALID_VALUE,
        }
    }
}
