//! What the analysis answers, and how it is asked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::solver::Solver;
use crate::ast::{Function, Item, Module, Name};

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

/// The summaries of a module's kernels.
#[derive(Debug, Clone, Default)]
pub struct Analysis {
    kernels: BTreeMap<Name, Summary>,
}

impl Analysis {
    /// Analyses every kernel of a module.
    pub fn of(module: &Module) -> Self {
        let functions: HashMap<&str, &Function> = module
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Function(f) if f.body.is_some() => Some((&*f.name, f)),
                _ => None,
            })
            .collect();
        let variables = module
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Variable(v) => Some((v.name.clone(), v.space)),
                _ => None,
            })
            .collect();
        let kernels = functions.values().filter(|f| f.entry);
        let kernels = kernels
            .map(|f| {
                (
                    f.name.clone(),
                    Solver::new(&functions, &variables).kernel(f),
                )
            })
            .collect();
        Analysis { kernels }
    }

    /// The summary of a kernel.
    pub fn kernel(&self, name: &str) -> Option<&Summary> {
        self.kernels.get(name)
    }

    /// All kernels with their summaries.
    pub fn kernels(&self) -> impl Iterator<Item = (&str, &Summary)> {
        self.kernels
            .iter()
            .map(|(name, summary)| (&**name, summary))
    }
}
