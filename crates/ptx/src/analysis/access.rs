//! How the analysis is asked.

use std::collections::{BTreeMap, HashMap};

use super::solver::Solver;
use super::summary::Summary;
use crate::ast::{Function, Item, Module, Name};

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
