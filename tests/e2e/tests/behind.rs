//! Checkpoints behind a running program, one after another and one beside another; whatever dies or fills up while
//! they copy, nothing is left behind and no wrong image is made. Copying stands still for as long as a test needs.

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::command::Finished;
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::hold::{COPIES, Hold};
use fermata_e2e::scene::{Scene, Which, wait_gone};
use tempfile::TempDir;

/// Two fields, and their bytes.
const WIDE: &[&str] = &["--steps", "400000", "--pause-ms", "20", "--size", "1024"];
const FIELDS: u64 = 2 << 22;
/// A kernel that is launched while a checkpoint copies, and the step after which the program stands still until then.
const LOST_AT: &str = "200";
const HELD_AT: u64 = 180;
const BEHIND: [Mode; 3] = [Mode::Snapshot, Mode::Cow, Mode::Recopy];

fn start_wide(scene: &Scene, name: &str) -> Result<()> {
    start_wide_with(scene, name, &[])
}

/// The same, and what holds its copies.
fn start_wide_held(scene: &Scene, name: &str) -> Result<Hold<TempDir>> {
    let hold = Hold::at(tempfile::tempdir()?);
    start_wide_with(scene, name, &[hold.variable()])?;
    Ok(hold)
}

fn start_wide_with(scene: &Scene, name: &str, variables: &[(&str, &str)]) -> Result<()> {
    let program = scene.tree().program("heat2d")?;
    scene
        .fermata()
        .run_with(variables, name, Device::Soft, &program, WIDE)?;
    scene.wait_steps(name, 2)
}

fn verify(scene: &Scene, image: &str) -> Result<()> {
    scene
        .fermata()
        .call(&["images", "verify", image])?
        .success("fermata images verify")?;
    Ok(())
}

/// No file that was made for CRIU ahead is left empty.
fn check_filled(scene: &Scene, image: &str) -> Result<()> {
    let host = scene.fermata().image(image).join("host");
    let mut cores = 0;
    for entry in std::fs::read_dir(&host)? {
        let (entry, name) = entry.map(|it| (it.metadata(), it.file_name()))?;
        let name = name.to_str().context("a plain name")?;
        ensure!(entry?.len() > 0, "`{name}` is empty");
        cores += usize::from(name.starts_with("core-"));
    }
    ensure!(cores > 1, "{cores} threads in `{}`", host.display());
    Ok(())
}

/// What reports of an image say: what its time went into, and for what was copied behind the program, when. Its mode.
fn check_report(scene: &Scene, image: &str) -> Result<String> {
    let fermata = scene.fermata();
    let json = |words: &[&str]| -> Result<serde_json::Value> {
        let told = fermata.call(words)?.success("fermata report")?;
        Ok(serde_json::from_str(&told.stdout)?)
    };
    let inspected = json(&["images", "inspect", image, "--json"])?;
    let mode = inspected["manifest"]["mode"].as_str().context("a mode")?;
    let table = json(&["report", image, "--table", "--json"])?;
    let rows = table["rows"].as_array().context("rows")?;
    let own: &[&str] = match mode {
        "snapshot" => &["copy on the device", "copied, checked and written"],
        "cow" => &["hash", "copied, checked and written"],
        "recopy" => &["hash", "recopy", "copied ahead"],
        _ => &["copy", "hashed and written"],
    };
    for what in ["quiesce", "host state"].iter().chain(own) {
        let row = rows.iter().find(|row| row["what"] == **what);
        let seconds = row.and_then(|row| row["seconds"].as_f64());
        ensure!(seconds > Some(0.0), "{mode}: no `{what}` in {rows:?}");
    }
    let file = scene.fermata().image("").join(format!("{image}.trace"));
    let path = file.to_str().context("path")?;
    json(&["report", image, "--trace", path, "--json"])?;
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    std::fs::remove_file(&file)?;
    let events = trace["traceEvents"].as_array().context("events")?;
    let has = |name: &str| events.iter().any(|event| event["name"] == name);
    ensure!(has("the program stands still") && has("device"), "{trace}");
    // What the store has already is not copied, as of a program at the same step; variables are in the stop. Memory of processes
    // counts as written, too.
    let pages = events.iter().find(|event| event["name"] == "pages");
    let pages = pages.and_then(|it| it["args"]["bytes"].as_u64());
    let written = inspected["manifest"]["totals"]["written_bytes"].as_u64();
    let new = written > Some(pages.context("pages")? + (1 << 20));
    ensure!(!new || has("copy") == (mode != "stop"), "{mode}: {trace}");
    Ok(mode.to_owned())
}

#[test]
fn every_protocol_after_the_other_gives_images_that_restore() -> Result<()> {
    let scene = Scene::new()?;
    start_wide(&scene, "heat")?;
    for (nth, mode) in BEHIND.iter().chain(&[Mode::Auto, Mode::Stop]).enumerate() {
        let image = format!("image-{nth}");
        scene.fermata().checkpoint("heat", &image, *mode)?;
        scene.check_goes_on("heat")?;
        verify(&scene, &image)?;
        check_filled(&scene, &image)?;
        let taken = check_report(&scene, &image)?;
        // There is room for a copy of everything on the device.
        let wanted = match mode {
            Mode::Auto => Mode::Snapshot,
            mode => *mode,
        };
        ensure!(taken == wanted.name(), "{mode:?} went as {taken}");
    }
    scene.fermata().kill("heat")?;
    for nth in 0..5 {
        scene.check_restorable(&format!("image-{nth}"))?;
    }
    scene.close()
}

/// Takes an image, does `meanwhile` when that is under way and nothing has been copied yet, and lets the copies go; what
/// came of both.
fn beside<T>(
    scene: &Scene,
    hold: &Hold<TempDir>,
    image: &str,
    (mode, options): (Mode, &[&str]),
    meanwhile: impl FnOnce() -> Result<T>,
) -> Result<(Result<Finished>, T)> {
    // In the stop the worker copies what is on the software GPU to hash it: for the sandbox's comparison with a
    // stopped image, and with `cow` for the check of contents.
    hold.only(
        COPIES,
        match mode {
            Mode::Cow => 2 * FIELDS,
            Mode::Snapshot => FIELDS,
            _ => 0,
        },
    );
    scene.checkpoint_beside(hold, ("heat", image), (mode, options), meanwhile)
}

#[test]
fn a_second_checkpoint_during_one_is_refused_and_disturbs_nothing() -> Result<()> {
    let scene = Scene::new()?;
    let hold = start_wide_held(&scene, "heat")?;
    let second = scene.fermata().image("second");
    let second = second.to_str().context("image path")?;
    let words = ["checkpoint", "heat", "-o", second, "--mode", "cow"];
    let (taken, refused) = beside(&scene, &hold, "first", (Mode::Cow, &[]), || {
        scene.fermata().call(&words)
    })?;
    taken?;
    ensure!(
        refused.status == 11 && refused.stderr.contains("is being checkpointed"),
        "{}: {}",
        refused.status,
        refused.stderr
    );
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.check_restorable("first")?;
    scene.close()
}

#[test]
fn a_program_that_ends_with_its_checkpoint_is_in_the_image() -> Result<()> {
    let scene = Scene::new()?;
    for mode in BEHIND.into_iter().chain([Mode::Auto]) {
        let (name, image) = (
            format!("heat-{}", mode.name()),
            format!("{}-end", mode.name()),
        );
        start_wide(&scene, &name)?;
        scene
            .fermata()
            .checkpoint_with(&name, &image, mode, &["--then", "stop"])?;
        let status = scene.fermata().wait_exit(&name, PROGRAM_LIMIT)?;
        ensure!(status == 137, "`{name}` ended with {status}");
        let taken = check_report(&scene, &image)?;
        // Nobody has to be kept from writing.
        let wanted = match mode {
            Mode::Auto => Mode::Recopy,
            mode => mode,
        };
        ensure!(taken == wanted.name(), "{mode:?} went as {taken}");
        scene.check_restorable(&image)?;
    }
    scene.close()
}

#[test]
fn a_daemon_killed_during_a_capture_leaves_older_images_and_the_program_at_work() -> Result<()> {
    for mode in BEHIND {
        let scene = Scene::new()?;
        let hold = start_wide_held(&scene, "heat")?;
        scene.fermata().checkpoint("heat", "older", Mode::Stop)?;
        let (attempt, ()) = beside(&scene, &hold, "newer", (mode, &[]), || scene.kill_daemon())?;
        scene.wait_back("heat")?;
        ensure!(attempt.is_err(), "{}: without a daemon", mode.name());
        ensure!(!scene.fermata().image("newer").exists(), "half an image");
        scene.check_goes_on("heat")?;
        verify(&scene, "older")?;
        scene.fermata().kill("heat")?;
        scene.check_restorable("older")?;
        scene.close()?;
    }
    Ok(())
}

#[test]
fn a_device_lost_during_a_capture_gives_no_image_and_harms_no_older_one() -> Result<()> {
    for mode in BEHIND {
        let scene = Scene::new()?;
        scene.make_image("older")?;
        let program = scene.tree().program("heat2d")?;
        let hold = Hold::at(tempfile::tempdir()?);
        let (setting, folder) = hold.variable();
        let variables = [
            &[(setting, folder.to_owned())][..],
            &[("FERMATA_SOFTGPU_LOSE_DEVICE", LOST_AT.to_owned())],
            &scene.hold(HELD_AT)?,
        ]
        .concat();
        let fermata = scene.fermata();
        fermata.run_with(&variables, "heat", Device::Soft, &program, WIDE)?;
        scene.wait_steps("heat", HELD_AT as usize / 20)?;
        let process = scene.process("heat", Which::Program)?;
        let (attempt, ()) = beside(&scene, &hold, "newer", (mode, &[]), || {
            scene.let_go()?;
            wait_gone(&process)
        })?;
        let status = fermata.wait_exit("heat", PROGRAM_LIMIT)?;
        ensure!(status != 0, "{}: the device was not lost", mode.name());
        let error = attempt.err().context("an image of a lost device")?;
        let text = format!("{error:#}");
        let reasons = ["lost", "ended", "DEVICE_UNAVAILABLE"];
        ensure!(reasons.iter().any(|it| text.contains(it)), "{text}");
        ensure!(!fermata.image("newer").exists(), "half an image");
        verify(&scene, "older")?;
        scene.check_restorable("older")?;
        scene.close()?;
    }
    Ok(())
}

/// Without a pool, what is about to be overwritten is let go after five seconds, and a stop takes it.
#[test]
fn a_program_does_not_wait_for_long_when_nothing_can_be_set_aside() -> Result<()> {
    let scene = Scene::new()?;
    let hold = start_wide_held(&scene, "heat")?;
    let options = ["--pool", "0", "--json"];
    let (taken, ()) = beside(&scene, &hold, "image", (Mode::Cow, &options), || {
        scene.check_goes_on("heat")
    })?;
    let told: serde_json::Value = serde_json::from_str(&taken?.stdout)?;
    let note = told["device"]["validation"]["note"].as_str();
    let let_go = note.is_some_and(|it| it.contains("would have waited"));
    ensure!(let_go, "{told}");
    let stall = &told["device"]["stall"];
    let waited = stall["waited_seconds"].as_f64().context("seconds")?;
    ensure!(waited >= 4.0, "{stall}");
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    verify(&scene, "image")?;
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_disk_that_fills_up_behind_the_program_gives_no_image_and_harms_nobody() -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(root, "mounting a small file system needs root");
    for mode in [Mode::Snapshot, Mode::Cow, Mode::Recopy, Mode::Stop] {
        let scene = Scene::new()?;
        let disk = SmallDisk::mount(scene.sandbox().images(), "192m")?;
        let hold = start_wide_held(&scene, "heat")?;
        // Nothing is written before the disk is full.
        let (attempt, filled) = beside(&scene, &hold, "newer", (mode, &[]), || disk.fill())?;
        let refusal = attempt.err().context("an image on a full disk")?;
        let text = format!("{refusal:#}");
        let named = text.contains("space") || text.contains("full");
        ensure!(named, "{}: {text}", mode.name());
        ensure!(!scene.fermata().image("newer").exists(), "half an image");
        scene.check_goes_on("heat")?;
        std::fs::remove_file(filled)?;
        let again = scene.fermata().checkpoint("heat", "image", mode);
        again.with_context(|| format!("{} with space again, after: {text}", mode.name()))?;
        scene.fermata().kill("heat")?;
        scene.check_restorable("image")?;
        drop(disk);
        scene.close()?;
    }
    Ok(())
}
