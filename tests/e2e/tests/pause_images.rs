//! Sessions that are paused where their images are kept in memory: what an image has already is not stored once more, and stays when
//! the image goes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::halt::Halt;
use fermata_e2e::output::Output;
use fermata_e2e::scene::{Scene, wait_until};
use serde_json::Value;

/// 2 MiB in two buffers; it stands still after step 20, the first that it prints.
const OPTIONS: &[&str] = &["--steps", "40", "--size", "512"];
const HELD: u64 = 20;
/// The status of a command that finds a store in use.
const IN_USE: i32 = 11;

/// A scene whose images are in memory, in which `heat2d` stands still as session `one`, and what it prints alone.
struct Held {
    scene: Scene,
    disk: SmallDisk,
    straight: Output,
}

impl Held {
    fn new() -> Result<Self> {
        let scene = Scene::new()?;
        let disk = SmallDisk::mount(scene.sandbox().images(), "400m")?;
        let straight = scene.straight("heat2d", OPTIONS)?;
        let program = scene.tree().program("heat2d")?;
        let hold = scene.hold(HELD)?;
        let fermata = scene.fermata();
        fermata.run_with(&hold, "one", Device::Soft, &program, OPTIONS)?;
        scene.wait_steps("one", 1)?;
        Ok(Self {
            scene,
            disk,
            straight,
        })
    }

    fn json(&self, line: &[&str]) -> Result<Value> {
        let line = [line, &["--json"]].concat();
        let done = self.scene.fermata().call(&line)?.success(line[0])?;
        Ok(serde_json::from_str(&done.stdout)?)
    }

    /// Pauses a session; where its data is, and how many bytes of it were written there.
    fn pause(&self, name: &str) -> Result<(PathBuf, u64)> {
        let data = self.json(&["pause", name])?["data"].clone();
        let folder: PathBuf = data["folder"].as_str().context("no folder")?.into();
        ensure!(folder.starts_with(self.disk.at()), "{data}");
        ensure!(data["device_bytes"].as_u64() > Some(1 << 20), "{data}");
        Ok((folder, data["written_bytes"].as_u64().context("no bytes")?))
    }

    /// Bytes that a collection of garbage frees, once nobody uses the store any more: what brings a restored program's memory does.
    fn collect(&self) -> Result<u64> {
        let mut freed = None;
        wait_until("the store is free", || {
            let done = self.scene.fermata().call(&["images", "gc", "--json"])?;
            if done.status == IN_USE {
                return Ok(false);
            }
            let report: Value = serde_json::from_str(&done.success("images gc")?.stdout)?;
            freed = report["freed_bytes"].as_u64();
            Ok(true)
        })?;
        freed.context("it does not say what it frees")
    }

    fn remove(&self, image: &str) -> Result<()> {
        let line = ["images", "rm", image];
        self.scene.fermata().call(&line)?.success("images rm")?;
        self.collect().map(drop)
    }

    /// Lets session `name` go on to its end, which must be what the program prints alone; the entry in `folder` is gone then.
    fn ends_right(self, name: &str, folder: &Path) -> Result<()> {
        self.json(&["resume", name])?;
        self.scene.let_go()?;
        self.scene.check_ends_as(name, &self.straight)?;
        wait_until("the data of a pause is removed", || Ok(!folder.exists()))?;
        ensure!(self.collect()? > 1 << 20, "chunks of the image are left");
        drop(self.disk);
        self.scene.close()
    }
}

#[test]
fn what_an_image_has_is_not_copied_and_stays_without_the_image() -> Result<()> {
    let held = Held::new()?;
    let fermata = held.scene.fermata();
    let (folder, bytes) = held.pause("one")?;
    ensure!(bytes > 1 << 20, "{bytes} bytes without an image");
    held.json(&["resume", "one", "--eager"])?;
    wait_until("the data of a pause is removed", || Ok(!folder.exists()))?;
    fermata.checkpoint("one", "image", Mode::Cow)?;
    let (folder, bytes) = held.pause("one")?;
    ensure!(bytes == 0, "{bytes} bytes that the image has");
    held.remove("image")?;
    // The next daemon reads of the entry what the last one has written.
    held.scene.kill_daemon()?;
    held.collect()?;
    held.ends_right("one", &folder)
}

#[test]
fn a_restored_session_is_paused_without_copying_what_its_image_has() -> Result<()> {
    let held = Held::new()?;
    let fermata = held.scene.fermata();
    fermata.checkpoint("one", "image", Mode::Stop)?;
    fermata.kill("one")?;
    let restored = held.scene.try_restore("image", "again")?;
    restored.success("fermata restore")?;
    let (folder, bytes) = held.pause("again")?;
    ensure!(bytes == 0, "{bytes} bytes that the image has");
    held.remove("image")?;
    held.ends_right("again", &folder)
}

#[test]
fn an_image_of_a_paused_session_has_what_it_took_of_one_that_is_gone() -> Result<()> {
    let held = Held::new()?;
    let fermata = held.scene.fermata();
    fermata.checkpoint("one", "image", Mode::Stop)?;
    let (folder, _) = held.pause("one")?;
    held.remove("image")?;
    fermata.checkpoint("one", "second", Mode::Stop)?;
    fermata.kill("one")?;
    ensure!(!folder.exists(), "the data of a pause is left");
    held.collect()?;
    let verified = fermata.call(&["images", "verify", "second"])?;
    verified.success("fermata images verify")?;
    held.scene.let_go()?;
    let restored = held.scene.try_restore("second", "again")?;
    restored.success("fermata restore")?;
    held.scene.check_ends_as("again", &held.straight)?;
    drop(held.disk);
    held.scene.close()
}

#[test]
fn nothing_is_collected_while_a_session_is_being_paused() -> Result<()> {
    let held = Held::new()?;
    let scene = &held.scene;
    scene.fermata().checkpoint("one", "image", Mode::Stop)?;
    // A daemon's moments are chosen when it starts.
    let halt = Halt::at(scene, "pause-checked")?;
    let mut pause = Command::new(scene.tree().fermata());
    pause.args(["pause", "one"]).stdout(Stdio::null());
    scene.sandbox().enter(&mut pause);
    let mut pause = pause.spawn()?;
    halt.wait()?;
    let refused = scene.fermata().call(&["images", "gc"])?;
    drop(halt);
    ensure!(pause.wait()?.success(), "the pause fails");
    ensure!(
        refused.stderr.contains("is running"),
        "it collects: {}",
        refused.stderr
    );
    let data = held.json(&["ps"])?["sessions"][0]["paused"].clone();
    let folder = Path::new(data["folder"].as_str().context("it is not paused")?);
    ensure!(data["written_bytes"] == 0, "{data}");
    held.remove("image")?;
    held.ends_right("one", folder)
}
