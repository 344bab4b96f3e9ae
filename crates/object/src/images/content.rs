//! What an image consists of: the chunks of its store, and its files in pieces.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use fermata_store::image::{Image, PROFILE};
use fermata_store::{ChunkId, ChunkReader, StoreError, open_regular};

use super::catalogue::File;
use crate::Result;

/// Longest piece of a file, in bytes.
const PIECE: usize = 4 << 20;
/// Longest `profile` that is taken along.
const LONGEST_PROFILE: u64 = 64 << 20;

/// A sequence of bytes.
pub(super) struct Piece {
    pub(super) id: ChunkId,
    pub(super) length: u32,
    source: Source,
}

enum Source {
    Store,
    File { path: PathBuf, offset: u64 },
    // A restore may replace the file it is from.
    Memory(Vec<u8>),
}

/// An image's content.
pub(super) struct Content {
    pub(super) pieces: Vec<Piece>,
    pub(super) files: Vec<File>,
    numbers: HashMap<ChunkId, u32>,
}

impl Content {
    /// Reads every file once.
    ///
    /// # Errors
    /// `Damaged` where a file is not what the manifest says.
    pub(super) fn of(image: &Image) -> Result<Self> {
        let mut content = Self {
            pieces: Vec::new(),
            files: Vec::new(),
            numbers: HashMap::new(),
        };
        for record in image.chunk_table()?.records() {
            content.add(record.id, record.length, || Source::Store);
        }
        let manifest = image.manifest();
        for record in &manifest.files {
            let path = image.dir().join(&record.path);
            let (file, length, hash) = content.file(&record.path, &path)?;
            if (length, hash.as_str()) != (record.length, record.blake3.as_str()) {
                let what = "it is not what the manifest says".to_owned();
                return Err(StoreError::Damaged { path, what }.into());
            }
            content.files.push(file);
        }
        for part in manifest.part_folders() {
            let name = Path::new(part).join(PROFILE);
            content.profile(&name.to_string_lossy(), &image.dir().join(&name));
        }
        Ok(content)
    }

    /// The number of this piece, which is entered if it is new.
    fn add(&mut self, id: ChunkId, length: u32, source: impl FnOnce() -> Source) -> u32 {
        *self.numbers.entry(id).or_insert_with(|| {
            let source = source();
            self.pieces.push(Piece { id, length, source });
            self.pieces.len() as u32 - 1
        })
    }

    /// A file's pieces, its length and its hash.
    fn file(&mut self, name: &str, path: &Path) -> Result<(File, u64, String)> {
        let failed = |error| StoreError::io("read", path, 0, error);
        let mut from = open_regular(path)?;
        let (mut chunks, mut hasher, mut offset) = (Vec::new(), blake3::Hasher::new(), 0);
        loop {
            let mut bytes = Vec::new();
            let limit = PIECE as u64;
            (&mut from)
                .take(limit)
                .read_to_end(&mut bytes)
                .map_err(failed)?;
            if bytes.is_empty() {
                break;
            }
            hasher.update(&bytes);
            let source = || Source::File {
                path: path.to_owned(),
                offset,
            };
            chunks.push(self.add(ChunkId::of(&bytes), bytes.len() as u32, source));
            offset += bytes.len() as u64;
        }
        let file = File {
            path: name.into(),
            chunks,
        };
        Ok((file, offset, hasher.finalize().to_hex().to_string()))
    }

    /// Advice for restores, if there is some.
    fn profile(&mut self, name: &str, path: &Path) {
        let short = path
            .metadata()
            .is_ok_and(|it| (1..=LONGEST_PROFILE).contains(&it.len()));
        if let Some(bytes) = short.then(|| fs::read(path).ok()).flatten() {
            let (id, length) = (ChunkId::of(&bytes), bytes.len() as u32);
            let number = self.add(id, length, || Source::Memory(bytes));
            self.files.push(File {
                path: name.into(),
                chunks: vec![number],
            });
        }
    }

    /// The bytes of a piece; `reader` is one of the image's store.
    ///
    /// # Errors
    /// `Damaged`, `DamagedChunk` where they are others now.
    pub(super) fn read(piece: &Piece, reader: &ChunkReader) -> Result<Vec<u8>> {
        let mut bytes = vec![0; piece.length as usize];
        match &piece.source {
            Source::Store => reader.read_verified(&piece.id, &mut bytes)?,
            Source::File { path, offset } => {
                open_regular(path)?
                    .read_exact_at(&mut bytes, *offset)
                    .map_err(|error| StoreError::io("read", path, 0, error))?;
                if ChunkId::of(&bytes) != piece.id {
                    let what = "it has changed while it was read".to_owned();
                    let path = path.clone();
                    return Err(StoreError::Damaged { path, what }.into());
                }
            }
            Source::Memory(content) => bytes.clone_from(content),
        }
        Ok(bytes)
    }
}
