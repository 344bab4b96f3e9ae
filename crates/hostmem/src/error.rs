//! What can go wrong; the process runs on in every case.

use std::io;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why memory could not be tracked or copied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process is of a kind that is not tracked.
    #[error("process {pid} cannot be tracked: {why}")]
    Untrackable {
        /// The process.
        pid: u32,
        /// Why.
        why: String,
    },
    /// The kernel refused.
    #[error("cannot {what} of process {pid}")]
    Kernel {
        /// What was asked.
        what: &'static str,
        /// The process.
        pid: u32,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The copy cannot be written or read.
    #[error("cannot {what} the copy of the memory of process {pid}")]
    Copy {
        /// What was tried.
        what: &'static str,
        /// The process.
        pid: u32,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// CRIU's image is not as expected.
    #[error("cannot complete `{path}`: {why}")]
    Image {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// Missing pages of a restored process cannot be brought.
    #[error("cannot {what} of restored process {pid}")]
    Pages {
        /// What was tried.
        what: &'static str,
        /// Its number in the image; 0 for all processes.
        pid: u32,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn pages(what: &'static str, pid: u32) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Pages { what, pid, source }
    }

    pub(crate) fn kernel(what: &'static str, pid: u32) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Kernel { what, pid, source }
    }

    pub(crate) fn copy(what: &'static str, pid: u32) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Copy { what, pid, source }
    }

    pub(crate) fn untrackable(pid: u32, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Untrackable { pid, why }
    }
}
