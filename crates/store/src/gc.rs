//! Collection of garbage: chunks that no image refers to.
//!
//! ```text
//!  mark     every image the store knows of, those in the folder given, and paused sessions in the store ─► live chunks
//!  sweep    pack all dead       ─► index removed, folder synced, pack removed
//!           pack mostly dead    ─► live chunks copied to a new pack, synced; then as above
//!           pack mostly live    ─► left alone
//! ```
//! Works under the store's exclusive lock, so that no draft, writer or reader is at work, and no image is
//! being removed, and no session is being paused or resumed. When a known image cannot be read, nothing is removed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::direct::{AlignedBuf, BLOCK, blocks};
use crate::image::{self, Image};
use crate::index::{self, Index, Location, Pack};
use crate::reader::ChunkReader;
use crate::writer::{PackWriter, WriteOptions};
use crate::{ChunkId, Result, Store, StoreError, sync};

/// What a collection may do.
#[derive(Debug, Clone, Default)]
pub struct GcOptions {
    /// Forget images that are not where they were written instead of refusing.
    pub forget_missing: bool,
    /// Only say what would be done.
    pub dry_run: bool,
    /// More folders whose images count, whether the store knows of them or not: after a move it knows none.
    pub folders: Vec<PathBuf>,
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Images whose chunks are kept.
    pub images: u64,
    /// Chunks kept.
    pub live_chunks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Chunks removed.
    pub removed_chunks: u64,
    /// Bytes given back to the file system.
    pub freed_bytes: u64,
    /// Packs removed.
    pub removed_packs: u64,
    /// Bytes copied out of packs that were removed.
    pub copied_bytes: u64,
    /// Bytes of unused chunks that stay in packs that are mostly used.
    pub unused_bytes: u64,
    /// Images that were not where they were written.
    #[serde(serialize_with = "crate::display_path::paths")]
    pub forgotten: Vec<PathBuf>,
}

/// Removes from `store` what no image refers to. Images are those in `images_dir` and all others
/// that were committed against the store.
///
/// # Errors
/// `Locked` while a draft, writer or reader is at work; `LostImage`, `Damaged` or `Newer` when it
/// cannot be told what an image refers to; `Full` when live chunks cannot be copied. Nothing that an
/// image refers to is ever lost.
pub fn gc(images_dir: &Path, store: &Store, options: &GcOptions) -> Result<GcReport> {
    let _alone = store.alone()?;
    let mut report = GcReport::default();
    let live = mark(images_dir, store, options, &mut report)?;
    if !options.dry_run {
        image::sweep_drafts(images_dir)?;
        report.freed_bytes += store.clean()?;
    }
    let index = store.refresh()?;
    if let Some((pack, why)) = index.damage.iter().next() {
        let path = index::index_path(&store.index_dir(), *pack);
        return Err(StoreError::Damaged {
            path,
            what: why.what.clone(),
        });
    }
    sweep(store, &index, &live, options, &mut report)?;
    Ok(report)
}

fn mark(
    images_dir: &Path,
    store: &Store,
    options: &GcOptions,
    report: &mut GcReport,
) -> Result<HashSet<ChunkId>> {
    let known = image::known_images(store)?;
    if let Some(lost) = known.lost.first() {
        if !options.forget_missing {
            return Err(StoreError::LostImage { path: lost.clone() });
        }
        if !options.dry_run {
            for lost in &known.lost {
                image::forget(store, lost)?;
            }
        }
        report.forgotten = known.lost;
    }
    let mut images: BTreeSet<PathBuf> = known.present;
    let folders = options.folders.iter().map(PathBuf::as_path);
    for folder in std::iter::once(images_dir).chain(folders) {
        for listed in image::ls(folder)? {
            let path = listed.path;
            images.insert(
                std::fs::canonicalize(&path).map_err(|e| StoreError::io("resolve", &path, 0, e))?,
            );
        }
    }
    let mut live = HashSet::new();
    for path in &images {
        let image = Image::open(path)?;
        live.extend(image.chunk_table()?.records().iter().map(|r| r.id));
    }
    report.images = images.len() as u64;
    live.extend(store.paused_chunks()?);
    Ok(live)
}

/// A pack and which of its chunks are live.
struct Content {
    pack: Arc<Pack>,
    live: Vec<(ChunkId, Location)>,
    live_bytes: u64,
    dead: u64,
    dead_bytes: u64,
}

fn sweep(
    store: &Store,
    index: &Arc<Index>,
    live: &HashSet<ChunkId>,
    options: &GcOptions,
    report: &mut GcReport,
) -> Result<()> {
    let mut packs: HashMap<_, Content> = index
        .packs
        .iter()
        .map(|(id, pack)| {
            (
                *id,
                Content {
                    pack: pack.clone(),
                    live: Vec::new(),
                    live_bytes: 0,
                    dead: 0,
                    dead_bytes: 0,
                },
            )
        })
        .collect();
    for (id, at) in &index.chunks {
        let content = packs
            .get_mut(&at.pack.id)
            .expect("every location names a listed pack");
        if live.contains(id) {
            content.live_bytes += blocks(u64::from(at.length));
            content.live.push((*id, at.clone()));
            report.live_chunks += 1;
            report.live_bytes += u64::from(at.length);
        } else {
            content.dead += 1;
            content.dead_bytes += blocks(u64::from(at.length));
            report.unused_bytes += blocks(u64::from(at.length));
        }
    }
    let mut removable: Vec<Content> = packs
        .into_values()
        .filter(|c| {
            c.live_bytes * 2 < c.pack.bytes.saturating_sub(BLOCK as u64) || c.live.is_empty()
        })
        .collect();
    removable.sort_by_key(|c| c.pack.id);
    for content in &removable {
        report.removed_packs += 1;
        report.unused_bytes -= content.dead_bytes;
        report.removed_chunks += content.dead;
        report.copied_bytes += content.live_bytes;
        report.freed_bytes += content.pack.bytes.saturating_sub(content.live_bytes);
    }
    if options.dry_run || removable.is_empty() {
        return Ok(());
    }
    copy_live(store, index, &removable)?;
    for content in &removable {
        sync::remove_file(&index::index_path(&store.index_dir(), content.pack.id))?;
    }
    sync::folder(&store.index_dir())?;
    for content in &removable {
        sync::remove_file(&content.pack.path)?;
    }
    sync::folder(&store.packs_dir())?;
    store.refresh()?;
    Ok(())
}

/// Copies the live chunks of packs that are about to go, checking each. A pack with a damaged live
/// chunk makes the collection fail, so that what is left of it can still be examined.
fn copy_live(store: &Store, index: &Arc<Index>, packs: &[Content]) -> Result<()> {
    if packs.iter().all(|c| c.live.is_empty()) {
        return Ok(());
    }
    let reader = ChunkReader::under_lock(store.clone(), index.clone());
    let writer = PackWriter::under_lock(store.clone(), WriteOptions::default());
    let mut buffer = AlignedBuf::new(0);
    for content in packs {
        let mut chunks: Vec<_> = content.live.iter().collect();
        chunks.sort_by_key(|(_, at)| at.offset);
        for (id, at) in chunks {
            let length = at.length as usize;
            if buffer.len() < length {
                buffer = AlignedBuf::new(length);
            }
            reader.read_verified(id, &mut buffer[..length])?;
            writer.put(id, &buffer[..length])?;
        }
    }
    writer.finish()?;
    Ok(())
}
