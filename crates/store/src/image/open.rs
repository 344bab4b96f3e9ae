//! Opening an image: is it one, can it be read here, is it whole.
//!
//! ```text
//!  manifest.b3 ── covers ──► manifest.json ── length and BLAKE3 ──► state, chunks, log, host/*
//!  open: both, and that every listed file is there     read_file, chunk_table: content     check_listed: no other file
//! ```

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::manifest::{
    CHUNKS, FileRecord, HOST, HOST_CHUNKS, MANIFEST, MANIFEST_HASH, Manifest, PROCESS_FILES,
    PROFILE, STATE, in_part, part_name,
};
use super::table::ChunkTable;
use crate::error::damaged;
use crate::lock::{self, Guard, Kind};
use crate::{Result, Store, StoreError, sync};

/// Name of the store in a folder of images.
pub(super) const BESIDE: &str = ".store";
const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// What is wrong with a file that the manifest does not list.
pub(super) const UNLISTED: &str = "the manifest does not list it";

/// See [`Image::hold`].
#[derive(Debug)]
pub struct Held {
    _guard: Option<Guard>,
}

/// A committed image.
#[derive(Debug, Clone)]
pub struct Image {
    dir: PathBuf,
    manifest: Manifest,
}

impl Image {
    /// Opens the image in `dir`. The manifest is checked bit by bit, other files for presence and
    /// length; their content is checked by [`super::verify()`] and, for the chunk table, by reading.
    ///
    /// # Errors
    /// `NotFound`, `Newer`, `Damaged`.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let hash_path = dir.join(MANIFEST_HASH);
        if path.symlink_metadata().is_err() {
            return match hash_path.symlink_metadata().is_ok() {
                true => damaged(&path, "it is missing"),
                false => Err(StoreError::NotFound {
                    what: "image",
                    path: dir.into(),
                }),
            };
        }
        let dir = std::fs::canonicalize(dir).map_err(|e| StoreError::io("resolve", dir, 0, e))?;
        let bytes = sync::read_limited(&path, MAX_MANIFEST_BYTES)?;
        let hash = match sync::read_limited(&hash_path, 128) {
            Err(e) if e.is_missing() => return damaged(&hash_path, "it is missing"),
            other => other?,
        };
        if hash != format!("{}\n", blake3::hash(&bytes).to_hex()).as_bytes() {
            return damaged(&path, "its hash is not the one in `manifest.b3`");
        }
        let manifest = Manifest::decode(&bytes, &path)?;
        let image = Self { dir, manifest };
        image.check_folders()?;
        let mut files = image.manifest.files.iter();
        files.try_for_each(|file| image.check_presence(file))?;
        image.check_own_files()?;
        Ok(image)
    }

    /// That listed files lie in folders of the image, not behind links to others.
    fn check_folders(&self) -> Result<()> {
        let files = self.manifest.files.iter().map(|it| Path::new(&it.path));
        let folders: BTreeSet<&Path> = files.flat_map(|it| it.ancestors().skip(1)).collect();
        for folder in folders {
            let path = self.dir.join(folder);
            match path.symlink_metadata() {
                Ok(meta) if meta.is_dir() => {}
                Ok(_) => return damaged(&path, "it is not a folder"),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    return damaged(&path, "it is missing");
                }
                Err(e) => return Err(StoreError::io("examine", &path, 0, e)),
            }
        }
        Ok(())
    }

    fn check_presence(&self, file: &FileRecord) -> Result<()> {
        let path = self.dir.join(&file.path);
        match path.symlink_metadata() {
            Ok(m) if m.is_file() && m.len() == file.length => Ok(()),
            Ok(m) if m.is_file() => {
                let what = format!("{} bytes instead of {}", m.len(), file.length);
                damaged(&path, &what)
            }
            Ok(_) => damaged(&path, "it is not a regular file"),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => damaged(&path, "it is missing"),
            Err(e) => Err(StoreError::io("examine", &path, 0, e)),
        }
    }

    /// That the manifest lists what every image of its kind has, and the session's objects and the chunk table where they
    /// are there: what it does not list is not read, and a collection would take the chunks for garbage.
    fn check_own_files(&self) -> Result<()> {
        let manifest = &self.manifest;
        let there = |name| self.dir.join(name).symlink_metadata().is_ok();
        // What the driver has moved is in the memory of processes.
        let device = !manifest.devices.is_empty() && manifest.driver_processes.is_empty();
        let process = !manifest.host.criu.is_empty();
        let in_store = manifest.totals.chunks > 0 && manifest.file(HOST_CHUNKS).is_none();
        // In version 4 it was in the chunk table.
        let in_table = manifest.totals.memory_bytes > 0;
        let needed = [
            (STATE, device || there(STATE)),
            (CHUNKS, device || in_store || there(CHUNKS)),
            (HOST_CHUNKS, in_table || there(HOST_CHUNKS)),
        ];
        let processes = PROCESS_FILES.map(|name| (name, process));
        let mut needed = needed.into_iter().chain(processes);
        needed.try_for_each(|(name, is)| if is { self.check_has(name) } else { Ok(()) })?;
        let files_of = |part: &String| [STATE, CHUNKS].map(|name| in_part(part, name));
        let mut parts = manifest.parts.iter().flat_map(files_of);
        parts.try_for_each(|path| self.check_has(&path))
    }

    /// That the manifest lists a file which every image of its kind has.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn check_has(&self, path: &str) -> Result<()> {
        match self.manifest.file(path) {
            Some(_) => Ok(()),
            None => damaged(
                &self.dir.join(MANIFEST),
                &format!("it does not list `{path}`"),
            ),
        }
    }

    /// That the folder holds nothing but what the manifest lists, and the profile.
    ///
    /// # Errors
    /// `Damaged`, naming the first other file; `Io`.
    pub fn check_listed(&self) -> Result<()> {
        match self.unlisted()?.first() {
            None => Ok(()),
            Some(path) => damaged(path, UNLISTED),
        }
    }

    /// Everything in the folder that the manifest does not list.
    pub(super) fn unlisted(&self) -> Result<Vec<PathBuf>> {
        let files = self.manifest.files.iter();
        let mut listed: HashSet<PathBuf> = files.map(|f| self.dir.join(&f.path)).collect();
        listed.extend([MANIFEST, MANIFEST_HASH].map(|name| self.dir.join(name)));
        let (mut unlisted, mut folders) = (Vec::new(), vec![self.dir.clone()]);
        while let Some(folder) = folders.pop() {
            let io = |e| StoreError::io("list", &folder, 0, e);
            for entry in std::fs::read_dir(&folder).map_err(io)? {
                let entry = entry.map_err(io)?;
                let path = entry.path();
                if entry.file_type().map_err(io)?.is_dir() && !listed.contains(&path) {
                    folders.push(path);
                } else if !listed.contains(&path) && !self.is_profile(&path) {
                    unlisted.push(path);
                }
            }
        }
        unlisted.sort();
        Ok(unlisted)
    }

    /// Whether a file is a profile, or one that is being written or that a dead writer has left.
    fn is_profile(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or("");
        let temporary = name
            .strip_prefix('.')
            .and_then(|it| it.strip_prefix(PROFILE));
        let mut parts = self.manifest.part_folders().chain([HOST]);
        parts.any(|part| path.parent() == Some(&self.part(part)))
            && (name == PROFILE || temporary.is_some_and(|it| it.starts_with('-')))
    }

    /// Keeps the image from being removed until the answer is dropped: for a reader that comes back to it.
    ///
    /// # Errors
    /// `Locked` when it is being removed.
    pub fn hold(&self) -> Result<Held> {
        match lock::folder(&self.dir, Kind::Shared, Duration::ZERO) {
            Ok(Some(guard)) => Ok(Held {
                _guard: Some(guard),
            }),
            Ok(None) => Err(StoreError::Locked {
                path: self.dir.clone(),
                by: "it is being removed",
            }),
            // Some file systems lock no folders.
            Err(_) => Ok(Held { _guard: None }),
        }
    }

    /// The image's folder, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the image is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The manifest alone.
    pub fn into_manifest(self) -> Manifest {
        self.manifest
    }

    /// Folder of a device part.
    fn part(&self, part: &str) -> PathBuf {
        match part {
            "" => self.dir.clone(),
            _ => self.dir.join(part),
        }
    }

    /// Path of the session's objects.
    pub fn state(&self) -> PathBuf {
        self.dir.join(STATE)
    }

    /// Folder of the host process.
    pub fn host(&self) -> PathBuf {
        self.dir.join(HOST)
    }

    /// Folder of the store the image was written to.
    pub fn store(&self) -> &Path {
        self.manifest.store_path()
    }

    /// The store with this image's chunks: the one that it was written to; or, where the image has moved, the one beside
    /// it, or the first of `others` that has them. A store may be where the image was written that is another's.
    ///
    /// # Errors
    /// `NotFound` when there is none; what [`Store::open`] says of the first.
    pub fn find_store(&self, others: &[PathBuf]) -> Result<Store> {
        let beside = self.dir.parent().map(|folder| folder.join(BESIDE));
        let places = std::iter::once(self.store().to_owned()).chain(beside);
        let (mut stores, mut failed) = (Vec::<Store>::new(), None);
        for place in places.chain(others.iter().cloned()) {
            // To open a store reads its whole index.
            let real = std::fs::canonicalize(&place);
            let is_open = |real: &PathBuf| stores.iter().any(|it| it.dir() == real);
            if real.as_ref().is_ok_and(is_open) {
                continue;
            }
            match Store::open(&place, false) {
                Ok(store) => stores.push(store),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // One that lacks chunks says so when they are read.
        let table = (stores.len() > 1).then(|| self.chunk_table().ok());
        if let Some(table) = table.flatten() {
            for (at, store) in stores.iter().enumerate() {
                if store.has_all(&table)? {
                    return Ok(stores.swap_remove(at));
                }
            }
        }
        match (stores.into_iter().next(), failed) {
            (Some(store), _) => Ok(store),
            (None, Some(error)) => Err(error),
            (None, None) => Err(StoreError::NotFound {
                what: "store",
                path: self.store().into(),
            }),
        }
    }

    /// Which chunk fills which part of which buffer, over all device parts and the memory of processes; empty for an image without
    /// either in the store. If there are several device parts, bits 48 to 61 of a buffer's number are that of the process, counted
    /// from 0. Files with memory of processes are buffers, too: see [`BufferId::of_host_file`](super::BufferId::of_host_file).
    ///
    /// # Errors
    /// `Damaged`, also when the file is not the one the manifest describes; `Newer`.
    pub fn chunk_table(&self) -> Result<ChunkTable> {
        let tables = match self.manifest.file(CHUNKS) {
            Some(_) if self.manifest.driver_processes.is_empty() => {
                let parts = self.manifest.part_folders();
                let tables = parts.map(|part| self.table(&in_part(part, CHUNKS)));
                tables.collect::<Result<_>>()?
            }
            _ => Vec::new(),
        };
        let host = self.host_table()?.unwrap_or_default();
        let bad = |path: String| {
            let what = "the number of a buffer may be that of another process's";
            damaged(&self.dir.join(path), what)
        };
        let device = match <[ChunkTable; 1]>::try_from(tables) {
            Ok([table]) => table,
            Err(tables) => match ChunkTable::merge(tables) {
                Ok(table) => table,
                Err(at) => return bad(in_part(&part_name(at), CHUNKS)),
            },
        };
        device
            .with_host(host)
            .map_or_else(|()| bad(HOST_CHUNKS.into()), Ok)
    }

    /// Which chunk fills which part of which file with memory of processes: `host/pages-N.img` is buffer N. `None` if these files are
    /// in the image's folder.
    ///
    /// # Errors
    /// As [`Self::chunk_table`].
    pub fn host_table(&self) -> Result<Option<ChunkTable>> {
        self.host_table_path()
            .map(|path| self.table(path))
            .transpose()
    }

    /// Whether [`Self::host_table`] gives one.
    pub fn memory_in_store(&self) -> bool {
        self.host_table_path().is_some()
    }

    fn host_table_path(&self) -> Option<&'static str> {
        let in_chunks = !self.manifest.driver_processes.is_empty();
        match self.manifest.file(HOST_CHUNKS) {
            Some(_) => Some(HOST_CHUNKS),
            // Version 4.
            None => self
                .manifest
                .file(CHUNKS)
                .filter(|_| in_chunks)
                .map(|_| CHUNKS),
        }
    }

    fn table(&self, path: &str) -> Result<ChunkTable> {
        ChunkTable::decode(&self.read_file(path)?, &self.dir.join(path))
    }

    /// Reads a file of the image whole and checks it against the manifest.
    ///
    /// # Errors
    /// `Damaged` when the content is another or the manifest does not list the file.
    pub fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        let at = self.dir.join(path);
        let Some(record) = self.manifest.file(path) else {
            return damaged(&at, UNLISTED);
        };
        let bytes = sync::read_limited(&at, record.length)?;
        if bytes.len() as u64 != record.length {
            return damaged(
                &at,
                &format!("{} bytes instead of {}", bytes.len(), record.length),
            );
        }
        if blake3::hash(&bytes).to_hex().as_str() != record.blake3 {
            return damaged(&at, "its hash is not the one in the manifest");
        }
        Ok(bytes)
    }
}
