//! Processes of one session that hold the same data, as the ranks of data-parallel training do: an image stores it once, and all of them
//! come back.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::hold::{COPIES, Hold};
use fermata_e2e::output::Output;
use fermata_e2e::scene::{Scene, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// Processes of a session.
const RANKS: usize = 3;
/// Two buffers of 4 MiB.
const HEAT: (&str, &[&str]) = ("heat2d", &["--steps", "60", "--size", "1024"]);
/// The step after which they stand still.
const HELD: u64 = 20;

/// A scene in which processes run the same program as one session.
struct Ranks {
    scene: Scene,
    straight: Output,
}

impl Ranks {
    /// They stand still after step [`HELD`] when this returns.
    fn start((program, options): (&str, &[&str]), variables: &[(&str, String)]) -> Result<Self> {
        let scene = Scene::new()?;
        let straight = scene.straight(program, options)?;
        let path = scene.tree().program(program)?;
        let line = |rank| {
            let out = Self::output(&scene, rank);
            let words = options.join(" ");
            format!("{} {words} >{} 2>&1 &", path.display(), out.display())
        };
        let lines: Vec<_> = (0..RANKS).map(line).collect();
        let script = format!("{} wait", lines.join(" "));
        let variables = [variables, &scene.hold(HELD)?].concat();
        let fermata = scene.fermata();
        let shell = Path::new("/bin/sh");
        fermata.run_with(&variables, "ranks", Device::Soft, shell, &["-c", &script])?;
        let ranks = Self { scene, straight };
        ranks.wait_last(|step| step == HELD)?;
        Ok(ranks)
    }

    fn output(scene: &Scene, rank: usize) -> PathBuf {
        scene.sandbox().work().join(format!("rank-{rank}"))
    }

    fn read(&self, rank: usize) -> Result<Output> {
        Output::parse(&fs::read_to_string(Self::output(&self.scene, rank))?)
    }

    /// Waits until the last step that each rank has printed is so.
    fn wait_last(&self, is_so: impl Fn(u64) -> bool) -> Result<()> {
        wait_until("all ranks have come to a step", || {
            let outputs = (0..RANKS).map(|rank| self.read(rank));
            let last = outputs.flatten().filter_map(|it| it.steps.last().copied());
            Ok(last.filter(|step| is_so(*step)).count() == RANKS)
        })
    }

    fn checkpoint(&self, image: &str, mode: Mode) -> Result<Value> {
        let fermata = self.scene.fermata();
        let done = fermata.checkpoint_with("ranks", image, mode, &["--json"])?;
        Ok(serde_json::from_str(&done.stdout)?)
    }

    /// Demands that all ranks of session `name` end with what the program prints alone.
    fn end_right(&self, name: &str) -> Result<()> {
        self.scene.let_go()?;
        wait_until("the session ends", || {
            Ok(self.scene.fermata().session(name)?.state == "exited")
        })?;
        for rank in 0..RANKS {
            self.read(rank)?
                .check_complete(&self.straight)
                .with_context(|| format!("rank {rank}"))?;
        }
        Ok(())
    }

    /// Kills the session, and demands that its image gives what the program gives without it.
    fn comes_back(self, image: &str) -> Result<()> {
        let fermata = self.scene.fermata();
        fermata.kill("ranks")?;
        let verified = fermata.call(&["images", "verify", image])?;
        verified.success("fermata images verify")?;
        // Where they were not held still, they have printed more since.
        self.scene.restore_grown(image, "again")?;
        self.end_right("again")?;
        self.scene.close()
    }
}

/// Bytes that an image, or the data of a pause, has taken, of those that the processes have on devices.
fn written(told: &Value) -> Result<(u64, u64)> {
    let count = |name: &str| told[name].as_u64().with_context(|| format!("{told}"));
    Ok((count("written_bytes")?, count("device_bytes")?))
}

/// Demands that what all ranks have was stored once. Module images, of which each has the same, are among it.
fn check_once(told: &Value) -> Result<()> {
    let (written, held) = written(told)?;
    let of_one = held / RANKS as u64;
    ensure!(
        of_one > 4 << 20 && written < of_one + (1 << 20),
        "{written} bytes of {held} in {RANKS} processes"
    );
    Ok(())
}

#[test]
fn what_all_ranks_have_is_stored_once_and_all_come_back() -> Result<()> {
    for mode in [Mode::Stop, Mode::Cow, Mode::Snapshot] {
        let ranks = Ranks::start(HEAT, &[])?;
        let told = ranks.checkpoint("image", mode)?;
        check_once(&told["device"]).context(mode.name())?;
        ranks.comes_back("image").context(mode.name())?;
    }
    Ok(())
}

#[test]
fn a_copy_of_what_comes_to_be_counts_on_nobody_and_comes_back() -> Result<()> {
    let ranks = Ranks::start(HEAT, &[])?;
    ranks.checkpoint("image", Mode::Recopy)?;
    ranks.comes_back("image")
}

#[test]
fn a_later_image_has_what_ranks_have_changed_once() -> Result<()> {
    let ranks = Ranks::start(HEAT, &[])?;
    ranks.checkpoint("first", Mode::Cow)?;
    ranks.scene.let_go_to(2 * HELD)?;
    ranks.wait_last(|step| step == 2 * HELD)?;
    let told = ranks.checkpoint("second", Mode::Cow)?;
    check_once(&told["device"])?;
    let fermata = ranks.scene.fermata();
    fermata
        .call(&["images", "rm", "first"])?
        .success("images rm")?;
    fermata.call(&["images", "gc"])?.success("images gc")?;
    ranks.comes_back("second")
}

#[test]
fn a_pause_has_what_all_ranks_have_once() -> Result<()> {
    for in_memory in [false, true] {
        let ranks = Ranks::start(HEAT, &[])?;
        let images = ranks.scene.sandbox().images();
        let disk = in_memory
            .then(|| SmallDisk::mount(images, "400m"))
            .transpose()?;
        let fermata = ranks.scene.fermata();
        let paused = fermata.call(&["pause", "ranks", "--json"])?;
        let told: Value = serde_json::from_str(&paused.success("fermata pause")?.stdout)?;
        check_once(&told["data"])?;
        fermata
            .call(&["resume", "ranks"])?
            .success("fermata resume")?;
        ranks.end_right("ranks")?;
        drop(disk);
        ranks.scene.close()?;
    }
    Ok(())
}

/// Ranks write what no argument of a kernel names, while nothing is copied yet. Then each stores its own.
#[test]
fn ranks_that_overtake_the_copy_come_back() -> Result<()> {
    let hold = Hold::at(TempDir::new()?);
    let (setting, folder) = hold.variable();
    let program = ("hidden", &["--steps", "1200"][..]);
    let ranks = Ranks::start(program, &[(setting, folder.to_owned())])?;
    // What is copied to be hashed, as in `unforeseen`.
    hold.only_from(COPIES, 2 * (8 << 18) + 2048, 4096);
    let work = || {
        ranks.scene.let_go_to(HELD + 400)?;
        ranks.wait_last(|step| step >= HELD + 220)
    };
    let options = ["--validate", "content", "--json"];
    let asked = (Mode::Cow, &options[..]);
    let (taken, ()) = ranks
        .scene
        .checkpoint_beside(&hold, ("ranks", "image"), asked, work)?;
    let told: Value = serde_json::from_str(&taken?.stdout)?;
    ensure!(told["overtaken"].as_u64() > Some(0), "{told}");
    ranks.comes_back("image")
}
