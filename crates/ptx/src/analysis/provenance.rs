//! Where a value may come from: the lattice of the access analysis.

use std::collections::BTreeSet;

use super::access::ParamSlot;
use crate::ast::Name;

/// Everything a register's value may have been computed from. Join is union, bottom is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Provenance {
    /// Values of kernel parameters.
    pub params: BTreeSet<ParamSlot>,
    /// Addresses of kernel parameters themselves (`mov %rd, param`), by parameter index.
    pub param_addresses: BTreeSet<usize>,
    /// Addresses of module variables.
    pub symbols: BTreeSet<Name>,
    /// Loaded from global memory, or returned by something that is not in the text.
    pub loaded: bool,
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

    /// Adds what `other` has; true if that was anything new.
    pub fn join(&mut self, other: &Provenance) -> bool {
        let before = (
            self.params.len(),
            self.param_addresses.len(),
            self.symbols.len(),
            self.loaded,
            self.private,
        );
        self.params.extend(&other.params);
        self.param_addresses.extend(&other.param_addresses);
        self.symbols.extend(other.symbols.iter().cloned());
        self.loaded |= other.loaded;
        self.private |= other.private;
        before
            != (
                self.params.len(),
                self.param_addresses.len(),
                self.symbols.len(),
                self.loaded,
                self.private,
            )
    }
}
