//! Hostile neighbours: bytes that are no message, and users who are not the owner.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::command;
use fermata_e2e::fermata::COMMAND_LIMIT;
use fermata_e2e::scene::Scene;

/// Frames that no client sends: length fields that lie, text that is not JSON,
/// JSON that is no request, and noise.
fn hostile_messages() -> Vec<Vec<u8>> {
    let frame = |body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [&length.to_le_bytes()[..], body].concat()
    };
    let mut noise = vec![0u8; 4096];
    for (i, byte) in noise.iter_mut().enumerate() {
        *byte = (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    }
    vec![
        Vec::new(),
        vec![1],
        u32::MAX.to_le_bytes().to_vec(),
        1000u32.to_le_bytes().to_vec(),
        frame(b""),
        frame(b"{"),
        frame(b"\xff\xfe\xfd"),
        frame(br#"{"protocol":2,"verb":"NoSuchVerb"}"#),
        frame(br#"{"protocol":4294967295,"verb":"Ps"}"#),
        frame(br#"{"protocol":2,"verb":{"Kill":{"name":"../../etc","signal":-1}}}"#),
        frame("[".repeat(100_000).as_bytes()),
        noise,
    ]
}

#[test]
fn hostile_bytes_on_the_control_socket_harm_nobody() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let path = scene.sandbox().runtime().join("fermatad.sock");
    let mut held_open = Vec::new();
    for message in hostile_messages() {
        let mut socket = UnixStream::connect(&path).context("control socket")?;
        socket.set_write_timeout(Some(Duration::from_secs(5)))?;
        socket.write_all(&message).ok();
        held_open.push(socket);
    }
    scene.check_goes_on("heat")?;
    drop(held_open);
    scene.check_goes_on("heat")?;
    ensure!(scene.sandbox().daemon().is_some(), "the daemon died");
    scene.fermata().kill("heat")?;
    scene.close()
}

#[test]
fn another_user_cannot_see_or_end_a_session() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can act as another user"
    );
    let scene = Scene::new()?;
    // The folder of the case would keep the stranger out by itself.
    let images = scene.sandbox().images();
    let folder = images.parent().context("folder of the case")?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    scene.start_slow("heat")?;
    let call = |words: &[&str]| {
        let mut stranger = Command::new("setpriv");
        stranger.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        stranger.arg(scene.tree().fermata()).args(words);
        scene.sandbox().enter(&mut stranger);
        stranger.current_dir("/");
        command::run(stranger, COMMAND_LIMIT)
    };
    call(&["--version"])?.success("fermata of another user")?;
    for words in [
        &["ps"][..],
        &["kill", "heat"],
        &["checkpoint", "heat"],
        &["logs", "heat"],
    ] {
        let done = call(words)?;
        let said = done.stderr.trim();
        ensure!(
            done.status != 0 && said.contains("the socket of the daemon is not used"),
            "`fermata {}` of another user: {}, {said}",
            words.join(" "),
            done.status
        );
    }
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.close()
}
