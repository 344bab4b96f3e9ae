//! Pointers that the program has copied into device memory: which buffers a kernel reaches through a table of them.
//!
//! ```text
//!  copy of at most LONGEST_TABLE bytes to the device
//!      ──► its words that are addresses of the session ──► Table { where, words }      written again: replaced
//!  kernel parameter ──► pointers_behind(parameter) ──► more buffers
//! ```
//! Only copies are seen. What a kernel writes into a table is not, so a table names what the program put there last. The
//! number of tables and of pointers is limited; the tables that were written longest ago are forgotten first.

use std::collections::BTreeMap;

use fermata_abi::op::Address;
use serde::{Deserialize, Serialize};

/// Bytes of the longest copy that is examined, and of the memory behind a pointer in which tables are looked for.
pub const LONGEST_TABLE: u64 = 64 << 10;
/// The most tables that are known.
pub const KNOWN_TABLES: usize = 8192;
/// The most pointers that are known.
pub const KNOWN_POINTERS: usize = 64 << 10;
/// Bytes at the beginning of a long copy that tell whether it is a table.
pub const TABLE_HEAD: u64 = 256;
/// Copies of more bytes are long.
const LONG: u64 = 4096;
const WORD: u64 = size_of::<Address>() as u64;

/// Pointers of one copy that have not been written over since.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    /// Where each lies behind the table's address, and its value; in this order, never empty.
    pointers: Vec<(u32, Address)>,
    /// When it was written: a later one has a greater number.
    written: u64,
}

/// Tables by their address: each begins with a pointer. No two know of the same word.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Listed>", into = "Vec<Listed>")]
pub struct Pointers {
    tables: BTreeMap<Address, Table>,
    /// Pointers of all tables.
    count: usize,
    /// Tables written so far.
    written: u64,
}

/// A table in the records: its address and its pointers, in the order in which tables were written.
type Listed = (Address, Vec<(u32, Address)>);

impl Pointers {
    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether a copy of `len` bytes is worth reading, of which the first, at most [`TABLE_HEAD`], are these. Where a long one
    /// does not begin with pointers it is taken for data: reading all of it could cost more than the copy.
    pub fn may_be_in(len: u64, head: &[u8]) -> bool {
        let (words, _) = head.as_chunks();
        let mut words = words.iter().copied().map(address);
        len <= LONG || (len <= LONGEST_TABLE && words.any(Address::is_of_sessions))
    }

    /// `bytes`, at most [`LONGEST_TABLE`], were copied to `at`.
    pub fn write(&mut self, at: Address, bytes: &[u8]) {
        self.forget(at, bytes.len() as u64);
        let first = at.next_multiple_of(WORD);
        let Some(words) = bytes.get((first - at) as usize..) else {
            return;
        };
        let (words, _) = words.as_chunks();
        let words = words.iter().copied().map(address);
        // Most copies hold no address at all.
        if !words.clone().any(Address::is_of_sessions) {
            return;
        }
        let found = words.enumerate().filter(|(_, word)| word.is_of_sessions());
        let place = |n: usize| first + n as u64 * WORD;
        let found = found.map(|(n, word)| (place(n), word)).collect();
        self.insert(found);
    }

    /// `len` bytes were copied from `from` to `to`, within the device's memory.
    pub fn copy(&mut self, to: Address, from: Address, len: u64) {
        let moved = |(at, pointer): (Address, Address)| {
            let at = to + (at - from);
            at.is_multiple_of(WORD).then_some((at, pointer))
        };
        let found: Vec<_> = match len <= LONGEST_TABLE {
            true => self.within(from, len).filter_map(moved).collect(),
            false => Vec::new(),
        };
        self.forget(to, len);
        self.insert(found);
    }

    /// Something else has been written to `len` bytes at `at`, or they are gone.
    pub fn forget(&mut self, at: Address, len: u64) {
        if self.tables.is_empty() || len == 0 {
            return;
        }
        let end = at.saturating_add(len);
        let starts = at.saturating_sub(LONGEST_TABLE)..end;
        let reach = |(start, table): (&Address, &Table)| {
            let last = table.pointers.last();
            (*start + u64::from(last?.0) + WORD > at).then_some(*start)
        };
        let hit: Vec<Address> = self.tables.range(starts).filter_map(reach).collect();
        for start in hit {
            let Some(table) = self.tables.remove(&start) else {
                continue;
            };
            self.count -= table.pointers.len();
            let apart = |place: Address| place + WORD <= at || place >= end;
            let left = table.pointers.into_iter();
            let left = left.map(|(offset, pointer)| (start + u64::from(offset), pointer));
            let left = left.filter(|(place, _)| apart(*place)).collect();
            self.put(left, table.written);
        }
    }

    /// The pointers in `len` bytes at `at`, with where they lie.
    pub fn within(&self, at: Address, len: u64) -> impl Iterator<Item = (Address, Address)> {
        let end = at.saturating_add(len);
        let tables = self.tables.range(at.saturating_sub(LONGEST_TABLE)..end);
        let all = tables.flat_map(|(start, table)| {
            let pointers = table.pointers.iter();
            pointers.map(move |(offset, pointer)| (*start + u64::from(*offset), *pointer))
        });
        all.filter(move |(place, _)| *place >= at && *place < end)
    }

    fn insert(&mut self, found: Vec<(Address, Address)>) {
        self.written += 1;
        self.put(found, self.written);
        if self.tables.len() > KNOWN_TABLES || self.count > KNOWN_POINTERS {
            self.drop_oldest();
        }
    }

    /// A table of these pointers, in order, of which no other knows.
    fn put(&mut self, found: Vec<(Address, Address)>, written: u64) {
        let Some(&(start, _)) = found.first() else {
            return;
        };
        self.count += found.len();
        let offset = |(place, pointer): (Address, Address)| ((place - start) as u32, pointer);
        let pointers = found.into_iter().map(offset).collect();
        self.tables.insert(start, Table { pointers, written });
    }

    /// Forgets the older half of all tables.
    fn drop_oldest(&mut self) {
        let mut ages: Vec<u64> = self.tables.values().map(|it| it.written).collect();
        let half = ages.len() / 2;
        let (_, median, _) = ages.select_nth_unstable(half);
        let from = *median;
        self.tables.retain(|_, table| table.written >= from);
        self.count = self.tables.values().map(|it| it.pointers.len()).sum();
    }

    fn listed(&self) -> Vec<Listed> {
        let mut all: Vec<_> = self.tables.iter().collect();
        all.sort_by_key(|(start, table)| (table.written, **start));
        let listed = |(start, table): (&Address, &Table)| (*start, table.pointers.clone());
        all.into_iter().map(listed).collect()
    }
}

fn address(word: [u8; WORD as usize]) -> Address {
    Address::from_raw(u64::from_le_bytes(word))
}

impl PartialEq for Pointers {
    fn eq(&self, other: &Self) -> bool {
        self.listed() == other.listed()
    }
}

impl Eq for Pointers {}

impl From<Vec<Listed>> for Pointers {
    fn from(list: Vec<Listed>) -> Self {
        let mut pointers = Self::default();
        for (start, table) in list {
            // The list may come from a file: words are taken one by one where they are not those of a copy.
            let mut found: BTreeMap<Address, Address> = BTreeMap::new();
            for (offset, pointer) in table {
                let place = start.saturating_add(u64::from(offset));
                let fits = place.is_multiple_of(WORD) && u64::from(offset) < LONGEST_TABLE;
                if fits && place.is_on_device() && pointer.is_of_sessions() {
                    pointers.forget(place, WORD);
                    found.insert(place, pointer);
                }
            }
            pointers.insert(found.into_iter().collect());
        }
        pointers
    }
}

impl From<Pointers> for Vec<Listed> {
    fn from(pointers: Pointers) -> Self {
        pointers.listed()
    }
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::{DEVICE_BASE, HOST_BASE};

    use super::*;

    const AT: Address = Address::from_raw(DEVICE_BASE.raw() + 0x1000);

    fn pointer(n: u64) -> Address {
        DEVICE_BASE + (n << 20)
    }

    fn bytes(words: &[Address]) -> Vec<u8> {
        let bytes = words.iter().flat_map(|it| it.raw().to_le_bytes());
        bytes.collect()
    }

    fn behind(pointers: &Pointers, at: Address) -> Vec<Address> {
        let all = pointers.within(at, LONGEST_TABLE);
        all.map(|(_, pointer)| pointer).collect()
    }

    #[test]
    fn of_a_copy_the_words_that_are_addresses_are_known() {
        let mut pointers = Pointers::default();
        let [one, most, number] = [1, u64::MAX, 0x3ff0_0000_0000_0000].map(Address::from_raw);
        let words = [one, pointer(1), most, HOST_BASE, number];
        pointers.write(AT, &bytes(&words));
        let known: Vec<_> = pointers.within(AT, 64).collect();
        assert_eq!(known, [(AT + 8, pointer(1)), (AT + 24, HOST_BASE)]);
        assert_eq!(behind(&pointers, AT + 16), [HOST_BASE]);
        assert_eq!(behind(&pointers, AT + 32), []);
        // A copy to an address that is no multiple of 8 has its words where the device has them.
        let shifted = [&[0; 4][..], &bytes(&[pointer(2)])].concat();
        pointers.write(AT + 0x104, &shifted);
        assert_eq!(behind(&pointers, AT + 0x100), [pointer(2)]);
    }

    #[test]
    fn a_long_copy_that_does_not_begin_with_pointers_is_data() {
        let table = bytes(&[Address::from_raw(1), pointer(1)]);
        let data = [0; TABLE_HEAD as usize];
        assert!(
            Pointers::may_be_in(LONGEST_TABLE, &table)
                && !Pointers::may_be_in(LONGEST_TABLE, &data)
        );
        assert!(
            Pointers::may_be_in(LONG, &data) && !Pointers::may_be_in(LONGEST_TABLE + 1, &table)
        );
    }

    #[test]
    fn what_is_written_over_a_table_takes_its_place() {
        let mut pointers = Pointers::default();
        pointers.write(AT, &bytes(&[1, 2, 3, 4].map(pointer)));
        pointers.write(AT + 8, &bytes(&[pointer(9), Address::NULL]));
        assert_eq!(behind(&pointers, AT), [1, 4, 9].map(pointer));
        pointers.write(AT, &bytes(&[Address::NULL]));
        assert_eq!(behind(&pointers, AT), [9, 4].map(pointer));
        // A part of a word is no pointer any more.
        pointers.forget(AT + 28, 1);
        assert_eq!(behind(&pointers, AT), [pointer(9)]);
        pointers.forget(AT, 64);
        assert!(pointers.is_empty() && pointers.count == 0);
    }

    #[test]
    fn a_copy_on_the_device_takes_pointers_along() {
        let mut pointers = Pointers::default();
        pointers.write(AT, &bytes(&[1, 2, 3].map(pointer)));
        pointers.write(AT + 0x100, &bytes(&[pointer(7)]));
        pointers.copy(AT + 0x100, AT + 8, 16);
        assert_eq!(behind(&pointers, AT + 0x100), [2, 3].map(pointer));
        // What overlaps itself ends as the driver leaves it to: nothing is made up.
        pointers.copy(AT, AT + 8, LONGEST_TABLE + 1);
        assert!(pointers.is_empty());
    }

    #[test]
    fn the_tables_written_longest_ago_are_forgotten_first() {
        let mut pointers = Pointers::default();
        let place = |n: usize| AT + n as u64 * 64;
        for n in 0..=KNOWN_TABLES {
            pointers.write(place(n), &bytes(&[pointer(1)]));
        }
        assert!(pointers.tables.len() <= KNOWN_TABLES);
        assert_eq!(pointers.within(place(0), 64).count(), 0);
        assert_eq!(pointers.within(place(KNOWN_TABLES), 64).count(), 1);
        let long = vec![pointer(1); LONGEST_TABLE as usize / 8];
        for n in 0..=KNOWN_POINTERS / long.len() {
            pointers.write(AT + n as u64 * LONGEST_TABLE, &bytes(&long));
        }
        assert!(pointers.count <= KNOWN_POINTERS && !pointers.is_empty());
        let list = Vec::<Listed>::from(pointers.clone());
        assert_eq!(Pointers::from(list), pointers);
    }

    #[test]
    fn a_list_that_no_copy_made_is_no_harm() {
        let list = vec![
            (AT, vec![(8, pointer(1)), (0, pointer(2)), (8, pointer(3))]),
            (Address::from_raw(u64::MAX), vec![(1, pointer(1))]),
            (AT + 4, vec![(0, pointer(1)), (u32::MAX, pointer(1))]),
            (AT + 8, vec![(0, pointer(4)), (8, Address::from_raw(5))]),
        ];
        let pointers = Pointers::from(list);
        assert_eq!(behind(&pointers, AT), [2, 4].map(pointer));
        assert_eq!(pointers.count, 2);
    }
}
