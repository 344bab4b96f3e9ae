//! Where a value may come from: the lattice of the access analysis.

use std::collections::BTreeSet;

use super::summary::ParamSlot;
use crate::ast::Name;

/// Everything a register's value may have been computed from. Join is union, bottom is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Provenance {
    /// Values of kernel parameters.
    pub params: BTreeSet<ParamSlot>,
    /// Parts or multiples of values of kernel parameters: addresses only if they are put together again.
    pub halves: BTreeSet<ParamSlot>,
    /// Addresses of kernel parameters themselves (`mov %rd, param`), by parameter index.
    pub param_addresses: BTreeSet<usize>,
    /// Addresses of module variables.
    pub symbols: BTreeSet<Name>,
    /// Loaded from global memory, or returned by something that is not in the text.
    pub loaded: bool,
    /// A part or a multiple of such a value: an index, unless it is put together with another part.
    pub index: bool,
    /// The address of a function's own local or shared memory, or of a constant.
    pub private: bool,
}

impl Provenance {
    pub fn param(slot: ParamSlot) -> Self {
        Provenance {
            params: BTreeSet::from([slot]),
            ..Self::default()
        }
    }

    pub fn symbol(name: &Name) -> Self {
        Provenance {
            symbols: BTreeSet::from([name.clone()]),
            ..Self::default()
        }
    }

    pub fn loaded() -> Self {
        Provenance {
            loaded: true,
            ..Self::default()
        }
    }

    pub fn private() -> Self {
        Provenance {
            private: true,
            ..Self::default()
        }
    }

    /// What is left of it in a part of the value, or in a product: no address by itself.
    pub fn narrowed(mut self) -> Self {
        self.halves.append(&mut self.params);
        self.index |= std::mem::take(&mut self.loaded);
        self
    }

    /// What parts are when put together.
    pub fn packed(mut self) -> Self {
        self.params.append(&mut self.halves);
        self.loaded |= std::mem::take(&mut self.index);
        self
    }

    /// Whether something in it is an address as a whole.
    pub fn has_address(&self) -> bool {
        self.loaded
            || self.private
            || !self.params.is_empty()
            || !self.param_addresses.is_empty()
            || !self.symbols.is_empty()
    }

    fn size(&self) -> (usize, usize, usize, usize, [bool; 3]) {
        (
            self.params.len(),
            self.halves.len(),
            self.param_addresses.len(),
            self.symbols.len(),
            [self.loaded, self.index, self.private],
        )
    }

    /// Adds what `other` has; true if that was anything new.
    pub fn join(&mut self, other: &Provenance) -> bool {
        let before = self.size();
        self.params.extend(&other.params);
        self.halves.extend(&other.halves);
        self.param_addresses.extend(&other.param_addresses);
        self.symbols.extend(other.symbols.iter().cloned());
        self.loaded |= other.loaded;
        self.index |= other.index;
        self.private |= other.private;
        before != self.size()
    }
}
