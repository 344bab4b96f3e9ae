//! Processes of a session at a bad moment: one or all of them end in the middle of a checkpoint's stop, there is no space for
//! the part of one, or the daemon dies while they stand still. The others go on, all at one moment, and there is no image that
//! could not be restored.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command::Finished;
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::halt::Halt;
use fermata_e2e::hold::{COPIES, Hold};
use fermata_e2e::processes::{Process, look_up};
use fermata_e2e::scene::{Scene, kill_nine, wait_until};

/// A small rank, and one with 8 MiB of device memory.
const RANKS: [&str; 2] = ["64", "1024"];
const FIELDS: u64 = 2 << 22;

/// What a rank prints.
fn log(scene: &Scene, rank: usize) -> PathBuf {
    scene.sandbox().work().join(format!("rank-{rank}"))
}

/// Starts both ranks as session `name`; returns when they work.
fn start(scene: &Scene, name: &str, variables: &[(&str, &str)]) -> Result<()> {
    start_below(scene, name, variables, "wait")
}

/// As [`start`]; the shell that has started the ranks then does what `last` says.
fn start_below(scene: &Scene, name: &str, variables: &[(&str, &str)], last: &str) -> Result<()> {
    let program = scene.tree().program("heat2d")?;
    let start = |(rank, size): (usize, &str)| {
        format!(
            "{} --steps 400000 --pause-ms 5 --size {size} >{} 2>&1 & ",
            program.display(),
            log(scene, rank).display()
        )
    };
    let all: String = RANKS.into_iter().enumerate().map(start).collect();
    let shell = format!("{all} {last}");
    let words = ["-c", shell.as_str()];
    let fermata = scene.fermata();
    fermata.run_with(variables, name, Device::Soft, Path::new("/bin/sh"), &words)?;
    wait_until("two processes use CUDA", || {
        Ok(fermata.session(name)?.processes.len() == 2)
    })?;
    goes_on(scene, 0)?;
    goes_on(scene, 1)
}

/// Demands that a rank goes on working, from now on.
fn goes_on(scene: &Scene, rank: usize) -> Result<()> {
    let steps = || -> Result<usize> {
        let text = std::fs::read_to_string(log(scene, rank))?;
        Ok(text.lines().count())
    };
    let now = steps()?;
    wait_until("a rank goes on", || Ok(steps()? > now + 2))
}

/// The rank that has the large field, by what it was started with.
fn large(scene: &Scene, name: &str) -> Result<i32> {
    let session = scene.fermata().session(name)?;
    let is_large = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|it| it == RANKS[1].as_bytes())
    };
    let mut pids = session.processes.iter().map(|it| it.pid);
    pids.find(is_large).context("no large rank")
}

/// The processes of session `name` that use CUDA.
fn ranks(scene: &Scene, name: &str) -> Result<Vec<Process>> {
    let session = scene.fermata().session(name)?;
    let processes = session.processes.iter().map(|it| look_up(it.pid));
    processes.map(|it| it.context("a rank has ended")).collect()
}

/// Takes image `cut` of session `ranks` and kills `victims` at `moment`; how the command ended.
fn killed_at(scene: &Scene, moment: &'static str, victims: &[Process]) -> Result<Finished> {
    let fermata = scene.fermata();
    let halt = Halt::at(scene, moment)?;
    std::thread::scope(|scope| {
        let attempt = scope.spawn(|| {
            let image = fermata.image("cut");
            let image = image.to_str().context("a path")?;
            fermata.call(&["checkpoint", "ranks", "-o", image])
        });
        let killed = halt
            .wait()
            .and_then(|_| victims.iter().try_for_each(kill_nine));
        drop(halt);
        let attempt = attempt.join().map_err(|_| anyhow!("checkpoint thread"))?;
        killed.and(attempt)
    })
}

#[test]
fn a_program_goes_on_after_all_its_ranks_have_ended_during_the_stop() -> Result<()> {
    for moment in ["detached", "reattach"] {
        let scene = Scene::new()?;
        let fermata = scene.fermata();
        start_below(&scene, "ranks", &[], "wait; exec sleep 100000")?;
        let attempt = killed_at(&scene, moment, &ranks(&scene, "ranks")?)?;
        attempt.success(moment)?;
        let session = fermata.session("ranks")?;
        ensure!(session.state == "running", "{moment}: {session:?}");
        ensure!(session.processes.is_empty(), "{moment}: {session:?}");
        fermata.checkpoint("ranks", "after", Mode::Stop)?;
        fermata.kill("ranks")?;
        // What had been read by then is whole.
        let whole = moment == "reattach";
        for (image, whole) in [("cut", whole), ("after", false)] {
            scene
                .restore_grown(image, image)
                .with_context(|| moment.to_owned())?;
            let session = fermata.session(image)?;
            let left = if whole { RANKS.len() } else { 0 };
            ensure!(session.processes.len() == left, "{moment}: {session:?}");
            (0..left).try_for_each(|rank| goes_on(&scene, rank))?;
            fermata.kill(image)?;
        }
        scene.close()?;
    }
    Ok(())
}

/// Kills the daemon when it comes to `moment` of `command`. While the next one stands still because the first rank runs
/// again, all of them do.
fn next_daemon_wakes_all(scene: &Scene, moment: &'static str, command: &[&str]) -> Result<()> {
    let fermata = scene.fermata();
    let (halt, runs) = (Halt::at(scene, moment)?, Halt::at(scene, "resumed")?);
    std::thread::scope(|scope| {
        let cut_off = scope.spawn(|| fermata.call(command));
        let killed = halt.wait().and_then(|_| scene.kill_daemon());
        drop(halt);
        let cut_off = cut_off.join().map_err(|_| anyhow!("command's thread"))?;
        killed.and(cut_off)
    })?;
    // The question starts it.
    fermata.session("ranks")?;
    runs.wait()?;
    goes_on(scene, 0)?;
    goes_on(scene, 1)?;
    drop(runs);
    let session = scene.wait_back("ranks")?;
    ensure!(session.processes.len() == RANKS.len(), "{session:?}");
    Ok(())
}

#[test]
fn ranks_that_a_daemon_has_left_in_a_stop_go_on_at_one_moment() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start(&scene, "ranks", &[])?;
    let image = fermata.image("cut");
    let image = image.to_str().context("a path")?;
    next_daemon_wakes_all(&scene, "dump", &["checkpoint", "ranks", "-o", image])?;
    fermata.checkpoint("ranks", "image", Mode::Stop)?;
    fermata.kill("ranks")?;
    scene.restore_grown("image", "again")?;
    goes_on(&scene, 0)?;
    goes_on(&scene, 1)?;
    fermata.kill("again")?;
    scene.close()
}

#[test]
fn ranks_that_a_daemon_has_left_in_a_resumption_go_on_at_one_moment() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start(&scene, "ranks", &[])?;
    fermata
        .call(&["pause", "ranks"])?
        .success("fermata pause")?;
    next_daemon_wakes_all(&scene, "resume-noted", &["resume", "ranks"])?;
    fermata.checkpoint("ranks", "image", Mode::Stop)?;
    fermata.kill("ranks")?;
    scene.close()
}

#[test]
fn a_rank_that_ends_during_the_stop_is_no_harm_to_the_others() -> Result<()> {
    for moment in ["parked", "detached", "dump"] {
        let scene = Scene::new()?;
        let fermata = scene.fermata();
        start(&scene, "ranks", &[])?;
        let victim = look_up(large(&scene, "ranks")?).context("no such process")?;
        let attempt = killed_at(&scene, moment, &[victim])?;
        goes_on(&scene, 0)?;
        wait_until("one process is left", || {
            Ok(fermata.session("ranks")?.processes.len() == 1)
        })?;
        // It was tried again without the rank, or given up.
        let there = fermata.image("cut").exists();
        ensure!(
            there == (attempt.status == 0),
            "{moment}: {}",
            attempt.stderr
        );
        let after = fermata.checkpoint("ranks", "after", Mode::Stop);
        after.with_context(|| format!("{moment}: {} {}", attempt.status, attempt.stderr))?;
        fermata.kill("ranks")?;
        for image in ["cut", "after"].into_iter().skip(usize::from(!there)) {
            scene
                .restore_grown(image, image)
                .with_context(|| moment.to_owned())?;
            let session = fermata.session(image)?;
            ensure!(session.processes.len() == 1, "{moment}: {session:?}");
            goes_on(&scene, 0)?;
            fermata.kill(image)?;
        }
        scene.close()?;
    }
    Ok(())
}

#[test]
fn a_disk_that_is_full_for_one_rank_gives_no_image_and_harms_nobody() -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(root, "mounting a small file system needs root");
    for mode in [Mode::Snapshot, Mode::Cow, Mode::Stop] {
        let scene = Scene::new()?;
        let fermata = scene.fermata();
        let disk = SmallDisk::mount(scene.sandbox().images(), "192m")?;
        let hold = Hold::at(tempfile::tempdir()?);
        start(&scene, "ranks", &[hold.variable()])?;
        // So often the large rank's data is read before the program goes on, to be hashed.
        let in_stop = match mode {
            Mode::Snapshot => FIELDS,
            Mode::Cow => 2 * FIELDS,
            _ => 0,
        };
        hold.only(COPIES, in_stop);
        let what = ("ranks", "newer");
        let (attempt, filled) =
            scene.checkpoint_beside(&hold, what, (mode, &[]), || disk.fill())?;
        let refusal = attempt.err().context("an image on a full disk")?;
        let text = format!("{refusal:#}");
        let named = text.contains("space") || text.contains("full");
        ensure!(named, "{}: {text}", mode.name());
        ensure!(!fermata.image("newer").exists(), "half an image");
        goes_on(&scene, 0)?;
        goes_on(&scene, 1)?;
        std::fs::remove_file(filled)?;
        fermata.checkpoint("ranks", "image", mode)?;
        fermata.kill("ranks")?;
        scene.restore_grown("image", "again")?;
        goes_on(&scene, 0)?;
        goes_on(&scene, 1)?;
        fermata.kill("again")?;
        drop(disk);
        scene.close()?;
    }
    Ok(())
}
