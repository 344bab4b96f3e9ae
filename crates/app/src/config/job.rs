//! The configuration of a job, and what is wrong with one that cannot be.

use std::path::PathBuf;

use fermata_object::ObjectConfig;

use super::limits::{BLOCK_BYTES, LARGEST_GROUP, LONGEST};
use crate::{AppError, Level, Result};

/// How often [`crate::Session::snapshot`] makes a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Interval {
    /// Only when asked for by name.
    Never,
    /// Every so many seconds.
    Seconds(f64),
    /// At the interval that wastes least, from what checkpoints have cost so far.
    Auto,
}

/// How data that does not fit its own GPU's room is divided between peers and the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageSchedule {
    /// In the least time possible.
    #[default]
    Optimum,
    /// The largest first, each to the peer behind its fastest link (algorithm 1 of the paper).
    Greedy,
    /// All of it to the host.
    LocalOnly,
}

/// The configuration of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The job's name; its checkpoints lie in folders of this name.
    pub name: String,
    /// How often a snapshot becomes a checkpoint.
    pub interval: Interval,
    /// Mean time between failures of the whole job, in seconds (for `Interval::Auto`).
    pub between_failures: f64,
    /// Seconds from a failure until the job runs again, recovery apart (for `Interval::Auto`).
    pub downtime: f64,
    /// Checkpoints kept at each level.
    pub keep_last: u32,
    /// The node's name for the choice of partners; the host's name if there is none.
    pub node: Option<String>,
    /// Bytes of a block, the unit of differential checkpoints: a power of two in [`BLOCK_BYTES`].
    pub block_bytes: u32,
    /// Whether the program goes on as soon as its data is captured.
    pub background: bool,
    /// Bytes of host memory in which captured data waits to be written.
    pub staging_bytes: u64,
    /// Bytes of each GPU's free memory in which captured data may wait; 0 for none.
    pub stage_bytes: u64,
    /// Where data goes that does not fit its own GPU's room.
    pub stage_schedule: StageSchedule,
    /// Whether a job that is done keeps its checkpoints.
    pub keep_at_end: bool,
    /// Whether to look for checkpoints to recover from.
    pub recover: bool,
    /// Whether a GPU hashes host data too, which is streamed over it; else the CPU does.
    pub hash_host_on_gpu: bool,
    /// Whether what a GPU has hashed is hashed once more by the CPU when it is written.
    pub verify_blocks: bool,
    /// Longest wait for a step of a checkpoint, in seconds.
    pub deadline: f64,
    /// Folders of local devices; ranks are spread over them.
    pub local: Vec<PathBuf>,
    /// Ranks of a group of level 3, or a few more.
    pub erasure_group: u32,
    /// How many ranks of a group may be lost.
    pub erasure_losses: u32,
    /// Folder that all ranks reach, if level 4 is used.
    pub shared: Option<PathBuf>,
    /// Bucket of an object store, if level 5 is used.
    pub object: Option<ObjectConfig>,
    /// For each level above the first, every how many snapshots' checkpoints go there; 0 never.
    pub every: [u32; 6],
    /// What was read and has no effect, one sentence each.
    pub notes: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "job".into(),
            interval: Interval::Never,
            between_failures: 86_400.0,
            downtime: 60.0,
            keep_last: 2,
            node: None,
            block_bytes: 1 << 20,
            background: true,
            staging_bytes: 256 << 20,
            stage_bytes: 0,
            stage_schedule: StageSchedule::Optimum,
            keep_at_end: false,
            recover: true,
            hash_host_on_gpu: false,
            verify_blocks: true,
            deadline: 600.0,
            local: Vec::new(),
            erasure_group: 4,
            erasure_losses: 1,
            shared: None,
            object: None,
            every: [0; 6],
            notes: Vec::new(),
        }
    }
}

impl Config {
    /// Whether checkpoints of this level have somewhere to go.
    ///
    /// # Errors
    /// `Level` says why not.
    pub fn offers(&self, level: Level) -> Result<()> {
        let what = match level {
            Level::Local | Level::Partner | Level::Erasure => return Ok(()),
            Level::Shared if self.shared.is_some() => return Ok(()),
            Level::Object if self.object.is_some() => return Ok(()),
            Level::Object => "not configured; name a bucket in `[object]`",
            Level::Shared => "not configured; name a folder in `[shared]`",
        };
        Err(AppError::Level {
            level: level.number(),
            name: level.name(),
            what,
        })
    }

    /// What all ranks of a job must have set alike, because it says who waits for whom.
    pub(crate) fn alike(&self) -> String {
        let settings: [(&str, &dyn std::fmt::Debug); 10] = [
            ("name", &self.name),
            ("recover", &self.recover),
            ("background", &self.background),
            ("keep_last", &self.keep_last),
            ("erasure.group", &self.erasure_group),
            ("erasure.losses", &self.erasure_losses),
            ("shared.folder is set", &self.shared.is_some()),
            ("object.bucket", &self.object.as_ref().map(|o| &o.bucket)),
            ("object.prefix", &self.object.as_ref().map(|o| &o.prefix)),
            ("every of the levels", &self.every),
        ];
        let lines = settings.map(|(key, value)| format!("{key}: {value:?}"));
        lines.join("\n")
    }

    /// Refuses settings that cannot be; `from` is only named in the error.
    pub(super) fn check(&self, from: &str) -> Result<()> {
        let wrong = |what: String| {
            Err(AppError::Config {
                from: from.into(),
                what,
            })
        };
        if let Err(e) = fermata_store::image::check_name(&self.name) {
            return wrong(format!("`name`: {e}"));
        }
        if self.local.is_empty() {
            return wrong("`local.folders` must name at least one folder".into());
        }
        if !self.block_bytes.is_power_of_two() || !BLOCK_BYTES.contains(&self.block_bytes) {
            return wrong(format!(
                "`block_bytes` is {}; it must be a power of two from {} to {}",
                self.block_bytes,
                BLOCK_BYTES.start(),
                BLOCK_BYTES.end()
            ));
        }
        if self.keep_last == 0 {
            return wrong("`keep_last` is 0; at least one checkpoint must be kept".into());
        }
        if !(2..=LARGEST_GROUP).contains(&self.erasure_group)
            || !(1..self.erasure_group).contains(&self.erasure_losses)
        {
            return wrong(format!(
                "`erasure.group` is {} and `erasure.losses` is {}; a group has 2 to {LARGEST_GROUP} ranks, of \
                 which at least one and not all may be lost",
                self.erasure_group, self.erasure_losses
            ));
        }
        let positive = [
            ("between_failures", self.between_failures, f64::MAX),
            ("deadline", self.deadline, LONGEST),
        ];
        for (key, value, most) in positive {
            if !(value > 0.0 && value <= most) {
                return wrong(format!(
                    "`{key}` must be a positive number of seconds, at most {most:e}"
                ));
            }
        }
        if !(self.downtime >= 0.0 && self.downtime.is_finite()) {
            return wrong("`downtime` must be a number of seconds, 0 or more".into());
        }
        if let Interval::Seconds(s) = self.interval
            && !(s > 0.0 && s.is_finite())
        {
            return wrong("`interval` must be positive, or \"auto\", or \"never\"".into());
        }
        for level in Level::ALL.into_iter().skip(1) {
            if self.every[usize::from(level.number())] > 0 {
                self.offers(level)?;
            }
        }
        Ok(())
    }
}
