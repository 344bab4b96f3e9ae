//! Finding the checkpoint to recover from, together with all ranks: the newest of which every rank has a
//! sound part, at whatever level. This is the first phase of a recovery, integrity.

use std::collections::BTreeMap;
use std::time::Instant;

use fermata_store::image::{ChunkRecord, ChunkTable, Image, verify};

use crate::comm::{Comm, exchange, together};
use crate::object::Objects;
use crate::peers::{Kept, Peers};
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

    /// All its chunks.
    pub(crate) fn table(&self) -> &ChunkTable {
        &self.table
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
    /// Whether a checkpoint of this rank was not as it was written.
    pub(crate) harmed: bool,
    /// What did not keep it from finding something.
    pub(crate) note: Option<String>,
}

/// Searches `sites`, which are in the order in which they are preferred, the rank's own first. What a rank
/// has lost comes back from its peers.
pub(crate) fn search(
    comm: &dyn Comm,
    sites: &[Site],
    peers: Option<&Peers>,
    objects: Option<&Objects>,
) -> Result<Search> {
    let start = Instant::now();
    let mine = together(comm, sequences(sites))?;
    together(comm, fits_job(comm, sites, &mine))?;
    let kept = peers.map(|peers| peers.kept(comm)).transpose()?;
    let (uploaded, unreached) = match objects.map(Objects::sequences).transpose() {
        Ok(sequences) => (sequences.unwrap_or_default(), None),
        Err(e) => (Vec::new(), Some(e)),
    };
    let mut mine = mine;
    mine.extend(&uploaded);
    mine.extend(kept.iter().flat_map(|kept| kept.of(comm.rank())));
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
    let mut harmed = false;
    for sequence in common.into_iter().rev() {
        let part = first_sound(sites, sequence);
        harmed |= match &part {
            Ok(found) => found.site.level != sites[0].level,
            Err(_) => true,
        };
        let part = match (peers, &kept) {
            (Some(peers), Some(kept)) => mend(comm, peers, kept, &sites[0], sequence, part)?,
            _ => part,
        };
        let part = match (part, objects) {
            (Err(e), Some(objects)) if uploaded.contains(&sequence) => {
                download(objects, &sites[0], sequence, &e)
            }
            (part, _) => part,
        };
        match together(comm, part) {
            Ok(mut found) => {
                found.seconds = start.elapsed().as_secs_f64();
                return Ok(Search {
                    found: Some(found),
                    refused,
                    harmed,
                    note: unreached.map(|e| e.text()),
                });
            }
            Err(e) => refused.push(format!("checkpoint {sequence}: {}", e.text())),
        }
    }
    // There may be checkpoints that cannot be seen now: to begin afresh is for the user to decide.
    together(comm, unreached.map_or(Ok(()), Err))?;
    Ok(Search {
        found: None,
        refused,
        harmed,
        note: None,
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
            return Err(AppError::OtherSize {
                folder: site.layout.checkpoint(*newest),
                rank: record.rank,
                ranks: record.ranks,
                now: format!("{} of {}", comm.rank(), comm.size()),
            });
        }
    }
    Ok(())
}

/// Ranks without a sound part get it back from what their peers keep. Collective.
fn mend(
    comm: &dyn Comm,
    peers: &Peers,
    kept: &Kept,
    own: &Site,
    sequence: u64,
    part: Result<Found>,
) -> Result<Result<Found>> {
    let Some(back) = peers.mend(comm, kept, sequence, part.is_ok())? else {
        return Ok(part);
    };
    Ok(back.and_then(|level| {
        let mut found = sound(own, sequence)?;
        found.site.level = level;
        Ok(found)
    }))
}

/// Gets a checkpoint from the object store; `other` is why it cannot be had elsewhere.
fn download(objects: &Objects, own: &Site, sequence: u64, other: &AppError) -> Result<Found> {
    let found = objects
        .download(sequence, own)
        .and_then(|()| sound(own, sequence));
    match found {
        Ok(mut found) => {
            found.site.level = Level::Object;
            Ok(found)
        }
        Err(e) => Err(AppError::Nothing {
            folder: own.layout.rank.clone(),
            why: format!(": {}; object store: {}", other.text(), e.text()),
        }),
    }
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
