//! From the local level to one that all ranks reach. What that has already is not copied, what is copied is
//! checked, and what several ranks have, such as replicas of a model, one of them writes.
//!
//! ```text
//!  every rank: what it has and the place lacks ─► exchanged ─► the lowest rank that has a chunk writes it
//!                                     image has its name ◄─ all have published ◄─┘
//! ```
//! Without a channel behind the program ranks cannot agree: then each writes what the place lacked when it
//! began, and what is there twice goes with the next collection.

use std::collections::HashSet;

use fermata_store::image::{ChunkTable, Draft, Image};
use fermata_store::{AlignedBuf, ChunkId, ChunkReader, PackWriter};

use crate::buffer::PIECE;
use crate::checkpoint::layout::Layout;
use crate::checkpoint::record::Record;
use crate::checkpoint::site::Site;
use crate::checkpoint::table;
use crate::checkpoint::table::once;
use crate::levels::peers::Behind;
use crate::ranks::comm::{exchange, together};
use crate::{AppError, Result};

const OP: &str = "copy the checkpoint to the next level";

/// Copies a checkpoint to another place. Collective if there is a channel.
pub(crate) fn copy(image: &Image, from: &Site, to: &Site, behind: Option<&Behind>) -> Result<()> {
    let begun = Copy::begin(image, from, to);
    let Some(behind) = behind else {
        let begun = begun?;
        let writer = begun.write(&HashSet::new())?;
        return begun.commit(writer, image);
    };
    let comm = behind.comm.lock();
    let lacking = begun.as_ref().map_or(Vec::new(), Copy::lacking);
    let bytes: Vec<u8> = lacking.iter().flat_map(|id| id.0).collect();
    let said = exchange(&**comm, &bytes)?;
    let before = said.iter().take(comm.rank() as usize);
    let others: HashSet<ChunkId> = before
        .flat_map(|ids| ids.as_chunks::<32>().0)
        .map(|id| ChunkId(*id))
        .collect();
    let written = begun.and_then(|copy| {
        let writer = copy.write(&others)?;
        writer.finish().map_err(AppError::store(OP))?;
        Ok(copy)
    });
    // A checkpoint must not refer to what another rank could not write.
    together(&**comm, written)?.enter(image)
}

struct Copy {
    table: ChunkTable,
    draft: Draft,
    reader: ChunkReader,
    site: Site,
    /// Numbers of the chunks that the place lacks.
    wanted: Vec<usize>,
}

impl Copy {
    fn begin(image: &Image, from: &Site, to: &Site) -> Result<Self> {
        let op = AppError::store(OP);
        let sequence = Record::of(image)?.sequence;
        let table = image.chunk_table().map_err(&op)?;
        // From here on no collection can run there.
        let name = Layout::name(sequence);
        let draft = Draft::create(&to.store, &to.layout.rank, &name).map_err(&op)?;
        let writer = to.store.begin().map_err(&op)?;
        let lacks = |index: &usize| {
            let chunk = table.records()[*index];
            !writer.has(&chunk.id, u64::from(chunk.length))
        };
        Ok(Self {
            wanted: once(&table).into_iter().filter(lacks).collect(),
            draft,
            reader: from.store.reader().map_err(&op)?,
            site: to.clone(),
            table,
        })
    }

    fn lacking(&self) -> Vec<ChunkId> {
        let records = self.table.records();
        self.wanted.iter().map(|i| records[*i].id).collect()
    }

    /// Writes what the place lacks and no other rank writes; not published yet.
    fn write(&self, others: &HashSet<ChunkId>) -> Result<PackWriter> {
        let op = AppError::store(OP);
        let records = self.wanted.iter().map(|index| self.table.records()[*index]);
        let own: Vec<_> = records.filter(|r| !others.contains(&r.id)).collect();
        let lengths = own.iter().map(|r| u64::from(r.length));
        self.site.store.check_room(OP, lengths).map_err(&op)?;
        let writer = self.site.store.begin().map_err(&op)?;
        let mut buffer = AlignedBuf::new(PIECE);
        for chunk in &own {
            let bytes = &mut buffer[..chunk.length as usize];
            self.reader.read_verified(&chunk.id, bytes).map_err(&op)?;
            writer.put(&chunk.id, bytes).map_err(&op)?;
        }
        Ok(writer)
    }

    fn commit(self, writer: PackWriter, image: &Image) -> Result<()> {
        writer.finish().map_err(AppError::store(OP))?;
        self.enter(image)
    }

    /// Gives the image its name; all its chunks are published.
    fn enter(self, image: &Image) -> Result<()> {
        table::commit(self.draft, &self.table, image.manifest().clone(), OP)
    }
}
