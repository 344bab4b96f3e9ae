//! What a job asks for: where checkpoints go, how often, how many are kept.
//!
//! Read from TOML, or from a file with FTI's keys. A key that does not exist is an error that names the
//! nearest one that does.

mod ini;
mod job;
mod limits;
mod nearest;
mod object;
mod text;

use std::io;
use std::path::Path;

pub use job::{Config, Interval, StageSchedule};
pub use limits::BLOCK_BYTES;

use crate::{AppError, Result};

/// The longest configuration, in bytes.
const LARGEST: u64 = 1 << 20;

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
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use fermata_object::{ObjectConfig, Secret};

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
