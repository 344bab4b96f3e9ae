//! Why a bench could not be done.

use std::io;

use thiserror::Error;

/// A bench's failure. The message names the operation and the object.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The system refused an operation.
    #[error("cannot {operation}: {source}")]
    Io {
        /// What was to be done, and on which object.
        operation: String,
        /// Why not.
        source: io::Error,
    },
    /// The program that is measured is not there, or does not behave as the bench needs.
    #[error("{message}")]
    Program {
        /// What is wrong.
        message: String,
        /// What to do next; may be empty.
        hint: &'static str,
    },
    /// Fermata has answered something that it should not.
    #[error("{0}")]
    Unexpected(String),
    /// A command of Fermata's has failed.
    #[error("{message}")]
    Command {
        /// The command and what it has said.
        message: String,
        /// Its exit status, if it has one.
        status: Option<u8>,
    },
    /// The user has interrupted the bench.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        |source| Self::Io { operation, source }
    }

    pub(crate) fn program(message: impl Into<String>) -> Self {
        Self::Program {
            message: message.into(),
            hint: "",
        }
    }
}
