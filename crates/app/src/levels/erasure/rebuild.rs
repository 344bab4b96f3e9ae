//! Computing lost checkpoints again from what a group has left.
//!
//! All ranks first say what they have: their checkpoint, and parity that is whole. From that everybody knows
//! of every group whether enough is left. Then, stripe by stripe, the members that have something send it to
//! the first that has lost its block, which computes all that are lost and sends the others theirs.

use std::collections::HashMap;

use fermata_store::image::{BufferId, ChunkTable, Image, verify};
use fermata_store::{ChunkId, ChunkReader, StoreError};

use super::Erasure;
use super::code;
use super::parity::Parity;
use crate::checkpoint::stream::{Reading, Writing};
use crate::ranks::comm::{Comm, exchange};
use crate::{AppError, Result};

const OP: &str = "compute a lost checkpoint again";

/// Gives every rank that has lost its checkpoint of this number and run the checkpoint back, where its group has
/// enough left. `sound` says of every rank whether it has its checkpoint. Returns whether this rank has got
/// it back. Collective.
pub(crate) fn rebuild(
    comm: &dyn Comm,
    erasure: &Erasure,
    (sequence, run): (u64, u64),
    sound: &[bool],
) -> Result<Option<Result<()>>> {
    let own = OwnParity::open(erasure, sequence).filter(|own| own.parity.run == run);
    let text = own.as_ref().map_or(Vec::new(), |own| own.parity.encode());
    let said: Vec<_> = exchange(comm, &text)?
        .iter()
        .map(|text| Parity::decode(text).filter(|p| (p.sequence, p.run) == (sequence, run)))
        .collect();
    let mut groups: Vec<&Parity> = Vec::new();
    for parity in said.iter().flatten() {
        let known =
            |m: &u32| (*m as usize) < sound.len() && !groups.iter().any(|g| g.members.contains(m));
        if parity.members.iter().all(known) {
            groups.push(parity);
        }
    }
    let mut ours = None;
    for parity in groups {
        let Some(place) = parity.members.iter().position(|m| *m == comm.rank()) else {
            continue;
        };
        let left = Left {
            data: parity.members.iter().map(|m| sound[*m as usize]).collect(),
            parity: parity
                .members
                .iter()
                .map(|m| said[*m as usize].as_ref() == Some(parity))
                .collect(),
        };
        if left.data.iter().all(|sound| *sound) {
            continue;
        }
        ours = Some(match left.enough(parity) {
            Err(e) => Err(e),
            Ok(()) => Rebuilding::begin(erasure, parity, &left, place, own.as_ref()).run(comm)?,
        });
    }
    Ok(ours)
}

/// What the members of a group have left.
struct Left {
    data: Vec<bool>,
    parity: Vec<bool>,
}

impl Left {
    /// Whether every stripe can be computed again.
    fn enough(&self, parity: &Parity) -> Result<()> {
        let stripes = parity.stripes();
        for stripe in 0..stripes.members {
            let lost = stripes.giving(stripe).filter(|m| !self.data[*m]).count();
            let rows = stripes.holding(stripe).filter(|m| self.parity[*m]).count();
            if lost > rows {
                return Err(AppError::Store {
                    op: OP,
                    source: StoreError::Misuse {
                        op: "use the parity of the group",
                        what: format!(
                            "of ranks {:?} too many have lost their files; {} can be",
                            parity.members, parity.losses
                        ),
                    },
                });
            }
        }
        Ok(())
    }
}

/// This rank's parity of a checkpoint, every bit checked.
struct OwnParity {
    parity: Parity,
    blocks: HashMap<(BufferId, u64), ChunkId>,
    reader: ChunkReader,
}

impl OwnParity {
    fn open(erasure: &Erasure, sequence: u64) -> Option<Self> {
        let site = &erasure.parity;
        let image: Image = site.image(sequence).ok()?;
        let parity = Parity::of(&image).ok()?;
        let report = verify(&image, &site.store, &|_| {}).ok()?;
        let table: ChunkTable = image.chunk_table().ok()?;
        let blocks = table.records().iter();
        report.is_sound().then_some(Self {
            blocks: blocks.map(|r| ((r.buffer, r.offset), r.id)).collect(),
            reader: site.store.reader().ok()?,
            parity,
        })
    }

    fn read(&self, stripe: usize, window: u64) -> Result<Vec<u8>> {
        let mut row = vec![0; self.parity.block as usize];
        let place = (BufferId(stripe as u64), window * self.parity.block);
        let id = self
            .blocks
            .get(&place)
            .ok_or(AppError::Fault("a group's parity"))?;
        let read = self.reader.read_verified(id, &mut row);
        read.map_err(AppError::store(OP))?;
        Ok(row)
    }
}

/// A rank's part in computing its group's lost checkpoints.
struct Rebuilding<'a> {
    parity: &'a Parity,
    left: &'a Left,
    own: usize,
    rows: Option<&'a OwnParity>,
    /// Our checkpoint, if we have it.
    reading: Option<Reading>,
    /// Our checkpoint, if we have lost it.
    writing: Option<Writing>,
    failure: Option<AppError>,
}

impl<'a> Rebuilding<'a> {
    fn begin(
        erasure: &Erasure,
        parity: &'a Parity,
        left: &'a Left,
        own: usize,
        rows: Option<&'a OwnParity>,
    ) -> Self {
        let site = &erasure.local;
        let (mut reading, mut writing, mut failure) = (None, None, None);
        if left.data[own] {
            let opened = site
                .image(parity.sequence)
                .and_then(|image| Reading::open(site, &image, parity.header));
            match opened {
                Ok(opened) => reading = Some(opened),
                Err(e) => failure = Some(e),
            }
        } else {
            writing = Some(Writing::new(site, parity.streams[own].header));
        }
        Self {
            parity,
            left,
            own,
            rows,
            reading,
            writing,
            failure,
        }
    }

    /// All windows. The outer error is the message passing's.
    fn run(mut self, comm: &dyn Comm) -> Result<Result<()>> {
        let stripes = self.parity.stripes();
        for window in 0..stripes.windows(self.parity.longest()) {
            for stripe in 0..stripes.members {
                self.stripe(comm, window, stripe)?;
            }
        }
        Ok(match (self.failure, self.writing) {
            (Some(e), _) => Err(e),
            (None, Some(writing)) => writing.finish(),
            (None, None) => Ok(()),
        })
    }

    fn stripe(&mut self, comm: &dyn Comm, window: u64, stripe: usize) -> Result<()> {
        let stripes = self.parity.stripes();
        let giving: Vec<_> = stripes.giving(stripe).collect();
        let described = self.parity;
        let bytes = |member: usize| described.given(window, stripe, member).1;
        let lost: Vec<_> = giving
            .iter()
            .copied()
            .filter(|m| !self.left.data[*m] && bytes(*m) > 0)
            .collect();
        let Some(&leader) = lost.first() else {
            return Ok(());
        };
        let unknown = lost.len();
        let rows: Vec<_> = stripes
            .holding(stripe)
            .enumerate()
            .filter(|(_, member)| self.left.parity[*member])
            .take(unknown)
            .collect();
        if leader != self.own {
            let to = self.parity.members[leader];
            if self.left.data[self.own] && giving.contains(&self.own) && bytes(self.own) > 0 {
                let piece = self.piece(window, stripe);
                comm.send(&piece, to)?;
            } else if rows.iter().any(|(_, member)| *member == self.own) {
                let row = self.row(stripe, window);
                comm.send(&row, to)?;
            }
            if lost.contains(&self.own) {
                let mut piece = vec![0; bytes(self.own)];
                comm.receive(&mut piece, to)?;
                self.found(&piece);
            }
            return Ok(());
        }
        let block = stripes.block as usize;
        let mut data = Vec::with_capacity(giving.len());
        for member in &giving {
            let mut piece = vec![0; block];
            let bytes = bytes(*member);
            if lost.contains(member) {
                data.push(None);
                continue;
            }
            if bytes > 0 {
                comm.receive(&mut piece[..bytes], self.parity.members[*member])?;
            }
            data.push(Some(piece));
        }
        let mut parity = vec![None; stripes.losses];
        for (row, member) in &rows {
            let mut piece = vec![0; block];
            comm.receive(&mut piece, self.parity.members[*member])?;
            parity[*row] = Some(piece);
        }
        if let Err(e) = code::decode(&mut data, &parity, block) {
            self.failure.get_or_insert(e);
        }
        for (i, member) in giving.iter().enumerate() {
            if !lost.contains(member) {
                continue;
            }
            let blank = vec![0; block];
            let piece = data[i].as_ref().unwrap_or(&blank);
            let piece = &piece[..self.parity.given(window, stripe, *member).1];
            match *member == self.own {
                true => self.found(piece),
                false => comm.send(piece, self.parity.members[*member])?,
            }
        }
        Ok(())
    }

    fn found(&mut self, piece: &[u8]) {
        if let Some(writing) = &mut self.writing {
            writing.push(piece);
        }
    }

    /// Our block of a stripe; zeros if it cannot be read, which its receiver notices.
    fn piece(&mut self, window: u64, stripe: usize) -> Vec<u8> {
        let (offset, bytes) = self.parity.given(window, stripe, self.own);
        let mut piece = vec![0; bytes];
        if let Some(reading) = &mut self.reading
            && let Err(e) = reading.read(offset, &mut piece)
        {
            self.failure.get_or_insert(e);
        }
        piece
    }

    fn row(&mut self, stripe: usize, window: u64) -> Vec<u8> {
        let row = self.rows.map(|rows| rows.read(stripe, window));
        row.unwrap_or(Err(AppError::Fault("a group's parity")))
            .unwrap_or_else(|e| {
                self.failure.get_or_insert(e);
                vec![0; self.parity.block as usize]
            })
    }
}
