//! Moving a checkpoint between ranks: what the receiver's store has already is not sent.
//!
//! ```text
//!  sender                                receiver
//!    header: manifest, chunk table ───►
//!                                  ◄───  numbers of the chunks it lacks
//!    messages of up to 4 MiB ────────►   checked by hash, stored; the image gets its name at the end
//! ```
//! Both compute the same messages from the table and the numbers. Who fails goes on to the end of the
//! exchange, so that no rank waits for it, and says so afterwards.

use std::collections::HashSet;
use std::path::Path;

use fermata_store::image::{ChunkTable, Draft, Image, Manifest};
use fermata_store::{ChunkId, ChunkReader, PackWriter, StoreError};

use crate::buffer::PIECE;
use crate::checkpoint::layout::Layout;
use crate::checkpoint::record::Record;
use crate::checkpoint::site::Site;
use crate::checkpoint::table;
use crate::checkpoint::table::again;
use crate::ranks::comm::Comm;
use crate::ranks::ring::{receive, send};
use crate::{AppError, Result};

const OP: &str = "copy the checkpoint between ranks";

fn wrong(what: &str) -> AppError {
    AppError::Store {
        op: OP,
        source: StoreError::Misuse {
            op: "read what another rank sent",
            what: what.into(),
        },
    }
}

/// A checkpoint that is sent.
pub(crate) struct Outgoing {
    header: Vec<u8>,
    table: ChunkTable,
    reader: ChunkReader,
}

impl Outgoing {
    /// Opens a checkpoint for sending.
    pub(crate) fn open(site: &Site, image: &Image) -> Result<Self> {
        Self::with(site, image, image.manifest())
    }

    /// With a header that is the same for every copy of the checkpoint.
    pub(crate) fn of_any_copy(site: &Site, image: &Image) -> Result<Self> {
        Self::with(site, image, &image.manifest().uncommitted())
    }

    fn with(site: &Site, image: &Image, manifest: &Manifest) -> Result<Self> {
        let op = AppError::store(OP);
        let table = image.chunk_table().map_err(&op)?;
        let manifest = manifest.encode();
        let mut header = (manifest.len() as u64).to_le_bytes().to_vec();
        header.extend_from_slice(&manifest);
        header.extend_from_slice(&again(&table, OP)?.encode());
        Ok(Self {
            header,
            table,
            reader: site.store.reader().map_err(&op)?,
        })
    }

    /// The first message.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Its chunks.
    pub(crate) fn table(&self) -> &ChunkTable {
        &self.table
    }

    /// The messages that a receiver's answer asks for.
    pub(crate) fn groups(&self, answer: &[u8]) -> Vec<Vec<usize>> {
        let numbers = answer.as_chunks::<8>().0.iter();
        let wanted: Vec<usize> = numbers.map(|b| u64::from_le_bytes(*b) as usize).collect();
        groups(&self.table, &wanted)
    }

    /// One of them; empty when it cannot be read, which the receiver takes for a failure.
    pub(crate) fn message(&self, group: &[usize]) -> Result<Vec<u8>> {
        let mut message = Vec::new();
        for index in group {
            let chunk = self.table.records()[*index];
            let at = message.len();
            message.resize(at + chunk.length as usize, 0);
            self.reader
                .read_verified(&chunk.id, &mut message[at..])
                .map_err(AppError::store(OP))?;
        }
        Ok(message)
    }

    /// Sends all of it to one rank.
    pub(crate) fn send(&self, comm: &dyn Comm, to: u32) -> Result<()> {
        send(comm, to, &self.header)?;
        let mut result = Ok(());
        for group in self.groups(&receive(comm, to)?) {
            let message = self.message(&group).unwrap_or_else(|e| {
                result = Err(e);
                Vec::new()
            });
            send(comm, to, &message)?;
        }
        result
    }
}

/// What a header says.
pub(crate) fn decode(header: &[u8]) -> Result<(Manifest, ChunkTable)> {
    let op = AppError::store(OP);
    let Some((length, rest)) = header.split_first_chunk::<8>() else {
        return Err(wrong("it could not read its checkpoint"));
    };
    let length = u64::from_le_bytes(*length) as usize;
    let Some((manifest, table)) = rest.split_at_checked(length) else {
        return Err(wrong("its header is cut"));
    };
    let from = Path::new("received header");
    Ok((
        Manifest::decode(manifest, from).map_err(&op)?,
        ChunkTable::decode(table, from).map_err(&op)?,
    ))
}

/// A checkpoint that is received.
pub(crate) struct Incoming {
    manifest: Manifest,
    table: ChunkTable,
    draft: Draft,
    writer: PackWriter,
    wanted: Vec<usize>,
    /// Chunks whose place in the store does not hold them any more.
    damaged: HashSet<ChunkId>,
    site: Site,
    failure: Option<AppError>,
}

impl Incoming {
    /// Begins with a header. The copy will lie in `site`, in place of a damaged one with its number. With
    /// `check`, what the store has is read first, and taken anew if it is damaged.
    pub(crate) fn open(site: &Site, header: &[u8], check: bool) -> Result<Self> {
        let op = AppError::store(OP);
        let (manifest, table) = decode(header)?;
        let record = Record::in_manifest(&manifest);
        let record = record.ok_or_else(|| wrong("its header describes no checkpoint"))?;
        site.clear(record.sequence)?;
        let name = Layout::name(record.sequence);
        let draft = Draft::create(&site.store, &site.layout.rank, &name).map_err(&op)?;
        let writer = site.store.begin().map_err(&op)?;
        let reader = site.store.reader().map_err(&op)?;
        let (mut damaged, mut scratch) = (HashSet::new(), Vec::new());
        let mut wanted = Vec::new();
        for index in crate::checkpoint::table::once(&table) {
            let chunk = table.records()[index];
            if !writer.put_known(&chunk.id, u64::from(chunk.length)) {
                wanted.push(index);
            } else if check && reader.verify(&chunk.id, &mut scratch).is_err() {
                damaged.insert(chunk.id);
                wanted.push(index);
            }
        }
        let lacks = wanted
            .iter()
            .filter(|i| !damaged.contains(&table.records()[**i].id));
        let lengths = lacks.map(|i| u64::from(table.records()[*i].length));
        site.store.check_room(OP, lengths).map_err(&op)?;
        Ok(Self {
            manifest,
            table,
            draft,
            writer,
            wanted,
            damaged,
            site: site.clone(),
            failure: None,
        })
    }

    /// What it lacks, for the sender.
    pub(crate) fn answer(&self) -> Vec<u8> {
        let numbers = self.wanted.iter();
        numbers.flat_map(|i| (*i as u64).to_le_bytes()).collect()
    }

    /// Its chunks.
    pub(crate) fn table(&self) -> &ChunkTable {
        &self.table
    }

    /// Whether the chunk with this number must be given to [`Incoming::take`].
    pub(crate) fn lacks(&self, index: usize) -> bool {
        self.wanted.binary_search(&index).is_ok()
    }

    /// The messages that will come.
    pub(crate) fn groups(&self) -> Vec<Vec<usize>> {
        groups(&self.table, &self.wanted)
    }

    /// Stores a message.
    pub(crate) fn take(&mut self, group: &[usize], message: &[u8]) {
        if let Err(e) = self.put(group, message) {
            self.failure.get_or_insert(e);
        }
    }

    fn put(&self, group: &[usize], message: &[u8]) -> Result<()> {
        let mut rest = message;
        for index in group {
            let chunk = self.table.records()[*index];
            let Some((bytes, more)) = rest.split_at_checked(chunk.length as usize) else {
                return Err(wrong("it could not read its checkpoint"));
            };
            if ChunkId::of(bytes) != chunk.id {
                return Err(wrong("a chunk came with other content"));
            }
            let stored = match self.damaged.contains(&chunk.id) {
                true => self.site.store.mend(&chunk.id, bytes).map(drop),
                false => self.writer.put(&chunk.id, bytes).map(drop),
            };
            stored.map_err(AppError::store(OP))?;
            rest = more;
        }
        Ok(())
    }

    /// Completes the copy.
    pub(crate) fn finish(self) -> Result<()> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.writer.finish().map_err(AppError::store(OP))?;
        table::commit(self.draft, &self.table, self.manifest, OP)
    }

    /// Receives all of a checkpoint from one rank.
    pub(crate) fn receive(comm: &dyn Comm, from: u32, site: &Site) -> Result<()> {
        let header = receive(comm, from)?;
        let opened = Self::open(site, &header, true);
        let answer = opened.as_ref().map_or(Vec::new(), Self::answer);
        if !header.is_empty() {
            send(comm, from, &answer)?;
        }
        let mut incoming = opened?;
        for group in incoming.groups() {
            let message = receive(comm, from)?;
            incoming.take(&group, &message);
        }
        incoming.finish()
    }
}

/// Chunks that travel together: as many as fit a piece, in the table's order.
fn groups(table: &ChunkTable, wanted: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut bytes = PIECE;
    for index in wanted {
        let Some(chunk) = table.records().get(*index) else {
            continue;
        };
        bytes += chunk.length as usize;
        if bytes > PIECE {
            groups.push(Vec::new());
            bytes = chunk.length as usize;
        }
        if let Some(group) = groups.last_mut() {
            group.push(*index);
        }
    }
    groups
}
