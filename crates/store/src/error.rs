//! What can go wrong in the store, each kind with the object it happened to.

use std::path::{Path, PathBuf};

use crate::{ChunkId, FreeSpace};

/// Result of the store's operations.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Errors of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused an operation.
    #[error("cannot {op} `{path}`: {source}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file system is full, or somebody's share of it. What was stored before is intact.
    #[error("no space left to {op} `{path}`: {}", FreeSpace::text(.left, *.needed))]
    Full {
        /// What was tried.
        op: &'static str,
        /// The file or folder that could not grow.
        path: PathBuf,
        /// Bytes that were to be written and did not fit; 0 for what has no size, as a folder.
        needed: u64,
        /// What its file system had left when it was asked afterwards, if it could be.
        left: Option<FreeSpace>,
    },
    /// Somebody else uses the store in a way that excludes this operation.
    #[error("`{path}` is in use: {by}")]
    Locked {
        /// The store, image or draft.
        path: PathBuf,
        /// Which use stands in the way.
        by: &'static str,
    },
    /// No such store or image.
    #[error("no {what} at `{path}`")]
    NotFound {
        /// "image" or "store".
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The name is taken.
    #[error("`{path}` exists already")]
    Exists {
        /// The image folder.
        path: PathBuf,
    },
    /// The name cannot be an image's name.
    #[error("`{name}` cannot be the name of an image: {why}")]
    BadName {
        /// The name.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// An image cannot be made there.
    #[error("no image can be made in `{path}`: {why}")]
    BadPlace {
        /// The folder.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Somebody else could have written, or could change, what is about to be used.
    #[error("`{path}` is not trusted: {why}")]
    NotTrusted {
        /// The file or folder.
        path: PathBuf,
        /// Who could, and how.
        why: String,
    },
    /// A file does not hold what was written.
    #[error("`{path}` is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was written by a newer release.
    #[error("`{path}` has format version {found}; this release reads up to {known}")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// No pack holds the chunk.
    #[error("chunk `{id}` is not in store `{store}`")]
    MissingChunk {
        /// The chunk.
        id: ChunkId,
        /// The store's folder.
        store: PathBuf,
    },
    /// A chunk's bytes do not have its hash or length.
    #[error("chunk `{id}` in `{pack}` at offset {offset} is damaged: {what}")]
    DamagedChunk {
        /// The chunk.
        id: ChunkId,
        /// The pack that holds it.
        pack: PathBuf,
        /// Where in the pack.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A caller's buffer or record does not fit the object; a bug of the caller.
    #[error("cannot {op}: {what}")]
    Misuse {
        /// What was tried.
        op: &'static str,
        /// Why it cannot be.
        what: String,
    },
    /// An image that the store knows of is not where it was, so that its chunks cannot be told from
    /// garbage.
    #[error("image `{path}` is not where it was written; its chunks cannot be told from garbage")]
    LostImage {
        /// Where the image was.
        path: PathBuf,
    },
}

impl StoreError {
    /// An [`StoreError::Io`], or [`StoreError::Full`] where that is the cause. `needed` is the bytes that were
    /// to be written, if that is known.
    pub fn io(op: &'static str, path: &Path, needed: u64, e: impl Into<std::io::Error>) -> Self {
        let source = e.into();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::full(op, path, needed)
            }
            _ => Self::Io {
                op,
                path: path.into(),
                source,
            },
        }
    }

    /// A [`StoreError::Full`] with what is left.
    pub(crate) fn full(op: &'static str, path: &Path, needed: u64) -> Self {
        Self::Full {
            op,
            path: path.into(),
            needed,
            left: FreeSpace::of(path),
        }
    }

    /// Whether the operating system says that the file or folder is not there.
    pub(crate) fn is_missing(&self) -> bool {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), NotFound | NotADirectory))
    }

    /// Whether what was to be read is lost, so that trying again would not help.
    pub fn is_loss(&self) -> bool {
        const BAD_SECTOR: i32 = rustix::io::Errno::IO.raw_os_error();
        match self {
            Self::Damaged { .. } | Self::DamagedChunk { .. } | Self::MissingChunk { .. } => true,
            Self::Io { source, .. } => {
                source.kind() == std::io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(BAD_SECTOR)
            }
            _ => false,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Full { .. } => {
                "free some space, or remove images with `fermata images rm` and `fermata images gc`"
            }
            Self::Locked { .. } => "try again when the other operation has ended",
            Self::Newer { .. } => "use the release of Fermata that wrote it, or a newer one",
            Self::Damaged { .. } | Self::DamagedChunk { .. } | Self::MissingChunk { .. } => {
                "`fermata images verify` lists all damage of an image"
            }
            Self::NotTrusted { .. } => {
                "`chown` and `chmod -R go-w` make it yours alone; `--trust-owner` restores it as it is"
            }
            Self::LostImage { .. } => {
                "if it was removed on purpose, use `fermata images gc --forget-missing`"
            }
            Self::NotFound { what: "image", .. } => "`fermata images ls` lists what there is",
            _ => return None,
        })
    }
}

/// A [`StoreError::Damaged`].
pub(crate) fn damaged<T>(path: &Path, what: &str) -> Result<T> {
    Err(StoreError::Damaged {
        path: path.into(),
        what: what.into(),
    })
}
