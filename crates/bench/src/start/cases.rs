//! The ways in which a model of one size is started.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fermata_control::user::Restored;

use super::driver::{self, Tools};
use super::model::{Model, digests};
use super::results::{Facts, Shown, Start};
use super::setup::Cases;
use crate::error::BenchError;
use crate::native::Native;
use crate::program::now;
use crate::sandbox::Sandbox;

/// Orders and the options that choose them. The first that has data behind leaves the record that `profile` uses.
const ORDERS: [(&str, &[&str]); 4] = [
    ("none", &["--eager"]),
    ("default", &["--order", "default"]),
    ("profile", &["--order", "profile"]),
    ("worst", &["--order", "worst"]),
];
/// How long a program that has its result may take to end.
const END: Duration = Duration::from_secs(120);
/// What instances leave free of a device: contexts, and what the driver keeps.
const SPARE: u64 = 600 << 20;

impl Cases<'_> {
    /// All of it. What was measured before a failure is in `shown`.
    pub fn all(&self, shown: &mut Shown, facts: &mut Facts) -> Result<(), BenchError> {
        for _ in 0..self.settings.runs {
            self.note("cold");
            self.cold(shown)?;
        }
        match Tools::find(self.settings) {
            Ok(tools) => {
                self.note("driver");
                driver::starts(self, &tools, shown)?;
            }
            Err(why) => drop(facts.remarks.insert(format!("no `driver`: {why}"))),
        }
        match in_memory(&self.asked.disk) {
            true => {
                let why = format!("`{}` is no folder on a disk", self.asked.disk.display());
                facts
                    .remarks
                    .insert(format!("no `disk`: {why}; --disk names one"));
            }
            false => self.disk(shown)?,
        }
        self.memory(shown, facts)
    }

    /// A process of its own that loads the model.
    fn cold(&self, shown: &mut Shown) -> Result<(), BenchError> {
        let printed = self.sandbox.file("printed");
        self.model.program.clean();
        self.model.program.release()?;
        let begin = now();
        let mut native = Native::start(self.settings, &self.model.program, &printed)?;
        let (first, last) = self.model.results(self.sandbox, begin, 1)?;
        native.end(self.sandbox)?;
        let printed = fs::read_to_string(&printed).unwrap_or_default();
        shown.take(Start::one("cold", (first, last), None), &printed);
        Ok(())
    }

    /// From a disk, past the page cache.
    fn disk(&self, shown: &mut Shown) -> Result<(), BenchError> {
        let sandbox = Sandbox::beside(self.settings, &self.asked.disk, "-disk")?;
        self.note("disk");
        self.image(&sandbox)?;
        for run in 0..self.settings.runs {
            sandbox.warm(self.rest())?;
            sandbox.forget_pages()?;
            let name = format!("disk-{run}");
            self.restored(&sandbox, ("disk", &[]), (&name, 1), shown)?;
        }
        Ok(())
    }

    /// From memory, in every order, and several at once.
    fn memory(&self, shown: &mut Shown, facts: &mut Facts) -> Result<(), BenchError> {
        self.note("image");
        let room = Model::bytes(self.model.size);
        self.sandbox.prepare(room + room / 8)?;
        let (image, room) = self.image(self.sandbox)?;
        shown.image = Some(image);
        facts.devices = self.devices(self.sandbox)?;
        self.model.forget_weights();
        for run in 0..self.settings.runs {
            for way in ORDERS {
                self.note(way.0);
                self.sandbox.warm(self.rest())?;
                let name = format!("{}-{run}", way.0);
                self.restored(self.sandbox, way, (&name, 1), shown)?;
            }
            for count in self.asked.at_once.iter().copied().filter(|it| *it > 1) {
                let way = format!("x{count}");
                if u64::from(count) * (image + SPARE) > room {
                    let size = self.model.size;
                    let text = format!("no `{way}` of {size}: the device has no memory for them");
                    facts.remarks.insert(text);
                    continue;
                }
                self.note(&way);
                self.sandbox.warm(self.rest())?;
                let name = format!("{way}-{run}");
                let way = (way.as_str(), &["--order", "profile"][..]);
                self.restored(self.sandbox, way, (&name, count), shown)?;
            }
        }
        Ok(())
    }

    fn devices(&self, sandbox: &Sandbox) -> Result<Vec<String>, BenchError> {
        let session = sandbox.session("model")?;
        Ok(session.devices.into_iter().map(|it| it.name).collect())
    }

    /// Takes the image `image` of the loaded model; its device bytes, and those of the device.
    fn image(&self, sandbox: &Sandbox) -> Result<(u64, u64), BenchError> {
        let program = &self.model.program;
        program.clean();
        sandbox.start("model", &program.words, &program.variables())?;
        let log = sandbox.session("model")?.log;
        self.model.loaded(sandbox, &log)?;
        sandbox.warm(self.rest())?;
        let devices = sandbox.session("model")?.devices;
        let options = ["--mode", "stop", "--then", "stop", "-o", "image"];
        let taken = sandbox.checkpoint("model", &options)?;
        let room = devices.iter().map(|it| it.memory).min().unwrap_or(0);
        Ok((taken.device.device_bytes, room))
    }

    /// Starts instances of the image, and waits until they have ended.
    fn restored(
        &self,
        sandbox: &Sandbox,
        (way, options): (&str, &[&str]),
        (name, count): (&str, u32),
        shown: &mut Shown,
    ) -> Result<(), BenchError> {
        let program = &self.model.program;
        program.clean();
        program.release()?;
        let copies = count.to_string();
        let begin = now();
        let words = [
            "restore",
            "image",
            "--detach",
            "--ignore-changed-files",
            "--name",
            name,
            "--copies",
            &copies,
        ];
        let restored: Restored = sandbox.ask(&[&words[..], options].concat())?;
        let command = (now() - begin) / 1e3;
        let times = self.model.results(sandbox, begin, count as usize)?;
        for session in &restored.sessions {
            let name = &session.name;
            sandbox.wait(END, "the restored program has not ended", || {
                Ok(sandbox.session(name)?.exit_status.is_some())
            })?;
            let session = sandbox.session(name)?;
            if session.exit_status != Some(0) {
                let status = session.exit_status.unwrap_or(-1);
                let message = format!("`{way}`: a restored program ended with {status}");
                return Err(BenchError::program(message));
            }
            let told = digests(&fs::read_to_string(&session.log).unwrap_or_default());
            if told.is_empty() {
                let message = format!("`{way}`: a restored program has told no digest");
                return Err(BenchError::program(message));
            }
            shown.results.extend(told);
        }
        let mut start = Start::one(way, times, Some(command));
        start.at_once = count;
        shown.starts.push(start);
        Ok(())
    }
}

/// Whether a folder is kept in memory; one that cannot be looked at is told by its use.
fn in_memory(folder: &Path) -> bool {
    /// What statfs(2) says of a file system in memory.
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(folder).is_ok_and(|it| it.f_type == TMPFS_MAGIC)
}
