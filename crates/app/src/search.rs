//! Finding the checkpoint to recover from, together with all ranks: the newest of which every rank has a
//! sound part, at whatever level. This is the first phase of a recovery, integrity.

use std::collections::BTreeMap;
use std::time::Instant;

use fermata_store::image::{ChunkRecord, ChunkTable, Image, verify};

use crate::comm::{Comm, exchange, numbers, together};
use crate::partner::{Holding, Keeper, fetch};
use crate::record::{Record, chunks_of};
use crate::site::Site;
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

    /// The level it is read from.
    pub(crate) fn level(&self) -> Level {
        self.site.level
    }
}

/// What a search found, and why it passed over newer ones.
pub(crate) struct Search {
    pub(crate) found: Option<Found>,
    pub(crate) refused: Vec<String>,
}

/// Searches `sites`, which are in the order in which they are preferred, the rank's own first. What a rank
/// has lost comes back from its partner.
pub(crate) fn search(comm: &dyn Comm, sites: &[Site]) -> Result<Search> {
    let start = Instant::now();
    let mine = together(comm, sequences(sites))?;
    together(comm, fits_job(comm, sites, &mine))?;
    let keeper = Keeper::beside(&sites[0]);
    let holdings = keeper.all(comm)?;
    let mut mine = mine;
    let own = holdings.iter().filter(|h| h.owner == comm.rank());
    mine.extend(own.map(|h| h.sequence));
    mine.sort_unstable();
    mine.dedup();
    let bytes: Vec<u8> = mine.iter().flat_map(|n| n.to_le_bytes()).collect();
    let all = exchange(comm, &bytes)?;
    let mut common = mine;
    for other in &all {
        let theirs: Vec<u64> = other
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| u64::from_le_bytes(*b))
            .collect();
        common.retain(|n| theirs.contains(n));
    }
    let mut refused = Vec::new();
    for sequence in common.into_iter().rev() {
        let part = first_sound(sites, sequence);
        let part = mend(comm, &keeper, &holdings, sequence, part)?;
        match together(comm, part) {
            Ok(mut found) => {
                found.seconds = start.elapsed().as_secs_f64();
                return Ok(Search {
                    found: Some(found),
                    refused,
                });
            }
            Err(e) => refused.push(format!("checkpoint {sequence}: {}", e.text())),
        }
    }
    Ok(Search {
        found: None,
        refused,
    })
}

/// The numbers of all checkpoints this rank has somewhere, ascending.
fn sequences(sites: &[Site]) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for site in sites {
        all.extend(site.layout.sequences()?);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Whether the newest checkpoint was written by a job of this size. Going further back would not help.
fn fits_job(comm: &dyn Comm, sites: &[Site], sequences: &[u64]) -> Result<()> {
    let Some(newest) = sequences.last() else {
        return Ok(());
    };
    for site in sites {
        let record = site.image(*newest).and_then(|image| Record::of(&image));
        let Ok(record) = record else {
            continue;
        };
        if (record.rank, record.ranks) != (comm.rank(), comm.size()) {
            return Err(AppError::Mismatch {
                what: format!(
                    "`{}` was written by rank {} of {}, this is rank {} of {}",
                    site.layout.checkpoint(*newest).display(),
                    record.rank,
                    record.ranks,
                    comm.rank(),
                    comm.size()
                ),
            });
        }
    }
    Ok(())
}

/// Ranks without a sound part get it back from whoever keeps a copy, one after the other.
fn mend(
    comm: &dyn Comm,
    keeper: &Keeper,
    holdings: &[Holding],
    sequence: u64,
    mut part: Result<Found>,
) -> Result<Result<Found>> {
    let sound_at = numbers(comm, u64::from(part.is_ok()))?;
    for (rank, _) in sound_at.iter().enumerate().filter(|(_, ok)| **ok == 0) {
        let wanted = |h: &&Holding| (h.owner as usize, h.sequence) == (rank, sequence);
        let Some(holding) = holdings.iter().find(wanted) else {
            continue;
        };
        let fetched = fetch(comm, keeper, *holding);
        if comm.rank() as usize == rank {
            part = fetched.and_then(|()| sound(keeper.own_site(), sequence));
            if let Ok(found) = &mut part {
                found.site.level = Level::Partner;
            }
        }
    }
    Ok(part)
}

fn first_sound(sites: &[Site], sequence: u64) -> Result<Found> {
    let mut reasons = Vec::new();
    for site in sites {
        if !site.layout.checkpoint(sequence).exists() {
            continue;
        }
        match sound(site, sequence) {
            Ok(found) => return Ok(found),
            Err(e) => reasons.push(format!("{} level: {}", site.level.name(), e.text())),
        }
    }
    Err(AppError::Nothing {
        folder: sites[0].layout.rank.clone(),
        why: format!(": {}", reasons.join("; ")),
    })
}

pub(crate) fn sound(site: &Site, sequence: u64) -> Result<Found> {
    let check = AppError::store("check a checkpoint");
    let image: Image = site.image(sequence)?;
    let record = Record::of(&image)?;
    let report = verify(&image, &site.store, &|_| {}).map_err(&check)?;
    if let Some(damage) = report.damage.first() {
        return Err(check(fermata_store::StoreError::Damaged {
            path: damage.file.clone(),
            what: damage.what.clone(),
        }));
    }
    let table = image.chunk_table().map_err(&check)?;
    chunks_of(&image, &record, &table)?;
    Ok(Found {
        image,
        record,
        site: site.clone(),
        seconds: 0.0,
        table,
    })
}
