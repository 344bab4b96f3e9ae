//! A checkpoint of this rank that has been checked: its description, or every bit of it.

use std::collections::BTreeMap;

use fermata_store::image::{ChunkRecord, ChunkTable, Image, verify};

use super::record::{Record, chunks_of};
use super::site::Site;
use crate::variable::VariableId;
use crate::{AppError, Level, Result};

/// A checkpoint whose every bit has been checked.
pub(crate) struct Found {
    pub(crate) record: Record,
    pub(crate) site: Site,
    pub(crate) seconds: f64,
    image: Image,
    table: ChunkTable,
}

impl Found {
    /// The chunks of each variable.
    pub(crate) fn chunks(&self) -> Result<BTreeMap<VariableId, &[ChunkRecord]>> {
        chunks_of(&self.image, &self.record, &self.table)
    }

    /// All its chunks.
    pub(crate) fn table(&self) -> &ChunkTable {
        &self.table
    }

    /// The level it is read from.
    pub(crate) fn level(&self) -> Level {
        self.site.level
    }
}

/// A checkpoint of which every chunk has been read and checked.
pub(crate) fn sound(site: &Site, sequence: u64) -> Result<Found> {
    let check = AppError::store("check a checkpoint");
    let found = opened(site, sequence)?;
    let report = verify(&found.image, &site.store, &|_| {}).map_err(&check)?;
    if let Some(damage) = report.damage.first() {
        return Err(check(fermata_store::StoreError::Damaged {
            path: damage.file.clone(),
            what: damage.what.clone(),
        }));
    }
    Ok(found)
}

/// A checkpoint whose description is as it was written; its data is not looked at.
pub(crate) fn opened(site: &Site, sequence: u64) -> Result<Found> {
    let image: Image = site.image(sequence)?;
    let record = Record::of(&image)?;
    let table = image
        .chunk_table()
        .map_err(AppError::store("check a checkpoint"))?;
    chunks_of(&image, &record, &table)?;
    Ok(Found {
        image,
        record,
        site: site.clone(),
        seconds: 0.0,
        table,
    })
}
