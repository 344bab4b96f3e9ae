//! What the analysis answers for one kernel.

use std::collections::BTreeSet;

use crate::ast::Name;

/// Eight bytes of a parameter block that may hold a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamSlot {
    /// Which parameter, from 0.
    pub param: usize,
    /// Byte offset within it; `None` when the offset is computed, so any slot of it.
    pub offset: Option<u32>,
}

/// The roots that accesses of one kind go through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots {
    /// Pointers in the parameter block.
    pub params: BTreeSet<ParamSlot>,
    /// Module variables accessed.
    pub symbols: BTreeSet<Name>,
    /// Pointers loaded from global memory: what they point to is unknown before the launch.
    pub loaded: bool,
}

/// What one kernel does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Loads, atomics.
    pub reads: Roots,
    /// Stores, atomics, reductions.
    pub writes: Roots,
    /// Something whose accesses the text does not show: an indirect call, a function that is only
    /// declared, a tensor, surface or bulk copy instruction that this analysis does not read.
    pub opaque: bool,
}
