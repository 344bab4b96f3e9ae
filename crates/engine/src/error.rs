//! Why a save or load failed, and of what kind the failure is.

use std::path::PathBuf;

use fermata_abi::op::{Address, ContextId, loses_device};
use fermata_device::{DriverError, MemoryError, ModuleRefused};
use fermata_state::StateError;
use fermata_state::records::RecordError;
use fermata_store::StoreError;

use crate::share::ShareError;

/// Kinds of failure, as a user distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The user can fix it: a full disk, too little memory.
    User,
    /// A fault in Fermata.
    Internal,
    /// No such image or store.
    NotFound,
    /// In use by another operation.
    Locked,
    /// Damaged data.
    Damaged,
    /// This host cannot hold or run the session.
    Host,
    /// The session cannot be checkpointed.
    NotCheckpointable,
}

/// A failed save or load.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A driver call has failed.
    #[error("cannot {operation}: {source}")]
    Driver {
        /// What was tried, object included.
        operation: String,
        /// What the driver said.
        #[source]
        source: DriverError,
    },
    /// Device memory was refused.
    #[error("cannot {operation}: {source}")]
    Memory {
        /// What was tried, object included.
        operation: String,
        /// Why not.
        #[source]
        source: MemoryError,
    },
    /// A module did not load.
    #[error("cannot load {module}: {source}")]
    Module {
        /// The module, in words.
        module: String,
        /// What the driver said.
        #[source]
        source: ModuleRefused,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The `state` file is not usable.
    #[error("cannot read `{path}`: {source}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: RecordError,
    },
    /// A file of the image cannot be read or written.
    #[error("cannot {operation} `{path}`: {source}")]
    File {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Objects do not fit each other.
    #[error("the session's objects are inconsistent: {0}")]
    State(#[from] StateError),
    /// The parts of an image do not fit each other.
    #[error("the image is damaged: {0}")]
    Damaged(String),
    /// The session cannot be saved.
    #[error("the session cannot be saved: {0}")]
    NotCheckpointable(String),
    /// This machine cannot hold the session.
    #[error("this host cannot hold the session: {0}")]
    Unsuitable(String),
    /// The driver has put a device variable elsewhere, and somebody knows where it was.
    #[error("{0}")]
    Moved(String),
    /// The multiprocessors of a device lie elsewhere than the program was told.
    #[error("{0}")]
    Places(String),
    /// The driver splits the multiprocessors of a device otherwise than the program was told.
    #[error("{0}")]
    Multiprocessors(String),
    /// Two devices do not reach each other's memory, and those of the program did.
    #[error(
        "GPU {from} of the program cannot reach the memory of its GPU {to}, as it did at the checkpoint"
    )]
    Peers {
        /// Index of the one, as the program numbers them.
        from: u32,
        /// Of the other.
        to: u32,
    },
    /// Host memory for the session cannot be made.
    #[error("cannot map host region {address:#x} of {size} bytes: {source}")]
    HostRegion {
        /// Where.
        address: Address,
        /// Bytes.
        size: u64,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A context has failed, whose work had to be finished.
    #[error("the session cannot be saved: context {context:#x} has failed: {source}")]
    Context {
        /// Its number.
        context: ContextId,
        /// What the driver said.
        #[source]
        source: DriverError,
    },
    /// What arrived in host memory is not what the device holds.
    #[error(
        "buffer {buffer} at offset {offset} differs in host memory from what the device has hashed, after {tries} copies"
    )]
    Changed {
        /// The buffer's number.
        buffer: u64,
        /// Of the piece in it.
        offset: u64,
        /// How often it was copied.
        tries: u32,
    },
    /// Memory of another process of the session cannot be had, or none be offered.
    #[error("cannot {operation}: {source}")]
    Shared {
        /// What was tried, object included.
        operation: String,
        /// Why not.
        #[source]
        source: ShareError,
    },
    /// Something took too long or a thread of ours died.
    #[error("{0}")]
    Internal(String),
}

impl EngineError {
    /// A driver error with what was tried.
    pub fn driver(operation: impl Into<String>) -> impl FnOnce(DriverError) -> Self {
        let operation = operation.into();
        move |source| Self::Driver { operation, source }
    }

    /// A memory error with what was tried.
    pub fn memory(operation: impl Into<String>) -> impl FnOnce(MemoryError) -> Self {
        let operation = operation.into();
        move |source| Self::Memory { operation, source }
    }

    /// Whether it says, of a session that was running, that a device is lost to it.
    pub fn loses_device(&self) -> bool {
        match self {
            Self::Driver { source, .. }
            | Self::Context { source, .. }
            | Self::Memory {
                source: MemoryError::Driver(source),
                ..
            } => loses_device(source.code),
            _ => false,
        }
    }

    /// Of what kind it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Driver { .. }
            | Self::Memory { .. }
            | Self::Module { .. }
            | Self::HostRegion { .. }
            | Self::Shared { .. }
            | Self::Changed { .. } => ErrorKind::Host,
            Self::Store(error) => store_kind(error),
            Self::Record {
                source: RecordError::Newer { .. },
                ..
            }
            | Self::Unsuitable(_)
            | Self::Moved(_)
            | Self::Places(_)
            | Self::Multiprocessors(_)
            | Self::Peers { .. } => ErrorKind::Host,
            Self::Record { .. } | Self::Damaged(_) => ErrorKind::Damaged,
            Self::File { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::User,
            },
            Self::NotCheckpointable(_) | Self::Context { .. } => ErrorKind::NotCheckpointable,
            Self::State(_) | Self::Internal(_) => ErrorKind::Internal,
        }
    }
}

fn store_kind(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::Locked { .. } => ErrorKind::Locked,
        StoreError::NotFound { .. } => ErrorKind::NotFound,
        StoreError::Damaged { .. }
        | StoreError::DamagedChunk { .. }
        | StoreError::MissingChunk { .. } => ErrorKind::Damaged,
        StoreError::Newer { .. } => ErrorKind::Host,
        StoreError::Misuse { .. } => ErrorKind::Internal,
        _ => ErrorKind::User,
    }
}
