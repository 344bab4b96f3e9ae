//! Verification: every bit of an image and of the chunks it refers to.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use super::Image;
use super::draft::hash_file;
use super::open::UNLISTED;
use super::table::{BufferId, ChunkTable};
use crate::threads::{cores, side_by_side};
use crate::{ChunkId, ChunkReader, Result, Store, StoreError};

/// The most threads that read and hash chunks.
const THREADS: usize = 16;

/// A buffer, or a part of one, that cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DamagedBuffer {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte of the part.
    pub offset: u64,
    /// Bytes of the part.
    pub length: u64,
}

/// Something that is wrong with an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file or pack.
    #[serde(serialize_with = "crate::display_path::path")]
    pub file: PathBuf,
    /// The chunk, if it is one.
    pub chunk: Option<ChunkId>,
    /// What is wrong.
    pub what: String,
    /// The parts of buffers that are lost with it.
    pub buffers: Vec<DamagedBuffer>,
}

/// Outcome of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Files read.
    pub files: u64,
    /// Different chunks read.
    pub chunks: u64,
    /// Bytes read.
    pub bytes: u64,
    /// All damage; empty when the image is sound.
    pub damage: Vec<Damage>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

/// How far a verification is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes read.
    pub done: u64,
    /// Bytes to read.
    pub total: u64,
}

/// Reads the whole image and all its chunks and names everything that is damaged. `progress` is
/// called from several threads.
///
/// # Errors
/// `Locked` while a collection runs. Damage is not an error but part of the report.
pub fn verify(
    image: &Image,
    store: &Store,
    progress: &(dyn Fn(VerifyProgress) + Sync),
) -> Result<Report> {
    let reader = store.reader()?;
    let mut report = Report::default();
    let (table, bad) = match image.chunk_table() {
        Ok(table) => (table, None),
        Err(e @ (StoreError::Damaged { .. } | StoreError::Newer { .. })) => {
            (ChunkTable::default(), Some(e))
        }
        Err(e) => return Err(e),
    };
    let mut uses: BTreeMap<ChunkId, Vec<DamagedBuffer>> = BTreeMap::new();
    let mut chunk_bytes = 0;
    for r in table.records() {
        let length = u64::from(r.length);
        let users = uses.entry(r.id).or_insert_with(|| {
            chunk_bytes += length;
            Vec::new()
        });
        users.push(DamagedBuffer {
            buffer: r.buffer,
            offset: r.offset,
            length,
        });
    }
    let file_bytes: u64 = image.manifest().files.iter().map(|f| f.length).sum();
    let meter = Meter {
        done: AtomicU64::new(0),
        total: file_bytes + chunk_bytes,
        progress,
    };
    check_files(image, bad, &mut report, &meter)?;
    for error in reader.check_packs(uses.keys()) {
        let (file, what) = match error {
            StoreError::Damaged { path, what } => (path, what),
            other => (store.dir().into(), other.to_string()),
        };
        report.damage.push(Damage {
            file,
            chunk: None,
            what,
            buffers: Vec::new(),
        });
    }
    check_chunks(&reader, &uses, &mut report, &meter);
    Ok(report)
}

struct Meter<'a> {
    done: AtomicU64,
    total: u64,
    progress: &'a (dyn Fn(VerifyProgress) + Sync),
}

impl Meter<'_> {
    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(VerifyProgress {
            done,
            total: self.total.max(done),
        });
    }
}

/// `bad` is why the chunk tables cannot be read, if they cannot.
fn check_files(
    image: &Image,
    bad: Option<StoreError>,
    report: &mut Report,
    meter: &Meter,
) -> Result<()> {
    let mut damage = |path: &Path, what: String| {
        report.damage.push(Damage {
            file: path.into(),
            chunk: None,
            what,
            buffers: Vec::new(),
        });
    };
    for record in &image.manifest().files {
        let path = image.dir().join(&record.path);
        match hash_file(&path, false) {
            Ok((length, _)) if length != record.length => {
                damage(
                    &path,
                    format!("{length} bytes instead of {}", record.length),
                );
            }
            Ok((_, hash)) if hash != record.blake3 => {
                damage(&path, "its hash is not the one in the manifest".into());
            }
            Ok(_) => {}
            Err(e) => damage(&path, e.to_string()),
        }
        report.files += 1;
        report.bytes += record.length;
        meter.add(record.length);
    }
    if let Some(
        ref e @ (StoreError::Damaged { ref path, .. } | StoreError::Newer { ref path, .. }),
    ) = bad
    {
        damage(path, e.to_string());
    }
    for path in image.unlisted()? {
        damage(&path, UNLISTED.into());
    }
    report.damage.dedup_by(|a, b| a.file == b.file);
    Ok(())
}

fn check_chunks(
    reader: &ChunkReader,
    uses: &BTreeMap<ChunkId, Vec<DamagedBuffer>>,
    report: &mut Report,
    meter: &Meter,
) {
    let chunks: Vec<_> = uses.iter().collect();
    let next = AtomicUsize::new(0);
    let bytes = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    let work = || {
        let mut scratch = Vec::new();
        while let Some((id, users)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let wanted = users[0].length;
            let what = match reader.verify(id, &mut scratch) {
                Ok(length) => {
                    bytes.fetch_add(length as u64, Ordering::Relaxed);
                    let fits = users.iter().all(|u| u.length == length as u64);
                    (!fits).then(|| format!("it has {length} bytes, the image expects {wanted}"))
                }
                Err(e) => Some(e.to_string()),
            };
            if let Some(what) = what {
                let file = reader.pack_of(id).unwrap_or_else(|| reader.store().into());
                let buffers = (*users).clone();
                found.lock().push(Damage {
                    file,
                    chunk: Some(**id),
                    what,
                    buffers,
                });
            }
            meter.add(wanted);
        }
    };
    for it in side_by_side(cores().min(THREADS), "verify", work) {
        it.unwrap_or_else(|panic| resume_unwind(panic));
    }
    report.chunks = chunks.len() as u64;
    report.bytes += bytes.into_inner();
    let mut found = found.into_inner();
    found.sort_by(|a, b| a.buffers.cmp(&b.buffers));
    report.damage.append(&mut found);
}
