//! File systems that are full, nearly full, or read-only, under the images or the daemon's own folder, while programs are
//! started, checkpointed and restored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::ground::{Ground, OLDER, check_answer, told};
use super::{Draw, Kind, Shown};
use crate::case::Mode;
use crate::command;
use crate::disk::SmallDisk;
use crate::fermata::COMMAND_LIMIT;
use crate::scene::{Scene, gc_when_free};

/// Bytes that a nearly full file system of images has left at most: more than an image takes.
const IMAGE_BYTES: u64 = 64 << 20;
/// The same for the daemon's folder.
const RUNTIME_BYTES: u64 = 256 << 10;
const LOOK: u64 = 8;
const MODES: [Mode; 4] = [Mode::Stop, Mode::Snapshot, Mode::Cow, Mode::Recopy];

/// What is wrong with a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Full,
    NearlyFull,
    ReadOnly,
}

const HARMS: [(Harm, &str); 3] = [
    (Harm::Full, "full"),
    (Harm::NearlyFull, "nearly full"),
    (Harm::ReadOnly, "read-only"),
];

/// What is done meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Run,
    Checkpoint,
    Restore,
}

const DEEDS: [Deed; 3] = [Deed::Run, Deed::Checkpoint, Deed::Restore];

/// A file system of its own for images, and one for the daemon's folder.
pub struct Disks {
    images: SmallDisk,
    runtime: SmallDisk,
    ground: Ground,
}

impl Disks {
    /// Sets the stage.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn new() -> Result<Self> {
        let scene = Scene::new()?;
        let images = SmallDisk::mount(scene.sandbox().images(), "160m")?;
        let runtime = SmallDisk::mount(scene.sandbox().runtime(), "48m")?;
        // What programs print is not to be lost.
        let logs = scene.sandbox().work().join("logs");
        let logs = logs.to_str().context("path")?;
        scene
            .fermata()
            .call_with(
                &["ps"],
                // Packs that a worker has mapped would keep the file system from becoming read-only.
                &[
                    ("FERMATA_LOG_DIR", logs),
                    ("FERMATA_MEMORY_TIER_LIMIT", "0"),
                ],
            )?
            .success("fermata ps")?;
        let ground = Ground::new(scene)?;
        Ok(Self {
            images,
            runtime,
            ground,
        })
    }

    /// Does it while the file system is harmed; the word for what came of it.
    fn deed(&self, deed: Deed, name: &str, harmed: Harmed<'_>, draw: &mut Draw) -> Result<String> {
        let (scene, fermata) = (&self.ground.scene, self.ground.scene.fermata());
        let image = fermata.image(name);
        let done = match deed {
            Deed::Run => {
                let program = scene.tree().program("heat2d")?;
                let program = program.to_str().context("path")?;
                let words = [
                    "run", "--device", "soft", "--detach", "--name", name, "--", program,
                    "--steps", "400", "--size", "128",
                ];
                let held = harmed.begin()?;
                let done = fermata.call(&words)?;
                drop(held);
                done
            }
            Deed::Checkpoint => {
                self.ground.start(name)?;
                let mode = draw.pick(&MODES).name();
                let path = image.to_str().context("path")?;
                let held = harmed.begin()?;
                let done = fermata.call(&["checkpoint", name, "--mode", mode, "-o", path])?;
                drop(held);
                self.ground.let_go(name)?;
                done
            }
            Deed::Restore => {
                let held = harmed.begin()?;
                let done = fermata.call(&["restore", OLDER, "--detach", "--name", name])?;
                drop(held);
                done
            }
        };
        check_answer(&done)?;
        let ended = self.ground.end_of(name)?;
        match (&ended, deed) {
            (Some(ended), _) => {
                let lost = deed != Deed::Checkpoint && done.status != 0;
                let restored = deed == Deed::Restore;
                let checked = self.ground.check_ended(ended, restored, lost);
                checked.with_context(|| done.stderr.clone())?;
            }
            (None, Deed::Checkpoint) => ensure!(false, "its session is gone: {}", done.stderr),
            (None, _) => ensure!(done.status != 0, "it says that there is a session"),
        }
        if image.exists() {
            self.ground
                .check_image(name, &format!("{name}-again"), draw)?;
            let removed = fermata.call(&["images", "rm", name])?;
            removed.success("fermata images rm")?;
        } else {
            ensure!(
                deed != Deed::Checkpoint || done.status != 0,
                "it says that there is an image"
            );
        }
        Ok(told(&done))
    }
}

/// A file system that is to be harmed.
#[derive(Debug, Clone, Copy)]
struct Harmed<'a> {
    disk: &'a SmallDisk,
    harm: Harm,
    left: u64,
}

/// One that is; as before when this is dropped.
enum Held<'a> {
    Filled(PathBuf),
    ReadOnly(&'a Path),
}

impl<'a> Harmed<'a> {
    fn begin(self) -> Result<Held<'a>> {
        if self.harm == Harm::ReadOnly {
            remount(self.disk.at(), "ro")?;
            return Ok(Held::ReadOnly(self.disk.at()));
        }
        let filled = self.disk.fill()?;
        if self.harm == Harm::NearlyFull {
            let file = fs::OpenOptions::new().write(true).open(&filled)?;
            file.set_len(file.metadata()?.len().saturating_sub(self.left))?;
        }
        Ok(Held::Filled(filled))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A file system that stays harmed fails the cases that follow.
        match self {
            Self::Filled(file) => drop(fs::remove_file(file)),
            Self::ReadOnly(at) => drop(remount(at, "rw")),
        }
    }
}

/// Mounts it anew; one that is written to right now waits for a better moment.
fn remount(at: &Path, how: &str) -> Result<()> {
    let begin = std::time::Instant::now();
    loop {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{how}")]).arg(at);
        let done = command::run(mount, COMMAND_LIMIT)?;
        if done.status == 0 {
            return Ok(());
        }
        ensure!(begin.elapsed() < COMMAND_LIMIT, "mount: {}", done.stderr);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

impl Kind for Disks {
    fn name(&self) -> &'static str {
        "disks"
    }

    fn perform(&mut self, number: u64, draw: &mut Draw) -> Result<Shown> {
        let (harm, how) = *draw.pick(&HARMS);
        let deed = *draw.pick(&DEEDS);
        // A daemon keeps files of its own open for writing: its folder cannot become read-only.
        let of_images = harm == Harm::ReadOnly || draw.below(2) == 0;
        let (disk, most, whose) = match of_images {
            true => (&self.images, IMAGE_BYTES, "images"),
            false => (&self.runtime, RUNTIME_BYTES, "the daemon"),
        };
        let harmed = Harmed {
            disk,
            harm,
            left: draw.below(most),
        };
        let told = format!("{deed:?}, disk of {whose} {how}").to_lowercase();
        let came = self.deed(deed, &format!("case-{number}"), harmed, draw);
        let came = came.with_context(|| told.clone())?;
        let drafts = self.ground.drafts()?;
        ensure!(drafts.is_empty(), "half images: {drafts:?}");
        self.ground.check_nothing_left()?;
        let fermata = self.ground.scene.fermata();
        gc_when_free(|| fermata.call(&["images", "gc"]))?.success("fermata images gc")?;
        if number.is_multiple_of(LOOK) {
            self.ground.check_neighbour()?;
            self.ground.check_files()?;
        }
        Ok(Shown { harm: told, came })
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self {
            images,
            runtime,
            ground,
        } = *self;
        ground.close_over([images, runtime])
    }
}
