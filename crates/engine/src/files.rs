//! The engine's two files of an image: `state` and `chunks`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fermata_state::{Session, records};
use fermata_store::image::{CHUNKS, ChunkTable, ChunkTableWriter};

use crate::EngineError;

const STATE: &str = "state";
/// The longest `state` file that is read.
const MAX_STATE: u64 = 4 << 30;

fn file_error(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EngineError {
    let path = path.to_owned();
    move |source| EngineError::File {
        operation,
        path,
        source,
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), EngineError> {
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(file_error("write", path))
}

/// A session as the bytes of its `state` file, made while it stands still.
pub(crate) struct Records {
    bytes: Vec<u8>,
}

impl Records {
    /// Encodes for the image folder `image`, which is only named in errors.
    pub(crate) fn encode(image: &Path, session: &Session) -> Result<Self, EngineError> {
        let bytes = records::encode(session).map_err(|source| EngineError::Record {
            path: image.join(STATE),
            source,
        })?;
        Ok(Self { bytes })
    }
}

/// Writes both files into the image folder and syncs them.
pub(crate) fn save(
    image: &Path,
    records: &Records,
    table: &ChunkTableWriter,
) -> Result<(), EngineError> {
    write(&image.join(CHUNKS), &table.encode())?;
    write(&image.join(STATE), &records.bytes)?;
    File::open(image)
        .and_then(|folder| folder.sync_all())
        .map_err(file_error("sync", image))
}

/// Reads and checks both files.
pub(crate) fn load(image: &Path) -> Result<(Session, ChunkTable), EngineError> {
    let path: PathBuf = image.join(STATE);
    let length = std::fs::metadata(&path)
        .map_err(file_error("read", &path))?
        .len();
    if length > MAX_STATE {
        return Err(EngineError::Damaged(format!(
            "`{}` has {length} bytes",
            path.display()
        )));
    }
    let bytes = std::fs::read(&path).map_err(file_error("read", &path))?;
    let session = records::decode(&bytes).map_err(|source| EngineError::Record { path, source })?;
    Ok((session, ChunkTable::read(&image.join(CHUNKS))?))
}
