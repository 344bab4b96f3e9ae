//! Device memory that sessions of one image have in common: it is there once, nothing that one of them does changes what
//! another one has, and the end of one costs no other anything.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT, Validate};
use fermata_e2e::fermata::on_devices;
use fermata_e2e::halt::Halt;
use fermata_e2e::output::Output;
use fermata_e2e::processes;
use fermata_e2e::scene::{Scene, TRIES, Which, kill_nine, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const DAMAGED: i32 = 12;
/// A moment in which a program makes some steps, doubled each time that it does not.
const MOMENT: Duration = Duration::from_millis(100);
const MIB: u64 = 1 << 20;

/// A program, its options, and the step after which it stands still until it is let go.
struct Kind {
    program: &'static str,
    options: &'static [&'static str],
    held_at: u64,
    /// Steps between two lines of its output.
    every: u64,
}

/// Reads one buffer of [`MATRIX`] bytes, and writes small ones.
const READER: Kind = Kind {
    program: "jacobi",
    options: &["--size", "1024", "--steps", "200"],
    held_at: 50,
    every: 10,
};
const MATRIX: u64 = 8 * MIB;
/// Writes its two buffers, of [`FIELD`] bytes each, in turn.
const WRITER: Kind = Kind {
    program: "heat2d",
    options: &["--size", "600", "--steps", "200"],
    held_at: 100,
    every: 20,
};
const FIELD: u64 = 600 * 600 * 4;
/// Writes buffers that nothing names, of 2.4 MB each.
const MIS_SPECULATING: Kind = Kind {
    program: "overrun",
    options: &["--size", "600000", "--steps", "100"],
    held_at: 50,
    every: 10,
};

/// Reads a table of [`TABLE`] bytes; its kernel could write it.
const SELDOM: Kind = Kind {
    program: "seldom",
    options: &["--size", "600000", "--steps", "200"],
    held_at: 50,
    every: 10,
};
/// The same, and writes it in step 100.
const LATE: Kind = Kind {
    options: &["--size", "600000", "--steps", "200", "--every", "100"],
    ..SELDOM
};
/// Writes it in every step, and what it writes is there already.
const AGAIN: Kind = Kind {
    options: &["--size", "600000", "--steps", "200", "--again", "1"],
    ..SELDOM
};
const TABLE: u64 = 600_000 * 4;
/// Its kernels are as those of libraries that carry machine code alone.
const OPAQUE: (&str, &str) = ("FERMATA_WORKER_FERMATA_TEST_OPAQUE", "1");

struct Common {
    scene: Scene,
    /// What the program prints when nothing happens to it.
    digest: Option<String>,
}

impl Common {
    /// Image `image` of the program, which stands still there, and the digest it must reach; its devices as `variables` say.
    fn new(kind: &Kind, variables: &[(&str, String)]) -> Result<Self> {
        let scene = Scene::new()?;
        // Its daemon is the one that the others talk to.
        scene
            .fermata()
            .call_with(&["ps"], &[("FERMATA_COMMON_MEMORY", "1")])?
            .success("fermata ps")?;
        let path = scene.tree().program(kind.program)?;
        let digest = scene.straight(kind.program, kind.options)?.digest;
        ensure!(digest.is_some(), "`{}` printed no digest", kind.program);
        let held = scene.hold(kind.held_at)?;
        let variables = [variables, &held].concat();
        let fermata = scene.fermata();
        fermata.run_with(&variables, "source", Device::Soft, &path, kind.options)?;
        scene.wait_steps("source", (kind.held_at / kind.every) as usize)?;
        fermata.checkpoint("source", "image", Mode::Stop)?;
        fermata.kill("source")?;
        Ok(Self { scene, digest })
    }

    /// Restores the image as sessions of these names, and waits until all of their data is there.
    fn restore(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.scene.fermata().restore("image", name, Device::Soft)?;
        }
        names.iter().try_for_each(|name| self.wait_data(name))
    }

    fn wait_data(&self, name: &str) -> Result<()> {
        wait_until("data is there", || Ok(self.stand(name)? == "complete"))
    }

    fn stand(&self, name: &str) -> Result<String> {
        let arrival = self.scene.fermata().session(name)?.arrival;
        Ok(arrival.map_or_else(|| "none".to_owned(), |it| it.stand))
    }

    fn device_memory(&self, name: &str, what: &str) -> Result<u64> {
        on_devices(&self.scene.fermata().memory_of(name)?, what)
    }

    fn wait_common(&self, name: &str, bytes: u64) -> Result<()> {
        wait_until(&format!("`{name}` has {bytes} bytes in common"), || {
            Ok(self.device_memory(name, "common")? == bytes)
        })
    }

    fn check_digest(&self, name: &str) -> Result<()> {
        let fermata = self.scene.fermata();
        let status = fermata.wait_exit(name, PROGRAM_LIMIT)?;
        let log = fermata.log(name)?;
        ensure!(status == 0, "`{name}` ended with {status}: {log}");
        self.check_log(name, &log)
    }

    /// The same of a session that another daemon has started, which knows its status.
    fn check_end(&self, name: &str) -> Result<()> {
        wait_until("a session ends", || {
            Ok(self.scene.fermata().session(name)?.state == "exited")
        })?;
        self.check_log(name, &self.scene.fermata().log(name)?)
    }

    fn check_log(&self, name: &str, log: &str) -> Result<()> {
        let output = Output::parse(log)?;
        ensure!(
            output.digest == self.digest,
            "`{name}`: {:?} instead of {:?}",
            output.digest,
            self.digest
        );
        output.check_complete(&output)
    }

    /// Stops or continues the program of a session.
    fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let process = self.scene.process(name, Which::Program)?;
        let pid = Pid::from_raw(process.pid).context("process number 0")?;
        Ok(kill_process(pid, signal)?)
    }

    fn close(self) -> Result<()> {
        let verified = self.scene.fermata().call(&["images", "verify", "image"])?;
        verified.success("fermata images verify")?;
        self.scene.close()
    }
}

/// Eight would need 80 MiB by themselves, and have 48.
#[test]
fn eight_instances_of_one_image_have_its_data_once() -> Result<()> {
    let account = tempfile::tempdir()?;
    let folder = account.path().to_str().context("path")?;
    let device = [
        ("FERMATA_SOFTGPU_SHARED", folder.to_owned()),
        ("FERMATA_SOFTGPU_MEMORY", "48M".to_owned()),
    ];
    let common = Common::new(&READER, &device)?;
    common.restore(&["a"])?;
    ensure!(common.device_memory("a", "common")? == 0, "it is alone");
    common.restore(&["b"])?;
    for name in ["a", "b"] {
        common.wait_common(name, MATRIX)?;
        ensure!(common.device_memory(name, "common_part")? == MATRIX / 2);
        ensure!(common.device_memory(name, "bytes")? > MATRIX);
    }
    let path = common.scene.fermata().image("image");
    let path = path.to_str().context("path")?;
    let words = ["restore", path, "--copies", "6", "--name", "copy"];
    common
        .scene
        .fermata()
        .call(&words)?
        .success("fermata restore")?;
    let copies: Vec<String> = (1..=6).map(|it| format!("copy-{it}")).collect();
    for name in &copies {
        common.wait_data(name)?;
        common.wait_common(name, MATRIX)?;
        ensure!(common.device_memory(name, "common_part")? == MATRIX / 8);
    }
    common.scene.let_go()?;
    for name in copies.iter().map(String::as_str).chain(["a", "b"]) {
        common.check_digest(name)?;
        ensure!(common.stand(name)? == "complete", "`{name}` is rolled back");
    }
    common.close()
}

/// At once, so that each finds the others loading.
#[test]
fn instances_that_start_at_once_load_each_block_once() -> Result<()> {
    let common = Common::new(&WRITER, &[])?;
    let path = common.scene.fermata().image("image");
    let path = path.to_str().context("path")?;
    let words = ["restore", path, "--copies", "3", "--name", "copy"];
    common
        .scene
        .fermata()
        .call(&words)?
        .success("fermata restore")?;
    let copies = ["copy-1", "copy-2", "copy-3"];
    for name in copies {
        common.wait_data(name)?;
        common.wait_common(name, 2 * FIELD)?;
    }
    common.scene.let_go()?;
    for name in copies {
        common.check_digest(name)?;
    }
    common.close()
}

#[test]
fn what_one_writes_is_its_own_and_the_others_go_on_with_what_they_have() -> Result<()> {
    let common = Common::new(&WRITER, &[])?;
    common.restore(&["a", "b", "c"])?;
    common.wait_common("a", 2 * FIELD)?;
    for name in ["b", "c"] {
        common.signal(name, Signal::STOP)?;
    }
    common.scene.let_go_to(WRITER.held_at + WRITER.every)?;
    let reached = (WRITER.held_at / WRITER.every) as usize + 1;
    common.scene.wait_steps("a", reached)?;
    common.wait_common("a", 0)?;
    common.wait_common("b", 2 * FIELD)?;
    common.signal("b", Signal::CONT)?;
    common.scene.wait_steps("b", reached)?;
    common.wait_common("b", 0)?;
    common.wait_common("c", 0)?;
    common.scene.let_go()?;
    common.check_digest("a")?;
    common.check_digest("b")?;
    // What it writes it has alone by now.
    common.signal("c", Signal::CONT)?;
    common.check_digest("c")?;
    // What the image's program writes is known, and loaded as its own.
    common.scene.let_go_to(WRITER.held_at)?;
    common.restore(&["d", "e"])?;
    common.wait_common("d", 0)?;
    common.scene.let_go()?;
    common.check_digest("d")?;
    common.check_digest("e")?;
    common.close()
}

#[test]
fn a_write_that_was_not_foreseen_is_rolled_back_and_remembered() -> Result<()> {
    let common = Common::new(&MIS_SPECULATING, &[])?;
    common.restore(&["a", "b"])?;
    common.wait_common("b", 6 * 2_400_000)?;
    common.signal("b", Signal::STOP)?;
    common.scene.let_go()?;
    common.check_digest("a")?;
    ensure!(common.stand("a")? == "rolled-back", "it was not caught");
    let note = common.scene.fermata().session("a")?.note;
    let told = note.is_some_and(|it| it.contains("memory that other sessions have"));
    ensure!(told, "the user is not told");
    // It knows nothing of that.
    common.signal("b", Signal::CONT)?;
    common.check_digest("b")?;
    for name in ["c", "d"] {
        common
            .scene
            .fermata()
            .restore("image", name, Device::Soft)?;
    }
    for name in ["c", "d"] {
        common.check_digest(name)?;
        let stand = common.stand(name)?;
        ensure!(stand == "complete", "it was not remembered: {stand}");
    }
    common.close()
}

impl Common {
    /// An image of a program whose kernels have no text.
    fn opaque(kind: &Kind) -> Result<Self> {
        let (name, value) = OPAQUE;
        Self::new(kind, &[(name, value.to_owned())])
    }

    /// The same, restored as `b` and `c` once another session has run from it for some steps, and has ended.
    fn shown(kind: &Kind) -> Result<Self> {
        let common = Self::opaque(kind)?;
        common.restore(&["a"])?;
        common.go_to(&["a"], 70)?;
        common.end("a")?;
        common.scene.let_go_to(kind.held_at)?;
        common.restore(&["b", "c"])?;
        Ok(common)
    }

    /// Ends a session, and waits until what its worker has learnt is told.
    fn end(&self, name: &str) -> Result<()> {
        let worker = self.scene.process(name, Which::Worker)?;
        self.scene.fermata().kill(name)?;
        wait_until("a worker ends", || {
            Ok(processes::look_up(worker.pid).is_none())
        })
    }

    /// Lets all go on until `step`, and waits until these are there.
    fn go_to(&self, names: &[&str], step: u64) -> Result<()> {
        self.scene.let_go_to(step)?;
        let lines = (step / SELDOM.every) as usize;
        names
            .iter()
            .try_for_each(|name| self.scene.wait_steps(name, lines))
    }
}

#[test]
fn what_kernels_without_text_leave_as_it_was_is_learnt_at_the_end_and_common_from_then_on()
-> Result<()> {
    let common = Common::opaque(&SELDOM)?;
    // Nothing is known yet: each makes its own what its kernel is given.
    common.restore(&["a", "b"])?;
    common.wait_common("b", 2 * TABLE)?;
    common.go_to(&["a", "b"], 70)?;
    common.wait_common("a", 0)?;
    common.wait_common("b", 0)?;
    common.end("a")?;
    common.scene.let_go_to(SELDOM.held_at)?;
    common.restore(&["c", "d"])?;
    // The table: the sums have been written, and are each one's own from the start.
    common.wait_common("d", TABLE)?;
    common.go_to(&["c", "d"], 100)?;
    ensure!(
        common.device_memory("c", "common")? == TABLE,
        "it was not learnt"
    );
    ensure!(
        common.device_memory("d", "common")? == TABLE,
        "it was not learnt"
    );
    common.scene.let_go()?;
    for name in ["b", "c", "d"] {
        common.check_digest(name)?;
        ensure!(common.stand(name)? == "complete", "`{name}` is rolled back");
    }
    common.close()
}

/// A hash that is what it was does not say that nothing was written.
#[test]
fn what_kernels_write_again_as_it_was_is_not_taken_for_left_alone() -> Result<()> {
    let common = Common::shown(&AGAIN)?;
    common.wait_common("c", 2 * TABLE)?;
    common.scene.let_go()?;
    for name in ["b", "c"] {
        common.check_digest(name)?;
        ensure!(common.stand(name)? == "complete", "`{name}` is rolled back");
    }
    common.close()
}

#[test]
fn what_was_learnt_wrongly_is_rolled_back_and_unlearnt() -> Result<()> {
    let common = Common::shown(&LATE)?;
    common.wait_common("c", TABLE)?;
    common.scene.let_go()?;
    for name in ["b", "c"] {
        common.check_digest(name)?;
    }
    let rolled_back = |name| Ok::<_, anyhow::Error>(common.stand(name)? == "rolled-back");
    ensure!(rolled_back("b")? || rolled_back("c")?, "none was caught");
    common.restore(&["d", "e"])?;
    for name in ["d", "e"] {
        common.check_digest(name)?;
        ensure!(!rolled_back(name)?, "it was not remembered");
    }
    common.close()
}

#[test]
fn the_end_of_one_costs_the_others_nothing() -> Result<()> {
    let common = Common::new(&WRITER, &[])?;
    common.restore(&["a", "b", "c"])?;
    common.wait_common("c", 2 * FIELD)?;
    // The one that has loaded it, in the hardest way.
    kill_nine(&common.scene.process("a", Which::Worker)?)?;
    common.scene.fermata().kill("a")?;
    common.wait_common("c", 2 * FIELD)?;
    common.scene.fermata().kill("b")?;
    common.wait_common("c", 0)?;
    common.restore(&["d"])?;
    common.wait_common("d", 2 * FIELD)?;
    common.scene.let_go()?;
    common.check_digest("c")?;
    common.check_digest("d")?;
    common.close()
}

#[test]
fn the_end_of_a_daemon_costs_no_session_anything() -> Result<()> {
    let common = Common::new(&WRITER, &[])?;
    common.restore(&["a", "b"])?;
    common.wait_common("b", 2 * FIELD)?;
    common.scene.kill_daemon()?;
    common.scene.wait_back("a")?;
    common.scene.wait_back("b")?;
    // The next daemon knows of nothing that is common.
    ensure!(common.device_memory("a", "common")? == 0);
    common.restore(&["c"])?;
    common.scene.let_go()?;
    common.check_end("a")?;
    common.check_end("b")?;
    common.check_digest("c")?;
    common.close()
}

#[test]
fn an_unforeseen_write_after_the_end_of_a_daemon_is_rolled_back_by_the_next() -> Result<()> {
    let common = Common::new(&MIS_SPECULATING, &[])?;
    common.restore(&["a"])?;
    common.scene.kill_daemon()?;
    common.scene.let_go()?;
    common.check_end("a")?;
    common.close()
}

/// Checkpoints of a session that has memory in common, by each protocol, while it makes that its own.
#[test]
fn an_image_of_a_session_that_has_memory_in_common_is_right() -> Result<()> {
    let common = Common::new(&WRITER, &[])?;
    let fermata = common.scene.fermata();
    let modes = [Mode::Stop, Mode::Cow, Mode::Recopy, Mode::Snapshot];
    common.restore(&["witness"])?;
    common.signal("witness", Signal::STOP)?;
    for mode in modes {
        let name = mode.name();
        common.restore(&[name])?;
    }
    common.wait_common("witness", 2 * FIELD)?;
    for mode in modes {
        let name = mode.name();
        fermata.checkpoint(name, &format!("of-{name}"), mode)?;
        common.wait_common(name, 2 * FIELD)?;
    }
    common.scene.let_go()?;
    for mode in modes {
        let (name, again) = (mode.name(), format!("again-{}", mode.name()));
        common.check_digest(name)?;
        fermata.restore(&format!("of-{name}"), &again, Device::Soft)?;
        common.check_digest(&again)?;
    }
    common.signal("witness", Signal::CONT)?;
    common.check_digest("witness")?;
    common.close()
}

/// Takes an image of one of two sessions that have memory in common, which `meanwhile` lets write, and demands that all are right;
/// what the command tells. `halt` makes nothing or something stand still before it begins.
fn capture_a_writer<H>(
    (mode, by): (Mode, Validate),
    halt: impl FnOnce(&Scene) -> Result<H>,
    meanwhile: impl FnOnce(&Scene, H) -> Result<()>,
) -> Result<Value> {
    // An image for each: of one that has been restored it is known what the program writes, and that is nobody else's.
    let common = Common::new(&WRITER, &[])?;
    let fermata = common.scene.fermata();
    common.restore(&["one", "other"])?;
    common.wait_common("one", 2 * FIELD)?;
    common.signal("other", Signal::STOP)?;
    let options = ["--validate", by.name(), "--json"];
    let halt = halt(&common.scene)?;
    let done = std::thread::scope(|scope| {
        let taken = scope.spawn(|| fermata.checkpoint_with("one", "of-one", mode, &options));
        meanwhile(&common.scene, halt)?;
        taken.join().map_err(|_| anyhow::anyhow!("checkpoint"))?
    })?;
    common.scene.let_go()?;
    common.check_digest("one")?;
    fermata.restore("of-one", "again", Device::Soft)?;
    common.check_digest("again")?;
    common.signal("other", Signal::CONT)?;
    common.check_digest("other")?;
    common.close()?;
    serde_json::from_str(&done.stdout).with_context(|| format!("answer: {}", done.stdout))
}

/// Where a writer is let go to.
const WRITTEN_AT: u64 = WRITER.held_at + 2 * WRITER.every;

/// What it has in common is in the store, and not copied.
#[test]
fn a_session_that_writes_while_it_is_captured_gives_a_right_image() -> Result<()> {
    let how = (Mode::Cow, Validate::Content);
    let write = |scene: &Scene, ()| scene.let_go_to(WRITTEN_AT);
    capture_a_writer(how, |_| Ok(()), write).map(drop)
}

fn halt_copies(scene: &Scene) -> Result<Halt> {
    Halt::at(scene, "copy")
}

#[test]
fn a_session_that_writes_while_it_is_copied_ahead_gives_a_right_image() -> Result<()> {
    let how = (Mode::Recopy, Validate::Content);
    let write = |scene: &Scene, halt: Halt| {
        halt.wait()?;
        scene.let_go_to(WRITTEN_AT)
    };
    capture_a_writer(how, halt_copies, write).map(drop)
}

/// Checked by its kernels: so it is not known what the store has, and all is copied.
#[test]
fn a_session_that_writes_what_is_not_copied_yet_gives_a_right_image() -> Result<()> {
    for nth in 0..TRIES as u32 {
        let write = |scene: &Scene, halt: Halt| {
            halt.wait()?;
            scene.wait_behind("one", "of-one")?;
            scene.let_go_to(WRITTEN_AT)?;
            // Nothing tells that it has come to a write, which may have to wait.
            std::thread::sleep(MOMENT * 2u32.pow(nth));
            Ok(())
        };
        let told = capture_a_writer((Mode::Cow, Validate::Ptx), halt_copies, write)?;
        let stall = &told["device"]["stall"];
        let overlaps = ["isolated_bytes", "waits"].map(|it| stall[it].as_u64().unwrap_or(0));
        if overlaps.iter().sum::<u64>() > 0 {
            return Ok(());
        }
    }
    anyhow::bail!("it has never written what was not copied yet")
}

#[test]
fn a_paused_session_has_nothing_in_common_and_comes_back_right() -> Result<()> {
    let common = Common::new(&WRITER, &[])?;
    let fermata = common.scene.fermata();
    common.restore(&["a", "b"])?;
    common.wait_common("b", 2 * FIELD)?;
    fermata.call(&["pause", "a"])?.success("fermata pause")?;
    common.wait_common("b", 0)?;
    common.restore(&["c"])?;
    common.wait_common("b", 2 * FIELD)?;
    fermata.call(&["resume", "a"])?.success("fermata resume")?;
    common.scene.let_go()?;
    for name in ["a", "b", "c"] {
        common.check_digest(name)?;
    }
    common.close()
}

#[test]
fn damaged_data_is_had_by_nobody() -> Result<()> {
    let common = Common::new(&READER, &[])?;
    let pack = common.scene.device_pack("image")?;
    let whole = std::fs::read(&pack)?;
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&pack, damaged)?;
    std::thread::scope(|scope| {
        let broken = ["one", "two"].map(|name| {
            let scene = &common.scene;
            scope.spawn(move || {
                let restored = scene.try_restore("image", name)?;
                match restored.status {
                    0 => scene.fermata().call(&["wait", name]),
                    _ => Ok(restored),
                }
            })
        });
        for said in broken {
            let said = said.join().map_err(|_| anyhow::anyhow!("restore"))??;
            ensure!(said.status == DAMAGED, "{}: {}", said.status, said.stderr);
        }
        Ok(())
    })?;
    std::fs::write(&pack, whole)?;
    common.restore(&["three", "four"])?;
    common.wait_common("three", MATRIX)?;
    common.scene.let_go()?;
    common.check_digest("three")?;
    common.check_digest("four")?;
    common.close()
}

#[test]
fn without_the_setting_each_session_has_its_own() -> Result<()> {
    let scene = Scene::new()?;
    let program = scene.tree().program(READER.program)?;
    let held = scene.hold(READER.held_at)?;
    let fermata = scene.fermata();
    fermata.run_with(&held, "source", Device::Soft, &program, READER.options)?;
    scene.wait_steps("source", 5)?;
    fermata.checkpoint("source", "image", Mode::Stop)?;
    let digest = None;
    let common = Common { scene, digest };
    common.restore(&["a", "b"])?;
    for name in ["a", "b"] {
        ensure!(common.device_memory(name, "common")? == 0);
    }
    for name in ["source", "a", "b"] {
        common.scene.fermata().kill(name)?;
    }
    common.close()
}
