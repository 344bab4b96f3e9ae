//! A CRIU that waits at its start, so that a test can break something exactly then.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::executable;
use crate::scene::{Scene, kill_nine, wait_until};

/// How long the daemon mostly takes to ask a CRIU that has been started; nothing hangs on it.
const QUESTION: Duration = Duration::from_millis(300);

/// The CRIU of a scene's next daemon, in the scene's folder.
#[derive(Debug)]
pub struct HeldCriu {
    hold: PathBuf,
    held: PathBuf,
}

impl HeldCriu {
    /// Starts the scene's daemon with it, in place of the one that runs.
    ///
    /// # Errors
    /// When the script cannot be written, or no daemon starts.
    pub fn install(scene: &Scene) -> Result<Self> {
        let folder = scene.sandbox().runtime();
        let (script, hold, held) = (
            folder.join("criu"),
            folder.join("hold"),
            folder.join("held"),
        );
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = swrk ] && [ -e {hold} ]; then\n: > {held}\n\
             while [ -e {hold} ]; do sleep 0.02; done\nfi\nexec {criu} \"$@\"\n",
            hold = hold.display(),
            held = held.display(),
            criu = scene.tree().criu().display(),
        );
        executable::script(&script, &text)?;
        if let Some(daemon) = scene.sandbox().daemon() {
            kill_nine(&daemon)?;
        }
        let script = script.to_str().context("path of a script")?;
        scene
            .fermata()
            .call_with(&["ps"], &[("FERMATA_CRIU", script)])?
            .success("fermata ps")?;
        Ok(Self { hold, held })
    }

    /// The next CRIU that dumps or restores waits.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn hold(&self) -> Result<()> {
        File::create(&self.hold)?;
        Ok(())
    }

    /// Waits until it does, and has been asked to do its work.
    ///
    /// # Errors
    /// When nobody starts one.
    pub fn wait(&self) -> Result<()> {
        wait_until("CRIU is started", || Ok(self.held.exists()))?;
        std::thread::sleep(QUESTION);
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it was not held.
    pub fn release(&self) -> Result<()> {
        fs::remove_file(&self.held)?;
        fs::remove_file(&self.hold)?;
        Ok(())
    }
}
