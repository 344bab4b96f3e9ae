//! Finding the checkpoint to recover from, together with all ranks: the newest of which every rank has a
//! sound part, at whatever level. This is the first phase of a recovery, integrity.

use std::time::Instant;

use crate::checkpoint::found::{Found, sound};
use crate::checkpoint::record::Record;
use crate::checkpoint::site::Site;
use crate::levels::object::Objects;
use crate::levels::peers::{Kept, Peers};
use crate::ranks::comm::{Comm, in_all, lists, numbers, together};
use crate::{AppError, Level, Result};

/// What a search found, and why it passed over newer ones.
pub(crate) struct Search {
    pub(crate) found: Option<Found>,
    pub(crate) refused: Vec<String>,
    /// Where a checkpoint of this rank was not as it was written.
    pub(crate) harm: Harm,
    /// What did not keep it from finding something.
    pub(crate) note: Option<String>,
    /// The highest number of a checkpoint that any rank has anything of.
    pub(crate) highest: u64,
}

/// Which stores hold checkpoints that are not as they were written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Harm {
    /// This rank's own.
    pub(crate) own: bool,
    /// That of another level, which all ranks use.
    pub(crate) further: bool,
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
    let (uploaded, unreached) = match objects.map(Objects::sequences).transpose() {
        Ok(sequences) => (sequences.unwrap_or_default(), None),
        Err(e) => (Vec::new(), Some(e)),
    };
    // Of what lies elsewhere, only what is newer than all that lies here says anything about the job.
    let here = numbers(comm, mine.last().copied().unwrap_or(0))?;
    let here = here.into_iter().max().unwrap_or(0);
    let (rank, ranks) = (comm.rank(), comm.size());
    let fits = fits_job(comm, sites, &mine)
        .and_then(|()| peers.map_or(Ok(()), |peers| peers.fits(rank, here)))
        .and_then(|()| {
            let newest = uploaded.last().copied().filter(|n| *n > here);
            let objects = objects.zip(newest);
            objects.map_or(Ok(()), |(objects, n)| objects.fits(n, rank, ranks))
        });
    together(comm, fits)?;
    let kept = peers.map(|peers| peers.kept(comm)).transpose()?;
    let mut mine = mine;
    mine.extend(&uploaded);
    mine.extend(kept.iter().flat_map(|kept| kept.of(comm.rank())));
    mine.sort_unstable();
    mine.dedup();
    let all = lists(comm, &mine)?;
    let highest = all.iter().flatten().copied().max().unwrap_or(0);
    let places = Places {
        comm,
        sites,
        peers: peers.zip(kept.as_ref()),
        objects,
        uploaded,
    };
    let mut refused = Vec::new();
    let mut harm = Harm::default();
    for sequence in in_all(&all).into_iter().rev() {
        match places.take(sequence, &mut harm)? {
            Ok(mut found) => {
                found.seconds = start.elapsed().as_secs_f64();
                return Ok(Search {
                    found: Some(found),
                    refused,
                    harm,
                    note: unreached.map(|e| e.text()),
                    highest,
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
        harm,
        note: None,
        highest,
    })
}

/// Where parts of checkpoints can be.
struct Places<'a> {
    comm: &'a dyn Comm,
    sites: &'a [Site],
    peers: Option<(&'a Peers, &'a Kept)>,
    objects: Option<&'a Objects>,
    uploaded: Vec<u64>,
}

impl Places<'_> {
    /// Every rank's part of this checkpoint, all of one run; the newest run of which all ranks have theirs.
    /// `harm` says where a part was not as it was written. The outer error is the message passing's.
    fn take(&self, sequence: u64, harm: &mut Harm) -> Result<Result<Found>> {
        let mut runs = in_all(&lists(self.comm, &self.runs(sequence))?);
        runs.sort_unstable();
        let mut failure = None;
        for run in runs.into_iter().rev() {
            match self.of_run((sequence, run), harm)? {
                Ok(found) => return Ok(Ok(found)),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        if let Some(e) = failure {
            return Ok(Err(e));
        }
        // No run that all ranks have: what cannot be read is the reason, or parts that do not belong together.
        let unreadable = first_sound(self.sites, sequence, Wanted::new(self.comm, None), harm);
        harm.own |= unreadable.is_err();
        let apart = || AppError::Mismatch {
            what: "the ranks have parts of different runs of the job".into(),
        };
        let said = together(self.comm, unreadable.map(drop));
        Ok(said.and_then(|()| Err(apart())))
    }

    /// The runs of which this rank can have its part of this checkpoint.
    fn runs(&self, sequence: u64) -> Vec<u64> {
        let here = self.sites.iter().filter_map(|site| {
            let record = site.image(sequence).and_then(|image| Record::of(&image));
            Some(record.ok()?.run)
        });
        let mut runs: Vec<u64> = here.collect();
        if let Some((_, kept)) = self.peers {
            runs.extend(kept.runs(self.comm.rank(), sequence));
        }
        if let Some(objects) = self.objects.filter(|_| self.uploaded.contains(&sequence)) {
            runs.extend(objects.record(sequence).ok().map(|record| record.run));
        }
        runs.sort_unstable();
        runs.dedup();
        runs
    }

    fn of_run(&self, (sequence, run): (u64, u64), harm: &mut Harm) -> Result<Result<Found>> {
        let own = &self.sites[0];
        let wanted = Wanted::new(self.comm, Some(run));
        let part = first_sound(self.sites, sequence, wanted, harm);
        harm.own |= match &part {
            Ok(found) => found.site.level != own.level,
            Err(_) => true,
        };
        let part = match self.peers {
            Some((peers, kept)) => mend(self.comm, (peers, kept), own, (sequence, run), part)?,
            None => part,
        };
        let part = match (part, self.objects) {
            (Err(e), Some(objects)) if self.uploaded.contains(&sequence) => {
                download(objects, own, sequence, &e).and_then(|found| wanted.check(found))
            }
            (part, _) => part,
        };
        Ok(together(self.comm, part))
    }
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
            let folder = site.layout.checkpoint(*newest);
            return Err(record.other_size(folder, comm.rank(), comm.size()));
        }
    }
    Ok(())
}

/// Ranks without a sound part get it back from what their peers keep. Collective.
fn mend(
    comm: &dyn Comm,
    (peers, kept): (&Peers, &Kept),
    own: &Site,
    (sequence, run): (u64, u64),
    part: Result<Found>,
) -> Result<Result<Found>> {
    let Some(back) = peers.mend(comm, kept, (sequence, run), part.is_ok())? else {
        return Ok(part);
    };
    Ok(back.and_then(|level| {
        let wanted = Wanted::new(comm, Some(run));
        let mut found = wanted.check(sound(own, sequence)?)?;
        found.site.level = level;
        Ok(found)
    }))
}

/// Whose part of a checkpoint is looked for, and of which run if that matters.
#[derive(Clone, Copy)]
struct Wanted {
    rank: u32,
    ranks: u32,
    run: Option<u64>,
}

impl Wanted {
    fn new(comm: &dyn Comm, run: Option<u64>) -> Self {
        Self {
            rank: comm.rank(),
            ranks: comm.size(),
            run,
        }
    }

    /// Refuses what is sound and not what is looked for.
    fn check(self, found: Found) -> Result<Found> {
        let record = &found.record;
        if (record.rank, record.ranks) != (self.rank, self.ranks) {
            let folder = found.site.layout.checkpoint(record.sequence);
            return Err(record.other_size(folder, self.rank, self.ranks));
        }
        match self.run {
            Some(run) if record.run != run => Err(AppError::Mismatch {
                what: "it is of another run of the job than the other ranks' parts".into(),
            }),
            _ => Ok(found),
        }
    }
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

/// This rank's part. `harm` says whether one of another level than the rank's own was not as it was written.
fn first_sound(sites: &[Site], sequence: u64, wanted: Wanted, harm: &mut Harm) -> Result<Found> {
    let mut reasons = Vec::new();
    for site in sites {
        if !site.layout.checkpoint(sequence).exists() {
            continue;
        }
        let part = sound(site, sequence);
        harm.further |= part.is_err() && site.level != sites[0].level;
        match part.and_then(|found| wanted.check(found)) {
            Ok(found) => return Ok(found),
            Err(e) => reasons.push(format!("{} level: {}", site.level.name(), e.text())),
        }
    }
    Err(AppError::Nothing {
        folder: sites[0].layout.rank.clone(),
        why: format!(": {}", reasons.join("; ")),
    })
}
