//! Programs that Fermata has not started: checkpointed by their numbers through the driver's own interface, restored, and as
//! before whatever fails on the way.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use fermata_e2e::appender::{check_still, wait_grows, words};
use fermata_e2e::case::Device;
use fermata_e2e::command::Finished;
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::executable;
use fermata_e2e::halt::Halt;
use fermata_e2e::output::Output;
use fermata_e2e::processes::{Process, look_up};
use fermata_e2e::scene::{Scene, kill_nine, wait_until};
use serde_json::Value;

/// It prints every twentieth step, and stands still at [`HELD`] until it is let go: then it is soon at its end.
const STEPS: &[&str] = &["--steps", "1600", "--pause-ms", "20", "--size", "96"];
/// Where it stands still, what it has printed then, and where a test may have it stand still again.
const HELD: u64 = 500;
const PRINTED: usize = 25;
const LATER: u64 = 1000;
/// At work whatever the test does, and however long that takes.
const SLOW: &[&str] = &["--steps", "2000000", "--pause-ms", "20", "--size", "96"];

/// A program started by hand, which prints to a file.
struct ByHand<'s> {
    scene: &'s Scene,
    child: Child,
    output: PathBuf,
}

impl<'s> ByHand<'s> {
    fn start(scene: &'s Scene, program: &str, options: &[&str]) -> Result<Self> {
        let mut command = in_own_session(scene.tree().program(program)?);
        command.args(options);
        Self::run(scene, command)
    }

    /// One that stands still after step `at`.
    fn held(scene: &'s Scene, program: &str, options: &[&str], at: u64) -> Result<Self> {
        let mut command = in_own_session(scene.tree().program(program)?);
        command.args(options).envs(scene.hold(at)?);
        Self::run(scene, command)
    }

    fn run(scene: &'s Scene, mut command: Command) -> Result<Self> {
        let output = scene.sandbox().work().join("output");
        let file = File::create(&output)?;
        scene.sandbox().enter(&mut command);
        command
            .env("LD_LIBRARY_PATH", scene.tree().library_path(Device::Soft))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command.spawn().context("a program by hand")?;
        Ok(Self {
            scene,
            child,
            output,
        })
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn printed(&self) -> Result<Output> {
        Output::parse(&fs::read_to_string(&self.output)?)
    }

    fn wait_steps(&self, steps: usize) -> Result<()> {
        wait_until(&format!("{steps} steps"), || {
            Ok(self.printed()?.steps.len() >= steps)
        })
    }

    /// Demands that it works, from now on.
    fn check_goes_on(&self) -> Result<()> {
        self.wait_steps(self.printed()?.steps.len() + 3)
    }

    fn checkpoint(&self, image: &str, options: &[&str]) -> Result<Finished> {
        let path = self.scene.fermata().image(image);
        let path = path.to_str().context("path")?;
        let pid = self.pid();
        let words = [&["checkpoint", &pid, "-o", path][..], options].concat();
        self.scene.fermata().call(&words)
    }

    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for ByHand<'_> {
    fn drop(&mut self) {
        // Both fail only when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs as the leader of a session of its own, as CRIU needs it: this test's own leader may be outside of its
/// PID namespace. `setsid` executes the program as the same process.
fn in_own_session(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setsid");
    command.arg(program);
    command
}

fn restore(scene: &Scene, image: &str, name: &str, options: &[&str]) -> Result<Finished> {
    let path = scene.fermata().image(image);
    let path = path.to_str().context("path")?;
    let words = ["restore", path, "--name", name, "--detach"];
    scene.fermata().call(&[&words[..], options].concat())
}

fn expect(done: &Finished, status: i32, words: &[&str]) -> Result<()> {
    ensure!(
        done.status == status,
        "status {} instead of {status}: {}",
        done.status,
        done.stderr
    );
    for word in words {
        let said = &done.stderr;
        ensure!(said.contains(word), "`{word}` is missing in: {said}");
    }
    Ok(())
}

fn wait_exited(scene: &Scene, name: &str) -> Result<()> {
    wait_until("a session ends", || {
        Ok(scene.fermata().session(name)?.state == "exited")
    })
}

#[test]
fn a_program_started_by_hand_goes_on_and_every_image_of_it_ends_as_it_does() -> Result<()> {
    let scene = Scene::new()?;
    let straight = scene.straight("heat2d", STEPS)?;
    let program = ByHand::held(&scene, "heat2d", STEPS, HELD)?;
    let output = program.output.clone();
    let mut written = Vec::new();
    for (image, steps) in [("a", 1), ("b", 7), ("c", PRINTED)] {
        program.wait_steps(steps)?;
        let done = program.checkpoint(image, &[])?.success("checkpoint")?;
        for word in ["driver's own interface", "the program goes on"] {
            ensure!(done.stderr.contains(word), "{}", done.stderr);
        }
        let folder = scene.fermata().image(image);
        let manifest = fs::read_to_string(folder.join("manifest.json"))?;
        let manifest: Value = serde_json::from_str(&manifest)?;
        ensure!(manifest["schema_version"] == 5, "{manifest}");
        written.push(
            manifest["totals"]["written_bytes"]
                .as_u64()
                .context("bytes")?,
        );
        for entry in fs::read_dir(folder.join("host"))? {
            let name = entry?.file_name();
            let pages = name.to_string_lossy().starts_with("pages-");
            ensure!(!pages, "its memory is in files: {name:?}");
        }
    }
    // What it has not changed is there once.
    ensure!(
        written[0] * 3 > written[1].max(written[2]) * 4,
        "{written:?}"
    );
    scene.let_go_to(LATER)?;
    program.wait_steps(2 * PRINTED)?;
    program.kill()?;
    scene.let_go()?;
    let listed = scene.fermata().call(&["images", "ls"])?.success("ls")?;
    ensure!(listed.stdout.contains("heat2d"), "{}", listed.stdout);
    let shown = scene.fermata().image("b");
    let shown = shown.to_str().context("path")?;
    for verb in ["verify", "inspect"] {
        scene
            .fermata()
            .call(&["images", verb, shown])?
            .success(verb)?;
    }
    // It has printed more since.
    let refused = restore(&scene, "c", "first", &[])?;
    expect(&refused, 1, &["output", "--ignore-changed-files"])?;
    for image in ["c", "a", "b"] {
        restore(&scene, image, image, &["--ignore-changed-files"])?.success("restore")?;
        let session = scene.fermata().session(image)?;
        ensure!(session.worker_pid.is_none(), "it has a worker");
        wait_exited(&scene, image)?;
        let printed = Output::parse(&fs::read_to_string(&output)?)?;
        printed.check_complete(&straight).context(image)?;
    }
    scene
        .fermata()
        .call(&["images", "rm", shown])?
        .success("rm")?;
    scene.close()
}

#[test]
fn a_restored_program_is_checkpointed_again_by_name_and_ended() -> Result<()> {
    let scene = Scene::new()?;
    let straight = scene.straight("heat2d", STEPS)?;
    let program = ByHand::held(&scene, "heat2d", STEPS, HELD)?;
    program.wait_steps(5)?;
    let done = program.checkpoint("first", &["--then", "stop"])?;
    expect(&done, 0, &["has been ended"])?;
    let (mut program, output) = (program, scene.sandbox().work().join("output"));
    ensure!(!program.child.wait()?.success(), "it has not been ended");
    restore(&scene, "first", "again", &[])?.success("restore")?;
    let path = scene.fermata().image("second");
    let path = path.to_str().context("path")?;
    let words = ["checkpoint", "again", "-o", path, "--then", "stop"];
    scene.fermata().call(&words)?.success("checkpoint")?;
    ensure!(scene.fermata().session("again")?.state == "exited");
    scene.let_go()?;
    restore(&scene, "second", "last", &[])?.success("restore")?;
    wait_exited(&scene, "last")?;
    let printed = Output::parse(&fs::read_to_string(output)?)?;
    printed.check_complete(&straight)?;
    drop(program);
    scene.close()
}

/// It ends as soon as its calls go on, most often before the driver has said that they do.
#[test]
fn a_program_that_was_taken_at_its_last_step_ends_as_it_does() -> Result<()> {
    let scene = Scene::new()?;
    let options = &["--steps", "20", "--size", "16"];
    let straight = scene.straight("heat2d", options)?;
    let program = ByHand::held(&scene, "heat2d", options, 20)?;
    program.wait_steps(1)?;
    let output = program.output.clone();
    program
        .checkpoint("last", &["--then", "stop"])?
        .success("checkpoint")?;
    scene.let_go()?;
    for name in ["a", "b", "c", "d"] {
        restore(&scene, "last", name, &["--ignore-changed-files"])?.success("restore")?;
        wait_exited(&scene, name)?;
        let printed = Output::parse(&fs::read_to_string(&output)?)?;
        printed.check_complete(&straight).context(name)?;
    }
    drop(program);
    scene.close()
}

/// A shell with two programs below it, which stand still at [`HELD`], and the files to which they print.
fn pair(scene: &Scene) -> Result<(ByHand<'_>, [PathBuf; 2])> {
    let heat = scene.tree().program("heat2d")?;
    let work = scene.sandbox().work();
    let outputs = [work.join("one"), work.join("two")];
    let [one, two] = outputs.each_ref().map(|it| {
        format!(
            "{} {} >{} 2>&1",
            heat.display(),
            STEPS.join(" "),
            it.display()
        )
    });
    let mut shell = in_own_session("/bin/sh");
    shell
        .args(["-c", &format!("{one} & {two} & wait")])
        .envs(scene.hold(HELD)?);
    Ok((ByHand::run(scene, shell)?, outputs))
}

fn printed(output: &Path) -> Result<Output> {
    Output::parse(&fs::read_to_string(output).unwrap_or_default())
}

fn wait_both(outputs: &[PathBuf; 2], steps: usize) -> Result<()> {
    wait_until("both work", || {
        let has = |it: &PathBuf| printed(it).is_ok_and(|it| it.steps.len() >= steps);
        Ok(outputs.iter().all(has))
    })
}

#[test]
fn all_processes_below_a_shell_are_taken_in_one_image() -> Result<()> {
    let scene = Scene::new()?;
    let straight = scene.straight("heat2d", STEPS)?;
    let (program, outputs) = pair(&scene)?;
    wait_both(&outputs, 3)?;
    let done = program.checkpoint("both", &["--then", "stop"])?;
    expect(&done, 0, &["has been ended"])?;
    scene.let_go()?;
    restore(&scene, "both", "again", &[])?.success("restore")?;
    wait_exited(&scene, "again")?;
    for output in &outputs {
        printed(output)?.check_complete(&straight)?;
    }
    drop(program);
    scene.close()
}

#[test]
fn a_process_that_is_killed_while_an_image_is_taken_is_not_in_it() -> Result<()> {
    for moment in ["foreign-locked", "foreign-moved"] {
        let scene = Scene::new()?;
        let straight = scene.straight("heat2d", STEPS)?;
        let (program, outputs) = pair(&scene)?;
        wait_both(&outputs, PRINTED)?;
        let halt = Halt::at(&scene, moment)?;
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| program.checkpoint("first", &[]));
            halt.wait()?;
            for process in scene.sandbox().processes() {
                let prints = fs::read_link(format!("/proc/{}/fd/1", process.pid));
                let is_it = process.name == "heat2d" && prints.is_ok_and(|it| it == outputs[0]);
                if is_it {
                    kill_nine(&process)?;
                }
            }
            drop(halt);
            let taken = taken.join().map_err(|_| anyhow::anyhow!("a thread"))??;
            taken.success("checkpoint")?;
            anyhow::Ok(())
        })?;
        let done = program.checkpoint("second", &["--then", "stop"])?;
        expect(&done, 0, &["has been ended"])?;
        scene.let_go()?;
        // The shell may have said meanwhile that one was killed.
        restore(&scene, "first", "again", &["--ignore-changed-files"])?.success("restore")?;
        wait_exited(&scene, "again")?;
        printed(&outputs[1])?
            .check_complete(&straight)
            .context(moment)?;
        ensure!(printed(&outputs[0])?.steps.len() == PRINTED, "{moment}");
        drop(program);
        scene.close()?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_taken_is_refused_and_not_touched() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    expect(
        &fermata.call(&["checkpoint", "999999999"])?,
        10,
        &["no process"],
    )?;
    expect(
        &fermata.call(&["checkpoint", "1"])?,
        14,
        &["does not use CUDA", "hint:"],
    )
    .or_else(|_| {
        expect(
            &fermata.call(&["checkpoint", "1"])?,
            1,
            &["process 1", "hint:"],
        )
    })?;
    let mut sleep = in_own_session("/bin/sleep");
    sleep.arg("1000");
    let sleep = ByHand::run(&scene, sleep)?;
    expect(
        &sleep.checkpoint("x", &[])?,
        14,
        &["does not use CUDA", "nvidia-smi"],
    )?;
    sleep.kill()?;

    let program = ByHand::start(&scene, "heat2d", SLOW)?;
    program.wait_steps(2)?;
    let cow = program.checkpoint("x", &["--mode", "cow"])?;
    expect(&cow, 1, &["while it stands still", "fermata run"])?;
    program.check_goes_on()?;
    program.kill()?;

    // Its output goes to another program.
    let mut piped = in_own_session(scene.tree().program("heat2d")?);
    piped.args(SLOW);
    scene.sandbox().enter(&mut piped);
    piped
        .env("LD_LIBRARY_PATH", scene.tree().library_path(Device::Soft))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut piped = piped.spawn()?;
    let pid = piped.id().to_string();
    let mut refused = fermata.call(&["checkpoint", &pid])?;
    wait_until("it uses CUDA", || {
        refused = fermata.call(&["checkpoint", &pid])?;
        Ok(!refused.stderr.contains("does not use CUDA"))
    })?;
    expect(&refused, 14, &["a pipe", "descriptor 1", "setsid"])?;
    piped.kill()?;
    piped.wait()?;

    // A session of Fermata's is taken as that, and one of another daemon's is not this one's.
    scene.start_slow("heat")?;
    let pid = fermata
        .session("heat")?
        .pid
        .context("a number")?
        .to_string();
    let taken = fermata.call(&["checkpoint", &pid])?.success("checkpoint")?;
    ensure!(taken.stderr.contains("session `heat`"), "{}", taken.stderr);
    let other = Scene::new()?;
    let refused = other.fermata().call(&["checkpoint", &pid])?;
    expect(&refused, 1, &["session of another daemon", "by its name"])?;
    scene.check_goes_on("heat")?;
    fermata.kill("heat")?;
    other.close()?;
    scene.close()
}

#[test]
fn what_the_driver_refuses_is_told_in_words_and_the_program_goes_on() -> Result<()> {
    let scene = Scene::new()?;
    let options = &["--steps", "40"];
    let straight = scene.straight("managed", options)?;
    let mut program = ByHand::held(&scene, "managed", options, 1)?;
    program.wait_steps(1)?;
    let refused = program.checkpoint("x", &[])?;
    expect(&refused, 14, &["managed memory", "fermata run", "managed"])?;
    scene.let_go()?;
    wait_until("the program ends", || {
        Ok(program.child.try_wait()?.is_some())
    })?;
    ensure!(program.child.wait()?.success());
    program.printed()?.check_complete(&straight)?;
    ensure!(!scene.fermata().image("x").exists(), "there is an image");
    drop(program);
    scene.close()
}

#[test]
fn a_failure_of_criu_leaves_the_program_unlocked() -> Result<()> {
    let scene = Scene::new()?;
    let program = ByHand::start(&scene, "heat2d", SLOW)?;
    program.wait_steps(2)?;
    let script = scene.sandbox().runtime().join("criu");
    let text = format!(
        "#!/bin/sh\nulimit -f 64\nexec {} \"$@\"\n",
        scene.tree().criu().display()
    );
    executable::script(&script, &text)?;
    let script = script.to_str().context("path")?;
    scene
        .fermata()
        .call_with(&["ps"], &[("FERMATA_CRIU", script)])?
        .success("ps")?;
    expect(
        &program.checkpoint("x", &[])?,
        14,
        &["CRIU cannot dump", "hint:"],
    )?;
    program.check_goes_on()?;
    ensure!(!scene.fermata().image("x").exists(), "there is an image");
    program.kill()?;
    scene.close()
}

#[test]
fn a_full_disk_leaves_the_program_unlocked() -> Result<()> {
    let scene = Scene::new()?;
    let program = ByHand::start(&scene, "heat2d", SLOW)?;
    program.wait_steps(2)?;
    let disk = SmallDisk::mount(scene.sandbox().images(), "400M")?;
    let halt = Halt::at(&scene, "foreign-locked")?;
    let refused = std::thread::scope(|scope| {
        let taken = scope.spawn(|| program.checkpoint("x", &[]));
        halt.wait()?;
        let full = disk.fill()?;
        drop(halt);
        let refused = taken.join().map_err(|_| anyhow::anyhow!("a thread"))??;
        fs::remove_file(full)?;
        anyhow::Ok(refused)
    })?;
    ensure!(refused.status == 1 || refused.status == 14, "{refused:?}");
    ensure!(refused.stderr.contains("space"), "{}", refused.stderr);
    program.check_goes_on()?;
    program.checkpoint("y", &[])?.success("checkpoint")?;
    program.check_goes_on()?;
    program.kill()?;
    drop(disk);
    scene.close()
}

#[test]
fn a_daemon_that_dies_in_the_middle_leaves_the_program_unlocked() -> Result<()> {
    let scene = Scene::new()?;
    let program = ByHand::start(&scene, "heat2d", SLOW)?;
    program.wait_steps(2)?;
    for moment in ["foreign-locked", "foreign-moved", "dump", "foreign-back"] {
        let halt = Halt::at(&scene, moment)?;
        let refused = std::thread::scope(|scope| {
            let taken = scope.spawn(|| program.checkpoint(moment, &[]));
            let daemon = halt.wait()?;
            kill_nine(&daemon)?;
            drop(halt);
            taken.join().map_err(|_| anyhow::anyhow!("a thread"))?
        })?;
        ensure!(refused.status != 0, "{moment}: {refused:?}");
        program.check_goes_on().context(moment)?;
        ensure!(
            !scene.fermata().image(moment).exists(),
            "{moment}: an image"
        );
    }
    program.checkpoint("y", &[])?.success("checkpoint")?;
    program.check_goes_on()?;
    program.kill()?;
    scene.close()
}

/// A process without CUDA that appends to a file, with a program below it.
fn appending(scene: &Scene) -> Result<ByHand<'_>> {
    let heat = scene.tree().program("heat2d")?;
    let mut shell = in_own_session("/bin/sh");
    shell.args(words(Some(&format!(
        "{} {}",
        heat.display(),
        SLOW.join(" ")
    ))));
    let program = ByHand::run(scene, shell)?;
    program.wait_steps(2)?;
    wait_grows(scene)?;
    Ok(program)
}

/// Takes an image with which the program ends, and does `meanwhile` between its dump and the image.
fn ended_by(
    program: &ByHand<'_>,
    image: &str,
    meanwhile: impl FnOnce(Process) -> Result<()>,
) -> Result<Finished> {
    let halt = Halt::at(program.scene, "commit")?;
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| program.checkpoint(image, &["--then", "stop"]));
        let done = halt.wait().and_then(meanwhile);
        drop(halt);
        let taken = taken.join().map_err(|_| anyhow::anyhow!("a thread"))?;
        done.and(taken)
    })
}

#[test]
fn no_process_runs_between_its_dump_and_the_end_of_the_program() -> Result<()> {
    let scene = Scene::new()?;
    let program = appending(&scene)?;
    let done = ended_by(&program, "image", |_| check_still(&scene))?;
    expect(&done, 0, &["has been ended"])?;
    restore(&scene, "image", "again", &[])?.success("restore")?;
    wait_grows(&scene)?;
    scene.fermata().kill("again")?;
    drop(program);
    scene.close()
}

#[test]
fn all_processes_go_on_when_there_is_no_image_to_end_with() -> Result<()> {
    let scene = Scene::new()?;
    let program = appending(&scene)?;
    let taken = scene.fermata().image("taken");
    let refused = ended_by(&program, "taken", |_| Ok(fs::create_dir(&taken)?))?;
    ensure!(refused.status != 0, "{refused:?}");
    wait_grows(&scene)?;
    program.check_goes_on()?;
    let refused = ended_by(&program, "lost", |daemon| kill_nine(&daemon))?;
    ensure!(refused.status != 0, "{refused:?}");
    wait_grows(&scene)?;
    program.check_goes_on()?;
    let done = program.checkpoint("image", &["--then", "stop"])?;
    expect(&done, 0, &["has been ended"])?;
    drop(program);
    scene.close()
}

#[test]
fn a_helper_that_dies_in_the_middle_is_replaced() -> Result<()> {
    let scene = Scene::new()?;
    let program = ByHand::start(&scene, "heat2d", SLOW)?;
    program.wait_steps(2)?;
    let halt = Halt::at(&scene, "foreign-moved")?;
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| program.checkpoint("x", &[]));
        halt.wait()?;
        for process in scene.sandbox().processes() {
            let line = fs::read_to_string(format!("/proc/{}/cmdline", process.pid));
            let is_helper = line.is_ok_and(|it| it.split('\0').nth(1) == Some("foreign"));
            if let Some(helper) = look_up(process.pid).filter(|_| is_helper) {
                kill_nine(&helper)?;
            }
        }
        drop(halt);
        let taken = taken.join().map_err(|_| anyhow::anyhow!("a thread"))??;
        taken.success("checkpoint")?;
        anyhow::Ok(())
    })?;
    program.check_goes_on()?;
    program.kill()?;
    restore(&scene, "x", "again", &["--ignore-changed-files"])?.success("restore")?;
    scene.fermata().kill("again")?;
    scene.close()
}

#[test]
fn a_restore_that_fails_leaves_nothing_and_the_image_whole() -> Result<()> {
    let scene = Scene::new()?;
    let program = ByHand::start(&scene, "heat2d", SLOW)?;
    program.wait_steps(2)?;
    program
        .checkpoint("x", &["--then", "stop"])?
        .success("checkpoint")?;
    let refused = restore(&scene, "x", "again", &["--device", "gpu"])?;
    ensure!(refused.status == 13, "{refused:?}");
    ensure!(scene.fermata().find("again")?.is_none(), "half a session");
    // The driver is asked when CRIU has restored the program.
    let halt = Halt::at(&scene, "foreign-return")?;
    let refused = std::thread::scope(|scope| {
        let restored = scope.spawn(|| restore(&scene, "x", "again", &[]));
        let daemon = halt.wait()?;
        let mut left = scene.sandbox().processes();
        left.retain(|it| it.name == "heat2d");
        ensure!(left.len() == 1, "{left:?}");
        kill_nine(&daemon)?;
        drop(halt);
        restored.join().map_err(|_| anyhow::anyhow!("a thread"))?
    })?;
    ensure!(refused.status != 0, "{refused:?}");
    wait_until("what was restored in vain ends", || {
        let left = scene.sandbox().processes();
        Ok(!left.iter().any(|it| it.name == "heat2d"))
    })?;
    // Its memory is in the store, and damage there is found before the program runs.
    let packs = fs::read_dir(scene.sandbox().images().join(".store/packs"))?;
    let packs = packs.map(|it| Ok(it?.path())).collect::<Result<Vec<_>>>()?;
    for pack in &packs {
        let mut bytes = fs::read(pack)?;
        bytes[5000] ^= 1;
        fs::write(pack, bytes)?;
    }
    let refused = restore(&scene, "x", "again", &[])?;
    expect(&refused, 12, &["damaged"])?;
    ensure!(scene.fermata().find("again")?.is_none(), "half a session");
    for pack in &packs {
        let mut bytes = fs::read(pack)?;
        bytes[5000] ^= 1;
        fs::write(pack, bytes)?;
    }
    restore(&scene, "x", "again", &[])?.success("restore")?;
    scene.fermata().kill("again")?;
    let left = fs::read_dir(scene.sandbox().images())?.count();
    ensure!(
        left == 2,
        "{left} entries, where the image and the store are all"
    );
    drop(program);
    scene.close()
}
