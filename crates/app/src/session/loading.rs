//! Going back to any checkpoint that is kept, by its number: what adjoint computations do, which save every step
//! forward and read them backward.
//!
//! ```text
//!  prefetch(id) ─► a thread reads and checks its chunks into memory ─┐
//!  load(id) ─────────────────────────────────────────────────────────┴─► variables
//! ```

use super::Session;
use super::ahead::{Ahead, InMemory};
use crate::checkpoint::found::opened;
use crate::variable::VariableId;
use crate::{AppError, Result};

impl Session {
    /// Fills all protected variables from this rank's own checkpoint of this number, which must be kept at the
    /// first level. If it has been asked for by [`Session::prefetch`] it comes from memory.
    ///
    /// # Errors
    /// `Nothing` when there is no such checkpoint, `Mismatch`, `Variable`: nothing was written. `Mixed`: the
    /// variables hold a mixture.
    pub fn load(&mut self, id: i64) -> Result<()> {
        let sequence = self.kept(id)?;
        let wanted: Vec<VariableId> = self.variables.keys().copied().collect();
        if let Some(ahead) = self.ahead.take_if(|ahead| ahead.sequence == sequence) {
            let read = ahead.thread.join();
            let memory = read.unwrap_or(Err(AppError::Fault("a thread that reads ahead")))?;
            let targets = self.prepare(&memory.found, &wanted, true)?;
            return self.fill(&memory.found, &memory, &targets);
        }
        let found = opened(&self.local, sequence)?;
        let targets = self.prepare(&found, &wanted, true)?;
        let reader = found.site.store.reader();
        let reader = reader.map_err(AppError::store("read the checkpoint"))?;
        self.fill(&found, &reader, &targets)
    }

    /// Begins to read this rank's own checkpoint of this number into memory, of which as much is taken as the
    /// checkpoint has bytes. Another one that has been read and not loaded is dropped.
    ///
    /// # Errors
    /// `Nothing` when there is no such checkpoint.
    pub fn prefetch(&mut self, id: i64) -> Result<()> {
        let sequence = self.kept(id)?;
        if self
            .ahead
            .as_ref()
            .is_some_and(|ahead| ahead.sequence == sequence)
        {
            return Ok(());
        }
        let site = self.local.clone();
        if let Some(old) = self.ahead.take() {
            // One at a time; what it read is not wanted any more.
            let _ = old.thread.join();
        }
        let thread = std::thread::Builder::new()
            .name("fermata-ahead".into())
            .spawn(move || InMemory::read_all(&site, sequence))
            .map_err(|source| AppError::Io {
                op: "start a thread for",
                path: self.local.layout.rank.clone(),
                source,
            })?;
        self.ahead = Some(Ahead { sequence, thread });
        Ok(())
    }

    /// The sequence number of the newest checkpoint that the program calls `id`.
    fn kept(&mut self, id: i64) -> Result<u64> {
        self.own("load a checkpoint")?;
        self.join(self.deadline())?;
        let there = |sequence: &u64| self.local.layout.checkpoint(*sequence).exists();
        if let Some(sequence) = self.numbers.get(&id).copied().filter(there) {
            return Ok(sequence);
        }
        for sequence in self.local.layout.sequences()?.into_iter().rev() {
            // What cannot be read is not the one.
            let Ok(found) = opened(&self.local, sequence) else {
                continue;
            };
            let number = self.numbers.entry(found.record.id).or_insert(sequence);
            *number = sequence.max(*number);
            if found.record.id == id {
                return Ok(sequence);
            }
        }
        Err(AppError::Nothing {
            folder: self.local.layout.rank.clone(),
            why: format!(": none is called {id}; `keep_last` says how many are kept"),
        })
    }
}
