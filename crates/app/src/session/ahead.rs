//! A checkpoint that is read into memory before the program asks for it.

use std::collections::HashMap;
use std::thread::JoinHandle;

use fermata_store::{ChunkId, StoreError};

use crate::checkpoint::found::{Found, opened};
use crate::checkpoint::site::Site;
use crate::checkpoint::table::once;
use crate::recovery::restore::Chunks;
use crate::{AppError, Result};

/// A checkpoint whose chunks are in memory, each checked by its hash.
pub(super) struct InMemory {
    pub(super) found: Found,
    chunks: HashMap<ChunkId, Box<[u8]>>,
}

/// A checkpoint that is being read.
pub(super) struct Ahead {
    /// Its number among all checkpoints: there may be another one by now that the program calls the same.
    pub(super) sequence: u64,
    pub(super) thread: JoinHandle<Result<InMemory>>,
}

impl Chunks for InMemory {
    fn read(&self, id: &ChunkId, into: &mut [u8]) -> Result<(), StoreError> {
        let chunk = self.chunks.get(id).filter(|c| c.len() == into.len());
        let chunk = chunk.ok_or_else(|| StoreError::MissingChunk {
            id: *id,
            store: self.found.site.layout.store.clone(),
        })?;
        into.copy_from_slice(chunk);
        Ok(())
    }

    fn read_verified(&self, id: &ChunkId, into: &mut [u8]) -> Result<(), StoreError> {
        self.read(id, into)
    }
}

impl InMemory {
    /// Reads and checks all chunks of one of this rank's checkpoints.
    pub(super) fn read_all(site: &Site, sequence: u64) -> Result<Self> {
        let read = AppError::store("read the checkpoint");
        let found = opened(site, sequence)?;
        let reader = site.store.reader().map_err(&read)?;
        let mut chunks = HashMap::new();
        for index in once(found.table()) {
            let record = found.table().records()[index];
            let mut bytes = vec![0; record.length as usize].into_boxed_slice();
            reader
                .read_verified(&record.id, &mut bytes)
                .map_err(&read)?;
            chunks.insert(record.id, bytes);
        }
        Ok(Self { found, chunks })
    }
}
