//! The main job on a few programs, and what a restored image allows.

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Case, Device, Mode, Outcome, PROGRAM_LIMIT, Protocol, Restore, straight};
use fermata_e2e::moment::Moment;
use fermata_e2e::output::Output;
use fermata_e2e::programs::PROGRAMS;
use fermata_e2e::scene::Scene;
use fermata_e2e::tree::Tree;
use serde_json::Value;

fn check(name: &str) -> Result<()> {
    let tree = Tree::find()?;
    let mut shown = 0;
    for program in PROGRAMS.iter().filter(|p| p.name == name) {
        let reference = straight(&tree, program, Device::Soft)?;
        let steps = reference.output.steps.len();
        let moment = Moment::seeded(3, 0, 2, steps, reference.took);
        let case = Case {
            program: *program,
            device: Device::Soft,
            protocol: Protocol::of(Mode::Stop),
            moment,
            restore: Restore::Concurrent,
            link: 0,
            write_rate: 0,
        };
        let tried = case.run_in_time(&tree, &reference);
        match tried.outcome? {
            Outcome::Restored(_) => shown += 1,
            Outcome::TooLate(_) => anyhow::bail!("`{name}` ended before {:?}", tried.case.moment),
        }
    }
    ensure!(shown == 1, "no program `{name}`");
    Ok(())
}

#[test]
fn heat2d_ends_with_the_same_bytes() -> Result<()> {
    check("heat2d")
}

#[test]
fn driver_api_program_ends_with_the_same_bytes() -> Result<()> {
    check("driver")
}

#[test]
fn texture_references_and_levels_end_with_the_same_bytes() -> Result<()> {
    check("textures")
}

#[test]
fn eight_threads_end_with_the_same_bytes() -> Result<()> {
    check("threads")
}

/// Both sessions of an image that was held end well, with one digest.
fn end_alike(scene: &Scene, names: [&str; 2]) -> Result<()> {
    let fermata = scene.fermata();
    scene.let_go()?;
    let mut digests = Vec::new();
    for name in names {
        ensure!(
            fermata.wait_exit(name, PROGRAM_LIMIT)? == 0,
            "`{name}` failed"
        );
        digests.push(Output::parse(&fermata.log(name)?)?.digest);
    }
    ensure!(
        digests[0].is_some() && digests[0] == digests[1],
        "digests: {digests:?}"
    );
    Ok(())
}

#[test]
fn an_image_can_be_restored_twice_at_once() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_held_image("image")?;
    let fermata = scene.fermata();
    for name in ["one", "two"] {
        fermata.restore("image", name, Device::Soft)?;
    }
    end_alike(&scene, ["one", "two"])?;
    scene.close()
}

#[test]
fn an_eager_restore_ends_the_same_and_says_what_took_how_long() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_held_image("image")?;
    let fermata = scene.fermata();
    fermata.restore("image", "late", Device::Soft)?;
    let image = fermata.image("image");
    let image = image.to_str().context("the image's path")?;
    let words = ["restore", image, "--name", "eager", "--device", "soft"];
    let options = ["--detach", "--eager", "--json"];
    let told = fermata
        .call(&[&words[..], &options].concat())?
        .success("fermata restore")?;
    let told: Value = serde_json::from_str(&told.stdout)?;
    let phases = told["phases"].as_array().context("its phases")?;
    let bytes = |name: &str| {
        let phase = phases.iter().find(|it| it["name"] == name);
        phase.and_then(|it| it["bytes"].as_u64())
    };
    for name in ["device.records", "device.objects", "device.memory", "host"] {
        ensure!(bytes(name).is_some(), "no `{name}` in {phases:?}");
    }
    ensure!(bytes("device.data") > Some(0), "no data in {phases:?}");
    ensure!(fermata.session("eager")?.arrival.is_none(), "data is late");
    end_alike(&scene, ["late", "eager"])?;
    scene.close()
}

#[test]
fn process_numbers_that_are_in_use_do_not_matter() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("first")?;
    let fermata = scene.fermata();
    fermata.checkpoint("first", "image", Mode::Stop)?;
    fermata.restore("image", "second", Device::Soft)?;
    let pid = |name| {
        let pid = fermata.session(name)?.pid;
        pid.with_context(|| format!("`{name}` has no process"))
    };
    let (first, second) = (pid("first")?, pid("second")?);
    ensure!(first != second, "both are process {first}");
    // What the program sees as its number is what it was, although another process has it.
    let status = std::fs::read_to_string(format!("/proc/{second}/status"))?;
    let inner = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    ensure!(inner == Some(first), "inside it is {inner:?}, was {first}");
    for name in ["first", "second"] {
        scene.check_goes_on(name)?;
        fermata.kill(name)?;
    }
    scene.close()
}

#[test]
fn a_program_goes_on_after_its_checkpoint() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    scene.fermata().checkpoint("heat", "image", Mode::Stop)?;
    scene.check_goes_on("heat")?;
    scene.fermata().checkpoint("heat", "again", Mode::Stop)?;
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.close()
}

#[test]
fn criu_is_told_what_it_would_ask_the_kernel() -> Result<()> {
    // Only if its log says everything, it says so.
    for (all, says_so) in [("1", true), ("0", false)] {
        let scene = Scene::new()?;
        let fermata = scene.fermata();
        let started = fermata.call_with(&["ps"], &[("FERMATA_CRIU_LOG", all)])?;
        started.success("fermata ps")?;
        scene.make_image("image")?;
        fermata.restore("image", "back", Device::Soft)?;
        let log = scene.sandbox().runtime();
        let log = std::fs::read_to_string(log.join("sessions/back/criu/restore.log"))?;
        ensure!(log.contains("Loaded kdat cache") == says_so, "{log}");
        fermata.kill("back")?;
        scene.close()?;
    }
    Ok(())
}
