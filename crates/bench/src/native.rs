//! A program without Fermata: over the GPU's own driver, or with the software GPU's library.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fermata_control::Paths;

use crate::error::BenchError;
use crate::program::Program;
use crate::sandbox::Sandbox;
use crate::settings::Settings;

/// How long a program may take to end.
const END: Duration = Duration::from_secs(60);

/// A process that does not outlive the bench.
pub struct Native(Child);

impl Native {
    /// Starts `program` in a session of its own, so that it has no terminal; what it prints goes to `output`.
    pub fn start(
        settings: &Settings,
        program: &Program,
        output: &Path,
    ) -> Result<Self, BenchError> {
        let what = || format!("start `{}`", program.words[0].display());
        let printed =
            File::create(output).map_err(BenchError::io(format!("make `{}`", output.display())))?;
        let mut command = Command::new("setsid");
        if settings.is_soft {
            command.env("LD_LIBRARY_PATH", Paths::find().home.join("lib/softgpu"));
        }
        let child = command
            .args(&program.words)
            .envs(program.variables())
            .stdin(Stdio::null())
            .stdout(printed)
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(BenchError::io(what()))?;
        Ok(Self(child))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until it has ended.
    pub fn end(&mut self, sandbox: &Sandbox) -> Result<(), BenchError> {
        sandbox.wait(END, "the program has not ended", || Ok(self.has_ended()))
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
