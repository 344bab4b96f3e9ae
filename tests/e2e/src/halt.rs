//! A daemon or a worker that stands still at a moment of its work, so that a test can break something exactly then
//! (`crates/store/src/moments.rs`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::processes::{self, Process};
use crate::scene::{Scene, wait_until};

/// Who comes to a moment of a scene stands still there, until this is dropped.
#[derive(Debug)]
pub struct Halt {
    name: &'static str,
    held: PathBuf,
    reached: PathBuf,
}

impl Halt {
    /// Every thread that reaches the moment `name` from now on waits.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn at(scene: &Scene, name: &'static str) -> Result<Self> {
        Self::within(&scene.sandbox().moments(), name)
    }

    /// The same for daemons and workers that have this folder in their environment.
    ///
    /// # Errors
    /// As [`Halt::at`].
    pub fn within(folder: &Path, name: &'static str) -> Result<Self> {
        let halt = Self {
            name,
            held: folder.join(name),
            reached: folder.join(format!("{name}.reached")),
        };
        fs::remove_file(&halt.reached).ok();
        fs::write(&halt.held, "").with_context(|| format!("hold `{name}`"))?;
        Ok(halt)
    }

    /// Waits until somebody does, and says who.
    ///
    /// # Errors
    /// When nobody comes there, or who did is gone.
    pub fn wait(&self) -> Result<Process> {
        wait_until(self.name, || Ok(self.reached.exists()))?;
        let pid = fs::read_to_string(&self.reached)?.parse()?;
        processes::look_up(pid).with_context(|| format!("process {pid} is gone"))
    }
}

impl Drop for Halt {
    fn drop(&mut self) {
        // It may be gone with the scene.
        fs::remove_file(&self.held).ok();
    }
}
