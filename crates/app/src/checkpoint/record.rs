//! What a checkpoint's manifest says about the job and its variables, and whether that fits the program.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fermata_store::StoreError;
use fermata_store::image::{BufferId, ChunkRecord, ChunkTable, Image, Manifest};
use serde::{Deserialize, Serialize};

use crate::variable::{ElementType, Variable, VariableId};
use crate::{AppError, Result};

/// The manifest's key under which a record is kept.
pub(crate) const KEY: &str = "application";

/// A checkpoint as its writer described it. Fields may be added; readers ignore those they do not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The job's name.
    pub job: String,
    /// Number that grows with every checkpoint of the job.
    pub sequence: u64,
    /// The program's own number.
    pub id: i64,
    /// Number of the run that wrote it, the same on all its ranks and later ones higher; 0 in checkpoints of
    /// older releases. Parts with the same `sequence` belong together only if they are of one run.
    #[serde(default)]
    pub run: u64,
    /// Rank that wrote it.
    pub rank: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// Level it was made for.
    pub level: u8,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// What it holds.
    pub variables: Vec<VariableRecord>,
}

/// A variable in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableRecord {
    /// Its number.
    pub id: VariableId,
    /// Type of its elements.
    pub element: ElementType,
    /// Its bytes.
    pub bytes: u64,
}

impl Record {
    /// The record of an image, if it is a checkpoint of this library.
    pub(crate) fn of(image: &Image) -> Result<Self> {
        let wrong = |what: String| damaged(image, what);
        let value = image.manifest().extra.get(KEY);
        let value = value.ok_or_else(|| wrong("this library did not write it".into()))?;
        serde_json::from_value(value.clone())
            .map_err(|e| wrong(format!("it describes itself in an unknown way: {e}")))
    }

    /// That it was written by a job of another size, or by another rank, than this one is.
    pub(crate) fn other_size(&self, folder: PathBuf, rank: u32, ranks: u32) -> AppError {
        AppError::OtherSize {
            folder,
            rank: self.rank,
            ranks: self.ranks,
            now: format!("{rank} of {ranks}"),
        }
    }

    /// The record in a manifest, if there is one that can be read.
    pub(crate) fn in_manifest(manifest: &Manifest) -> Option<Self> {
        let value = manifest.extra.get(KEY)?;
        serde_json::from_value(value.clone()).ok()
    }

    /// The variable of this number.
    pub fn variable(&self, id: VariableId) -> Option<&VariableRecord> {
        self.variables.iter().find(|v| v.id == id)
    }

    /// Whether a protected variable can take what was stored.
    pub(crate) fn fits(&self, variable: &Variable) -> Result<()> {
        let id = variable.id.0;
        let wrong = |what: String| Err(AppError::Mismatch { what });
        let Some(stored) = self.variable(variable.id) else {
            return wrong(format!("variable {id} is protected and was not stored"));
        };
        if stored.element != variable.element {
            return wrong(format!(
                "variable {id} was {} and is {} now",
                stored.element, variable.element
            ));
        }
        if stored.bytes != variable.memory.bytes() {
            return wrong(format!(
                "variable {id} had {} bytes and has {} now",
                stored.bytes,
                variable.memory.bytes()
            ));
        }
        Ok(())
    }
}

fn damaged(image: &Image, what: String) -> AppError {
    AppError::Store {
        op: "check a checkpoint",
        source: StoreError::Damaged {
            path: image.dir().into(),
            what,
        },
    }
}

/// The chunks of each variable, checked to fill it without gaps.
pub(crate) fn chunks_of<'t>(
    image: &Image,
    record: &Record,
    table: &'t ChunkTable,
) -> Result<BTreeMap<VariableId, &'t [ChunkRecord]>> {
    let mut found: BTreeMap<BufferId, &[ChunkRecord]> =
        table.buffers().map(|b| (b.buffer, b.chunks)).collect();
    let wrong = |id: u32| damaged(image, format!("the chunks of variable {id} do not fill it"));
    let mut all = BTreeMap::new();
    for variable in &record.variables {
        let chunks = found
            .remove(&BufferId(u64::from(variable.id.0)))
            .unwrap_or(&[]);
        let mut at = 0;
        for chunk in chunks {
            if chunk.offset != at || chunk.length as usize > crate::buffer::PIECE {
                return Err(wrong(variable.id.0));
            }
            at += u64::from(chunk.length);
        }
        if at != variable.bytes {
            return Err(wrong(variable.id.0));
        }
        all.insert(variable.id, chunks);
    }
    Ok(all)
}
