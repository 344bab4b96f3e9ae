//! Support levels: what the sources implement, qualified by the notes in `crates/abi/support.toml`.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_abi::table::{self, Function};

use crate::exports::Shim;

/// Where the notes are, below the workspace folder.
pub const NOTES: &str = "crates/abi/support.toml";

/// How far a function is supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Level {
    /// As documented by the API.
    Yes,
    /// With the restriction noted.
    Partial(String),
    /// Exported, and refuses.
    No,
}

/// Notes by crate and symbol.
type Notes = BTreeMap<String, BTreeMap<String, String>>;

/// What one shim supports.
pub struct Support {
    implemented: BTreeSet<String>,
    notes: BTreeMap<String, String>,
    /// Why functions are refused, by symbol, or by how symbols begin with a `*` behind it.
    reasons: BTreeMap<String, String>,
}

impl Support {
    /// Reads a shim's sources and notes.
    pub fn of(root: &Path, shim: Shim) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(NOTES))
            .with_context(|| format!("cannot read `{NOTES}`"))?;
        let mut notes: Notes =
            toml::from_str(&text).with_context(|| format!("cannot understand `{NOTES}`"))?;
        let reasons = notes.remove(&format!("{}-refused", shim.name()));
        let notes = notes.remove(shim.name()).unwrap_or_default();
        let known: BTreeSet<_> = table::symbols(table::DRIVER).collect();
        for symbol in notes.keys() {
            ensure!(
                known.contains(symbol.as_str()),
                "`{NOTES}` has a note on `{symbol}` of {}, which no header declares",
                shim.name()
            );
        }
        Ok(Self {
            implemented: shim.implemented(root)?,
            notes,
            reasons: reasons.unwrap_or_default(),
        })
    }

    /// Why a function is refused: the reason that names it most closely.
    pub fn reason(&self, function: &Function) -> Option<&str> {
        let names = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => function.symbol.starts_with(start),
            None => function.symbol == pattern,
        };
        let fitting = self.reasons.iter().filter(|(pattern, _)| names(pattern));
        let exact = |pattern: &str| (!pattern.ends_with('*'), pattern.len());
        let best = fitting.max_by_key(|(pattern, _)| exact(pattern));
        best.map(|(_, reason)| reason.as_str())
    }

    /// The level of a function.
    pub fn level(&self, function: &Function) -> Level {
        if !self.implemented.contains(function.symbol) {
            return Level::No;
        }
        match self.notes.get(function.symbol) {
            Some(note) => Level::Partial(note.clone()),
            None => Level::Yes,
        }
    }
}
