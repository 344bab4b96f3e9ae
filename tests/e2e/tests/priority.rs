//! Sessions of more priority get device memory from those of less, which are paused meanwhile and come back by themselves.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fermata_e2e::scene::{Scene, wait_until};
use serde_json::Value;

/// Fields of 4 MiB each: a program takes 8 MiB and a little.
const WORK: [&str; 4] = ["--size", "1024", "--steps", "12"];
const STEP: u64 = 4;

/// A scene whose sessions share a software GPU of so many MiB.
struct Shared {
    scene: Scene,
    variables: Vec<(&'static str, String)>,
}

impl Shared {
    fn new(mib: u64, rest: u64, wait: u64) -> Result<Self> {
        Self::with_spare(mib, rest, wait, 1)
    }

    /// With so many workers that wait.
    fn with_spare(mib: u64, rest: u64, wait: u64, spare: usize) -> Result<Self> {
        let scene = Scene::new()?;
        let folder = scene.sandbox().work().join("gpu");
        let shared = Self {
            variables: vec![
                ("FERMATA_SOFTGPU_SHARED", folder.display().to_string()),
                ("FERMATA_SOFTGPU_MEMORY", format!("{mib}M")),
                ("FERMATA_PRIORITY_REST", rest.to_string()),
                ("FERMATA_PRIORITY_WAIT", wait.to_string()),
                ("FERMATA_SPARE_WORKERS", spare.to_string()),
            ],
            scene,
        };
        shared.sessions()?;
        Ok(shared)
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        let all = self.variables.iter();
        all.map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// What `ps` says; starts a daemon if there is none.
    fn sessions(&self) -> Result<Vec<Value>> {
        let fermata = self.scene.fermata();
        let done = fermata.call_with(&["ps", "--json"], &self.variables())?;
        let told: Value = serde_json::from_str(&done.success("fermata ps")?.stdout)?;
        Ok(told["sessions"].as_array().context("sessions")?.clone())
    }

    fn session(&self, name: &str) -> Result<Value> {
        let all = self.sessions()?;
        let found = all.into_iter().find(|it| it["name"] == name);
        found.with_context(|| format!("no session `{name}`"))
    }

    /// How many workers wait.
    fn waiting(&self) -> Result<usize> {
        let told = self.scene.fermata().pool()?;
        let kinds = told["kinds"].as_array().context("kinds")?;
        let ready = kinds.iter().filter_map(|it| it["ready"].as_array());
        Ok(ready.map(Vec::len).sum())
    }

    fn state(&self, name: &str) -> Result<String> {
        Ok(self.session(name)?["state"]
            .as_str()
            .context("state")?
            .to_owned())
    }

    fn wait_state(&self, name: &str, state: &str) -> Result<()> {
        let what = format!("`{name}` is {state}");
        wait_until(&what, || Ok(self.state(name)? == state))
    }

    /// Starts a session, which stands still in the middle if it is `held`.
    fn start(&self, name: &str, priority: i32, held: bool) -> Result<()> {
        let program = self.scene.tree().program("heat2d")?;
        let program = program.to_str().context("path")?;
        let priority = priority.to_string();
        let line = [
            "run",
            "--detach",
            "--device",
            "soft",
            "--name",
            name,
            "--priority",
            &priority,
            "--",
            program,
        ];
        let hold = self.scene.hold(STEP)?;
        let mut variables = self.variables();
        if held {
            variables.extend(hold.iter().map(|(name, value)| (*name, value.as_str())));
        }
        let line = [&line[..], &WORK].concat();
        let done = self.scene.fermata().call_with(&line, &variables)?;
        done.success("fermata run").map(drop)
    }

    fn start_held(&self, name: &str, priority: i32) -> Result<()> {
        self.start(name, priority, true)?;
        self.scene.wait_steps(name, 1)
    }

    fn ends_right(&self, name: &str) -> Result<()> {
        let straight = self.scene.straight("heat2d", &WORK)?;
        self.scene.check_ends_as(name, &straight)
    }

    fn close(self) -> Result<()> {
        self.scene.close()
    }
}

#[test]
fn a_session_of_more_priority_gets_the_memory_and_the_other_comes_back_by_itself() -> Result<()> {
    let shared = Shared::new(14, 0, 600)?;
    shared.start_held("low", 0)?;
    // It waits in an allocation until `low` is paused.
    shared.start_held("high", 5)?;
    let low = shared.session("low")?;
    ensure!(
        low["state"] == "paused" && low["paused_for"] == "high",
        "{low}"
    );
    ensure!(shared.session("high")?["priority"] == 5);
    let fermata = shared.scene.fermata();
    let table = fermata.call(&["ps"])?.success("fermata ps")?.stdout;
    ensure!(
        table.contains("PRIORITY") && table.contains("paused for high"),
        "{table}"
    );
    shared.scene.let_go()?;
    shared.ends_right("high")?;
    shared.ends_right("low")?;
    let log = shared.scene.daemon_log()?;
    ensure!(log.contains("`low` has its memory back"), "{log}");
    shared.close()
}

#[test]
fn equals_keep_their_memory_and_a_program_that_gets_none_is_told_so_as_ever() -> Result<()> {
    let shared = Shared::new(14, 0, 600)?;
    shared.start_held("one", 3)?;
    for priority in [3, -2] {
        let name = format!("other{priority}");
        shared.start(&name, priority, false)?;
        shared.wait_state(&name, "exited")?;
        let told = shared.scene.fermata().log(&name)?;
        ensure!(told.contains("cudaErrorMemoryAllocation"), "{told}");
    }
    ensure!(shared.state("one")? == "running");
    shared.scene.let_go()?;
    shared.ends_right("one")?;
    shared.close()
}

#[test]
fn workers_that_wait_give_way_before_any_session_does() -> Result<()> {
    let shared = Shared::with_spare(14, 0, 600, 3)?;
    shared.start_held("one", 0)?;
    wait_until("workers wait", || Ok(shared.waiting()? >= 3))?;
    // It takes one of them, and lacks memory while others wait.
    shared.start("other", 0, false)?;
    shared.wait_state("other", "exited")?;
    let told = shared.scene.fermata().log("other")?;
    ensure!(told.contains("cudaErrorMemoryAllocation"), "{told}");
    let log = shared.scene.daemon_log()?;
    ensure!(
        log.contains("no workers wait for sessions any more: `other` lacks"),
        "{log}"
    );
    ensure!(shared.state("one")? == "running");
    shared.scene.let_go()?;
    shared.ends_right("one")?;
    // The next session fills the pool again.
    shared.start("last", 0, false)?;
    shared.ends_right("last")?;
    wait_until("workers wait again", || Ok(shared.waiting()? >= 3))?;
    shared.close()
}

#[test]
fn what_its_user_has_paused_stays_paused() -> Result<()> {
    let shared = Shared::new(14, 0, 600)?;
    let fermata = shared.scene.fermata();
    shared.start_held("low", 0)?;
    shared.start_held("high", 5)?;
    ensure!(shared.session("low")?["paused_for"] == "high");
    // It is already; from now on for its user.
    fermata.call(&["pause", "low"])?.success("fermata pause")?;
    ensure!(shared.session("low")?["paused_for"].is_null());
    shared.scene.let_go()?;
    shared.ends_right("high")?;
    // One that yields after it has come and gone: whoever comes back by itself has done so by then.
    shared.start("last", 1, false)?;
    shared.ends_right("last")?;
    ensure!(shared.state("low")? == "paused");
    fermata
        .call(&["resume", "low"])?
        .success("fermata resume")?;
    shared.ends_right("low")?;
    shared.close()
}

#[test]
fn the_least_priority_yields_first_and_comes_back_last() -> Result<()> {
    let shared = Shared::new(22, 0, 600)?;
    shared.start_held("second", 2)?;
    shared.start_held("first", 1)?;
    shared.start_held("high", 5)?;
    ensure!(shared.state("first")? == "paused" && shared.state("second")? == "running");
    shared.start_held("higher", 6)?;
    ensure!(shared.session("second")?["paused_for"] == "higher");
    ensure!(shared.state("high")? == "running");
    // Room for one: it is the one of more priority that gets it.
    shared.scene.fermata().kill("high")?;
    shared.wait_state("second", "running")?;
    ensure!(shared.state("first")? == "paused");
    shared.scene.let_go()?;
    for name in ["higher", "second", "first"] {
        shared.ends_right(name)?;
    }
    let log = shared.scene.daemon_log()?;
    let at = |name: &str| log.find(&format!("`{name}` has its memory back"));
    ensure!(
        at("second").is_some() && at("second") < at("first"),
        "{log}"
    );
    shared.close()
}

#[test]
fn a_session_in_the_middle_of_a_checkpoint_is_left_alone_and_named() -> Result<()> {
    let shared = Shared::new(14, 0, 1)?;
    shared.start_held("low", 0)?;
    let moment = shared.scene.sandbox().moments().join("prepare");
    fs::write(&moment, "")?;
    let line = ["checkpoint", "low", "-o", "image", "--mode", "cow"];
    std::thread::scope(|scope| -> Result<()> {
        let taken = scope.spawn(|| shared.scene.fermata().call(&line));
        let reached = moment.with_extension("reached");
        wait_until("it is being checkpointed", || Ok(reached.exists()))?;
        shared.start("high", 5, false)?;
        shared.wait_state("high", "exited")?;
        fs::remove_file(&moment)?;
        let taken = taken
            .join()
            .map_err(|_| anyhow::anyhow!("checkpoint thread"))??;
        taken.success("fermata checkpoint").map(drop)
    })?;
    let told = shared.scene.fermata().log("high")?;
    ensure!(told.contains("cudaErrorMemoryAllocation"), "{told}");
    let log = shared.scene.daemon_log()?;
    let refused = "no room is made for 4194304 bytes of `high`, which has priority 5";
    let line = log.lines().find(|it| it.contains(refused));
    ensure!(line.is_some_and(|it| it.contains("`low`")), "{log}");
    shared.scene.let_go()?;
    shared.ends_right("low")?;
    shared.close()
}

#[test]
fn a_session_that_was_resumed_is_left_a_while() -> Result<()> {
    let shared = Shared::new(14, 1, 600)?;
    shared.start_held("low", 0)?;
    shared.start_held("high", 5)?;
    // It is resumed later than it is last seen paused, and seen paused later than it yields.
    let mut paused = Instant::now();
    shared.scene.fermata().kill("high")?;
    wait_until("`low` is running", || {
        let now = Instant::now();
        let state = shared.state("low")?;
        if state == "paused" {
            paused = now;
        }
        Ok(state == "running")
    })?;
    shared.start("again", 5, true)?;
    shared.wait_state("low", "paused")?;
    let waited = paused.elapsed();
    ensure!(waited >= Duration::from_secs(1), "{waited:?}");
    shared.scene.wait_steps("again", 1)?;
    shared.scene.let_go()?;
    shared.ends_right("again")?;
    shared.ends_right("low")?;
    shared.close()
}

#[test]
fn a_restore_gets_the_memory_of_a_session_of_less_priority() -> Result<()> {
    let shared = Shared::new(14, 0, 600)?;
    let fermata = shared.scene.fermata();
    shared.start_held("web", 5)?;
    let line = ["checkpoint", "web", "-o", "image", "--then", "stop"];
    fermata.call(&line)?.success("fermata checkpoint")?;
    shared.start_held("low", 0)?;
    let line = ["restore", "image", "--name", "again", "--detach"];
    fermata.call(&line)?.success("fermata restore")?;
    // Its priority is in the image.
    ensure!(shared.session("again")?["priority"] == 5);
    ensure!(shared.session("low")?["paused_for"] == "again");
    shared.scene.let_go()?;
    shared.ends_right("again")?;
    shared.ends_right("low")?;
    shared.close()
}

#[test]
fn the_next_daemon_resumes_what_has_yielded() -> Result<()> {
    let shared = Shared::new(14, 0, 600)?;
    shared.start_held("low", 0)?;
    shared.start_held("high", 5)?;
    shared.wait_state("low", "paused")?;
    shared.scene.kill_daemon()?;
    // The next one has the same settings.
    ensure!(shared.session("low")?["paused_for"] == "high");
    shared.scene.let_go()?;
    shared.ends_right("high")?;
    shared.ends_right("low")?;
    shared.close()
}
