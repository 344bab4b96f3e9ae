//! What the tests of single promises share: a tree, a sandbox, a program at work.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Device, Mode, PROGRAM_LIMIT};
use crate::command::{self, Finished};
use crate::fermata::{COMMAND_LIMIT, Fermata, Session};
use crate::hold::{COPIES, Hold};
use crate::output::Output;
use crate::processes::{self, Process};
use crate::sandbox::Sandbox;
use crate::tree::Tree;

/// A program that is at work whatever a test does with it, and however long that takes: nearly three hours.
pub const SLOW: &[&str] = &["--steps", "2000000", "--pause-ms", "100", "--size", "128"];

/// A program that is caught at work by [`Scene::hold`], and is soon done when it is let go.
pub const SHORT: &[&str] = &["--steps", "400", "--size", "128"];

/// How often a moment that passes by itself is tried for: what lasts a second is seldom missed, and never so often
/// in a row.
pub const TRIES: usize = 6;

/// A sandbox with the software GPU.
#[derive(Debug)]
pub struct Scene {
    tree: Tree,
    sandbox: Sandbox,
}

impl Scene {
    /// Demands of a program, whose second option is how many steps it takes, that it ends as it does by itself after it was
    /// checkpointed within its first steps, killed and restored.
    ///
    /// # Errors
    /// It does not.
    pub fn comes_back(name: &str, options: &[&str], mode: Mode) -> Result<()> {
        Self::comes_back_with(&[], name, options, mode)
    }

    /// As [`Scene::comes_back`], where the program has more `variables`.
    ///
    /// # Errors
    /// As there.
    pub fn comes_back_with(
        variables: &[(&str, String)],
        name: &str,
        options: &[&str],
        mode: Mode,
    ) -> Result<()> {
        Self::comes_back_after(&|_| Ok(()), variables, name, options, mode)
    }

    /// As [`Scene::comes_back`], in a worker that has loaded the image ahead.
    ///
    /// # Errors
    /// As there.
    pub fn comes_back_warm(name: &str, options: &[&str], mode: Mode) -> Result<()> {
        let warm = |fermata: &Fermata| fermata.warm("image");
        Self::comes_back_after(&warm, &[], name, options, mode)
    }

    /// `before` is called between the checkpoint and the restore.
    fn comes_back_after(
        before: &dyn Fn(&Fermata) -> Result<()>,
        variables: &[(&str, String)],
        name: &str,
        options: &[&str],
        mode: Mode,
    ) -> Result<()> {
        let scene = Self::new()?;
        let fermata = scene.fermata();
        let program = scene.tree().program(name)?;
        // It must not end before the checkpoint.
        let last = options[3].parse()?;
        let held = scene.hold(last)?;
        let variables = [variables, &held].concat();
        fermata.run_with(&variables, "one", Device::Soft, &program, options)?;
        scene.wait_steps("one", 3)?;
        fermata.checkpoint("one", "image", mode)?;
        fermata.kill("one")?;
        before(&fermata)?;
        scene.let_go()?;
        scene
            .try_restore("image", "again")?
            .success("fermata restore")?;
        scene.check_ends_as("again", &scene.straight(name, options)?)?;
        scene.close()
    }

    /// A fresh one.
    ///
    /// # Errors
    /// When there is no build tree.
    pub fn new() -> Result<Self> {
        Ok(Self {
            tree: Tree::find()?,
            sandbox: Sandbox::new()?,
        })
    }

    /// The command line tool.
    pub fn fermata(&self) -> Fermata<'_> {
        Fermata::new(&self.tree, &self.sandbox)
    }

    /// The build tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The sandbox.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// What the daemon has logged.
    ///
    /// # Errors
    /// There is no log.
    pub fn daemon_log(&self) -> Result<String> {
        let path = self.sandbox.runtime().join("fermatad.log");
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// What `program` prints when it runs alone to its end.
    ///
    /// # Errors
    /// When it fails, or its lines cannot be read.
    pub fn straight(&self, program: &str, options: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.tree.program(program)?);
        command
            .args(options)
            .env("LD_LIBRARY_PATH", self.tree.library_path(Device::Soft));
        let done = command::run(command, PROGRAM_LIMIT)?.success(program)?;
        Output::parse(&done.stdout)
    }

    /// Takes an image of session `name`, whose copies are held, does `meanwhile` when the checkpoint is under way, and
    /// lets the copies go; what came of both.
    ///
    /// # Errors
    /// When it does not begin, and that of `meanwhile`.
    pub fn checkpoint_beside<F: AsRef<Path>, T>(
        &self,
        hold: &Hold<F>,
        (name, image): (&str, &str),
        (mode, options): (Mode, &[&str]),
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Result<Finished>, T)> {
        let fermata = self.fermata();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| fermata.checkpoint_with(name, image, mode, options));
            let begun = match mode {
                // They copy before the program goes on.
                Mode::Recopy | Mode::Stop => self.wait_begun(image),
                _ => self.wait_behind(name, image),
            };
            let done = begun.and_then(|()| meanwhile());
            hold.release(COPIES);
            let taken = taken.join().map_err(|_| anyhow!("checkpoint thread"))?;
            Ok((taken, done?))
        })
    }

    /// Starts `heat2d`, slowed down, as session `name`; returns once it works.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn start_slow(&self, name: &str) -> Result<()> {
        let program = self.tree.program("heat2d")?;
        self.fermata().run(name, Device::Soft, &program, SLOW)?;
        self.wait_steps(name, 2)
    }

    /// Variables with which a program stands still after its step `at`, until [`Scene::let_go`]
    /// (`programs/hold.h`).
    ///
    /// # Errors
    /// When a path cannot be a variable.
    pub fn hold(&self, at: u64) -> Result<[(&'static str, String); 2]> {
        let go = self.go().into_os_string().into_string();
        let go = go.map_err(|it| anyhow!("path {it:?}"))?;
        Ok([("HOLD_AT", at.to_string()), ("HOLD_UNTIL", go)])
    }

    /// Lets every program of the scene that is held go on, without pauses.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn let_go(&self) -> Result<()> {
        let new = self.go().with_extension("new");
        fs::write(&new, "")?;
        Ok(fs::rename(new, self.go())?)
    }

    /// Lets every program of the scene that is held come to this step, without pauses; there it is held again.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn let_go_to(&self, step: u64) -> Result<()> {
        let new = self.go().with_extension("new");
        symlink(step.to_string(), &new)?;
        Ok(fs::rename(new, self.go())?)
    }

    fn go(&self) -> PathBuf {
        self.sandbox.work().join("go")
    }

    /// Starts `heat2d`, which stands still in the middle, as session `name`; returns once it does.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn start_held(&self, name: &str) -> Result<()> {
        let program = self.tree.program("heat2d")?;
        self.fermata()
            .run_with(&self.hold(200)?, name, Device::Soft, &program, SHORT)?;
        self.wait_steps(name, 10)
    }

    /// Waits until a checkpoint to `image` is under way, or over: nobody else can begin one.
    ///
    /// # Errors
    /// At the deadline.
    pub fn wait_begun(&self, image: &str) -> Result<()> {
        wait_until("a checkpoint begins", || {
            Ok(self.draft(image)?.is_some() || self.fermata().image(image).exists())
        })
    }

    /// Waits until the program's process is in the draft of `image`, or the image is complete.
    ///
    /// # Errors
    /// At the deadline.
    pub fn wait_dumped(&self, image: &str) -> Result<()> {
        wait_until("a program is dumped", || {
            let draft = self.draft(image)?;
            let dumped = draft.is_some_and(|it| it.join("host/folders.json").exists());
            Ok(dumped || self.fermata().image(image).exists())
        })
    }

    /// Waits until session `name`, of which `image` is taken, runs again after its stop.
    ///
    /// # Errors
    /// At the deadline.
    pub fn wait_behind(&self, name: &str, image: &str) -> Result<()> {
        self.wait_dumped(image)?;
        wait_until("a program runs again", || {
            Ok(self.fermata().session(name)?.state == "running")
        })
    }

    /// The folder of an image that is not whole yet.
    fn draft(&self, image: &str) -> Result<Option<PathBuf>> {
        let of_it = format!(".draft-{image}-");
        let entries = fs::read_dir(self.sandbox.images())?.flatten();
        let mut drafts = entries.filter(|it| it.file_name().to_string_lossy().starts_with(&of_it));
        Ok(drafts.next().map(|it| it.path()))
    }

    /// Ends the daemon with signal 9.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill_daemon(&self) -> Result<()> {
        kill_nine(&self.sandbox.daemon().context("no daemon runs")?)
    }

    /// Waits until session `name` runs for a new daemon, which the question starts if nobody else has.
    ///
    /// # Errors
    /// When it does not come back in time, or `ps` fails.
    pub fn wait_back(&self, name: &str) -> Result<Session> {
        let begun = Instant::now();
        loop {
            let session = self.fermata().session(name)?;
            if session.state == "running" {
                return Ok(session);
            }
            ensure!(
                begun.elapsed() < PROGRAM_LIMIT,
                "session `{name}` is still {}: {:?}",
                session.state,
                session.note
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until session `name` has printed `steps` steps.
    ///
    /// # Errors
    /// When it ended before, or at the deadline.
    pub fn wait_steps(&self, name: &str, steps: usize) -> Result<()> {
        let reached = |log: &str| Output::parse(log).is_ok_and(|out| out.steps.len() >= steps);
        ensure!(
            self.fermata().wait_log(name, PROGRAM_LIMIT, reached)?,
            "session `{name}` ended before step {steps}"
        );
        Ok(())
    }

    /// Demands that session `name` goes on working, from now on.
    ///
    /// # Errors
    /// When it prints no further step.
    pub fn check_goes_on(&self, name: &str) -> Result<()> {
        let now = Output::parse(&self.fermata().log(name)?)?.steps.len();
        self.wait_steps(name, now + 2)
    }

    /// Makes image `image` of a program that stands still in the middle until [`Scene::let_go`], and ends that.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn make_held_image(&self, image: &str) -> Result<()> {
        self.start_held("source")?;
        self.fermata().checkpoint("source", image, Mode::Stop)?;
        self.fermata().kill("source")?;
        Ok(())
    }

    /// Makes image `image` of a working program, and ends that.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn make_image(&self, image: &str) -> Result<()> {
        self.start_slow("source")?;
        self.fermata().checkpoint("source", image, Mode::Stop)?;
        self.fermata().kill("source")?;
        Ok(())
    }

    /// Tries to restore `image`, without judging the result.
    ///
    /// # Errors
    /// When the tool passes the deadline.
    pub fn try_restore(&self, image: &str, name: &str) -> Result<Finished> {
        let path = self.fermata().image(image);
        let path = path.to_str().context("image path")?;
        self.fermata().call(&[
            "restore", path, "--name", name, "--device", "soft", "--detach",
        ])
    }

    /// Restores `image` as session `name`, although files that the program has open have grown since: they are written again, at the same place.
    ///
    /// # Errors
    /// When it fails.
    pub fn restore_grown(&self, image: &str, name: &str) -> Result<()> {
        let words = ["restore", image, "--name", name, "--ignore-changed-files"];
        let tail = ["--device", "soft", "--detach"];
        let done = self.fermata().call(&[&words[..], &tail].concat())?;
        done.success("fermata restore").map(drop)
    }

    /// Waits until the log of session `name` contains `text`.
    ///
    /// # Errors
    /// At the deadline.
    pub fn wait_says(&self, name: &str, text: &str) -> Result<()> {
        wait_until(&format!("session `{name}` says `{text}`"), || {
            Ok(self.fermata().log(name)?.contains(text))
        })
    }

    /// Takes `image` of session `name`, kills that, and restores the image as session `again`.
    ///
    /// # Errors
    /// When one of them fails.
    pub fn replace(&self, name: &str, image: &str, again: &str) -> Result<()> {
        self.fermata().checkpoint(name, image, Mode::Stop)?;
        self.fermata().kill(name)?;
        self.try_restore(image, again)?.success("fermata restore")?;
        Ok(())
    }

    /// Waits until session `name` ends, and demands that it has printed what `straight` is. (Its status is known only to the
    /// daemon that has started it.)
    ///
    /// # Errors
    /// At the deadline, or with the first difference.
    pub fn check_ends_as(&self, name: &str, straight: &Output) -> Result<()> {
        wait_until("a session ends", || {
            Ok(self.fermata().session(name)?.state == "exited")
        })?;
        Output::parse(&self.fermata().log(name)?)?.check_complete(straight)
    }

    /// Demands that `image` can still be restored and works.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check_restorable(&self, image: &str) -> Result<()> {
        self.try_restore(image, "proof")?
            .success("fermata restore")?;
        self.check_goes_on("proof")?;
        self.fermata().kill("proof")?;
        Ok(())
    }

    /// The live process of session `name`: the program's, or the worker's.
    ///
    /// # Errors
    /// When `ps` tells none.
    pub fn process(&self, name: &str, which: Which) -> Result<Process> {
        let session = self.fermata().session(name)?;
        let pid = match which {
            Which::Program => session.pid,
            Which::Worker => session.worker_pid,
        };
        let pid = pid.with_context(|| format!("`ps` tells no {which:?} of `{name}`"))?;
        processes::look_up(pid).with_context(|| format!("process {pid} is gone"))
    }

    /// Every regular file below the image folder.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn image_files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        collect(&self.sandbox.images(), &mut files)?;
        files.sort();
        Ok(files)
    }

    /// Compiles a program in C, without CUDA.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn compile(&self, name: &str, source: &str) -> Result<PathBuf> {
        let program = self.sandbox.work().join(name);
        let file = program.with_extension("c");
        fs::write(&file, source)?;
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-w", "-o"]).arg(&program).arg(&file);
        command::run(cc, COMMAND_LIMIT)?.success("cc")?;
        Ok(program)
    }

    /// The pack with the first chunk of an image's device memory.
    ///
    /// # Errors
    /// There is none.
    pub fn device_pack(&self, image: &str) -> Result<PathBuf> {
        let table = fs::read(self.fermata().image(image).join("chunks"))?;
        // The header, and the number, offset, length and flags of the first record.
        let name = table.get(64 + 24..64 + 56).context("it has no chunk")?;
        let store = self.sandbox.images().join(".store");
        for entry in fs::read_dir(store.join("index"))? {
            let index = entry?.path();
            let has = fs::read(&index)?.windows(name.len()).any(|it| it == name);
            if let Some(id) = index.file_stem().filter(|_| has) {
                return Ok(store.join("packs").join(id).with_extension("pack"));
            }
        }
        anyhow::bail!("no pack has the first chunk of `{image}`")
    }

    /// Ends the scene and demands that nothing is left.
    ///
    /// # Errors
    /// Names what is left.
    pub fn close(self) -> Result<()> {
        let left = self.sandbox.close();
        ensure!(left.is_empty(), "left behind: {}", left.join(", "));
        Ok(())
    }
}

/// A process of a session.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// The user's program.
    Program,
    /// Its worker.
    Worker,
}

/// Waits until `holds`; `what` says what for.
///
/// # Errors
/// That of `holds`, or at the deadline.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !holds()? {
        let waited = begun.elapsed();
        ensure!(waited < PROGRAM_LIMIT, "not after {waited:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Status of the tool for what somebody else uses.
const LOCKED: i32 = 11;

/// What comes of `images gc` once nobody holds the store's lock: a worker that waits for the next session may read images, and
/// hold it for a while.
///
/// # Errors
/// That of `gc`, or at the deadline.
pub fn gc_when_free(mut gc: impl FnMut() -> Result<Finished>) -> Result<Finished> {
    let mut collected = None;
    wait_until("a collection can run", || {
        let done = gc()?;
        let is_free = done.status != LOCKED;
        collected = Some(done);
        Ok(is_free)
    })?;
    collected.context("no collection")
}

/// Waits until `process` is gone.
///
/// # Errors
/// At the deadline.
pub fn wait_gone(process: &Process) -> Result<()> {
    let what = format!("process {} `{}` ends", process.pid, process.name);
    wait_until(&what, || {
        Ok(processes::look_up(process.pid).as_ref() != Some(process))
    })
}

/// Ends `process` with signal 9 and waits until it is gone.
///
/// # Errors
/// When it survives.
pub fn kill_nine(process: &Process) -> Result<()> {
    let pid = Pid::from_raw(process.pid).context("process number 0")?;
    kill_process(pid, Signal::KILL).ok();
    wait_gone(process)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("`{}`", folder.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}
