//! `fermata bench` on the software GPU, at a size that only shows that it works: every case is measured, the files
//! are written, and nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::command;
use fermata_e2e::halt::Halt;
use fermata_e2e::tree::Tree;
use rustix::process::{Pid, Signal, kill_process};

/// A bench takes seconds; a machine under load takes longer.
const LIMIT: Duration = Duration::from_secs(900);

/// The rows of `NAME.csv` as a bench writes it, by column.
fn measure(name: &str, folder: &Path) -> Result<(Vec<String>, Vec<Vec<String>>)> {
    measure_with(name, folder, &["--bytes", "4MiB"])
}

/// One run of each case.
fn bench(name: &str, folder: &Path, options: &[&str]) -> Result<Command> {
    fs::create_dir_all(folder.join("images"))?;
    let mut bench = Command::new(Tree::find()?.fermata());
    bench.args(["bench", name, "--device", "soft", "--runs", "1"]);
    bench.args(options);
    // From where it is called: relative folders work too.
    bench
        .current_dir(folder)
        .args(["--out", ".", "--images", "images"]);
    bench.env("TMPDIR", folder);
    Ok(bench)
}

fn no_images(folder: &Path) -> Result<bool> {
    Ok(fs::read_dir(folder.join("images"))?.next().is_none())
}

fn measure_with(
    name: &str,
    folder: &Path,
    options: &[&str],
) -> Result<(Vec<String>, Vec<Vec<String>>)> {
    command::run(bench(name, folder, options)?, LIMIT)?.success(name)?;
    ensure!(no_images(folder)?, "images are left");
    let plot = fs::read_to_string(folder.join(format!("{name}.svg")))?;
    ensure!(plot.contains("<polyline"), "nothing is drawn");
    let text = fs::read_to_string(folder.join(format!("{name}.csv")))?;
    let mut lines = text
        .lines()
        .map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let header = lines.next().context("an empty file")?;
    let rows: Vec<_> = lines.collect();
    ensure!(rows.iter().all(|row| row.len() == header.len()), "{text}");
    Ok((header, rows))
}

#[test]
fn restores_are_measured_in_every_order() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (header, rows) = measure("restore", folder.path())?;
    let orders: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    ensure!(
        orders == ["eager", "default", "profile", "worst"],
        "{orders:?}"
    );
    let at = |name: &str| header.iter().position(|it| it == name).context("a column");
    for row in &rows {
        let number = |name: &str| -> Result<f64> { Ok(row[at(name)?].parse()?) };
        let (command, first, last) = (
            number("command_ms")?,
            number("first_step_ms")?,
            number("last_step_ms")?,
        );
        ensure!(command > 0.0 && first > 0.0 && last >= first, "{row:?}");
        ensure!(number("data_mib")? > 0.0, "{row:?}");
        ensure!(
            ["everything first", "complete"].contains(&row[at("stand")?].as_str()),
            "{row:?}"
        );
    }
    Ok(())
}

#[test]
fn starts_of_a_model_are_measured_in_every_way_and_have_one_result() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = folder.path().join("disk");
    fs::create_dir(&disk)?;
    let options = ["--sizes", "0.001", "--at-once", "2", "--disk", "disk"];
    let (header, rows) = measure_with("start", folder.path(), &options)?;
    ensure!(
        header
            == [
                "case",
                "billions",
                "way",
                "at_once",
                "first_ms",
                "last_ms",
                "command_ms",
                "image_gib"
            ],
        "{header:?}"
    );
    let mut ways: Vec<_> = rows.iter().map(|row| row[2].as_str()).collect();
    // Where temporary files are in memory there is no disk to measure.
    ways.retain(|way| *way != "disk");
    ensure!(
        ways == ["cold", "none", "default", "profile", "worst", "x2"],
        "{ways:?}"
    );
    for row in &rows {
        let (first, last): (f64, f64) = (row[4].parse()?, row[5].parse()?);
        ensure!(row[1] == "0.001" && first > 0.0 && last >= first, "{row:?}");
        ensure!(row[7].parse::<f64>()? > 0.0, "{row:?}");
    }
    let left = fs::read_dir(&disk)?.count();
    ensure!(left == 0, "{left} files are left on the disk");
    // That results are equal the bench itself demands; that they are compared `start/mod.rs` shows.
    Ok(())
}

#[test]
fn what_was_measured_before_an_interruption_is_kept() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = ["--sizes", "0.001", "--at-once", "2", "--disk", "/dev/shm"];
    // A restore comes to both, one after the other: when that of `none` is let go, the next one is held already.
    let moments = tempfile::tempdir()?;
    let of_none = Halt::within(moments.path(), "restored")?;
    let mut bench = bench("start", folder.path(), &options)?
        .env("FERMATA_TEST_MOMENTS", moments.path())
        .stderr(Stdio::piped())
        .spawn()?;
    of_none.wait()?;
    let of_default = Halt::within(moments.path(), "made")?;
    drop(of_none);
    let mut said = BufReader::new(bench.stderr.take().context("its messages")?).lines();
    said.by_ref()
        .map_while(Result::ok)
        .find(|line| line.ends_with(": default"))
        .context("it has not come to `default`")?;
    of_default.wait()?;
    kill_process(Pid::from_child(&bench), Signal::INT)?;
    drop(of_default);
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    let status = bench.wait()?;
    ensure!(status.code() == Some(130), "{status}: {rest:?}");
    ensure!(rest.iter().any(|it| it.contains("interrupted")), "{rest:?}");
    let text = fs::read_to_string(folder.path().join("start.csv"))?;
    let ways: Vec<_> = text
        .lines()
        .skip(1)
        .flat_map(|it| it.split(',').nth(2))
        .collect();
    ensure!(ways.starts_with(&["cold", "none"]), "{text}");
    ensure!(!ways.contains(&"x2"), "{text}");
    let left: Vec<_> = fs::read_dir(folder.path())?
        .map(|it| Ok(it?.file_name().into_string().unwrap_or_default()))
        .collect::<Result<_>>()?;
    let is_known = |it: &String| it == "images" || it.starts_with("start.");
    ensure!(left.iter().all(is_known), "{left:?}");
    ensure!(no_images(folder.path())?, "images are left");
    Ok(())
}

#[test]
fn checkpoints_are_measured_with_every_pool() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (header, rows) = measure("pool", folder.path())?;
    ensure!(header[0] == "pool_mib", "{header:?}");
    let pools: BTreeSet<_> = rows.iter().map(|row| row[0].clone()).collect();
    ensure!(rows.len() == 7 && pools.len() == 7, "{rows:?}");
    let at = |name: &str| header.iter().position(|it| it == name).context("a column");
    for row in &rows {
        let stopped: f64 = row[at("stopped_ms")?].parse()?;
        ensure!(stopped > 0.0 && !row[at("limit")?].is_empty(), "{row:?}");
    }
    Ok(())
}

#[test]
fn checkpoints_are_measured_at_every_moment_of_an_iteration() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (header, rows) = measure("moment", folder.path())?;
    ensure!(header[0] == "asked_at", "{header:?}");
    let moments: BTreeSet<_> = rows.iter().map(|row| row[0].clone()).collect();
    ensure!(rows.len() == 8 && moments.len() == 8, "{rows:?}");
    let at = |name: &str| header.iter().position(|it| it == name).context("a column");
    for row in &rows {
        let (stopped_at, stopped): (f64, f64) = (
            row[at("stopped_at")?].parse()?,
            row[at("stopped_ms")?].parse()?,
        );
        ensure!(
            (0.0..=1.0).contains(&stopped_at) && stopped > 0.0,
            "{row:?}"
        );
    }
    Ok(())
}

#[test]
fn steps_are_measured_with_every_validator() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (header, rows) = measure("validator", folder.path())?;
    let validators: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    ensure!(validators == ["content", "ptx", "both", "off"], "{rows:?}");
    let at = |name: &str| header.iter().position(|it| it == name).context("a column");
    for row in &rows {
        let step: f64 = row[at("step_ms")?].parse()?;
        ensure!(step > 0.0, "{row:?}");
    }
    Ok(())
}
