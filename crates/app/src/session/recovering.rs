//! Recovering: everything is checked first, on all ranks, and only then the first byte is written.

use std::time::Instant;

use super::Session;
use crate::checkpoint::found::Found;
use crate::checkpoint::record::VariableRecord;
use crate::ranks::comm::together;
use crate::ranks::roll::{Call, roll};
use crate::recovery::restore::{Chunks, Source, restore};
use crate::status::RecoveryReport;
use crate::target::Target;
use crate::variable::VariableId;
use crate::{AppError, Result};

impl Session {
    /// Fills all protected variables from the newest sound checkpoint and returns its number. Everything
    /// is checked before the first byte is written. Collective.
    ///
    /// # Errors
    /// `Nothing`, `Mismatch`, `Variable`: nothing was written. `Mixed`: the variables hold a mixture.
    pub fn recover(&mut self) -> Result<i64> {
        let wanted: Vec<_> = self.variables.keys().copied().collect();
        self.recover_these(&wanted, Call::Recover)
    }

    /// As [`Session::recover`], for one variable. Collective.
    ///
    /// # Errors
    /// As [`Session::recover`].
    pub fn recover_variable(&mut self, id: u32) -> Result<i64> {
        self.recover_these(&[VariableId(id)], Call::RecoverVariable { id })
    }

    fn recover_these(&mut self, wanted: &[VariableId], call: Call) -> Result<i64> {
        self.own("recover")?;
        let all = call == Call::Recover;
        let settled = self.settle(self.deadline());
        roll(&*self.comm, call, 0)?;
        together(&*self.comm, settled)?;
        self.look()?;
        let found = self.found.as_ref().ok_or_else(|| self.nothing());
        let prepared = found.and_then(|found| self.prepare(found, wanted, all));
        let targets = together(&*self.comm, prepared)?;
        let start = Instant::now();
        let filled = self.fill_from_store(&targets);
        let data_seconds = start.elapsed().as_secs_f64();
        together(&*self.comm, filled)?;
        let Some(found) = &self.found else {
            return Err(self.nothing());
        };
        let report = RecoveryReport {
            id: found.record.id,
            level: found.level().number(),
            bytes: targets.iter().map(|t| t.variable.memory.bytes()).sum(),
            integrity_seconds: found.seconds,
            data_seconds,
        };
        self.measured
            .recovery(report.integrity_seconds + report.data_seconds);
        self.status.recovery = Some(report);
        self.clock.recovered();
        Ok(report.id)
    }

    /// Checks everything that can be checked before memory is touched.
    pub(super) fn prepare(
        &self,
        found: &Found,
        wanted: &[VariableId],
        all: bool,
    ) -> Result<Vec<Target>> {
        for id in wanted {
            let variable = self.variables.get(id).ok_or_else(|| AppError::Variable {
                id: id.0,
                what: "it is not protected".into(),
            })?;
            found.record.fits(variable)?;
        }
        let missing = |v: &&VariableRecord| all && !self.variables.contains_key(&v.id);
        if let Some(stored) = found.record.variables.iter().find(missing) {
            return Err(AppError::Mismatch {
                what: format!(
                    "variable {} was stored and is not protected now",
                    stored.id.0
                ),
            });
        }
        let mut targets = self.locate_all(true)?;
        targets.retain(|t| wanted.contains(&t.variable.id));
        Ok(targets)
    }

    fn fill_from_store(&self, targets: &[Target]) -> Result<()> {
        let found = self.found.as_ref().ok_or_else(|| self.nothing())?;
        let reader = found.site.store.reader();
        let reader = reader.map_err(AppError::store("read the checkpoint"))?;
        self.fill(found, &reader, targets)
    }

    /// Fills the targets with a checkpoint's chunks.
    pub(super) fn fill(
        &self,
        found: &Found,
        reader: &dyn Chunks,
        targets: &[Target],
    ) -> Result<()> {
        let chunks = found.chunks()?;
        let sources: Vec<_> = targets
            .iter()
            .map(|target| Source {
                target,
                chunks: chunks.get(&target.variable.id).copied().unwrap_or(&[]),
            })
            .collect();
        let (gpu, limit) = (self.gpu.as_deref(), self.deadline());
        restore(&sources, reader, gpu, &self.plain, limit)
    }

    pub(super) fn nothing(&self) -> AppError {
        AppError::Nothing {
            folder: self.local.layout.rank.clone(),
            why: match self.refused.is_empty() {
                true => String::new(),
                false => format!(": {}", self.refused.join("; ")),
            },
        }
    }
}
