//! Surroundings that do not fit: a full disk, an image of a later release, another GPU
//! or one with too little memory, files that changed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::command::Finished;
use fermata_e2e::disk::SmallDisk;
use fermata_e2e::scene::{Scene, wait_until};

/// A program with 64 MiB, and space for its process but not for those.
const WIDE: &[&str] = &["--steps", "80", "--size", "2048"];
const LEFT: u64 = 44 << 20;

#[test]
fn a_full_disk_fails_the_checkpoint_and_nothing_else() -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(root, "mounting a small file system needs root");
    let scene = Scene::new()?;
    let disk = SmallDisk::mount(scene.sandbox().images(), "1m")?;
    scene.start_slow("heat")?;
    let path = scene.fermata().image("image");
    let words = ["checkpoint", "heat", "-o", path.to_str().context("path")?];
    let done = scene.fermata().call(&words)?;
    ensure!(done.status == 1, "status {}: {}", done.status, done.stderr);
    ensure!(
        !path.join("manifest.json").exists(),
        "half an image was left"
    );
    scene.check_goes_on("heat")?;
    drop(disk);
    // With space again the same session can be checkpointed.
    scene.fermata().checkpoint("heat", "image", Mode::Stop)?;
    scene.fermata().kill("heat")?;
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn what_a_killed_checkpoint_has_left_takes_no_space_from_the_next() -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(root, "mounting a small file system needs root");
    let scene = Scene::new()?;
    let disk = SmallDisk::mount(scene.sandbox().images(), "400m")?;
    scene.start_slow("heat")?;
    // As after a daemon and a worker that were killed: a draft that nobody holds, and a pack that nobody has finished.
    scene.fermata().checkpoint("heat", "first", Mode::Stop)?;
    let draft = scene.fermata().image(".draft-second-0");
    fs::create_dir(&draft)?;
    let pack = scene.fermata().image(".store").join("tmp/dead.pack");
    fs::write(pack, vec![1; 64 << 20])?;
    fs::rename(disk.fill()?, draft.join("pages"))?;
    scene.fermata().checkpoint("heat", "second", Mode::Stop)?;
    ensure!(!draft.exists(), "the dead draft is still there");
    scene.fermata().kill("heat")?;
    scene.check_restorable("second")?;
    drop(disk);
    scene.close()
}

#[test]
fn a_session_whose_data_is_in_the_store_needs_no_space_for_it() -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(root, "mounting a small file system needs root");
    let scene = Scene::new()?;
    let disk = SmallDisk::mount(scene.sandbox().images(), "400m")?;
    for name in ["heat", "other"] {
        let program = scene.tree().program("heat2d")?;
        scene
            .fermata()
            .run_with(&scene.hold(20)?, name, Device::Soft, &program, WIDE)?;
        scene.wait_steps(name, 1)?;
    }
    scene.fermata().checkpoint("heat", "first", Mode::Stop)?;
    let full = disk.fill()?;
    let file = fs::File::options().write(true).open(&full)?;
    file.set_len(file.metadata()?.len().saturating_sub(LEFT))?;
    let path = scene.fermata().image("others");
    let words = ["checkpoint", "other", "-o", path.to_str().context("path")?];
    let done = scene.fermata().call(&words)?;
    ensure!(
        done.status == 1 && done.stderr.contains("the image needs up to"),
        "a first image, status {}: {}",
        done.status,
        done.stderr
    );
    scene.fermata().checkpoint("heat", "second", Mode::Stop)?;
    for name in ["heat", "other"] {
        scene.fermata().kill(name)?;
    }
    scene.let_go()?;
    scene.check_restorable("second")?;
    drop(disk);
    scene.close()
}

#[test]
fn an_image_of_a_later_release_is_named_as_such() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    let folder = scene.fermata().image("image");
    let manifest = folder.join("manifest.json");
    let whole = fs::read_to_string(&manifest)?;
    let mut document: serde_json::Value = serde_json::from_str(&whole)?;
    document["schema_version"] = 4_000_000.into();
    let newer = serde_json::to_string(&document)?;
    let hash = fs::read_to_string(folder.join("manifest.b3"))?;
    fs::write(&manifest, &newer)?;
    fs::write(
        folder.join("manifest.b3"),
        format!("{}\n", blake3::hash(newer.as_bytes()).to_hex()),
    )?;
    let done = scene.try_restore("image", "later")?;
    ensure!(done.status == 13, "status {}: {}", done.status, done.stderr);
    ensure!(
        done.stderr.contains("4000000"),
        "the version is missing in: {}",
        done.stderr
    );
    fs::write(&manifest, &whole)?;
    fs::write(folder.join("manifest.b3"), hash)?;
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_name_in_use_is_refused() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let done = scene.fermata().call(&[
        "run", "--device", "soft", "--name", "heat", "--detach", "--", "true",
    ])?;
    ensure!(
        done.status != 0 && done.stderr.contains("heat"),
        "{}: {}",
        done.status,
        done.stderr
    );
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.close()
}

#[test]
fn an_image_that_exists_is_not_overwritten() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    scene.fermata().checkpoint("heat", "image", Mode::Stop)?;
    ensure!(
        scene
            .fermata()
            .checkpoint("heat", "image", Mode::Stop)
            .is_err(),
        "it was overwritten"
    );
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_file_that_changed_its_size_is_named() -> Result<()> {
    let scene = Scene::new()?;
    let notes = scene.sandbox().work().join("notes.txt");
    fs::write(&notes, "as it was\n")?;
    // The shell keeps the file open on descriptor 7 for the program.
    let script = format!(
        "exec 7<'{}'; exec '{}' {}",
        notes.display(),
        scene.tree().program("heat2d")?.display(),
        fermata_e2e::scene::SLOW.join(" ")
    );
    scene
        .fermata()
        .run("heat", Device::Soft, "/bin/sh".as_ref(), &["-c", &script])?;
    scene.wait_steps("heat", 2)?;
    scene.fermata().checkpoint("heat", "image", Mode::Stop)?;
    scene.fermata().kill("heat")?;
    fs::write(&notes, "as it was, and more\n")?;
    let done = scene.try_restore("image", "changed")?;
    ensure!(done.status == 1, "status {}: {}", done.status, done.stderr);
    ensure!(
        done.stderr.contains("notes.txt"),
        "the file is missing in: {}",
        done.stderr
    );
    fs::write(&notes, "as it was\n")?;
    scene.check_restorable("image")?;
    scene.close()
}

/// Restores under a daemon of its own, which takes the software GPU's settings from `variable`.
fn restore_on(scene: &Scene, variable: (&str, &str)) -> Result<Finished> {
    let path = scene.fermata().image("image");
    let path = path.to_str().context("path")?;
    // A daemon that runs already keeps its own settings: end it first.
    while let Some(daemon) = scene.sandbox().daemon() {
        fermata_e2e::scene::kill_nine(&daemon)?;
    }
    // Its last threads may still hold the socket for a moment.
    let socket = scene.sandbox().runtime().join("fermatad.sock");
    wait_until("the daemon's socket goes", || {
        Ok(UnixStream::connect(&socket).is_err())
    })?;
    let words = [
        "restore", path, "--name", "other", "--device", "soft", "--detach",
    ];
    scene.fermata().call_with(&words, &[variable])
}

#[test]
fn a_device_with_too_little_memory_is_refused() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    let done = restore_on(&scene, ("FERMATA_SOFTGPU_MEMORY", "64K"))?;
    ensure!(done.status == 13, "status {}: {}", done.status, done.stderr);
    ensure!(
        done.stderr.contains("memory on device"),
        "the reason is missing in: {}",
        done.stderr
    );
    scene.close()
}

#[test]
fn another_model_of_device_is_refused() -> Result<()> {
    for (variable, value, named) in [
        ("FERMATA_SOFTGPU_NAME", "Other GPU", "is a Other GPU"),
        ("FERMATA_SOFTGPU_COMPUTE_CAPABILITY", "8.0", "(8.0)"),
    ] {
        let scene = Scene::new()?;
        scene.make_image("image")?;
        let done = restore_on(&scene, (variable, value))?;
        ensure!(done.status == 13, "status {}: {}", done.status, done.stderr);
        ensure!(
            done.stderr.contains("it was made on a") && done.stderr.contains(named),
            "both models are to be named in: {}",
            done.stderr
        );
        scene.close()?;
    }
    Ok(())
}

/// Answers every connection to the socket that its argument names.
const SOCKET: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print('listens', flush=True)
while True:
    s.accept()[0].sendall(b'here')
";

#[test]
fn a_socket_comes_back_although_its_folder_is_gone() -> Result<()> {
    let scene = Scene::new()?;
    let folder = scene.sandbox().work().join("sockets");
    let inner = folder.join("inner");
    fs::create_dir_all(&inner)?;
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o700))?;
    let socket = inner.join("socket");
    let fermata = scene.fermata();
    let words = ["-c", SOCKET, socket.to_str().context("path")?];
    fermata.run("first", Device::Soft, Path::new("/usr/bin/python3"), &words)?;
    wait_until("a program listens", || {
        Ok(fermata.log("first")?.contains("listens"))
    })?;
    fermata.checkpoint("first", "image", Mode::Stop)?;
    fermata.kill("first")?;
    fs::remove_dir_all(&folder)?;
    // What is in its way is named.
    fs::write(&folder, "a file")?;
    let refused = scene.try_restore("image", "second")?;
    ensure!(refused.status == 1, "status {}", refused.status);
    let said = &refused.stderr;
    let named = said.contains(inner.to_str().context("path")?) && said.contains("hint:");
    ensure!(named, "{said}");
    fs::remove_file(&folder)?;
    scene
        .try_restore("image", "second")?
        .success("fermata restore")?;
    let mut answer = String::new();
    UnixStream::connect(&socket)?.read_to_string(&mut answer)?;
    ensure!(answer == "here", "it answers {answer:?}");
    let mode = fs::metadata(&inner)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o700, "the folder has mode {mode:o}");
    fermata.kill("second")?;
    scene.close()
}
