//! The engine's two files of an image: `state` and `chunks`. Both are always checked against the digests in the image's
//! manifest, because a file of another image passes its own checksums.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fermata_state::{Session, records};
use fermata_store::image::{BufferId, CHUNKS, ChunkTable, ChunkTableWriter};
use fermata_store::{ChunkReader, StoreError, read_limited};

use crate::records::{Records, STATE};
use crate::sink::Saved;
use crate::{EngineError, Summary, stored};

/// The longest `state` file that is read.
const MAX_STATE: u64 = 4 << 30;
/// The longest `chunks` file that is read: 56 bytes for each of 76 million chunks.
const MAX_CHUNKS: u64 = 4 << 30;

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

/// Writes both files into the image folder and syncs them.
fn save(image: &Path, records: &Records, table: &ChunkTableWriter) -> Result<(), EngineError> {
    write(&image.join(CHUNKS), &table.encode())?;
    write(&image.join(STATE), records.bytes())?;
    File::open(image)
        .and_then(|folder| folder.sync_all())
        .map_err(file_error("sync", image))
}

/// Writes the image's files, which refer to chunks that are published already.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn publish(
    image: &Path,
    records: &Records,
    kept: &Saved,
    session: Summary,
    start: Instant,
) -> Result<Summary, EngineError> {
    let mut table = ChunkTableWriter::new();
    for ((buffer, offset), (length, id)) in &kept.chunks {
        table.push(BufferId(*buffer), *offset, *length, *id)?;
    }
    save(image, records, &table)?;
    Ok(Summary {
        chunks: kept.chunks.len() as u64,
        written_bytes: kept.totals.new_bytes,
        seconds: start.elapsed().as_secs_f64(),
        ..session
    })
}

/// An image's folder, and the BLAKE3 that its manifest gives for the engine's files, 64 hexadecimal digits each.
#[derive(Debug, Clone, Copy)]
pub struct ImageFiles<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// Of `state`.
    pub state: &'a str,
    /// Of `chunks`.
    pub chunks: &'a str,
}

/// The content of the engine's files, and the module images from the store.
pub(crate) struct Read {
    /// The session.
    pub session: Session,
    /// The chunks of its buffers.
    pub table: ChunkTable,
    /// The number of chunks that hold module images.
    pub image_chunks: u64,
}

/// Reads and checks both files, and reads the module images that lie in the store.
pub(crate) fn load(image: ImageFiles<'_>, reader: &ChunkReader) -> Result<Read, EngineError> {
    let path: PathBuf = image.folder.join(STATE);
    let bytes = read(&path, MAX_STATE, image.state)?;
    let decoded = records::decode(&bytes);
    let decoded = decoded.map_err(|source| EngineError::Record {
        path: path.clone(),
        source,
    })?;
    drop(bytes);
    let chunks = image.folder.join(CHUNKS);
    let table = ChunkTable::decode(&read(&chunks, MAX_CHUNKS, image.chunks)?, &chunks)?;
    let (of_images, table) = table.split_images();
    let images = stored::read(decoded.stored(), &of_images, reader)?;
    let session = decoded.complete(images);
    Ok(Read {
        session: session.map_err(|source| EngineError::Record { path, source })?,
        table,
        image_chunks: of_images.records().len() as u64,
    })
}

/// Whether both files still are what the manifest says.
///
/// # Errors
/// One is missing, damaged, or cannot be read.
pub(crate) fn check(image: ImageFiles<'_>) -> Result<(), EngineError> {
    read(&image.folder.join(STATE), MAX_STATE, image.state)?;
    read(&image.folder.join(CHUNKS), MAX_CHUNKS, image.chunks)?;
    Ok(())
}

fn read(path: &Path, limit: u64, digest: &str) -> Result<Vec<u8>, EngineError> {
    let damaged = |what: &str| {
        EngineError::Store(StoreError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        })
    };
    let bytes = match read_limited(path, limit) {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged("it is missing"));
        }
        other => other?,
    };
    match blake3::hash(&bytes).to_hex().as_str() == digest {
        true => Ok(bytes),
        false => Err(damaged("its hash is not the one in the manifest")),
    }
}
