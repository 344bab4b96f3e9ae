//! Finds the memory of a session that contains an address.

use fermata_abi::op::{Address, HostKind};
use fermata_state::Session;

use super::{Range, Target};

/// The lowest address a program can point to; smaller numbers are rejected without a search.
const LOWEST: Address = Address::from_raw(1 << 16);

/// Finds memory by address. Allocations, mappings and host regions are looked up in the session itself. Variables, which
/// the session keeps by name, are looked up in an index that is rebuilt when the session has changed.
#[derive(Debug, Default)]
pub struct Places {
    /// First byte, one past the last.
    variables: Vec<(Address, Address)>,
    /// The session's last buffer number and count of modules when the index was made.
    stamp: (u64, usize),
}

impl Places {
    /// The whole allocation, mapping, host region or variable that contains `address`.
    #[inline]
    pub fn around(&mut self, session: &Session, address: Address) -> Option<Range> {
        if address < LOWEST {
            return None;
        }
        if address.is_on_device() {
            return allocation(session, address).or_else(|| mapping(session, address));
        }
        host_region(session, address).or_else(|| self.variable(session, address))
    }

    /// What a word with this value names, if it is a pointer. Pointers to the end of memory are passed, too, as by reverse
    /// iterators: they name the memory before them.
    pub(super) fn named(&mut self, session: &Session, address: Address) -> Named {
        if self.around(session, address).is_some() {
            return Named::Memory(address);
        }
        if !address.is_on_device() {
            return Named::Nothing;
        }
        let before = address.saturating_sub(1);
        match self.around(session, before) {
            Some(_) => Named::Memory(before),
            None => Named::Open,
        }
    }

    /// The bytes a target stands for; `None` for an array, and for an address in no memory of the session.
    pub fn range(&mut self, session: &Session, target: &Target) -> Option<Range> {
        match target {
            Target::Exactly(range) => Some(*range),
            Target::Around(address) => self.around(session, *address),
            Target::Array(_) => None,
        }
    }

    /// What kind of memory starts at an address that [`Places::around`] has given.
    pub fn kind(&self, session: &Session, start: Address) -> &'static str {
        if session.allocations.contains(start) {
            "allocation"
        } else if session.mappings.contains(start) {
            "mapping"
        } else if session.host_regions.contains(start) {
            "host"
        } else {
            "variable"
        }
    }

    fn variable(&mut self, session: &Session, address: Address) -> Option<Range> {
        let stamp = (session.last_buffer(), session.modules.len());
        if self.stamp != stamp {
            let all = session
                .modules
                .iter()
                .flat_map(|(_, it)| it.variables.values());
            self.variables = all
                .map(|it| (it.address, it.address.saturating_add(it.size)))
                .collect();
            self.variables.sort_unstable();
            self.stamp = stamp;
        }
        let above = self
            .variables
            .partition_point(|(start, _)| *start <= address);
        let (start, end) = *self.variables.get(above.checked_sub(1)?)?;
        (address < end).then_some(Range {
            start,
            len: end - start,
        })
    }
}

/// What a word that may be a pointer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// The live memory that contains this address.
    Memory(Address),
    /// Nothing: it is a number.
    Nothing,
    /// It is a device address, and not in live memory: where a kernel goes from there is not known.
    Open,
}

fn within(start: Address, len: u64, address: Address) -> Option<Range> {
    (address - start < len).then_some(Range { start, len })
}

fn allocation(session: &Session, address: Address) -> Option<Range> {
    let (start, it) = session.allocations.at_or_below(address)?;
    within(start, it.size, address)
}

fn mapping(session: &Session, address: Address) -> Option<Range> {
    let (start, it) = session.mappings.at_or_below(address)?;
    within(start, it.size, address)
}

fn host_region(session: &Session, address: Address) -> Option<Range> {
    let (start, it) = session.host_regions.at_or_below(address)?;
    // Memory that other processes may write, too, is no data of the session.
    let own = it.kind != HostKind::Shared;
    within(start, it.size, address).filter(|_| own)
}
