//! Checkpoints behind a running program, over a link so slow that copying takes its time: one at a time,
//! one after another, and whatever dies meanwhile, nothing is left behind and no wrong image is made.

#[path = "../../../crates/softgpu/tests/common/hold.rs"]
mod hold;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::command::Finished;
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::output::Output;
use fermata_e2e::scene::{Scene, TRIES};
use hold::{COPIES, Hold};

/// Two fields of 8 MiB take most of a second to copy.
const SLOW_LINK: [(&str, &str); 1] = [("FERMATA_SOFTGPU_HOST_LINK", "20000000")];
const WIDE: &[&str] = &["--steps", "400000", "--pause-ms", "20", "--size", "1024"];
/// A kernel that is launched while the second checkpoint copies, and the step after which the program stands still
/// until then.
const LOST_AT: &str = "200";
const HELD_AT: u64 = 180;
const BEHIND: [Mode; 3] = [Mode::Snapshot, Mode::Cow, Mode::Recopy];

fn start_wide(scene: &Scene, name: &str) -> Result<()> {
    start_wide_with(scene, name, &SLOW_LINK)
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
    // What the store has already is not copied; variables are in the stop.
    let new = inspected["manifest"]["totals"]["written_bytes"].as_u64() > Some(1 << 20);
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

/// Takes an image with this protocol, and does `meanwhile` when it is under way; what came of both.
fn beside<T>(
    scene: &Scene,
    image: &str,
    mode: Mode,
    meanwhile: impl FnOnce() -> Result<T>,
) -> Result<(Result<Finished>, T)> {
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| scene.fermata().checkpoint("heat", image, mode));
        let done = scene.wait_begun(image).and_then(|()| meanwhile());
        let taken = taken.join().map_err(|_| anyhow!("checkpoint thread"))?;
        Ok((taken, done?))
    })
}

#[test]
fn a_second_checkpoint_during_one_is_refused_and_disturbs_nothing() -> Result<()> {
    let scene = Scene::new()?;
    start_wide(&scene, "heat")?;
    for nth in 0..TRIES {
        let (first, second) = (format!("first-{nth}"), format!("second-{nth}"));
        let image = scene.fermata().image(&second);
        let image = image.to_str().context("image path")?;
        let words = ["checkpoint", "heat", "-o", image, "--mode", "cow"];
        let (taken, refused) = beside(&scene, &first, Mode::Cow, || scene.fermata().call(&words))?;
        taken?;
        if refused.status == 0 {
            // The first was over.
            continue;
        }
        ensure!(
            refused.status == 11 && refused.stderr.contains("is being checkpointed"),
            "{}: {}",
            refused.status,
            refused.stderr
        );
        scene.check_goes_on("heat")?;
        scene.fermata().kill("heat")?;
        scene.check_restorable(&first)?;
        return scene.close();
    }
    bail!("the first was always over")
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
        start_wide(&scene, "heat")?;
        scene.fermata().checkpoint("heat", "older", Mode::Stop)?;
        let mut killed = false;
        for nth in 0..TRIES {
            let newer = format!("newer-{nth}");
            let (attempt, ()) = beside(&scene, &newer, mode, || {
                // `recopy` copies ahead of its stop.
                if mode != Mode::Recopy {
                    scene.wait_behind("heat", &newer)?;
                }
                scene.kill_daemon()
            })?;
            scene.wait_back("heat")?;
            let whole = scene.fermata().image(&newer).exists();
            ensure!(whole || attempt.is_err(), "there is no image");
            if whole {
                // It was quick enough.
                verify(&scene, &newer)?;
                continue;
            }
            killed = true;
            break;
        }
        ensure!(killed, "{}: it was always too quick", mode.name());
        scene.check_goes_on("heat")?;
        verify(&scene, "older")?;
        scene.fermata().kill("heat")?;
        scene.check_restorable("older")?;
        scene.close()?;
    }
    Ok(())
}

/// Takes an image while the device is lost; whether it was lost in time.
fn lose_device(mode: Mode) -> Result<bool> {
    let scene = Scene::new()?;
    start_wide(&scene, "source")?;
    scene.fermata().checkpoint("source", "older", Mode::Stop)?;
    scene.fermata().kill("source")?;
    let program = scene.tree().program("heat2d")?;
    let variables = [
        // Copying takes two seconds.
        &[("FERMATA_SOFTGPU_HOST_LINK", "4000000".to_owned())][..],
        &[("FERMATA_SOFTGPU_LOSE_DEVICE", LOST_AT.to_owned())],
        &scene.hold(HELD_AT)?,
    ]
    .concat();
    let fermata = scene.fermata();
    fermata.run_with(&variables, "heat", Device::Soft, &program, WIDE)?;
    scene.wait_steps("heat", HELD_AT as usize / 20)?;
    let (attempt, ()) = beside(&scene, "newer", mode, || {
        // `recopy` copies ahead of its stop.
        if mode != Mode::Recopy {
            scene.wait_behind("heat", "newer")?;
        }
        scene.let_go()
    })?;
    let status = fermata.wait_exit("heat", PROGRAM_LIMIT)?;
    ensure!(status != 0, "{}: the device was not lost", mode.name());
    let lost = attempt.is_err();
    match attempt {
        Ok(_) => verify(&scene, "newer")?,
        Err(error) => {
            let text = format!("{error:#}");
            let reasons = ["lost", "ended", "DEVICE_UNAVAILABLE"];
            ensure!(reasons.iter().any(|it| text.contains(it)), "{text}");
            ensure!(!fermata.image("newer").exists(), "half an image");
        }
    }
    verify(&scene, "older")?;
    scene.check_restorable("older")?;
    scene.close()?;
    Ok(lost)
}

#[test]
fn a_device_lost_during_a_capture_gives_no_image_and_harms_no_older_one() -> Result<()> {
    for mode in BEHIND {
        let mut lost = false;
        for _ in 0..TRIES {
            lost = lose_device(mode)?;
            // The kernel writes what is being copied: with `cow` it may wait until that is over.
            if lost || mode == Mode::Cow {
                break;
            }
        }
        let waited = mode == Mode::Cow;
        ensure!(lost || waited, "{}: it was always too quick", mode.name());
    }
    Ok(())
}

/// Programs whose kernels write what no argument names, each with bytes a second at which the copying is so
/// slow that they must overtake it.
const BREAKERS: [(&str, &str); 4] = [
    ("hidden", "3000000"),
    ("overrun", "3000000"),
    ("ptrtable", "3000000"),
    ("chain", "300000"),
];
/// They are at work for two minutes, or until they are let go: then they are soon done.
const LONG: [&str; 4] = ["--steps", "6000", "--pause-ms", "200"];
/// An option of `hidden`: its launches are replays of a graph.
const IN_GRAPH: [&str; 2] = ["--graph", "1"];

/// Takes an image with `cow` and these options; what the command tells.
fn checkpoint_cow(scene: &Scene, image: &str, options: &[&str]) -> Result<serde_json::Value> {
    let options = [options, &["--json"]].concat();
    let done = scene
        .fermata()
        .checkpoint_with("first", image, Mode::Cow, &options)?;
    serde_json::from_str(&done.stdout).with_context(|| format!("answer: {}", done.stdout))
}

fn count(told: &serde_json::Value) -> Result<u64> {
    told.as_u64().with_context(|| format!("no count: {told}"))
}

/// What `program` gives without a checkpoint, and a session of it at work.
fn start_breaker(scene: &Scene, breaker: (&str, &str)) -> Result<Output> {
    start_breaker_with(scene, breaker, &[])
}

/// The same with these options beside.
fn start_breaker_with(
    scene: &Scene,
    (program, link): (&str, &str),
    options: &[&str],
) -> Result<Output> {
    let (fermata, path) = (scene.fermata(), scene.tree().program(program)?);
    let short = [&LONG[..2], options].concat();
    fermata.run("straight", Device::Soft, &path, &short)?;
    ensure!(
        fermata.wait_exit("straight", PROGRAM_LIMIT)? == 0,
        "{program}"
    );
    let straight = Output::parse(&fermata.log("straight")?)?;
    let [_, until] = scene.hold(0)?;
    let slow = [("FERMATA_SOFTGPU_HOST_LINK", link.to_owned()), until];
    let long = [&LONG, options].concat();
    fermata.run_with(&slow, "first", Device::Soft, &path, &long)?;
    scene.wait_steps("first", 2)?;
    Ok(straight)
}

/// Takes images with `cow` until one is as it should be: whether a program writes what is being copied is up to
/// both. That image, and what the command tells.
fn checkpoint_until(
    scene: &Scene,
    options: &[&str],
    mut is_it: impl FnMut(&serde_json::Value) -> Result<bool>,
) -> Result<(String, serde_json::Value)> {
    let mut last = None;
    for nth in 0..2 * TRIES {
        let image = format!("image-{nth}");
        let told = checkpoint_cow(scene, &image, options)?;
        if is_it(&told)? {
            return Ok((image, told));
        }
        last = Some(told);
    }
    bail!("no image is as it should be; the last: {last:?}")
}

fn overtaken(told: &serde_json::Value) -> Result<bool> {
    Ok(count(&told["overtaken"])? > 0)
}

/// Ends the session, and demands that the image gives what the program gives without it.
fn check_image(scene: &Scene, image: &str, straight: &Output) -> Result<()> {
    let fermata = scene.fermata();
    fermata.kill("first")?;
    verify(scene, image)?;
    scene.let_go()?;
    fermata.restore(image, "second", Device::Soft)?;
    ensure!(fermata.wait_exit("second", PROGRAM_LIMIT)? == 0, "it fails");
    Output::parse(&fermata.log("second")?)?.check_complete(straight)
}

#[test]
fn an_unforeseen_write_is_found_by_content_and_the_image_is_right() -> Result<()> {
    for breaker @ (name, _) in BREAKERS {
        let scene = Scene::new()?;
        let straight = start_breaker(&scene, breaker)?;
        let (image, told) = checkpoint_until(&scene, &[], overtaken).context(name)?;
        let validation = &told["device"]["validation"];
        ensure!(validation["by"] == "content", "{name}: {validation}");
        check_image(&scene, &image, &straight).context(name)?;
        scene.close()?;
    }
    Ok(())
}

#[test]
fn an_unforeseen_write_is_found_by_the_kernel_itself_and_the_image_is_right() -> Result<()> {
    let plain = BREAKERS.map(|breaker| (breaker, &[][..]));
    let replayed = [(BREAKERS[0], &IN_GRAPH[..])];
    for (breaker @ (name, _), options) in plain.into_iter().chain(replayed) {
        let scene = Scene::new()?;
        let straight = start_breaker_with(&scene, breaker, options)?;
        let caught =
            |told: &serde_json::Value| Ok(count(&told["device"]["validation"]["violations"])? > 0);
        let (image, told) =
            checkpoint_until(&scene, &["--validate", "ptx"], caught).context(name)?;
        let validation = &told["device"]["validation"];
        ensure!(
            count(&validation["unchecked"])? == 0,
            "{name}: {validation}"
        );
        let miss = &validation["misses"][0];
        ensure!(
            miss["kernel"].as_str().is_some_and(|it| !it.is_empty()),
            "{name}: {miss}"
        );
        ensure!(count(&miss["buffer"])? > 0, "{name}: {miss}");
        ensure!(overtaken(&told)?, "{name}: {told}");
        // A stop has compared everything since.
        ensure!(validation["by"] == "content", "{name}: {validation}");
        check_image(&scene, &image, &straight).context(name)?;
        scene.close()?;
    }
    Ok(())
}

/// Graphs that write what is foreseen, changed and replayed while an image is taken, are vouched for by their kernels'
/// twins alone.
#[test]
fn replayed_graphs_check_themselves() -> Result<()> {
    let scene = Scene::new()?;
    // 96 KiB take three seconds.
    let straight = start_breaker(&scene, ("graphs", "30000"))?;
    // A program that had to wait for long is let go, and a stop vouches then; the note says so.
    let checked = |told: &serde_json::Value| {
        let validation = &told["device"]["validation"];
        Ok(validation["note"] == "" && count(&validation["checked"])? > 0)
    };
    let (image, told) = checkpoint_until(&scene, &["--validate", "ptx"], checked)?;
    let validation = &told["device"]["validation"];
    ensure!(validation["by"] == "ptx", "{validation}");
    let others = count(&validation["unchecked"])? + count(&validation["violations"])?;
    ensure!(others == 0, "{validation}");
    check_image(&scene, &image, &straight)?;
    scene.close()
}

/// What has overtaken a capture is known from then on. A capture sees only what is written while it copies, so
/// it may take some until all is known; they are as slow as the first.
#[test]
fn captures_learn_until_they_are_not_overtaken() -> Result<()> {
    for (name, by) in [
        ("hidden", "content"),
        ("hidden", "ptx"),
        ("overrun", "content"),
    ] {
        let scene = Scene::new()?;
        let straight = start_breaker(&scene, (name, "3000000"))?;
        let mut caught = false;
        let learnt = |told: &serde_json::Value| {
            caught |= overtaken(told)?;
            // It was written while it was copied, so something was copied aside or waited for.
            let stall = &told["device"]["stall"];
            let kept = count(&stall["isolated_bytes"])? + count(&stall["waits"])?;
            Ok(caught && !overtaken(told)? && kept > 0)
        };
        let (image, told) = checkpoint_until(&scene, &["--validate", by], learnt)
            .with_context(|| format!("{name}/{by}"))?;
        let validation = &told["device"]["validation"];
        ensure!(validation["by"] == by, "{name}/{by}: {told}");
        check_image(&scene, &image, &straight).with_context(|| format!("{name}/{by}"))?;
        scene.close()?;
    }
    Ok(())
}

/// Without a pool, and over a link that takes six seconds for a field: what is about to be overwritten is let
/// go after five, and a stop takes it.
#[test]
fn a_program_does_not_wait_for_long_when_nothing_can_be_set_aside() -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.tree().program("heat2d")?;
    let slow = [("FERMATA_SOFTGPU_HOST_LINK", "1400000")];
    scene
        .fermata()
        .run_with(&slow, "first", Device::Soft, &program, WIDE)?;
    scene.wait_steps("first", 2)?;
    // A program that writes late waits for what is left of the copying, and need not be let go.
    let let_go = |told: &serde_json::Value| {
        let note = told["device"]["validation"]["note"].as_str();
        Ok(note.is_some_and(|it| it.contains("would have waited")))
    };
    let (image, told) = checkpoint_until(&scene, &["--pool", "0"], let_go)?;
    let stall = &told["device"]["stall"];
    let waited = stall["waited_seconds"].as_f64().context("seconds")?;
    ensure!(waited >= 4.0, "{stall}");
    scene.check_goes_on("first")?;
    let fermata = scene.fermata();
    fermata.kill("first")?;
    verify(&scene, &image)?;
    scene.check_restorable(&image)?;
    scene.close()
}

#[test]
fn an_image_that_nothing_vouches_for_says_so_wherever_it_is_used() -> Result<()> {
    let scene = Scene::new()?;
    start_wide(&scene, "first")?;
    let told = checkpoint_cow(&scene, "image", &["--validate", "off"])?;
    ensure!(told["device"]["validation"]["by"] == "off", "{told}");
    let fermata = scene.fermata();
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

#[test]
fn a_disk_that_fills_up_behind_the_program_gives_no_image_and_harms_nobody() -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(root, "mounting a small file system needs root");
    for mode in [Mode::Snapshot, Mode::Cow, Mode::Recopy, Mode::Stop] {
        let scene = Scene::new()?;
        let disk = SmallDisk::mount(scene.sandbox().images(), "192m")?;
        let hold = Hold::at(tempfile::tempdir()?);
        start_wide_with(&scene, "heat", &[hold.variable()])?;
        // Nothing is written before the disk is full.
        hold.only(COPIES, 0);
        let (attempt, filled) = beside(&scene, "newer", mode, || {
            let filled = disk.fill();
            hold.release(COPIES);
            filled
        })?;
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
