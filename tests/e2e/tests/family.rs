//! Sessions of several processes that use CUDA: one image holds all of them at one moment, and what becomes of one of them
//! does not harm the others.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command::Finished;
use fermata_e2e::executable;
use fermata_e2e::fermata::Session;
use fermata_e2e::halt::Halt;
use fermata_e2e::output::Output;
use fermata_e2e::processes::{Process, look_up};
use fermata_e2e::scene::{Scene, gc_when_free, kill_nine, wait_gone, wait_until};

const STEPS: &[&str] = &["--steps", "60"];
/// The step at which the first rank stands still, and all others wait for it.
const HELD: u64 = 20;
/// What `driver` loads, from beside it.
const KERNELS: &str = "driver_kernels.ptx";

/// Starts `family` as session `name`; returns when all its ranks stand still in the middle.
fn start_held(scene: &Scene, name: &str) -> Result<()> {
    let program = scene.tree().program("family")?;
    scene
        .fermata()
        .run_with(&scene.hold(HELD)?, name, Device::Soft, &program, STEPS)?;
    scene.wait_steps(name, HELD as usize)
}

/// Demands that session `name` ends with what the program prints alone.
fn check_result(scene: &Scene, name: &str) -> Result<()> {
    scene.check_ends_as(name, &scene.straight("family", STEPS)?)
}

/// Starts a shell that starts two programs, which know nothing of each other, and waits for both.
fn start_pair(scene: &Scene, name: &str, options: [&str; 2]) -> Result<Session> {
    let heat = scene.tree().program("heat2d")?;
    let [one, other] = options.map(|options| format!("{} {options}", heat.display()));
    let shell = format!("{one} >/dev/null 2>&1 & {other} >/dev/null 2>&1 & wait");
    scene
        .fermata()
        .run(name, Device::Soft, Path::new("/bin/sh"), &["-c", &shell])?;
    let mut session = None;
    wait_until("two processes use CUDA", || {
        let found = scene.fermata().session(name)?;
        let both = found.processes.len() == 2;
        session = both.then_some(found);
        Ok(both)
    })?;
    session.context("no session")
}

/// Puts a copy of `driver` into a folder of the scene, and its kernels, as a module image of two megabytes. No two
/// folders have the same.
fn driver_in(scene: &Scene, folder: &str) -> Result<PathBuf> {
    let (from, to) = (
        scene.tree().program("driver")?,
        scene.sandbox().work().join(folder),
    );
    std::fs::create_dir(&to)?;
    let program = to.join("driver");
    executable::copy(&from, &program)?;
    let mut text = std::fs::read(from.with_file_name(KERNELS))?;
    text.extend(format!("\n// {folder} ").bytes());
    text.resize(2 << 20, b'x');
    text.push(b'\n');
    std::fs::write(to.join(KERNELS), text)?;
    Ok(program)
}

fn kill(pid: i32) -> Result<()> {
    let process = look_up(pid).context("no such process")?;
    kill_nine(&process)?;
    wait_gone(&process)
}

#[test]
fn an_image_holds_every_process_at_one_moment() -> Result<()> {
    let scene = Scene::new()?;
    start_held(&scene, "source")?;
    let session = scene.fermata().session("source")?;
    ensure!(session.processes.len() == 3, "{:?}", session.processes);
    scene.fermata().checkpoint("source", "image", Mode::Cow)?;
    scene.fermata().kill("source")?;
    let verified = scene.fermata().call(&["images", "verify", "image"])?;
    verified.success("fermata images verify")?;
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    let again = scene.fermata().session("again")?;
    ensure!(again.processes.len() == 3, "{:?}", again.processes);
    // Restored sessions can be checkpointed, and copies run side by side.
    scene.fermata().checkpoint("again", "second", Mode::Stop)?;
    scene
        .try_restore("second", "third")?
        .success("fermata restore")?;
    scene.let_go()?;
    check_result(&scene, "again")?;
    check_result(&scene, "third")?;
    scene.close()
}

/// Restores `image` as session `name`; at `moment` the worker of the process with this place in the list is killed. How the command
/// ended, and who was there.
fn dies_at(
    scene: &Scene,
    moment: &'static str,
    place: usize,
    name: &str,
) -> Result<(Finished, Vec<Process>)> {
    let halt = Halt::at(scene, moment)?;
    std::thread::scope(|scope| {
        let attempt = scope.spawn(|| scene.try_restore("image", name));
        let killed = halt.wait().and_then(|_| {
            // Before they are attached, the session knows its first worker, once that has loaded.
            let mut found = None;
            wait_until("a worker is known", || {
                let session = scene.fermata().session(name)?;
                let attached = session.processes.get(place).map(|it| it.worker_pid);
                found = attached
                    .or(session.worker_pid)
                    .map(|victim| (session, victim));
                Ok(found.is_some())
            })?;
            let (session, victim) = found.context("no worker")?;
            let all = session.processes.iter();
            let pids = all.flat_map(|it| [it.pid, it.worker_pid]);
            let there = pids.chain([victim]).filter_map(look_up).collect();
            kill_nine(&look_up(victim).context("no worker")?)?;
            Ok(there)
        });
        drop(halt);
        let attempt = attempt.join().map_err(|_| anyhow!("restore thread"))?;
        Ok((attempt?, killed?))
    })
}

/// It comes back whole, or not at all; the image stays what it is.
#[test]
fn a_worker_of_any_process_that_dies_during_a_restore_leaves_no_half_program() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start_held(&scene, "source")?;
    fermata.checkpoint("source", "image", Mode::Cow)?;
    fermata.kill("source")?;
    let later = ["reattach", "welcome", "resumed"];
    let cases = later
        .iter()
        .flat_map(|it| (0..3).map(move |place| (*it, place)));
    let mut whole = 0;
    for (moment, place) in [("restored", 0)].into_iter().chain(cases) {
        let name = format!("{moment}-{place}");
        let (attempt, there) = dies_at(&scene, moment, place, &name)
            .with_context(|| format!("{moment}, process {place}"))?;
        let context = || format!("{moment}, process {place}: {attempt:?}");
        if attempt.status == 0 {
            whole += 1;
            scene.let_go()?;
            check_result(&scene, &name).with_context(context)?;
            scene.let_go_to(HELD)?;
        } else {
            ensure!(attempt.stderr.contains("worker"), "{}", context());
            wait_until("half a session goes", || {
                let session = fermata.find(&name)?;
                Ok(session.is_none_or(|it| it.state == "exited"))
            })
            .with_context(context)?;
        }
        for process in &there {
            wait_gone(process).with_context(context)?;
        }
        fermata
            .call(&["images", "verify", "image"])?
            .success("fermata images verify")?;
    }
    // Once processes are attached, all of them begin anew from the image.
    ensure!(whole > 0, "none of them came back");
    scene
        .try_restore("image", "last")?
        .success("fermata restore")?;
    scene.let_go()?;
    check_result(&scene, "last")?;
    scene.close()
}

#[test]
fn a_damaged_part_of_any_process_is_refused() -> Result<()> {
    let scene = Scene::new()?;
    start_held(&scene, "source")?;
    scene.fermata().checkpoint("source", "image", Mode::Stop)?;
    scene.fermata().kill("source")?;
    let image = scene.fermata().image("image");
    for file in ["process-3/state", "process-2/chunks"] {
        let path = image.join(file);
        let sound = std::fs::read(&path)?;
        let mut harmed = sound.clone();
        let last = harmed.last_mut().context("an empty file")?;
        *last ^= 1;
        std::fs::write(&path, harmed)?;
        let refused = scene.try_restore("image", "again")?;
        ensure!(refused.status == 12, "{file}: {refused:?}");
        let verified = scene.fermata().call(&["images", "verify", "image"])?;
        ensure!(verified.status == 12, "{file}: {verified:?}");
        std::fs::write(&path, sound)?;
    }
    // Nothing of the attempts is left, and the image is as good as before.
    ensure!(
        scene.fermata().find("again")?.is_none(),
        "a session is left"
    );
    scene.let_go()?;
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    check_result(&scene, "again")?;
    scene.close()
}

/// Two processes have the same module images, a third has others; all are in the store, not in `state`.
#[test]
fn every_process_has_its_own_module_images_again() -> Result<()> {
    let scene = Scene::new()?;
    let (one, other) = (driver_in(&scene, "one")?, driver_in(&scene, "other")?);
    let logs = ["a", "b", "c"].map(|name| scene.sandbox().work().join(name));
    let start = |(program, log): (&PathBuf, &PathBuf)| {
        format!("{} --steps 60 >{} 2>&1 &", program.display(), log.display())
    };
    let shell: Vec<_> = [&one, &one, &other]
        .into_iter()
        .zip(&logs)
        .map(start)
        .collect();
    let shell = format!("{} wait", shell.join(" "));
    let fermata = scene.fermata();
    fermata.run_with(
        &scene.hold(HELD)?,
        "source",
        Device::Soft,
        Path::new("/bin/sh"),
        &["-c", &shell],
    )?;
    let printed = |log: &PathBuf| Output::parse(&std::fs::read_to_string(log).unwrap_or_default());
    wait_until("all stand still in the middle", || {
        let mut last = logs
            .iter()
            .map(|log| Ok(printed(log)?.steps.last().copied()));
        last.try_fold(true, |all, it: Result<_>| Ok(all && it? == Some(HELD)))
    })?;
    fermata.checkpoint("source", "image", Mode::Cow)?;
    fermata.kill("source")?;
    for part in ["", "process-2", "process-3"] {
        let state = fermata.image("image").join(part).join("state");
        ensure!(
            std::fs::metadata(&state)?.len() < 1 << 20,
            "{}",
            state.display()
        );
    }
    // They are in the image, and in the next one of what was restored.
    for program in [&one, &other] {
        std::fs::remove_file(program.with_file_name(KERNELS))?;
    }
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    fermata.checkpoint("again", "second", Mode::Stop)?;
    fermata.kill("again")?;
    fermata
        .call(&["images", "rm", "image"])?
        .success("images rm")?;
    gc_when_free(|| fermata.call(&["images", "gc"]))?.success("images gc")?;
    fermata
        .call(&["images", "verify", "second"])?
        .success("images verify")?;
    scene
        .try_restore("second", "third")?
        .success("fermata restore")?;
    scene.let_go()?;
    wait_until("a session ends", || {
        Ok(fermata.session("third")?.state == "exited")
    })?;
    let alone = scene.straight("driver", STEPS)?;
    for log in &logs {
        printed(log)?.check_complete(&alone)?;
    }
    scene.close()
}

#[test]
fn all_processes_come_back_to_the_next_daemon() -> Result<()> {
    let scene = Scene::new()?;
    start_held(&scene, "family")?;
    let numbers = |session: &Session| {
        let mut all: Vec<_> = session
            .processes
            .iter()
            .map(|it| (it.pid, it.worker_pid))
            .collect();
        all.sort_unstable();
        all
    };
    let before = numbers(&scene.fermata().session("family")?);
    scene.kill_daemon()?;
    let after = numbers(&scene.wait_back("family")?);
    ensure!(before == after, "{before:?} were there, {after:?} are");
    scene.fermata().checkpoint("family", "image", Mode::Stop)?;
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    scene.let_go()?;
    check_result(&scene, "family")?;
    check_result(&scene, "again")?;
    scene.close()
}

#[test]
fn the_end_of_one_process_is_no_harm_to_another() -> Result<()> {
    let scene = Scene::new()?;
    let slow = "--size 64 --steps 100000 --pause-ms 2";
    let session = start_pair(&scene, "pair", [slow, slow])?;
    // Its worker goes with it, and the next image is of the other alone.
    kill(session.processes[0].pid)?;
    wait_until("one process is left", || {
        Ok(scene.fermata().session("pair")?.processes.len() == 1)
    })?;
    scene.fermata().checkpoint("pair", "one", Mode::Cow)?;
    scene
        .try_restore("one", "again")?
        .success("fermata restore")?;
    let again = scene.fermata().session("again")?;
    ensure!(again.processes.len() == 1, "{:?}", again.processes);
    // One that loses its worker is told, and the session can be checkpointed again when it has ended.
    let session = start_pair(&scene, "second", [slow, slow])?;
    kill(session.processes[1].worker_pid)?;
    wait_until("its end frees the session", || {
        let session = scene.fermata().session("second")?;
        Ok(session.state == "running" && session.processes.len() == 1)
    })?;
    scene.fermata().checkpoint("second", "left", Mode::Stop)?;
    scene.fermata().kill("second")?;
    scene.close()
}

#[test]
fn processes_that_end_during_checkpoints_do_not_fail_them() -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.tree().program("heat2d")?;
    // Each lives for some tens of milliseconds; the shell starts the next.
    let shell = format!(
        "{p} --size 64 --steps 100000 --pause-ms 2 >/dev/null 2>&1 & while :; do {p} --size 64 --steps 20 >/dev/null 2>&1; done",
        p = program.display()
    );
    scene
        .fermata()
        .run("busy", Device::Soft, Path::new("/bin/sh"), &["-c", &shell])?;
    wait_until("it uses CUDA", || {
        Ok(!scene.fermata().session("busy")?.processes.is_empty())
    })?;
    for (at, mode) in [Mode::Stop, Mode::Cow, Mode::Stop, Mode::Recopy]
        .into_iter()
        .enumerate()
    {
        let image = format!("image-{at}");
        scene.fermata().checkpoint("busy", &image, mode)?;
        scene
            .fermata()
            .call(&["images", "verify", &image])?
            .success("fermata images verify")?;
    }
    scene.fermata().kill("busy")?;
    scene.close()
}
