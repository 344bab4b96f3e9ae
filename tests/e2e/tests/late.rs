//! Restores behind a running program: what goes wrong while data is still coming ends in the right bytes
//! or in a clear refusal, and what a restore has learnt helps the next.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT, Restore};
use fermata_e2e::held::HeldCriu;
use fermata_e2e::hold::{COPIES, Hold};
use fermata_e2e::output::Output;
use fermata_e2e::scene::{Scene, TRIES, Which, kill_nine, wait_gone, wait_until};

/// A program with its options, and how many bytes a second go between host and device: its data takes seconds to
/// come when it is let go.
struct Kind {
    program: &'static str,
    options: &'static [&'static str],
    link: &'static str,
}

/// Reaches from one buffer into others, of 4 MB each, and names none of them.
const MIS_SPECULATING: Kind = Kind {
    program: "overrun",
    options: &["--size", "1000000", "--steps", "200"],
    link: "8M",
};
const OVERRUN_BUFFER: u64 = 4_000_000;
/// The same with buffers of 2.4 MB, each in a block of its own.
const CAUGHT: Kind = Kind {
    program: "overrun",
    options: &["--size", "600000", "--steps", "120"],
    link: "64M",
};
const CAUGHT_BUFFER: u64 = 2_400_000;
const BUFFERS: u64 = 7;
/// Follow pointers that they find in memory: in a device variable, in a table, from node to node.
const POINTERS: [Kind; 3] = [
    Kind {
        program: "hidden",
        options: &["--steps", "100"],
        link: "64M",
    },
    Kind {
        program: "ptrtable",
        options: &["--steps", "100"],
        link: "64M",
    },
    Kind {
        program: "chain",
        options: &["--steps", "100"],
        link: "64M",
    },
];
/// Names what it touches: one buffer of 8 MB, and small ones.
const TAME: Kind = Kind {
    program: "jacobi",
    options: &["--size", "1024", "--steps", "200"],
    link: "2M",
};
/// The step after which programs stand still until they are let go.
const HELD_AT: u64 = 50;
const DAMAGED: i32 = 12;
const LOCKED: i32 = 11;

struct Late {
    scene: Scene,
    /// Holds the data of restored sessions.
    hold: Hold<tempfile::TempDir>,
    /// What the program prints when nothing happens to it.
    digest: Option<String>,
}

impl Late {
    /// Image `image` of the program, which stands still, and the digest it must reach.
    fn new(kind: &Kind) -> Result<Self> {
        let (name, options) = (kind.program, kind.options);
        let scene = Scene::new()?;
        let path = scene.tree().program(name)?;
        let digest = scene.straight(name, options)?.digest;
        ensure!(digest.is_some(), "`{name}` printed no digest");
        let hold = Hold::at(tempfile::tempdir()?);
        let (setting, folder) = hold.variable();
        let link = ("FERMATA_SOFTGPU_HOST_LINK", kind.link.to_owned());
        let device = [link, (setting, folder.to_owned())];
        let variables = [&device[..], &scene.hold(HELD_AT)?].concat();
        scene
            .fermata()
            .run_with(&variables, "source", Device::Soft, &path, options)?;
        scene.wait_steps("source", HELD_AT as usize / 10)?;
        scene.fermata().checkpoint("source", "image", Mode::Stop)?;
        scene.fermata().kill("source")?;
        Ok(Self {
            scene,
            hold,
            digest,
        })
    }

    /// Restores the image as session `name`, which must run before its data is there: that comes after [`Self::come`].
    fn restore(&self, name: &str) -> Result<()> {
        self.hold.only(COPIES, 0);
        let fermata = self.scene.fermata();
        fermata.restore("image", name, Device::Soft)?;
        let stand = self.stand(name)?;
        ensure!(stand == "coming", "data of `{name}`: {stand}");
        Ok(())
    }

    /// Lets the data come.
    fn come(&self) {
        self.hold.release(COPIES);
    }

    fn stand(&self, name: &str) -> Result<String> {
        let arrival = self.scene.fermata().session(name)?.arrival;
        Ok(arrival.map_or_else(|| "none".to_owned(), |it| it.stand))
    }

    fn check_digest(&self, name: &str) -> Result<()> {
        let fermata = self.scene.fermata();
        let status = fermata.wait_exit(name, PROGRAM_LIMIT)?;
        let log = fermata.log(name)?;
        ensure!(status == 0, "`{name}` ended with {status}: {log}");
        let output = Output::parse(&log)?;
        ensure!(
            output.digest == self.digest,
            "`{name}`: {:?} instead of {:?}",
            output.digest,
            self.digest
        );
        output.check_complete(&output)
    }

    fn close(self) -> Result<()> {
        self.scene
            .fermata()
            .call(&["images", "verify", "image"])?
            .success("fermata images verify")?;
        self.scene.close()
    }
}

#[test]
fn a_kernel_that_mis_speculates_is_caught_rolled_back_and_remembered() -> Result<()> {
    let late = Late::new(&MIS_SPECULATING)?;
    late.scene.let_go()?;
    // What the kernel names, and one buffer more.
    late.hold.only(COPIES, 2 * OVERRUN_BUFFER);
    late.scene
        .fermata()
        .restore("image", "first", Device::Soft)?;
    wait_until("it is caught", || Ok(late.stand("first")? != "coming"))?;
    late.come();
    late.check_digest("first")?;
    ensure!(late.stand("first")? == "rolled-back", "it was not caught");
    let note = late.scene.fermata().session("first")?.note;
    ensure!(
        note.is_some_and(|it| it.contains("rolled back")),
        "the user is not told"
    );
    late.restore("second")?;
    wait_until("it waits", || {
        let arrival = late.scene.fermata().session("second")?.arrival;
        Ok(arrival.is_some_and(|it| it.waits()))
    })?;
    late.come();
    late.check_digest("second")?;
    let stand = late.stand("second")?;
    ensure!(stand == "complete", "it was not remembered: {stand}");
    // Everything was there before that kernel ran.
    let words = ["report", "--session", "second", "--table", "--json"];
    let told = late.scene.fermata().call(&words)?.success("report")?;
    let told: serde_json::Value = serde_json::from_str(&told.stdout)?;
    let rows = told["rows"].as_array().context("rows")?;
    for what in ["objects", "host process", "for data that is coming", "data"] {
        let row = rows.iter().find(|row| row["what"] == what);
        let seconds = row.and_then(|row| row["seconds"].as_f64());
        ensure!(seconds > Some(0.0), "no `{what}` in {rows:?}");
    }
    late.close()
}

/// What follows pointers waits for everything, checked or not; the others are named when they use what is not there.
#[test]
fn a_kernel_that_checks_itself_is_named_and_no_other_restore_is_rolled_back() -> Result<()> {
    let late = Late::new(&CAUGHT)?;
    late.scene.let_go()?;
    // It touches each of the other buffers: one that is missing is enough.
    let most = BUFFERS - 1;
    late.hold.only(COPIES, 2 * CAUGHT_BUFFER);
    let fermata = late.scene.fermata();
    fermata.restore_as("image", "first", Device::Soft, Restore::Checked)?;
    let mut buffers = 2;
    let more = Cell::new(Instant::now());
    wait_until("it is caught", || {
        if more.get().elapsed() > Duration::from_secs(5) && buffers < most {
            buffers += 1;
            late.hold.up_to(COPIES, buffers * CAUGHT_BUFFER);
            more.set(Instant::now());
        }
        Ok(late.stand("first")? != "coming")
    })?;
    late.come();
    late.check_digest("first")?;
    ensure!(late.stand("first")? == "rolled-back", "it was not caught");
    let session = fermata.session("first")?;
    let arrival = session.arrival.context("arrival")?;
    let miss = arrival.misses.first().context("it was not named")?;
    ensure!(miss.kernel.contains("spread"), "{miss:?}");
    // The first buffer of the program is the one that the launch names.
    ensure!((2..=BUFFERS).contains(&miss.buffer), "{miss:?}");
    let told = format!("{:#x}, in buffer {}", miss.address, miss.buffer);
    let note = session.note.unwrap_or_default();
    ensure!(
        note.contains(&told) && note.contains(&miss.kernel),
        "the user is told {note:?}"
    );
    let page = tempfile::NamedTempFile::new()?;
    let path = page.path().to_str().context("path")?;
    fermata
        .call(&["report", "--session", "first", "-o", path])?
        .success("report")?;
    let page = fs::read_to_string(path)?;
    ensure!(page.contains("used too early"), "{page}");
    for (name, how) in [("second", Restore::Checked), ("third", Restore::Concurrent)] {
        late.hold.only(COPIES, 0);
        fermata.restore_as("image", name, Device::Soft, how)?;
        late.come();
        late.check_digest(name)?;
        let stand = late.stand(name)?;
        ensure!(stand == "complete", "`{name}`: {stand}");
    }
    late.close()
}

/// Kernels that follow pointers wait for everything, whether they check themselves or not.
#[test]
fn what_follows_pointers_is_not_rolled_back() -> Result<()> {
    for kind in &POINTERS {
        let late = Late::new(kind)?;
        late.hold.only(COPIES, 0);
        let fermata = late.scene.fermata();
        fermata.restore_as("image", "again", Device::Soft, Restore::Checked)?;
        late.scene.let_go()?;
        late.come();
        late.check_digest("again")?;
        let stand = late.stand("again")?;
        ensure!(stand == "complete", "`{}`: {stand}", kind.program);
        late.close()?;
    }
    Ok(())
}

#[test]
fn two_sessions_of_one_image_restored_at_once_end_with_the_same_bytes() -> Result<()> {
    let late = Late::new(&TAME)?;
    let path = late.scene.fermata().image("image");
    let path = path.to_str().context("path")?;
    late.scene
        .fermata()
        .call(&["restore", path, "--copies", "2", "--name", "copy"])?
        .success("fermata restore")?;
    late.scene.let_go()?;
    for name in ["copy-1", "copy-2"] {
        late.check_digest(name)?;
        ensure!(late.stand(name)? == "complete", "`{name}` was rolled back");
    }
    late.close()
}

#[test]
fn a_worker_killed_while_data_comes_costs_a_rollback() -> Result<()> {
    let late = Late::new(&TAME)?;
    late.restore("again")?;
    kill_nine(&late.scene.process("again", Which::Worker)?)?;
    late.come();
    late.scene.let_go()?;
    late.check_digest("again")?;
    ensure!(late.stand("again")? == "rolled-back", "no rollback");
    late.close()
}

#[test]
fn a_rollback_is_carried_on_by_the_next_daemon() -> Result<()> {
    let late = Late::new(&TAME)?;
    let criu = HeldCriu::install(&late.scene)?;
    late.restore("again")?;
    let worker = late.scene.process("again", Which::Worker)?;
    criu.hold()?;
    kill_nine(&worker)?;
    criu.wait()?;
    late.scene.kill_daemon()?;
    late.come();
    criu.release()?;
    late.scene.let_go()?;
    late.check_digest("again")?;
    let note = late.scene.fermata().session("again")?.note;
    ensure!(
        note.as_ref().is_some_and(|it| it.contains("rolled back")),
        "the user is told {note:?}"
    );
    late.close()
}

#[test]
fn a_program_killed_while_data_comes_stays_dead() -> Result<()> {
    let late = Late::new(&TAME)?;
    late.restore("again")?;
    let worker = late.scene.process("again", Which::Worker)?;
    kill_nine(&late.scene.process("again", Which::Program)?)?;
    late.come();
    let status = late.scene.fermata().wait_exit("again", PROGRAM_LIMIT)?;
    ensure!(status == 137, "status {status}");
    wait_gone(&worker)?;
    late.restore("third")?;
    late.come();
    late.scene.let_go()?;
    late.check_digest("third")?;
    late.close()
}

#[test]
fn damage_found_while_the_program_runs_ends_it_with_the_reason() -> Result<()> {
    let late = Late::new(&TAME)?;
    let pack = late.scene.device_pack("image")?;
    let whole = fs::read(&pack)?;
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&pack, damaged)?;
    let mut ran = false;
    for _ in 0..TRIES {
        let restored = late.scene.try_restore("image", "broken")?;
        let said = match restored.status {
            0 => {
                ran = true;
                late.scene.fermata().call(&["wait", "broken"])?
            }
            // It was found before the program ran, on a machine that has stood still.
            _ => restored,
        };
        ensure!(said.status == DAMAGED, "status {}", said.status);
        ensure!(said.stderr.contains("hash"), "{}", said.stderr);
        if ran {
            break;
        }
    }
    ensure!(ran, "it was always refused at once");
    let log = late.scene.fermata().log("broken")?;
    ensure!(!log.contains("digest"), "it went on: {log}");
    fs::write(&pack, whole)?;
    late.restore("whole")?;
    late.come();
    late.scene.let_go()?;
    late.check_digest("whole")?;
    late.close()
}

/// How often in a row a thread of the daemon is seen waiting for another one until it counts as that.
const LOOKS: u32 = 50;

/// Waits until a thread of the daemon that does what a command asks waits for another thread.
fn wait_request_waits(scene: &Scene) -> Result<()> {
    let daemon = scene.sandbox().daemon().context("no daemon runs")?;
    let tasks = PathBuf::from(format!("/proc/{}/task", daemon.pid));
    let (mut last, mut looks) = (None, 0);
    wait_until("a request waits in the daemon", || {
        let threads = fs::read_dir(&tasks)?.flatten().map(|it| it.path());
        let is = |thread: &PathBuf, file: &str, what: &str| {
            fs::read_to_string(thread.join(file)).is_ok_and(|it| it.contains(what))
        };
        let mut waiting =
            threads.filter(|it| is(it, "comm", "connection") && is(it, "wchan", "futex"));
        let now = waiting.next();
        looks = match now.is_some() && now == last {
            true => looks + 1,
            false => 0,
        };
        last = now;
        Ok(looks == LOOKS)
    })
}

#[test]
fn a_checkpoint_waits_until_the_data_of_a_restore_is_there() -> Result<()> {
    let late = Late::new(&TAME)?;
    late.restore("again")?;
    std::thread::scope(|scope| {
        let fermata = late.scene.fermata();
        let newer = scope.spawn(move || fermata.checkpoint("again", "newer", Mode::Stop));
        let waits = wait_request_waits(&late.scene);
        let finished = newer.is_finished();
        let drafts = fs::read_dir(late.scene.sandbox().images())?.flatten();
        let mut drafts = drafts.map(|it| it.file_name().to_string_lossy().into_owned());
        let draft = drafts.find(|it| it.starts_with(".draft"));
        late.come();
        let newer = newer.join().map_err(|_| anyhow!("checkpoint thread"))?;
        ensure!(
            waits.is_ok() && !finished && draft.is_none(),
            "it has not waited: {waits:?}, {draft:?}, {newer:?}"
        );
        newer
    })?;
    late.scene.let_go()?;
    late.check_digest("again")?;
    late.scene
        .fermata()
        .call(&["images", "verify", "newer"])?
        .success("fermata images verify")?;
    late.scene
        .fermata()
        .restore("newer", "newest", Device::Soft)?;
    late.check_digest("newest")?;
    late.close()
}

/// A program whose data is still coming may have to start again from its image.
#[test]
fn an_image_whose_data_is_coming_is_not_removed() -> Result<()> {
    let late = Late::new(&TAME)?;
    late.restore("again")?;
    let removed = late.scene.fermata().call(&["images", "rm", "image"])?;
    ensure!(
        removed.status == LOCKED && removed.stderr.contains("is being restored"),
        "{}: {}",
        removed.status,
        removed.stderr
    );
    late.come();
    late.scene.fermata().kill("again")?;
    late.close()
}
