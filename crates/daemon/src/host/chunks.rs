//! The memory of processes that comes on demand from the store. Whatever is read of a chunk, all of it is checked before the program
//! sees it, unless it was checked not long ago and its pack has not changed since.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use fermata_hostmem::demand::{PageBytes, PageFiles};
use fermata_store::image::{BufferId, ChunkRecord, ChunkTable, Image};
use fermata_store::{ChunkId, ChunkReader, Result, Store};
use parking_lot::Mutex;

use crate::helpers::modes::Memory;

/// How many chunks are kept while pages come on demand.
const KEPT: usize = 256;

/// The pages of an image whose memory is in the store, for those that come on demand.
#[derive(Debug)]
pub struct Chunks {
    memory: Memory,
    opened: OnceLock<(Arc<ChunkReader>, Arc<ChunkTable>)>,
    kept: Arc<Mutex<Kept>>,
}

impl Chunks {
    /// Those of `memory`; nothing is read before a file is opened.
    pub fn of(memory: &Memory) -> Self {
        Self {
            memory: memory.clone(),
            opened: OnceLock::new(),
            kept: Arc::default(),
        }
    }

    /// The store and the table. No collection can run until this, and the files that were opened, are dropped.
    fn opened(&self) -> Result<&(Arc<ChunkReader>, Arc<ChunkTable>)> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = self.open_store()?;
        Ok(self.opened.get_or_init(|| opened))
    }

    fn open_store(&self) -> Result<(Arc<ChunkReader>, Arc<ChunkTable>)> {
        let Memory {
            image,
            store,
            copies,
            known,
        } = &self.memory;
        let table = Image::open(image)?.host_table()?.unwrap_or_default();
        let reader = Store::open(store, false)?.reader()?;
        let packs = || reader.pack_versions(table.records().iter().map(|it| &it.id));
        // The same packs, as they were: each chunk is then read where it was found right.
        let reader = match !known.is_empty() && packs().is_ok_and(|packs| packs == *known) {
            true => reader.trusting(known.iter().copied()),
            false => reader,
        };
        let reader = match copies {
            Some(folder) => reader.with_copies(folder),
            None => reader,
        };
        Ok((Arc::new(reader), Arc::new(table)))
    }
}

impl PageFiles for Chunks {
    fn prepare(&self) {
        // What is wrong is told when a file is opened.
        let _ = self.opened();
    }

    fn open(&self, number: u32) -> io::Result<Arc<dyn PageBytes>> {
        let (reader, table) = self.opened().map_err(io::Error::other)?;
        let all = table.records();
        let is_of = |it: &ChunkRecord| it.buffer == BufferId(number.into());
        // The records of one buffer follow each other.
        let first = all.iter().position(is_of).unwrap_or(all.len());
        let count = all[first..].iter().take_while(|it| is_of(it)).count();
        Ok(Arc::new(ChunkFile {
            reader: Arc::clone(reader),
            table: Arc::clone(table),
            records: first..first + count,
            kept: Arc::clone(&self.kept),
        }))
    }
}

/// A file with pages, whose content is in chunks.
#[derive(Debug)]
struct ChunkFile {
    reader: Arc<ChunkReader>,
    table: Arc<ChunkTable>,
    /// Which of the table's.
    records: Range<usize>,
    /// Of all files of the image.
    kept: Arc<Mutex<Kept>>,
}

/// Chunks of which parts were read, and which had the content that they must have: the program is likely to need other parts of them
/// next.
#[derive(Debug, Default)]
struct Kept {
    bytes: HashMap<ChunkId, Vec<u8>>,
    /// The oldest first.
    order: VecDeque<ChunkId>,
}

impl Kept {
    /// The bytes of a chunk.
    fn of(&mut self, record: &ChunkRecord, reader: &ChunkReader) -> Result<&[u8]> {
        if !self.bytes.contains_key(&record.id) {
            let oldest = match self.order.len() < KEPT {
                true => None,
                false => self.order.pop_front(),
            };
            let oldest = oldest.and_then(|id| self.bytes.remove(&id));
            let mut bytes = oldest.unwrap_or_default();
            bytes.resize(record.length as usize, 0);
            reader.read_verified(&record.id, &mut bytes)?;
            self.bytes.insert(record.id, bytes);
            self.order.push_back(record.id);
        }
        Ok(self.bytes.get(&record.id).map_or(&[], Vec::as_slice))
    }
}

impl PageBytes for ChunkFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let (end, mut rest, mut at) = (offset + bytes.len() as u64, bytes, offset);
        for record in self.records_in(offset, end) {
            let part = record.offset.max(offset)..end_of(record).min(end);
            let (zeros, behind) = rest.split_at_mut((part.start - at) as usize);
            zeros.fill(0);
            let (into, behind) = behind.split_at_mut((part.end - part.start) as usize);
            let read = self.read(record, part.start - record.offset, into);
            read.map_err(io::Error::other)?;
            (rest, at) = (behind, part.end);
        }
        rest.fill(0);
        Ok(())
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        for record in self.records_in(offset, offset + bytes) {
            self.reader.will_need(&record.id);
        }
    }
}

/// Where a chunk ends in its file.
fn end_of(record: &ChunkRecord) -> u64 {
    record.offset + u64::from(record.length)
}

impl ChunkFile {
    /// The file's chunks with bytes from `offset` to `end`.
    fn records_in(&self, offset: u64, end: u64) -> impl Iterator<Item = &ChunkRecord> {
        let records = &self.table.records()[self.records.clone()];
        let first = records.partition_point(|it| end_of(it) <= offset);
        records[first..]
            .iter()
            .take_while(move |it| it.offset < end)
    }

    /// Reads from a chunk, from its byte `from` on. All of it is read and checked, unless its pack is known.
    fn read(&self, record: &ChunkRecord, from: u64, into: &mut [u8]) -> Result<()> {
        if self.reader.read_part(&record.id, from, into)? {
            return Ok(());
        }
        if into.len() == record.length as usize {
            return self.reader.read_verified(&record.id, into);
        }
        let mut kept = self.kept.lock();
        let bytes = kept.of(record, &self.reader)?;
        into.copy_from_slice(&bytes[from as usize..][..into.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    use fermata_store::image::ChunkTableWriter;

    use super::*;

    const PAGE: usize = 4096;

    /// Bytes of page `number`, of which every third is zero.
    fn page(number: usize) -> Vec<u8> {
        let byte = |at: usize| (number * 31 + at / 64) as u8 | 1;
        match number % 3 {
            0 => vec![0; PAGE],
            _ => (0..PAGE).map(byte).collect(),
        }
    }

    /// A store with 40 pages of a file in chunks of four pages, some of which are left out, and that file.
    fn stored(folder: &Path) -> (Store, ChunkFile, Vec<u8>) {
        let store = Store::open(&folder.join("store"), true).expect("a store");
        let writer = store.begin().expect("begun");
        let (mut table, mut whole) = (ChunkTableWriter::new(), Vec::new());
        for chunk in 0..10 {
            let bytes = match chunk % 4 {
                3 => vec![0; 4 * PAGE],
                _ => (4 * chunk..4 * chunk + 4).flat_map(page).collect(),
            };
            whole.extend(&bytes);
            if chunk % 4 < 3 {
                let id = ChunkId::of(&bytes);
                writer.put(&id, &bytes).expect("put");
                let offset = (chunk * 4 * PAGE) as u64;
                let pushed = table.push(BufferId(5), offset, 4 * PAGE as u32, id);
                pushed.expect("pushed");
            }
        }
        writer.finish().expect("finished");
        let table = table.into_table();
        let file = ChunkFile {
            reader: Arc::new(store.reader().expect("a reader")),
            records: 0..table.records().len(),
            table: Arc::new(table),
            kept: Arc::default(),
        };
        (store, file, whole)
    }

    #[test]
    fn every_range_is_as_it_was_and_what_no_chunk_has_is_zero() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_store, file, whole) = stored(folder.path());
        for from in 0..40 {
            for count in [1, 2, 5, 16, 40] {
                let range = from * PAGE..((from + count) * PAGE).min(whole.len());
                let mut bytes = vec![7; range.len()];
                file.read_at(&mut bytes, range.start as u64).expect("read");
                assert!(bytes == whole[range], "{count} pages from {from}");
            }
        }
    }

    #[test]
    fn what_is_known_is_read_in_parts_until_its_pack_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_store, mut file, whole) = stored(folder.path());
        let ids: Vec<_> = file.table.records().iter().map(|it| it.id).collect();
        let reader = Arc::into_inner(file.reader).expect("the only one");
        let known = reader.pack_versions(&ids).expect("versions");
        let pack = reader.pack_of(&ids[0]).expect("a pack");
        file.reader = Arc::new(reader.trusting(known));
        let mut bytes = vec![7; whole.len()];
        for (page, bytes) in bytes.chunks_mut(PAGE).enumerate() {
            file.read_at(bytes, (page * PAGE) as u64).expect("read");
        }
        assert!(bytes == whole && file.kept.lock().bytes.is_empty());
        let pack = File::options().append(true).open(pack).expect("opened");
        // Times count in ticks of the clock.
        std::thread::sleep(std::time::Duration::from_millis(50));
        pack.set_permissions(pack.metadata().expect("told").permissions())
            .expect("its properties change");
        let mut one = vec![0; PAGE];
        file.read_at(&mut one, PAGE as u64).expect("read");
        assert!(one == whole[PAGE..2 * PAGE] && !file.kept.lock().bytes.is_empty());
    }

    #[test]
    fn a_page_of_a_damaged_chunk_is_never_had() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_store, file, whole) = stored(folder.path());
        let id = file.table.records()[1].id;
        let (pack, at) = (
            file.reader.pack_of(&id).expect("a pack"),
            file.reader.locate(&id).expect("a place"),
        );
        let pack = File::options().write(true).open(pack).expect("opened");
        // In the chunk's last page.
        let (byte, place) = (4 * PAGE - 9, at.offset + 4 * PAGE as u64 - 9);
        let right = whole[4 * PAGE + byte];
        pack.write_all_at(&[right ^ 1], place).expect("written");
        let mut one = vec![0; PAGE];
        let read = file.read_at(&mut one, 4 * PAGE as u64);
        read.expect_err("its first page is not checked alone");
        file.read_at(&mut one, 8 * PAGE as u64).expect("the next");
        assert!(one == whole[8 * PAGE..9 * PAGE]);
        pack.write_all_at(&[right], place).expect("written");
        let read = file.read_at(&mut one, 4 * PAGE as u64);
        read.expect("what was damaged is read again");
        assert!(one == whole[4 * PAGE..5 * PAGE]);
    }
}
