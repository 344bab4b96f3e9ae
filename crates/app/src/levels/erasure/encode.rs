//! Making a group's parity. All ranks take part; the groups work side by side.
//!
//! For every stripe the members that give data send their block to the first that holds parity, which
//! computes all rows, keeps the first and sends each of the others to its holder. Everybody goes through the
//! stripes in the same order, so no two ranks wait for each other. A rank that fails sends zeros on, and
//! then no rank keeps what was made.

use fermata_store::image::{BufferId, CHUNKS, ChunkTableWriter, Draft, Manifest};
use fermata_store::{ChunkId, PackWriter};

use super::Erasure;
use super::code;
use super::group::Stripes;
use super::parity::{KEY, Parity, Stream};
use crate::checkpoint::layout::Layout;
use crate::checkpoint::record::Record;
use crate::checkpoint::stream::{Header, Reading};
use crate::ranks::comm::{Comm, exchange, together};
use crate::{AppError, Result};

const OP: &str = "write the parity of a checkpoint";

/// Makes the parity of every rank's checkpoint of this number. Collective.
pub(crate) fn encode(comm: &dyn Comm, erasure: &Erasure, sequence: u64) -> Result<()> {
    let opened = erasure
        .local
        .image(sequence)
        .and_then(|image| Reading::open(&erasure.local, &image, Header::AnyCopy));
    let reading = together(comm, opened)?;
    let run = erasure.local.image(sequence).and_then(|i| Record::of(&i));
    let run = together(comm, run)?.run;
    let parity = describe(comm, erasure, (sequence, run), &reading)?;
    let begun = together(comm, Making::begin(comm, erasure, parity, reading))?;
    let made = begun.run(comm)?;
    // No rank keeps parity of data that another could not read.
    let made = together(comm, made)?;
    together(comm, made.commit(erasure))
}

/// The group's record, from what every rank says about its stream.
fn describe(
    comm: &dyn Comm,
    erasure: &Erasure,
    (sequence, run): (u64, u64),
    reading: &Reading,
) -> Result<Parity> {
    let mine = [reading.length(), reading.header().len() as u64].map(u64::to_le_bytes);
    let said = exchange(comm, mine.as_flattened())?;
    let streams: Vec<_> = erasure
        .members
        .iter()
        .filter_map(|m| said.get(*m as usize)?.split_at_checked(8))
        .map(|(bytes, header)| Stream {
            bytes: number(bytes),
            header: number(header),
        })
        .collect();
    let longest = streams.iter().map(|s| s.bytes).max().unwrap_or(0);
    let stripes = Stripes::new(erasure.members.len(), erasure.losses, longest);
    Ok(Parity {
        sequence,
        run,
        header: Header::AnyCopy,
        members: erasure.members.clone(),
        losses: erasure.losses as u32,
        block: stripes.block,
        streams,
    })
}

/// Parity in the making.
struct Making {
    parity: Parity,
    /// Our place among the members.
    own: usize,
    reading: Reading,
    draft: Draft,
    writer: PackWriter,
    /// The names of our parity's blocks, by stripe.
    names: Vec<Vec<ChunkId>>,
    failure: Option<AppError>,
}

/// Parity whose bytes are with the writer.
struct Made {
    parity: Parity,
    draft: Draft,
    writer: PackWriter,
    names: Vec<Vec<ChunkId>>,
}

impl Making {
    fn begin(comm: &dyn Comm, erasure: &Erasure, parity: Parity, reading: Reading) -> Result<Self> {
        let op = AppError::store(OP);
        let site = &erasure.parity;
        let own = parity.members.iter().position(|m| *m == comm.rank());
        let own = own.ok_or(AppError::Fault("the choice of groups"))?;
        site.clear(parity.sequence)?;
        let name = Layout::name(parity.sequence);
        Ok(Self {
            own,
            reading,
            draft: Draft::create(&site.store, &site.layout.rank, &name).map_err(&op)?,
            writer: site.store.begin().map_err(&op)?,
            names: vec![Vec::new(); parity.members.len()],
            parity,
            failure: None,
        })
    }

    /// All windows. The outer error is the message passing's: then nothing more can be said to anybody.
    fn run(mut self, comm: &dyn Comm) -> Result<Result<Made>> {
        let stripes = self.parity.stripes();
        for window in 0..stripes.windows(self.parity.longest()) {
            for stripe in 0..stripes.members {
                self.stripe(comm, window, stripe)?;
            }
        }
        Ok(match self.failure {
            Some(failure) => Err(failure),
            None => Ok(Made {
                parity: self.parity,
                draft: self.draft,
                writer: self.writer,
                names: self.names,
            }),
        })
    }

    fn stripe(&mut self, comm: &dyn Comm, window: u64, stripe: usize) -> Result<()> {
        let stripes = self.parity.stripes();
        let block = stripes.block as usize;
        let holding: Vec<_> = stripes.holding(stripe).collect();
        let giving: Vec<_> = stripes.giving(stripe).collect();
        let given = |member| self.parity.given(window, stripe, member).1;
        let given: Vec<_> = (0..stripes.members).map(given).collect();
        let bytes = |member: usize| given[member];
        let ranks = self.parity.members.clone();
        let rank = |member: usize| ranks[member];
        let empty = giving.iter().all(|m| bytes(*m) == 0);
        if holding[0] != self.own {
            if giving.contains(&self.own) && bytes(self.own) > 0 {
                let leader = rank(holding[0]);
                let piece = self.piece(window, stripe);
                comm.send(&piece, leader)?;
            } else if holding.contains(&self.own) {
                let mut row = vec![0; block];
                if !empty {
                    comm.receive(&mut row, rank(holding[0]))?;
                }
                self.keep(stripe, &row);
            }
            return Ok(());
        }
        let mut data = Vec::with_capacity(giving.len());
        for member in &giving {
            let mut piece = vec![0; block];
            let bytes = bytes(*member);
            if bytes > 0 {
                comm.receive(&mut piece[..bytes], rank(*member))?;
            }
            data.push(piece);
        }
        let rows = match empty {
            true => Ok(vec![vec![0; block]; holding.len()]),
            false => code::encode(&data, holding.len()),
        };
        let rows = rows.unwrap_or_else(|e| {
            self.failure.get_or_insert(e);
            vec![vec![0; block]; holding.len()]
        });
        for (member, row) in holding.iter().zip(&rows).skip(1) {
            if !empty {
                comm.send(row, self.parity.members[*member])?;
            }
        }
        self.keep(stripe, &rows[0]);
        Ok(())
    }

    /// Our block of a stripe.
    fn piece(&mut self, window: u64, stripe: usize) -> Vec<u8> {
        let (offset, bytes) = self.parity.given(window, stripe, self.own);
        let mut piece = vec![0; bytes];
        if let Err(e) = self.reading.read(offset, &mut piece) {
            self.failure.get_or_insert(e);
        }
        piece
    }

    fn keep(&mut self, stripe: usize, row: &[u8]) {
        let id = ChunkId::of(row);
        self.names[stripe].push(id);
        if self.failure.is_none()
            && let Err(e) = self.writer.put(&id, row)
        {
            self.failure = Some(AppError::store(OP)(e));
        }
    }
}

impl Made {
    fn commit(self, erasure: &Erasure) -> Result<()> {
        let op = AppError::store(OP);
        self.writer.finish().map_err(&op)?;
        let mut table = ChunkTableWriter::new();
        let block = self.parity.block;
        for (stripe, names) in self.names.iter().enumerate() {
            for (window, id) in names.iter().enumerate() {
                let offset = window as u64 * block;
                let buffer = BufferId(stripe as u64);
                table.push(buffer, offset, block as u32, *id).map_err(&op)?;
            }
        }
        table.write(&self.draft.path().join(CHUNKS)).map_err(&op)?;
        let record = serde_json::to_value(&self.parity);
        let record = record.map_err(|_| AppError::Fault("a record's text"))?;
        let job = erasure.local.image(self.parity.sequence)?;
        let manifest = Manifest {
            fermata_version: env!("CARGO_PKG_VERSION").into(),
            session: job.manifest().session.clone(),
            mode: "parity".into(),
            extra: [(KEY.to_owned(), record)].into(),
            ..Manifest::default()
        };
        self.draft.commit(manifest).map_err(&op)?;
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}
