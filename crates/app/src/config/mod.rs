//! What a job asks for: where checkpoints go, how often, how many are kept.
//!
//! Read from TOML, or from a file with FTI's keys. A key that does not exist is an error that names the
//! nearest one that does.

mod ini;
mod nearest;
mod object;
mod text;

use std::io;
use std::path::{Path, PathBuf};

pub use object::{ObjectConfig, Secret};

use crate::{AppError, Level, Result};

/// Smallest and largest block, in bytes.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 16 << 10..=4 << 20;

/// Longest time that can be asked for, in seconds.
const LONGEST: f64 = 1e9;

/// The longest configuration, in bytes.
const LARGEST: u64 = 1 << 20;

/// Most ranks of a group of level 3.
const LARGEST_GROUP: u32 = 64;

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
    /// Reads the file `path`: TOML, or FTI's format when it has a section `[basic]`.
    ///
    /// # Errors
    /// `Io`, `Config` or `UnknownKey`.
    pub fn read(path: &Path) -> Result<Self> {
        let read = || {
            let bytes = fermata_store::read_named(path, LARGEST)?;
            String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
        };
        let text = read().map_err(|source| AppError::Io {
            op: "read the configuration",
            path: path.into(),
            source,
        })?;
        Self::parse(&text, &path.to_string_lossy())
    }

    /// Reads a configuration from text; `from` is only named in errors.
    ///
    /// # Errors
    /// `Config` or `UnknownKey`.
    pub fn parse(text: &str, from: &str) -> Result<Self> {
        let config = if ini::is_fti(text) {
            ini::parse(text, from)?
        } else {
            text::parse(text, from)?
        };
        config.check(from)?;
        Ok(config)
    }

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

    fn check(&self, from: &str) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text, "test")
    }

    #[test]
    fn a_configuration_that_never_ends_is_refused() {
        let read = |path: &str| Config::read(Path::new(path)).expect_err("refused");
        for path in ["/dev/zero", "/dev", "/dev/tty"] {
            assert!(matches!(read(path), AppError::Io { .. }), "{path}");
        }
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("long.toml");
        std::fs::write(&long, "#".repeat(1 + LARGEST as usize)).unwrap();
        let error = Config::read(&long).expect_err("refused");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert!(cause.unwrap().contains("longer than"), "{error:?}");
    }

    #[test]
    fn every_key_of_the_documentation_is_read() {
        let c = parse(
            "name = \"heat\"\ninterval = 30\nbetween_failures = 3600\ndowntime = 5\nkeep_last = 3\n\
             block_bytes = 65536\nbackground = false\nstaging_bytes = 16777216\nkeep_at_end = true\nrecover = false\n\
             hash_host_on_gpu = true\nverify_blocks = false\ndeadline = 10.5\n[local]\nfolders = [\"/a\", \"/b\"]\n\
             [shared]\nfolder = \"/s\"\nevery = 4\n[erasure]\ngroup = 8\nlosses = 2\nevery = 5\n\
             [object]\nbucket = \"b\"\nendpoint = \"http://x:1\"\nregion = \"r\"\nprefix = \"p/\"\n\
             path_style = false\naccess_key = \"k\"\nsecret_key = \"s\"\ndeadline = 9\nevery = 6\n",
        )
        .unwrap();
        assert_eq!(c.name, "heat");
        assert_eq!(c.interval, Interval::Seconds(30.0));
        assert_eq!(c.local, [PathBuf::from("/a"), "/b".into()]);
        assert_eq!((c.shared.clone().unwrap(), c.every[4]), ("/s".into(), 4));
        assert!(
            !c.background && !c.recover && !c.verify_blocks && c.keep_at_end && c.hash_host_on_gpu
        );
        assert_eq!((c.deadline, c.keep_last, c.block_bytes), (10.5, 3, 65536));
        assert_eq!((c.erasure_group, c.erasure_losses, c.every[3]), (8, 2, 5));
        let want = ObjectConfig {
            bucket: "b".into(),
            endpoint: Some("http://x:1".into()),
            region: Some("r".into()),
            prefix: "p/".into(),
            path_style: Some(false),
            keys: Some(("k".into(), Secret("s".into()))),
            deadline: 9.0,
        };
        assert_eq!((c.object.as_ref(), c.every[5]), (Some(&want), 6));
        assert!(!format!("{c:?}").contains("\"s\""), "a secret is shown");
    }

    #[test]
    fn wrong_keys_are_named_with_the_nearest_right_one() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        let m = message("intervall = 3\n[local]\nfolders=[\"/a\"]\n");
        assert!(m.contains("`intervall`") && m.contains("`interval`"), "{m}");
        let m = message("[local]\nfolder = \"/a\"\n");
        assert!(
            m.contains("`local.folder`") && m.contains("`local.folders`"),
            "{m}"
        );
        let m = message("[loacl]\nfolders = [\"/a\"]\n");
        assert!(m.contains("`loacl`") && m.contains("`local`"), "{m}");
        for (text, key, near) in [
            (
                "[shared]\nfoldr = \"/a\"\n",
                "shared.foldr",
                "shared.folder",
            ),
            (
                "[stage]\nshedule = \"greedy\"\n",
                "stage.shedule",
                "stage.schedule",
            ),
            ("[object]\nbuckt = \"b\"\n", "object.buckt", "object.bucket"),
            ("[erasure]\nloses = 1\n", "erasure.loses", "erasure.losses"),
            // Written below a table's name, it is that table's.
            ("[local]\nkeep_last = 3\n", "local.keep_last", "keep_last"),
            (
                "[partner]\nlosses = 1\n",
                "partner.losses",
                "erasure.losses",
            ),
        ] {
            let m = message(text);
            let both = m.contains(&format!("`{key}`")) && m.contains(&format!("`{near}`"));
            assert!(both, "{m}");
        }
        let m = message("[basic]\nckpt_dirr = /a\n");
        assert!(m.contains("`ckpt_dirr`") && m.contains("`ckpt_dir`"), "{m}");
    }

    #[test]
    fn values_out_of_range_say_which() {
        let local = "[local]\nfolders=[\"/a\"]\n";
        for (text, key) in [
            ("block_bytes = 5000\n", "block_bytes"),
            ("block_bytes = 8388608\n", "block_bytes"),
            ("keep_last = 0\n", "keep_last"),
            ("interval = -1\n", "interval"),
            ("interval = \"often\"\n", "interval"),
            ("name = \"a/b\"\n", "name"),
            ("keep_last = \"x\"\n", "keep_last"),
            ("deadline = 1e300\n", "deadline"),
            ("between_failures = inf\n", "between_failures"),
            (
                "object = { bucket = \"b\", deadline = 0 }\n",
                "object.deadline",
            ),
            (
                "object = { bucket = \"b\", access_key = \"k\" }\n",
                "object.secret_key",
            ),
            ("object = { every = 2 }\n", "name a bucket"),
            ("erasure = { group = 4, losses = 4 }\n", "erasure.losses"),
            ("erasure = { losses = 0 }\n", "erasure.losses"),
            ("erasure = { group = 65 }\n", "erasure.group"),
        ] {
            let m = parse(&format!("{text}{local}")).unwrap_err().to_string();
            assert!(m.contains(key), "{text}: {m}");
        }
        assert!(parse("").unwrap_err().to_string().contains("local.folders"));
    }

    #[test]
    fn fti_keys_are_understood() {
        let c = parse(
            "[Basic]\nhead = 0\nckpt_dir = /local\nglbl_dir = /global\nmeta_dir = /meta\n\
             ckpt_L1 = 3\nckpt_L2 = 0\nckpt_l3 = 0\nckpt_l4 = 11\nkeep_last_ckpt = 1\n\
             dcp_block_size = 16384\ninline_l4 = 1\n[Restart]\nfailure = 0\n[Advanced]\nblock_size = 1024\n",
        )
        .unwrap();
        assert_eq!(c.local, [PathBuf::from("/local")]);
        assert_eq!(c.shared, Some("/global".into()));
        assert_eq!(c.interval, Interval::Seconds(180.0));
        assert_eq!(c.every[4], 4);
        assert_eq!(c.block_bytes, 16384);
        assert!(!c.notes.is_empty());
    }
}
