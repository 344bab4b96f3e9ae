//! What can go wrong between us and the driver.

use std::borrow::Cow;
use std::path::PathBuf;

use fermata_abi::sys::driver::CUresult;

/// A driver call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {name} ({code})")]
pub struct DriverError {
    /// The function called.
    pub call: &'static str,
    /// The `CUresult` it returned.
    pub code: CUresult,
    /// The result's name, as the driver gives it.
    pub name: Cow<'static, str>,
}

/// Why a driver library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The library could not be opened.
    #[error("cannot open the driver library `{path}`")]
    Open {
        /// Its path.
        path: PathBuf,
        /// What the loader said.
        #[source]
        source: libloading::Error,
    },
    /// The library lacks a function that the worker cannot do without.
    #[error("the driver library `{path}` has no function `{name}`")]
    Missing {
        /// Its path.
        path: PathBuf,
        /// The function.
        name: &'static str,
    },
    /// The driver refused to start.
    #[error("the driver library `{path}` cannot be initialised")]
    Init {
        /// Its path.
        path: PathBuf,
        /// What it said.
        #[source]
        source: DriverError,
    },
}

/// Why device memory could not be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The driver refused.
    #[error("device memory: {0}")]
    Driver(#[from] DriverError),
    /// A size, address or alignment that cannot be served.
    #[error("device memory at {address:#x}, {size} bytes: {reason}")]
    Invalid {
        /// The address in question, 0 if there is none.
        address: u64,
        /// Bytes asked for.
        size: u64,
        /// What is wrong.
        reason: &'static str,
    },
}

impl MemoryError {
    /// The `CUresult` a program is told.
    pub fn code(&self) -> CUresult {
        match self {
            Self::Driver(error) => error.code,
            Self::Invalid { .. } => fermata_abi::sys::driver::CUDA_ERROR_INVALID_VALUE,
        }
    }
}
