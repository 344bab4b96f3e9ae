//! `fermata protect`: a program whose processes are killed ends with the bytes of an uninterrupted run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fermata_e2e::case::{Device, PROGRAM_LIMIT};
use fermata_e2e::hold::Hold;
use fermata_e2e::output::Output;
use fermata_e2e::processes::look_up;
use fermata_e2e::scene::{Scene, Which, kill_nine, wait_until};
use serde_json::Value;

/// `fermata protect` at work; killed when it is dropped.
pub struct Protection {
    child: Child,
    events: PathBuf,
    errors: PathBuf,
}

impl Protection {
    fn start(scene: &Scene, name: &str, options: &[&str]) -> Result<Self> {
        Self::start_with(scene, name, options, &[])
    }

    /// The same with more variables.
    pub fn start_with(
        scene: &Scene,
        name: &str,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let events = std::fs::File::create(scene.sandbox().work().join("events"))?;
        Self::start_into(scene, name, options, variables, events.into())
    }

    /// The same with another standard output than the file of events.
    fn start_into(
        scene: &Scene,
        name: &str,
        options: &[&str],
        variables: &[(&str, &str)],
        output: Stdio,
    ) -> Result<Self> {
        let folder = scene.sandbox().work();
        let (events, errors) = (folder.join("events"), folder.join("errors"));
        let mut command = Command::new(scene.tree().fermata());
        command.args(["--json", "protect", name]).args(options);
        command.envs(variables.iter().copied());
        scene.sandbox().enter(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(std::fs::File::create(&errors)?)
            .spawn()?;
        Ok(Self {
            child,
            events,
            errors,
        })
    }

    fn events(&self) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.events)?;
        // The last line may be in the middle of being written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole
            .lines()
            // The failure, with which it ends, is a document of several lines.
            .take_while(|it| *it != "{")
            .map(|it| serde_json::from_str(it).with_context(|| it.to_owned()))
            .collect()
    }

    pub fn of(&self, event: &str) -> Result<Vec<Value>> {
        let events = self.events()?.into_iter();
        Ok(events.filter(|it| it["event"] == event).collect())
    }

    /// Waits until there are `count` events of a kind.
    pub fn wait(&mut self, event: &str, count: usize) -> Result<()> {
        let begun = Instant::now();
        while self.of(event)?.len() < count {
            if self.child.try_wait()?.is_some() && self.of(event)?.len() < count {
                bail!("it has ended without {count} `{event}`: {}", self.told()?);
            }
            ensure!(
                begun.elapsed() < PROGRAM_LIMIT,
                "no {count} `{event}`: {}",
                self.told()?
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Its exit status.
    pub fn end(&mut self) -> Result<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return status.code().context("a signal");
            }
            ensure!(
                begun.elapsed() < PROGRAM_LIMIT,
                "it does not end: {}",
                self.told()?
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn told(&self) -> Result<String> {
        let read = |path: &Path| std::fs::read_to_string(path);
        Ok(format!("{}{}", read(&self.events)?, read(&self.errors)?))
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a program that stands still before its end as session `heat`; what it prints if nothing happens to it.
pub fn start_held(scene: &Scene) -> Result<Output> {
    let program = scene.tree().program("heat2d")?;
    let options = ["--steps", "400"];
    let straight = scene.straight("heat2d", &options)?;
    let hold = scene.hold(300)?;
    scene
        .fermata()
        .run_with(&hold, "heat", Device::Soft, &program, &options)?;
    scene.wait_steps("heat", 1)?;
    Ok(straight)
}

#[test]
fn a_protected_program_survives_the_death_of_its_processes_and_of_the_daemon() -> Result<()> {
    let scene = Scene::new()?;
    // It does not end before everything has happened to it.
    let straight = start_held(&scene)?;
    let told = scene.sandbox().work().join("told");
    let command = format!("cat >> '{}'", told.display());
    let mut protection =
        Protection::start(&scene, "heat", &["--every", "0.5", "--on-event", &command])?;
    protection.wait("checkpoint", 1)?;
    for (which, count) in [(Which::Program, 1), (Which::Worker, 2)] {
        kill_nine(&scene.process("heat", which)?)?;
        protection.wait("restored", count)?;
        let images = protection.of("checkpoint")?.len();
        // So that no failure follows another one without an image between.
        protection.wait("checkpoint", images + 1)?;
    }
    scene.kill_daemon()?;
    protection.wait("daemon-ended", 1)?;
    let images = protection.of("checkpoint")?.len();
    protection.wait("checkpoint", images + 1)?;
    scene.let_go()?;
    let status = protection.end()?;
    ensure!(status == 0, "{status}: {}", protection.told()?);
    scene.check_ends_as("heat", &straight)?;
    ensure!(protection.of("ended")?.len() == 1, "{}", protection.told()?);
    // The user's command has got the same.
    let (told, events) = (std::fs::read_to_string(&told)?, protection.events()?);
    ensure!(told.lines().count() == events.len(), "{told}");
    scene.close()
}

/// The program stands still, and would not notice.
#[test]
fn a_protected_program_survives_the_loss_of_its_device() -> Result<()> {
    let scene = Scene::new()?;
    let folder = tempfile::tempdir()?;
    let hold = Hold::at(&folder);
    let program = scene.tree().program("heat2d")?;
    let options = ["--steps", "400"];
    let straight = scene.straight("heat2d", &options)?;
    let (setting, path) = hold.variable();
    let variables = [&[(setting, path.to_owned())][..], &scene.hold(300)?].concat();
    let fermata = scene.fermata();
    fermata.run_with(&variables, "heat", Device::Soft, &program, &options)?;
    scene.wait_steps("heat", 15)?;
    let mut protection = Protection::start(&scene, "heat", &["--every", "0.5"])?;
    protection.wait("checkpoint", 1)?;
    std::fs::write(folder.path().join("lost"), "")?;
    protection.wait("restored", 1)?;
    let failures = protection.of("failure")?;
    ensure!(failures.len() == 1, "{failures:?}");
    ensure!(failures[0]["what"] == "device", "{failures:?}");
    let images = protection.of("checkpoint")?.len();
    protection.wait("checkpoint", images + 1)?;
    scene.let_go()?;
    let status = protection.end()?;
    ensure!(status == 0, "{status}: {}", protection.told()?);
    scene.check_ends_as("heat", &straight)?;
    scene.close()
}

/// One of several processes, not the first, loses its worker, which ends it, and the others wait for it.
#[test]
fn a_protected_job_of_several_processes_survives_the_death_of_one() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = scene.tree().program("family")?;
    let options = ["--steps", "400"];
    let straight = scene.straight("family", &options)?;
    let hold = scene.hold(300)?;
    fermata.run_with(&hold, "family", Device::Soft, &program, &options)?;
    scene.wait_steps("family", 1)?;
    let mut protection = Protection::start(&scene, "family", &["--every", "0.5"])?;
    for count in [1, 2] {
        let images = protection.of("checkpoint")?.len();
        protection.wait("checkpoint", images + 1)?;
        let processes = fermata.session("family")?.processes;
        ensure!(processes.len() == 3, "{processes:?}");
        let last = processes.last().context("three processes")?;
        kill_nine(&look_up(last.worker_pid).context("it runs")?)?;
        protection.wait("restored", count)?;
    }
    let images = protection.of("checkpoint")?.len();
    protection.wait("checkpoint", images + 1)?;
    scene.let_go()?;
    let status = protection.end()?;
    ensure!(status == 0, "{status}: {}", protection.told()?);
    scene.check_ends_as("family", &straight)?;
    scene.close()
}

/// Goes on as long as there is no file, and then dies of itself each time it runs.
const DIES: &str = "
import os, signal, sys, time
print('begun', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
";

#[test]
fn a_program_that_dies_again_and_again_is_reported_and_left_alone() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let dead = scene.sandbox().work().join("dead");
    let words = ["-c", DIES, dead.to_str().context("path")?];
    fermata.run("dies", Device::Soft, Path::new("/usr/bin/python3"), &words)?;
    wait_until("it has begun", || {
        Ok(fermata.log("dies")?.contains("begun"))
    })?;
    let mut protection = Protection::start(&scene, "dies", &["--every", "3600"])?;
    protection.wait("checkpoint", 1)?;
    std::fs::write(&dead, "")?;
    let status = protection.end()?;
    ensure!(status == 1, "{status}: {}", protection.told()?);
    ensure!(
        protection.of("failure")?.len() == 4,
        "{}",
        protection.told()?
    );
    ensure!(
        protection.of("restored")?.len() == 3,
        "{}",
        protection.told()?
    );
    let gave_up = protection.of("gave-up")?;
    let report = gave_up.first().context("no report")?;
    ensure!(
        report["failures"].as_array().map(Vec::len) == Some(4),
        "{report}"
    );
    // What it printed before each death is kept, and so is the image.
    let log = protection.of("failure")?[0]["log"].clone();
    let log = std::fs::read_to_string(log.as_str().context("no log")?)?;
    ensure!(log.contains("begun"), "{log}");
    std::fs::remove_file(&dead)?;
    scene
        .try_restore("dies-protect-1", "again")?
        .success("fermata restore")?;
    fermata.kill("again")?;
    scene.close()
}

#[test]
fn as_many_valid_images_are_kept_as_were_asked_for_whatever_befalls_the_others() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = scene.tree().program("heat2d")?;
    let options = ["--steps", "100000", "--pause-ms", "5"];
    fermata.run("heat", Device::Soft, &program, &options)?;
    scene.wait_steps("heat", 1)?;
    let mut protection = Protection::start(&scene, "heat", &["--every", "0.5", "--keep", "2"])?;
    protection.wait("removed", 2)?;
    // The newest one that was taken and checked is damaged: it counts no more, and no older one goes for it.
    // One alone is damaged: another only if that one became an old one before, and is gone.
    let mut harmed: Option<std::path::PathBuf> = None;
    wait_until("a damaged image is noticed", || {
        let newest = protection.of("checkpoint")?;
        let newest = newest.last().context("an image")?["image"].clone();
        let state = Path::new(newest.as_str().context("a path")?).join("state");
        if harmed.as_ref().is_none_or(|it| !it.exists())
            && state.exists()
            && protection.of("image-damaged")?.is_empty()
        {
            let _ = std::fs::OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(&state);
            harmed = Some(state);
        }
        std::thread::sleep(Duration::from_millis(500));
        Ok(!protection.of("image-damaged")?.is_empty())
    })?;
    // By `kill` it is ended by its user.
    fermata.kill("heat")?;
    let status = protection.end()?;
    ensure!(status == 137, "{status}: {}", protection.told()?);
    let mut sound = 0;
    for entry in std::fs::read_dir(scene.sandbox().images())? {
        let path = entry?.path();
        if !path.join("manifest.json").exists() {
            continue;
        }
        let text = path.to_str().context("path")?;
        sound += usize::from(fermata.call(&["images", "verify", text])?.status == 0);
    }
    ensure!(sound >= 2, "{sound} sound images are left");
    scene.close()
}

#[test]
fn a_protection_goes_on_when_its_events_have_no_reader() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = scene.tree().program("heat2d")?;
    let options = ["--steps", "100000", "--pause-ms", "5"];
    fermata.run("heat", Device::Soft, &program, &options)?;
    scene.wait_steps("heat", 1)?;
    // The user's command gets them instead.
    let events = scene.sandbox().work().join("events");
    std::fs::File::create(&events)?;
    let command = format!("cat >> '{}'", events.display());
    let options = ["--every", "3600", "--on-event", &command];
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let mut protection = Protection::start_into(&scene, "heat", &options, &[], writer.into())?;
    protection.wait("checkpoint", 1)?;
    kill_nine(&scene.process("heat", Which::Program)?)?;
    protection.wait("restored", 1)?;
    fermata.kill("heat")?;
    let status = protection.end()?;
    ensure!(status == 137, "{status}: {}", protection.told()?);
    let errors = std::fs::read_to_string(&protection.errors)?;
    let warnings = errors.matches("events are lost").count();
    ensure!(warnings == 1, "{errors}");
    scene.close()
}

#[test]
fn an_image_that_was_removed_is_passed_over_for_an_older_one() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = scene.tree().program("heat2d")?;
    let options = ["--steps", "100000", "--pause-ms", "5"];
    fermata.run("heat", Device::Soft, &program, &options)?;
    scene.wait_steps("heat", 1)?;
    // Each protection takes one image at once, and keeps that of the one before.
    Protection::start(&scene, "heat", &["--every", "3600"])?.wait("checkpoint", 1)?;
    let mut protection = Protection::start(&scene, "heat", &["--every", "3600"])?;
    protection.wait("checkpoint", 1)?;
    std::fs::remove_dir_all(scene.sandbox().images().join("heat-protect-2"))?;
    kill_nine(&scene.process("heat", Which::Program)?)?;
    protection.wait("restored", 1)?;
    let restored = protection.of("restored")?[0]["image"].clone();
    let restored = restored.as_str().context("no image")?;
    ensure!(restored.ends_with("heat-protect-1"), "{restored}");
    ensure!(
        protection.of("restore-failed")?.is_empty(),
        "{}",
        protection.told()?
    );
    fermata.kill("heat")?;
    let status = protection.end()?;
    ensure!(status == 137, "{status}: {}", protection.told()?);
    scene.close()
}

/// Writes a log of its own, as long as it lives.
const LOGS: &str = "
import sys, time
log = open(sys.argv[1], 'a')
while True:
    print('step', file=log, flush=True)
    time.sleep(0.01)
";

#[test]
fn a_program_that_appends_to_a_file_is_restored_if_its_user_says_so() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let log = scene.sandbox().work().join("steps");
    let words = ["-c", LOGS, log.to_str().context("path")?];
    fermata.run("logs", Device::Soft, Path::new("/usr/bin/python3"), &words)?;
    let length = || log.metadata().map_or(0, |it| it.len());
    wait_until("it has begun", || Ok(length() > 0))?;
    let options = ["--every", "3600", "--ignore-changed-files"];
    let mut protection = Protection::start(&scene, "logs", &options)?;
    protection.wait("checkpoint", 1)?;
    let before = length();
    wait_until("it has written more", || Ok(length() > before))?;
    kill_nine(&scene.process("logs", Which::Program)?)?;
    protection.wait("restored", 1)?;
    let before = length();
    wait_until("it goes on", || Ok(length() > before))?;
    fermata.kill("logs")?;
    let status = protection.end()?;
    ensure!(status == 137, "{status}: {}", protection.told()?);
    scene.close()
}
