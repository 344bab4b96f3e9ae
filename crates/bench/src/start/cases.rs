//! The ways in which a model of one size is started.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use fermata_control::user::Restored;

use super::driver::{self, Tools};
use super::model::{Model, digests};
use super::results::{Facts, Start};
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
    /// All of it, and the bytes of the image.
    pub fn all(&self, facts: &mut Facts) -> Result<(Vec<Start>, u64), BenchError> {
        let mut results = BTreeSet::new();
        let mut starts = Vec::new();
        for _ in 0..self.settings.runs {
            self.note("cold");
            starts.push(self.cold(&mut results)?);
        }
        match Tools::find(self.settings) {
            Ok(tools) => {
                self.note("driver");
                starts.extend(driver::starts(self, &tools, &mut results)?);
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
            false => starts.extend(self.disk(&mut results)?),
        }
        let image = self.memory(&mut starts, &mut results, facts)?;
        facts.compare(self.model.size, &results)?;
        Ok((starts, image))
    }

    /// A process of its own that loads the model.
    fn cold(&self, results: &mut BTreeSet<String>) -> Result<Start, BenchError> {
        let printed = self.sandbox.file("printed");
        self.model.program.clean();
        self.model.program.release()?;
        let begin = now();
        let mut native = Native::start(self.settings, &self.model.program, &printed)?;
        let (first, last) = self.model.results(self.sandbox, begin, 1)?;
        native.end(self.sandbox)?;
        results.extend(digests(&fs::read_to_string(&printed).unwrap_or_default()));
        Ok(Start::one("cold", (first, last), None))
    }

    /// From a disk, past the page cache.
    fn disk(&self, results: &mut BTreeSet<String>) -> Result<Vec<Start>, BenchError> {
        let sandbox = Sandbox::beside(self.settings, &self.asked.disk, "-disk")?;
        self.note("disk");
        self.image(&sandbox)?;
        let mut starts = Vec::new();
        for run in 0..self.settings.runs {
            sandbox.warm(self.rest())?;
            sandbox.forget_pages()?;
            let name = format!("disk-{run}");
            starts.push(self.restored(&sandbox, ("disk", &[]), (&name, 1), results)?);
        }
        Ok(starts)
    }

    /// From memory, in every order, and several at once; bytes of the image.
    fn memory(
        &self,
        starts: &mut Vec<Start>,
        results: &mut BTreeSet<String>,
        facts: &mut Facts,
    ) -> Result<u64, BenchError> {
        self.note("image");
        let room = Model::bytes(self.model.size);
        self.sandbox.prepare(room + room / 8)?;
        let (image, room) = self.image(self.sandbox)?;
        self.model.forget_weights();
        for run in 0..self.settings.runs {
            for way in ORDERS {
                self.note(way.0);
                self.sandbox.warm(self.rest())?;
                let name = format!("{}-{run}", way.0);
                starts.push(self.restored(self.sandbox, way, (&name, 1), results)?);
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
                starts.push(self.restored(self.sandbox, way, (&name, count), results)?);
            }
        }
        facts.devices = self.devices(self.sandbox)?;
        Ok(image)
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
        results: &mut BTreeSet<String>,
    ) -> Result<Start, BenchError> {
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
            results.extend(told);
        }
        let mut start = Start::one(way, times, Some(command));
        start.at_once = count;
        Ok(start)
    }
}

/// Whether a folder is kept in memory; one that cannot be looked at is told by its use.
fn in_memory(folder: &Path) -> bool {
    /// What statfs(2) says of a file system in memory.
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(folder).is_ok_and(|it| it.f_type == TMPFS_MAGIC)
}
