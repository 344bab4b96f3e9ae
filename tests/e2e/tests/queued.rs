//! What a program has queued is part of its image: a checkpoint waits for what the device is at, not for the queue.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::moment::Moment;
use fermata_e2e::output::Output;
use fermata_e2e::scene::{Scene, Which, kill_nine};
use serde_json::Value;

const STEPS: u64 = 24;
/// Operations of a step, at least.
const OPERATIONS: u64 = 12;
const OPTIONS: [&str; 4] = ["--size", "60000", "--steps", "24"];

/// A program whose device stands still in its first host function, with everything queued behind that, and once more before
/// the step in the middle.
struct Queued {
    scene: Scene,
    gates: [PathBuf; 2],
    straight: Output,
}

impl Queued {
    fn new() -> Result<Self> {
        let scene = Scene::new()?;
        let straight = scene.straight("queued", &OPTIONS)?;
        let gates = ["first", "second"].map(|name| scene.sandbox().work().join(name));
        let queued = Self {
            scene,
            gates,
            straight,
        };
        let program = queued.scene.tree().program("queued")?;
        let [first, second] = &queued.gates;
        let (first, second) = (first.to_str(), second.to_str());
        let (first, second) = first.zip(second).context("paths that are text")?;
        let gates = ["--wait", first, "--wait-again", second];
        let options = [&OPTIONS[..], &gates].concat();
        let fermata = queued.scene.fermata();
        fermata.run("queued", Device::Soft, &program, &options)?;
        // Every step is issued; not one has begun.
        queued.scene.wait_steps("queued", STEPS as usize)?;
        Ok(queued)
    }

    /// Lets the device go on to the step in the middle.
    fn open(&self) -> Result<()> {
        Ok(fs::write(&self.gates[0], "")?)
    }

    /// Lets the device go on to its end.
    fn open_all(&self) -> Result<()> {
        self.open()?;
        Ok(fs::write(&self.gates[1], "")?)
    }

    /// Begins a checkpoint, and returns once that says what it waits for.
    fn waiting(&self, image: &str, mode: Mode) -> Result<(Child, String)> {
        let (child, said) = self.begun(image, mode)?;
        Ok((child, said.context("it has waited for nothing")?))
    }

    /// Begins a checkpoint, and returns once that says what it waits for, or has ended without waiting.
    fn begun(&self, image: &str, mode: Mode) -> Result<(Child, Option<String>)> {
        let mut command = Command::new(self.scene.tree().fermata());
        let path = self.scene.fermata().image(image);
        command.args([
            "checkpoint",
            "queued",
            "--mode",
            mode.name(),
            "--json",
            "-o",
        ]);
        command
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.scene.sandbox().enter(&mut command);
        let mut child = command.spawn()?;
        let errors = child.stderr.take().context("its standard error")?;
        for line in BufReader::new(errors).lines() {
            let line = line?;
            if line.contains("the checkpoint waits") {
                return Ok((child, Some(line)));
            }
        }
        Ok((child, None))
    }

    /// Waits for the end of session `name`, which must be the program's own.
    fn ends(&self, name: &str) -> Result<()> {
        let fermata = self.scene.fermata();
        // It returns when the last line is there, or fails.
        fermata.wait_log(name, PROGRAM_LIMIT, |_| false)?;
        Output::parse(&fermata.log(name)?)?.check_complete(&self.straight)
    }
}

fn whole_queue_is_in_the_image(mode: Mode) -> Result<()> {
    let queued = Queued::new()?;
    let fermata = queued.scene.fermata();
    let (child, said) = queued.waiting("first", mode)?;
    ensure!(said.contains("a host function on"), "it says: {said}");
    queued.open()?;
    let done = child.wait_with_output()?;
    ensure!(done.status.success(), "the checkpoint has failed: {done:?}");
    let done: Value = serde_json::from_slice(&done.stdout)?;
    let operations = done["device"]["queued"].as_u64().unwrap_or(0);
    ensure!(
        operations > STEPS * OPERATIONS * 3 / 4,
        "{operations} operations are queued"
    );
    let waited = done["waited"]["what"].as_str().unwrap_or("");
    ensure!(waited.contains("a host function"), "waited for `{waited}`");
    // Once more, wherever in the first half of the queue the device is by now.
    let (child, _) = queued.begun("second", mode)?;
    queued.open_all()?;
    let again = child.wait_with_output()?;
    ensure!(again.status.success(), "the second has failed: {again:?}");
    let again: Value = serde_json::from_slice(&again.stdout)?;
    let left = again["device"]["queued"].as_u64().unwrap_or(0);
    ensure!(
        (STEPS * OPERATIONS / 3..=operations).contains(&left),
        "{left} operations are left of {operations}: {again}"
    );
    queued.ends("queued")?;
    for image in ["first", "second"] {
        fermata.restore(image, image, Device::Soft)?;
        queued.ends(image)?;
    }
    queued.scene.close()
}

#[test]
fn a_queue_runs_once_after_a_stop() -> Result<()> {
    whole_queue_is_in_the_image(Mode::Stop)
}

#[test]
fn a_queue_runs_once_behind_copy_on_write() -> Result<()> {
    whole_queue_is_in_the_image(Mode::Cow)
}

#[test]
fn a_queue_runs_once_after_copying_again() -> Result<()> {
    whole_queue_is_in_the_image(Mode::Recopy)
}

/// Host functions are most of what the program does: they wait in its queue, are due, run, and have just run.
#[test]
fn host_functions_run_once_in_order_whatever_moment_a_stop_finds() -> Result<()> {
    const STEPS: usize = 90;
    // The last steps are made when all images are there.
    const HELD: usize = STEPS - 9;
    let options = [
        "--size",
        "1000",
        "--steps",
        "90",
        "--together",
        "3",
        "--calls",
        "16",
    ];
    let scene = Scene::new()?;
    let straight = scene.straight("queued", &options)?;
    let fermata = scene.fermata();
    let (program, hold) = (scene.tree().program("queued")?, scene.hold(HELD as u64)?);
    fermata.run_with(&hold, "calls", Device::Soft, &program, &options)?;
    let modes = [Mode::Stop, Mode::Cow, Mode::Recopy, Mode::Stop];
    for (n, mode) in modes.into_iter().enumerate() {
        let moment = Moment::seeded(31, n, modes.len(), HELD, Duration::from_secs(1));
        scene.wait_steps("calls", moment.steps)?;
        std::thread::sleep(Duration::from_micros(moment.delay_us));
        fermata.checkpoint("calls", &format!("image-{n}"), mode)?;
    }
    kill_nine(&scene.process("calls", Which::Program)?)?;
    scene.let_go()?;
    for n in 0..modes.len() {
        let image = format!("image-{n}");
        fermata.restore(&image, &image, Device::Soft)?;
        fermata.wait_log(&image, PROGRAM_LIMIT, |_| false)?;
        Output::parse(&fermata.log(&image)?)?.check_complete(&straight)?;
    }
    scene.close()
}

#[test]
fn a_worker_killed_with_a_queue_leaves_the_image_with_its_own() -> Result<()> {
    let queued = Queued::new()?;
    let fermata = queued.scene.fermata();
    let (child, _) = queued.waiting("first", Mode::Stop)?;
    queued.open()?;
    let done = child.wait_with_output()?;
    ensure!(done.status.success(), "the checkpoint has failed: {done:?}");
    kill_nine(&queued.scene.process("queued", Which::Worker)?)?;
    // Its calls fail, and it says so.
    let status = fermata.wait_exit("queued", PROGRAM_LIMIT)?;
    ensure!(
        status == 1,
        "a program without a worker ended with {status}"
    );
    queued.open_all()?;
    fermata.restore("first", "again", Device::Soft)?;
    queued.ends("again")?;
    queued.scene.close()
}

#[test]
fn a_checkpoint_that_is_given_up_leaves_the_queue() -> Result<()> {
    let queued = Queued::new()?;
    let (mut child, _) = queued.waiting("first", Mode::Stop)?;
    // A checkpoint whose command ends goes on in the daemon, so it is the daemon that ends here.
    queued.scene.kill_daemon()?;
    child.wait()?;
    // The program waits until it is back, and cannot end before.
    queued.scene.wait_back("queued")?;
    queued.open_all()?;
    queued.ends("queued")?;
    queued.scene.close()
}

/// Steps of a program that has something staged at nearly every moment, of which each stop lets it do some.
const FED: [&str; 4] = ["--size", "1000003", "--steps", "3000"];

#[test]
fn a_program_goes_on_after_each_stop_with_what_was_staged_for_it() -> Result<()> {
    let scene = Scene::new()?;
    let straight = scene.straight("fed", &FED)?;
    let program = scene.tree().program("fed")?;
    let fermata = scene.fermata();
    fermata.run("fed", Device::Soft, &program, &FED)?;
    for (nth, mode) in [Mode::Snapshot, Mode::Cow, Mode::Stop, Mode::Recopy]
        .into_iter()
        .cycle()
        .take(6)
        .enumerate()
    {
        scene.check_goes_on("fed")?;
        fermata.checkpoint("fed", &format!("image-{nth}"), mode)?;
    }
    scene.check_ends_as("fed", &straight)?;
    scene.close()
}
