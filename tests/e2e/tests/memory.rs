//! What memory sessions take: `fermata ps --memory`, and the daemon's metrics.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, PROGRAM_LIMIT};
use fermata_e2e::fermata::on_devices;
use fermata_e2e::scene::{Scene, wait_until};
use serde_json::Value;

fn bytes(of: &Value, way: &[&str]) -> Result<u64> {
    let found = way.iter().fold(of, |it, key| &it[key]);
    found
        .as_u64()
        .with_context(|| format!("no {way:?} in {of}"))
}

fn asked(socket: &Path) -> Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PROGRAM_LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut told = String::new();
    stream.read_to_string(&mut told)?;
    Ok(told)
}

#[test]
fn the_memory_of_a_session_is_told_by_ps_and_by_the_metrics() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let socket = scene.sandbox().runtime().join("metrics.sock");
    let place = socket.to_str().context("path")?;
    // Its daemon is the one that the others talk to.
    fermata
        .call_with(&["ps"], &[("FERMATA_METRICS", place)])?
        .success("fermata ps")?;
    scene.start_held("heat")?;
    // Two fields of 128 x 128 numbers.
    wait_until("its worker says what it holds", || {
        let told = fermata.memory_of("heat")?;
        Ok(told["complete"] == true && on_devices(&told, "bytes")? >= 2 * 128 * 128 * 4)
    })?;
    let told = fermata.memory_of("heat")?;
    for part in ["program", "workers"] {
        let (pss, own) = (bytes(&told, &[part, "pss"])?, bytes(&told, &[part, "own"])?);
        ensure!(0 < own && own <= pss, "{part}: {told}");
    }
    ensure!(on_devices(&told, "shared")? == 0, "{told}");
    let table = fermata
        .call(&["ps", "--memory"])?
        .success("fermata ps")?
        .stdout;
    ensure!(
        table.contains("WORKERS") && table.contains("heat"),
        "{table}"
    );
    let metrics = asked(&socket)?;
    let device_bytes = on_devices(&told, "bytes")?;
    for (name, label, value) in [
        ("fermata_sessions", "running", "1".to_owned()),
        (
            "fermata_session_device_bytes",
            "heat",
            device_bytes.to_string(),
        ),
    ] {
        let mut lines = metrics
            .lines()
            .filter(|it| it.starts_with(&format!("{name}{{")));
        let found = lines.any(|it| it.contains(label) && it.ends_with(&format!(" {value}")));
        ensure!(found, "no {name} of {label} with {value} in {metrics}");
    }
    let host = metrics
        .lines()
        .find(|it| it.starts_with("fermata_session_host_pss_bytes"));
    ensure!(host.is_some_and(|it| !it.ends_with(" 0")), "{metrics}");
    fermata.kill("heat")?;
    ensure!(fermata.memory()?.is_empty(), "{:?}", fermata.memory()?);
    scene.close()
}

#[test]
fn memory_that_two_processes_of_a_session_use_counts_once() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = scene.tree().program("shared")?;
    let options = ["--steps", "400"];
    fermata.run_with(
        &scene.hold(200)?,
        "shared",
        Device::Soft,
        &program,
        &options,
    )?;
    scene.wait_steps("shared", 10)?;
    wait_until("both workers say what they hold", || {
        let told = fermata.memory_of("shared")?;
        Ok(told["complete"] == true && on_devices(&told, "shared")? > 0)
    })?;
    let told = fermata.memory_of("shared")?;
    let (all, shared) = (on_devices(&told, "bytes")?, on_devices(&told, "shared")?);
    // One process has allocated all that the other one uses.
    ensure!(shared <= all, "{told}");
    fermata.kill("shared")?;
    scene.close()
}

#[test]
fn a_daemon_that_cannot_tell_its_metrics_does_not_start_and_says_why() -> Result<()> {
    let scene = Scene::new()?;
    for (place, expected) in [
        ("here", "FERMATA_METRICS"),
        ("/nowhere/at/all.sock", "/nowhere/at/all.sock"),
    ] {
        let done = scene
            .fermata()
            .call_with(&["ps"], &[("FERMATA_METRICS", place)])?;
        let told = format!("{}{}", done.stdout, done.stderr);
        ensure!(
            done.status != 0 && told.contains(expected),
            "{place}: {told}"
        );
    }
    scene.close()
}
