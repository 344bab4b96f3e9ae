//! The heat map of a trace: which kind of operation touched which buffer when, in a bounded number of columns and rows.

use std::collections::HashMap;

use fermata_abi::op::Address;
use fermata_control::trace::Buffer;
use fermata_engine::access::Range;

/// Columns; when time goes beyond the last, every two become one.
const COLUMNS: usize = 400;
/// Width of a column at first, in seconds.
const FIRST_WIDTH: f64 = 0.001;
/// Rows; buffers beyond them share one.
const ROWS: usize = 4096;

/// Counts of one buffer.
struct Row {
    kind: &'static str,
    reads: Vec<u32>,
    writes: Vec<u32>,
}

/// See the module.
pub(super) struct Heat {
    width: f64,
    rows: HashMap<Range, Row>,
}

impl Heat {
    pub fn new() -> Self {
        Self {
            width: FIRST_WIDTH,
            rows: HashMap::new(),
        }
    }

    /// Seconds of one column.
    pub fn width(&self) -> f64 {
        self.width
    }

    /// Counts an access at `time`, in seconds from the start.
    pub fn add(&mut self, buffer: Range, kind: &'static str, time: f64, write: bool) {
        while time >= self.width * COLUMNS as f64 {
            self.halve();
        }
        let column = (time / self.width) as usize;
        let full = self.rows.len() >= ROWS && !self.rows.contains_key(&buffer);
        let (buffer, kind) = if full {
            (
                Range {
                    start: Address::NULL,
                    len: 0,
                },
                "others",
            )
        } else {
            (buffer, kind)
        };
        let row = self.rows.entry(buffer).or_insert_with(|| Row {
            kind,
            reads: Vec::new(),
            writes: Vec::new(),
        });
        let counts = if write {
            &mut row.writes
        } else {
            &mut row.reads
        };
        if counts.len() <= column {
            counts.resize(column + 1, 0);
        }
        counts[column] = counts[column].saturating_add(1);
    }

    fn halve(&mut self) {
        self.width *= 2.0;
        let joined = |counts: &mut Vec<u32>| {
            *counts = counts
                .chunks(2)
                .map(|pair| pair.iter().fold(0, |sum: u32, n| sum.saturating_add(*n)))
                .collect();
        };
        for row in self.rows.values_mut() {
            joined(&mut row.reads);
            joined(&mut row.writes);
        }
    }

    /// All rows, by address.
    pub fn buffers(&self) -> Vec<Buffer> {
        let mut all: Vec<Buffer> = self
            .rows
            .iter()
            .map(|(range, row)| Buffer {
                kind: row.kind.to_owned(),
                address: range.start.raw(),
                bytes: range.len,
                reads: row.reads.clone(),
                writes: row.writes.clone(),
            })
            .collect();
        all.sort_by_key(|buffer| (buffer.address, buffer.bytes));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_when_columns_are_joined() {
        let mut heat = Heat::new();
        let buffer = Range {
            start: Address::from_raw(0x1000),
            len: 64,
        };
        for n in 0..1000 {
            heat.add(buffer, "allocation", f64::from(n) * 0.01, n % 2 == 0);
        }
        assert!(heat.width() * COLUMNS as f64 > 9.99);
        let rows = heat.buffers();
        let sum = |counts: &[u32]| counts.iter().sum::<u32>();
        assert_eq!((sum(&rows[0].reads), sum(&rows[0].writes)), (500, 500));
        assert!(rows[0].reads.len() <= COLUMNS);
    }

    #[test]
    fn rows_are_bounded() {
        let mut heat = Heat::new();
        for n in 0..2 * ROWS as u64 {
            let buffer = Range {
                start: Address::from_raw(n * 64),
                len: 64,
            };
            heat.add(buffer, "allocation", 0.0, true);
        }
        assert_eq!(heat.buffers().len(), ROWS + 1);
    }
}
