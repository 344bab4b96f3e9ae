//! Kernels that write what no argument of theirs names, while an image is taken: found by content and by the kernels
//! themselves, known from then on, and the image is right. Nothing is copied before the program has written enough.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::hold::{COPIES, Hold};
use fermata_e2e::output::Output;
use fermata_e2e::scene::Scene;
use tempfile::TempDir;

/// A program whose kernels write what no argument names.
#[derive(Debug, Clone, Copy)]
struct Breaker {
    name: &'static str,
    /// Bytes of its buffers.
    bytes: u64,
    /// Bytes of the first buffers, which launches do name. They are copied at once: a launch would wait for them.
    named: u64,
}
const fn breaker(name: &'static str, bytes: u64, named: u64) -> Breaker {
    Breaker { name, bytes, named }
}
const HIDDEN: Breaker = breaker("hidden", 8 << 18, 0);
const OVERRUN: Breaker = breaker("overrun", 7 << 17, 1 << 17);
const PTRTABLE: Breaker = breaker("ptrtable", 32 << 16, 0);
const CHAIN: Breaker = breaker("chain", 24 * NODE, 0);
const BREAKERS: [Breaker; 4] = [HIDDEN, OVERRUN, PTRTABLE, CHAIN];
/// One whose kernels write nothing else, in replayed graphs. The first of two that it launches in turn writes two of
/// its buffers, so it goes out while the third is being copied.
const GRAPHS: Breaker = breaker("graphs", 3 << 15, 2 << 15);
/// One whose kernels write what tables name that the host has copied to the device: that is foreseen.
const BATCHES: Breaker = breaker("batches", 24 << 16, 0);
/// A node of `chain` is the least that has to be held, in bytes.
const NODE: u64 = 4096;
/// Beside its buffers a program has tables: less than is held, and less than this in all.
const TABLES: u64 = NODE / 2;
/// An option of `hidden`: its launches are replays of a graph.
const IN_GRAPH: [&str; 2] = ["--graph", "1"];
/// Options of all of them. Printed are a tenth of the steps, or a third.
const LENGTH: [&str; 2] = ["--steps", "1200"];
/// The step at which a program is met, and to which it has then come.
const MET: u64 = 20;
/// How many steps a program makes while nothing of it is copied: in ten, `hidden` turns to two or three of its buffers.
const MEANWHILE: u64 = 200;
/// How many it makes, at most, where it comes to a launch that has to wait for what is copied.
const FEW: u64 = 40;
/// A moment in which it comes there, doubled after every [`PATIENT`] images; much less than it waits.
const MOMENT: Duration = Duration::from_millis(300);
const PATIENT: u32 = 4;
/// How many images are taken until all is known that a kernel writes: with instrumented kernels, a buffer for each.
const LESSONS: u32 = 12;

/// A program that makes the steps that it is told to, and whose copies can be held.
struct Subject {
    scene: Scene,
    hold: Hold<TempDir>,
    breaker: Breaker,
    /// What the program gives without a checkpoint.
    straight: Output,
    /// What it prints.
    log: PathBuf,
}

impl Subject {
    fn start(breaker: Breaker, options: &[&str]) -> Result<Self> {
        let program = breaker.name;
        let scene = Scene::new()?;
        let (fermata, path) = (scene.fermata(), scene.tree().program(program)?);
        let options = [&LENGTH, options].concat();
        fermata.run("straight", Device::Soft, &path, &options)?;
        let status = fermata.wait_exit("straight", PROGRAM_LIMIT)?;
        ensure!(status == 0, "`{program}` ended with {status}");
        let straight = Output::parse(&fermata.log("straight")?)?;
        let hold = Hold::at(tempfile::tempdir()?);
        let (setting, folder) = hold.variable();
        let held = [(setting, folder.to_owned())];
        let variables = [&held[..], &scene.hold(MET)?].concat();
        fermata.run_with(&variables, "first", Device::Soft, &path, &options)?;
        scene.wait_steps("first", 2)?;
        let log = fermata.session("first")?.log;
        Ok(Self {
            scene,
            hold,
            breaker,
            straight,
            log,
        })
    }

    /// The last step that the program has printed.
    fn step(&self) -> Result<u64> {
        let out = Output::parse(&fs::read_to_string(&self.log)?)?;
        out.steps.last().copied().context("no step")
    }

    /// Lets the program make so many steps, and waits for as long as that takes, or so long.
    fn work(&self, steps: u64, limit: Duration) -> Result<bool> {
        let end = self.step()? + steps;
        self.scene.let_go_to(end)?;
        let begun = Instant::now();
        while self.step()? < end {
            if begun.elapsed() > limit {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }

    /// Takes an image with `cow`, of which nothing is copied before the program has made [`MEANWHILE`] steps; what the
    /// command tells.
    fn overtake(&self, image: &str, by: &str) -> Result<serde_json::Value> {
        self.checkpoint(image, by, || {
            let done = self.work(MEANWHILE, PROGRAM_LIMIT)?;
            ensure!(done, "it does not go on");
            Ok(())
        })
    }

    /// Takes images with `cow`, of each of which nothing is copied for a moment, until one is as it should be; that
    /// image, and what the command tells.
    fn pause_until(
        &self,
        by: &str,
        prefix: &str,
        mut is_it: impl FnMut(&serde_json::Value) -> Result<bool>,
    ) -> Result<(String, serde_json::Value)> {
        let mut last = None;
        for nth in 0..LESSONS {
            let image = format!("{prefix}-{nth}");
            let moment = MOMENT * 2u32.pow(nth / PATIENT);
            let told = self.checkpoint(&image, by, || self.work(FEW, moment).map(drop))?;
            if is_it(&told)? {
                return Ok((image, told));
            }
            last = Some(told);
        }
        bail!("no image is as it should be; the last: {last:?}")
    }

    /// Takes an image with `cow`, does `meanwhile` when the program goes on and nothing is copied yet, and lets the
    /// copies go; what the command tells.
    fn checkpoint(
        &self,
        image: &str,
        by: &str,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<serde_json::Value> {
        // In the stop the worker copies what is on the software GPU to hash it: for the sandbox's comparison with a
        // stopped image, and for the check of contents.
        let times = if by == "content" { 2 } else { 1 };
        let passes = times * self.breaker.bytes + self.breaker.named + TABLES;
        self.hold.only_from(COPIES, passes, NODE);
        let options = ["--validate", by, "--json"];
        let (taken, ()) = self.scene.checkpoint_beside(
            &self.hold,
            ("first", image),
            (Mode::Cow, &options),
            meanwhile,
        )?;
        let done = taken?;
        serde_json::from_str(&done.stdout).with_context(|| format!("answer: {}", done.stdout))
    }

    /// Ends the session, and demands that the image gives what the program gives without it.
    fn check_image(&self, image: &str) -> Result<()> {
        let fermata = self.scene.fermata();
        fermata.kill("first")?;
        let verified = fermata.call(&["images", "verify", image])?;
        verified.success("fermata images verify")?;
        self.scene.let_go()?;
        fermata.restore(image, "second", Device::Soft)?;
        ensure!(fermata.wait_exit("second", PROGRAM_LIMIT)? == 0, "it fails");
        Output::parse(&fermata.log("second")?)?.check_complete(&self.straight)
    }

    fn close(self) -> Result<()> {
        self.scene.close()
    }
}

fn count(told: &serde_json::Value) -> Result<u64> {
    told.as_u64().with_context(|| format!("no count: {told}"))
}

/// Chunks that were written before they were copied.
fn overtaken(told: &serde_json::Value) -> Result<u64> {
    count(&told["overtaken"])
}

/// Whether a program that had to wait for long was let go: then what it writes is not set aside, and a stop vouches for the image.
fn has_let_go(told: &serde_json::Value) -> bool {
    let note = told["device"]["validation"]["note"].as_str();
    note.is_some_and(|it| it.contains("would have waited"))
}

#[test]
fn an_unforeseen_write_is_found_by_content_and_the_image_is_right() -> Result<()> {
    for breaker in BREAKERS {
        let name = breaker.name;
        let subject = Subject::start(breaker, &[])?;
        let told = subject.overtake("image", "content")?;
        // More than the one that a launch names and that is not waited for any longer.
        ensure!(overtaken(&told)? > 1, "{name}: {told}");
        let validation = &told["device"]["validation"];
        ensure!(validation["by"] == "content", "{name}: {validation}");
        subject.check_image("image").context(name)?;
        subject.close()?;
    }
    Ok(())
}

#[test]
fn an_unforeseen_write_is_found_by_the_kernel_itself_and_the_image_is_right() -> Result<()> {
    let plain = BREAKERS.map(|breaker| (breaker, &[][..]));
    let replayed = [(HIDDEN, &IN_GRAPH[..])];
    for (breaker, options) in plain.into_iter().chain(replayed) {
        let name = breaker.name;
        let subject = Subject::start(breaker, options)?;
        let mis_speculated =
            |told: &serde_json::Value| Ok(count(&told["device"]["validation"]["violations"])? > 0);
        let (image, told) = subject
            .pause_until("ptx", "image", mis_speculated)
            .context(name)?;
        let validation = &told["device"]["validation"];
        let unchecked = count(&validation["unchecked"])?;
        ensure!(unchecked == 0, "{name}: {validation}");
        let miss = &validation["misses"][0];
        let kernel = miss["kernel"].as_str();
        ensure!(kernel.is_some_and(|it| !it.is_empty()), "{name}: {miss}");
        ensure!(count(&miss["buffer"])? > 0, "{name}: {miss}");
        ensure!(overtaken(&told)? > 0, "{name}: {told}");
        // A stop has compared everything since.
        ensure!(validation["by"] == "content", "{name}: {validation}");
        subject.check_image(&image).context(name)?;
        subject.close()?;
    }
    Ok(())
}

/// Graphs that write what is foreseen, changed and replayed while an image is taken, are vouched for by their kernels'
/// instrumented kernels alone.
#[test]
fn replayed_graphs_check_themselves() -> Result<()> {
    let subject = Subject::start(GRAPHS, &[])?;
    // A program that had to wait for long is let go, and a stop vouches then; the note says so.
    let (image, told) = subject.pause_until("ptx", "image", |told| {
        let validation = &told["device"]["validation"];
        Ok(validation["note"] == "" && count(&validation["checked"])? > 0)
    })?;
    let validation = &told["device"]["validation"];
    ensure!(validation["by"] == "ptx", "{validation}");
    let others = count(&validation["unchecked"])? + count(&validation["violations"])?;
    ensure!(others == 0, "{validation}");
    subject.check_image(&image)?;
    subject.close()
}

/// What has overtaken a capture is known from then on, and set aside.
#[test]
fn captures_learn_until_they_are_not_overtaken() -> Result<()> {
    for (breaker, by) in [(HIDDEN, "content"), (OVERRUN, "content"), (OVERRUN, "ptx")] {
        let name = breaker.name;
        let subject = Subject::start(breaker, &[])?;
        let mut caught = 0;
        if by == "content" {
            caught += overtaken(&subject.overtake("first", by)?)?;
        }
        let (image, told) = subject
            .pause_until(by, "image", |told| {
                if has_let_go(told) {
                    return Ok(false);
                }
                caught += overtaken(told)?;
                // It was about to be written while it was copied, so something was copied aside or waited for.
                let stall = &told["device"]["stall"];
                let kept = count(&stall["isolated_bytes"])? + count(&stall["waits"])?;
                Ok(caught > 1 && overtaken(told)? == 0 && kept > 0)
            })
            .with_context(|| format!("{name}/{by}"))?;
        let validation = &told["device"]["validation"];
        ensure!(validation["by"] == by, "{name}/{by}: {told}");
        subject
            .check_image(&image)
            .with_context(|| format!("{name}/{by}"))?;
        subject.close()?;
    }
    Ok(())
}

/// Buffers in a table that the program has copied to the device are set aside before a kernel writes them.
#[test]
fn what_copied_tables_name_is_foreseen() -> Result<()> {
    for by in ["content", "ptx"] {
        let subject = Subject::start(BATCHES, &[])?;
        let (image, told) = subject
            .pause_until(by, "image", |told| {
                if has_let_go(told) {
                    return Ok(false);
                }
                let violations = count(&told["device"]["validation"]["violations"])?;
                ensure!(overtaken(told)? + violations == 0, "{told}");
                let stall = &told["device"]["stall"];
                Ok(count(&stall["isolated_bytes"])? + count(&stall["waits"])? > 0)
            })
            .context(by)?;
        let validation = &told["device"]["validation"];
        ensure!(validation["by"] == by, "{told}");
        subject.check_image(&image).context(by)?;
        subject.close()?;
    }
    Ok(())
}

/// Every launch with a copied table is predicted; what kernels have put into a table is not known.
#[test]
fn a_trace_counts_no_launch_that_a_copied_table_explains() -> Result<()> {
    let scene = Scene::new()?;
    let counts = |program: &str| -> Result<[u64; 2]> {
        let path = scene.tree().program(program)?;
        let folder = scene.sandbox().work().join(program);
        let [path, folder] = [&path, &folder].map(|it| it.to_str().expect("a path"));
        let run = ["trace", "--device", "soft", "--json", "-o", folder, "--"];
        let words = [&run[..], &[path, "--steps", "40"]].concat();
        let told = scene.fermata().call(&words)?.success("fermata trace")?;
        let start = told.stdout.find('{').unwrap_or(0);
        let told: serde_json::Value = serde_json::from_str(&told.stdout[start..])?;
        let kernels = told["trace"]["kernels"].as_array().context("kernels")?;
        let of_table = kernels.iter().find(|it| {
            it["name"]
                .as_str()
                .is_some_and(|name| name.contains("batched"))
        });
        let kernel = of_table.context("the kernel")?;
        Ok([count(&kernel["checked"])?, count(&kernel["mispredicted"])?])
    };
    let foreseen = counts("batches")?;
    ensure!(foreseen == [40, 0], "{foreseen:?}");
    let [checked, missed] = counts("ptrtable")?;
    ensure!(checked == 40 && missed > 0, "{checked}, {missed}");
    scene.close()
}

#[test]
fn an_image_that_nothing_vouches_for_says_so_wherever_it_is_used() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("first")?;
    let fermata = scene.fermata();
    let options = ["--validate", "off", "--json"];
    let told = fermata.checkpoint_with("first", "image", Mode::Cow, &options)?;
    let told: serde_json::Value = serde_json::from_str(&told.stdout)?;
    ensure!(told["device"]["validation"]["by"] == "off", "{told}");
    fermata.kill("first")?;
    let image = fermata.image("image");
    let image = image.to_str().context("image path")?;
    let says = |text: &str| text.contains("nothing vouches for image");
    let verified = fermata.call(&["images", "verify", image])?;
    ensure!(
        verified.status == 0 && says(&verified.stderr),
        "{verified:?}"
    );
    let restored = scene.try_restore("image", "second")?;
    ensure!(
        restored.status == 0 && says(&restored.stderr),
        "{restored:?}"
    );
    scene.check_goes_on("second")?;
    fermata.kill("second")?;
    scene.close()
}
