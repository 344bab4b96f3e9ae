//! The tables of allowed ranges that instrumented kernels search (in device memory), and the records that they write (in
//! pinned memory).
//!
//! ```text
//!  block ─┬─ table of (kernel, stream): header, ranges ── record: 2 words ─┐ pinned
//!         ├─ ...                                                           ├─ address, bytes
//!         └─ unused                                                        ┘
//! ```
//! A table belongs to one kernel in one stream, and is written by a copy in that stream before the launch, so stream
//! order keeps it unchanged while it is used. The tables of an executable graph's kernels are written so if all
//! launches that use them are in one stream; else they stay unchanged, and new tables are used.

use std::collections::HashMap;
use std::sync::Arc;

use fermata_abi::op::{Address, ExecId, FunctionId, StreamRef};
use fermata_device::{DeviceBlock, Driver, DriverError, PinnedWords, StreamHandle};
use fermata_ptx::passes::TABLE_HEADER_BYTES;

use crate::Live;
use crate::access::Range;

/// Device memory taken at a time.
const BLOCK: u64 = 2 << 20;
/// Tables are of this size or a power of two larger.
const SMALLEST: u64 = 256;
/// Records made at a time.
const RECORDS: usize = 512;
/// Offset of the part of a table that a launch may change: count of ranges, ranges.
const VARIABLE_PART: u64 = TABLE_HEADER_BYTES - 8;
/// Tables of graphs that may be replaced by new ones during one capture; beyond that a graph is not checked.
const LEFT: usize = 4096;
/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream.
const NON_BLOCKING: u32 = 1;

/// The first out-of-range access that a kernel has reported.
#[derive(Clone, Copy)]
pub(super) struct Report {
    pub function: FunctionId,
    pub address: Address,
    pub bytes: u64,
}

struct Table {
    function: FunctionId,
    stream: StreamRef,
    address: Address,
    room: u64,
    /// Index of its first record word.
    record: usize,
    /// The ranges that it was last given.
    allowed: Vec<Range>,
}

/// Tables of one kernel in one stream, used in turn.
#[derive(Default)]
struct Turns {
    tables: Vec<usize>,
    next: usize,
}

/// The tables of one context. Dropping them does not free their memory, because work that uses it may be under way;
/// [`Tables::release`] does.
pub(super) struct Tables {
    driver: Arc<Driver>,
    device: u32,
    /// Tables that the launches of a kernel in a stream take turns with.
    depth: usize,
    blocks: Vec<DeviceBlock>,
    /// Bytes used of the last block.
    used: u64,
    words: Vec<PinnedWords>,
    tables: Vec<Table>,
    by_launch: HashMap<(FunctionId, StreamRef), Turns>,
    /// By executable graph and kernel.
    by_graph: HashMap<(ExecId, FunctionId), usize>,
    /// Replaced tables of graphs that launches under way may still use.
    left: Vec<usize>,
    /// Unused tables.
    spare: Vec<usize>,
    /// Reports that were read when a table was used again, or could not be handed over.
    early: Vec<Report>,
    /// Zeros to clear records with, and the stream for those copies, which waits for no kernel.
    zero: PinnedWords,
    aside: StreamHandle,
    buffer: Vec<u8>,
}

impl Tables {
    /// None yet; the context is current.
    pub fn new(driver: &Arc<Driver>, device: u32, depth: usize) -> Result<Self, DriverError> {
        Ok(Self {
            driver: Arc::clone(driver),
            device,
            depth,
            blocks: Vec::new(),
            used: 0,
            words: Vec::new(),
            tables: Vec::new(),
            by_launch: HashMap::new(),
            by_graph: HashMap::new(),
            left: Vec::new(),
            spare: Vec::new(),
            early: Vec::new(),
            zero: PinnedWords::new(driver, 1)?,
            aside: driver.create_stream(NON_BLOCKING, 0)?,
            buffer: Vec::new(),
        })
    }

    /// The table for a launch, holding `allowed`.
    pub fn table(
        &mut self,
        driver: &Driver,
        function: FunctionId,
        stream: StreamRef,
        on: StreamHandle,
        allowed: &[Range],
    ) -> Result<Address, DriverError> {
        let turns = self.by_launch.entry((function, stream)).or_default();
        let turn = turns.next;
        turns.next = (turn + 1) % self.depth;
        if let Some(index) = turns.tables.get(turn).copied() {
            self.collect(index, on)?;
            let table = &mut self.tables[index];
            if table.allowed == allowed || self.rewrite(driver, index, on, allowed)? {
                return Ok(self.tables[index].address);
            }
        }
        let index = self.make(driver, function, stream, on, allowed)?;
        let turns = self.by_launch.entry((function, stream)).or_default();
        match turns.tables.get_mut(turn) {
            Some(table) => *table = index,
            None => turns.tables.push(index),
        }
        Ok(self.tables[index].address)
    }

    /// The table for a kernel of the executable graph `exec`, holding `allowed`, and whether all its users were
    /// launched in this stream. `in_order`: whether that is so for the existing table. `None` if there are too many
    /// tables.
    pub fn table_of_graph(
        &mut self,
        driver: &Driver,
        (exec, function): (ExecId, FunctionId),
        (stream, on): (StreamRef, StreamHandle),
        allowed: &[Range],
        in_order: bool,
    ) -> Result<Option<(Address, bool)>, DriverError> {
        let key = (exec, function);
        if let Some(index) = self.by_graph.get(&key).copied() {
            let table = &self.tables[index];
            // Writes in this stream come before all later work in it.
            let (here, same) = (table.stream == stream, table.allowed == allowed);
            if here && (same || in_order && self.rewrite(driver, index, on, allowed)?) {
                return Ok(Some((self.tables[index].address, in_order)));
            }
            if self.left.len() >= LEFT {
                return Ok(None);
            }
        }
        let index = self.make(driver, function, stream, on, allowed)?;
        self.left.extend(self.by_graph.insert(key, index));
        Ok(Some((self.tables[index].address, true)))
    }

    /// Takes the tables of graphs back, which no launch may use any more, except those of the graphs in `kept`.
    pub fn recycle(&mut self, kept: &dyn Fn(ExecId) -> bool) {
        let gone = self.by_graph.extract_if(|(exec, _), _| !kept(*exec));
        self.spare.extend(gone.map(|(_, index)| index));
        self.spare.append(&mut self.left);
    }

    /// Writes other ranges into a table; false if they do not fit.
    fn rewrite(
        &mut self,
        driver: &Driver,
        index: usize,
        on: StreamHandle,
        allowed: &[Range],
    ) -> Result<bool, DriverError> {
        let (table, bytes) = (&mut self.tables[index], &mut self.buffer);
        write_ranges(bytes, allowed);
        if VARIABLE_PART + bytes.len() as u64 > table.room {
            return Ok(false);
        }
        // If the copy fails, the content of the table is unknown.
        table.allowed.clear();
        driver.copy_from_slice((table.address + VARIABLE_PART).raw(), bytes, on)?;
        table.allowed.extend_from_slice(allowed);
        Ok(true)
    }

    /// A table with these ranges: an unused one, or a new one.
    fn make(
        &mut self,
        driver: &Driver,
        function: FunctionId,
        stream: StreamRef,
        on: StreamHandle,
        allowed: &[Range],
    ) -> Result<usize, DriverError> {
        write_ranges(&mut self.buffer, allowed);
        let needed = VARIABLE_PART + self.buffer.len() as u64;
        let fits = |index: &usize| self.tables[*index].room >= needed;
        let index = match self.spare.iter().position(fits) {
            Some(at) => {
                let index = self.spare.swap_remove(at);
                self.clear_word(self.tables[index].record);
                let table = &mut self.tables[index];
                (table.function, table.stream) = (function, stream);
                table.allowed.clear();
                index
            }
            None => self.add(function, stream, allowed.len() as u64)?,
        };
        let mut bytes = vec![0; VARIABLE_PART as usize];
        let record = self.record_address(self.tables[index].record);
        bytes[8..16].copy_from_slice(&record.to_le_bytes());
        bytes.extend_from_slice(&self.buffer);
        driver.copy_from_slice(self.tables[index].address.raw(), &bytes, on)?;
        self.tables[index].allowed = allowed.to_vec();
        Ok(index)
    }

    /// Frees the memory. No work that uses it may be under way.
    pub fn release(mut self) {
        self.blocks.clear();
        // A stream of a context that is gone is gone too.
        let _ = self.driver.destroy_stream(self.aside);
    }

    /// Collects the report of an earlier launch, before its table is used for another.
    fn collect(&mut self, index: usize, on: StreamHandle) -> Result<(), DriverError> {
        let table = &self.tables[index];
        if self.depth > 1
            && let Some(report) = self.report(table)
        {
            self.early.push(report);
            self.clear_word(table.record);
            self.driver.fill(table.address.raw(), 0, 4, 0, 2, 1, on)?;
        }
        Ok(())
    }

    /// Whether any kernel has reported.
    pub fn has_reports(&self) -> bool {
        self.reported().next().is_some()
    }

    /// The reports as they are, without asking the device.
    pub fn reported(&self) -> impl Iterator<Item = Report> {
        let late = self.tables.iter().filter_map(|table| self.report(table));
        self.early.iter().copied().chain(late)
    }

    /// What the record of a table says.
    fn report(&self, table: &Table) -> Option<Report> {
        let address = self.word(table.record);
        (address != 0).then(|| Report {
            function: table.function,
            address: Address::from_raw(address),
            bytes: self.word(table.record + 1),
        })
    }

    /// Takes the reports, so that kernels report again; kernels under way, too, if launches do not report separately. The
    /// context must be current.
    pub fn take(&mut self, live: &mut Live) -> Result<Vec<Report>, DriverError> {
        for table in &self.tables {
            let Some(report) = self.report(table) else {
                continue;
            };
            self.early.push(report);
            // Cleared first, so that a report after the device's word is cleared is not lost.
            self.clear_word(table.record);
            if self.depth == 1 {
                let zero = self.zero.address(0);
                self.driver.copy(table.address.raw(), zero, 8, self.aside)?;
            }
            // If this fails, the next launch reports in any case. A destroyed stream has no next launch.
            if let Ok(on) = live.stream(table.stream) {
                self.driver.fill(table.address.raw(), 0, 4, 0, 2, 1, on)?;
            }
        }
        Ok(std::mem::take(&mut self.early))
    }

    fn add(
        &mut self,
        function: FunctionId,
        stream: StreamRef,
        ranges: u64,
    ) -> Result<usize, DriverError> {
        // Space for two more ranges, so that a few more need no new table.
        let room = (TABLE_HEADER_BYTES + 16 * (ranges + 2))
            .next_power_of_two()
            .max(SMALLEST);
        let fits = self
            .blocks
            .last()
            .is_some_and(|block| block.size() - self.used >= room);
        if !fits {
            let block = DeviceBlock::new(&self.driver, self.device, BLOCK.max(room))?;
            self.blocks.push(block);
            self.used = 0;
        }
        let base = self.blocks.last().map_or(0, DeviceBlock::address);
        let record = self.tables.len() * 2;
        if record / 2 >= self.words.len() * RECORDS {
            self.words
                .push(PinnedWords::new(&self.driver, RECORDS * 2)?);
        }
        self.tables.push(Table {
            function,
            stream,
            address: Address::from_raw(base + self.used),
            room,
            record,
            allowed: Vec::new(),
        });
        self.used += room;
        Ok(self.tables.len() - 1)
    }

    fn record_address(&self, record: usize) -> u64 {
        let words = self.words.get(record / (2 * RECORDS));
        words.map_or(0, |words| words.address(record % (2 * RECORDS)))
    }

    fn word(&self, index: usize) -> u64 {
        let words = self.words.get(index / (2 * RECORDS));
        words.map_or(0, |words| words.load(index % (2 * RECORDS)))
    }

    fn clear_word(&self, index: usize) {
        if let Some(words) = self.words.get(index / (2 * RECORDS)) {
            words.store(index % (2 * RECORDS), 0);
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.blocks.drain(..).for_each(std::mem::forget);
    }
}

/// Count and ranges as a table has them: sorted, joined where they touch.
fn write_ranges(bytes: &mut Vec<u8>, allowed: &[Range]) {
    let mut ranges: Vec<(Address, Address)> = allowed
        .iter()
        .filter(|range| range.len > 0)
        .map(|range| (range.start, range.start.saturating_add(range.len)))
        .collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joined = next.0 <= last.1;
        if joined {
            last.1 = last.1.max(next.1);
        }
        joined
    });
    bytes.clear();
    bytes.extend_from_slice(&(ranges.len() as u64).to_le_bytes());
    for (start, end) in ranges {
        bytes.extend_from_slice(&start.raw().to_le_bytes());
        bytes.extend_from_slice(&end.raw().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_joined() {
        let range = |start, len| Range {
            start: Address::from_raw(start),
            len,
        };
        let mut bytes = Vec::new();
        let given = [
            range(0x3000, 0x10),
            range(0x1000, 0x100),
            range(0x1100, 0x10),
            range(0x1080, 8),
            range(0x5000, 0),
            range(u64::MAX - 1, 9),
        ];
        write_ranges(&mut bytes, &given);
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        assert_eq!(
            words,
            [3, 0x1000, 0x1110, 0x3000, 0x3010, u64::MAX - 1, u64::MAX]
        );
    }
}
