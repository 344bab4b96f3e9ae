//! A disk that is soon full.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::fermata::COMMAND_LIMIT;

/// A small file system below the image folder; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of `size`, as `mount` takes it, at `at`.
    ///
    /// # Errors
    /// When `mount` refuses.
    pub fn mount(at: PathBuf, size: &str) -> Result<Self> {
        fs::create_dir_all(&at)?;
        let mut mount = Command::new("mount");
        mount
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size},mode=700"),
                "tmpfs",
            ])
            .arg(&at);
        command::run(mount, COMMAND_LIMIT)?.success("mount")?;
        Ok(Self(at))
    }

    /// Where it is.
    pub fn at(&self) -> &Path {
        &self.0
    }

    /// Fills it to the last byte; gone again when the answer is removed.
    ///
    /// # Errors
    /// When nothing can be written at all.
    pub fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("full");
        let mut file = fs::File::create(&path)?;
        let block = vec![1u8; 1 << 16];
        while file.write_all(&block).is_ok() {}
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg("-l").arg(&self.0);
        command::run(unmount, COMMAND_LIMIT).ok();
    }
}
