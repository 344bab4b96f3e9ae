//! Ranks whose kernels wait for each other: a checkpoint finds a moment at which all of them stand still, an image holds the
//! ranks at one moment, and a rank that does not come is named.

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::scene::{Scene, wait_until};

/// Three ranks, the kernels of which have names as NCCL's.
const NAMED: &[&str] = &["--size", "512", "--steps", "120", "--ranks", "3"];
/// Two, the kernels of which tell nothing by their names.
const PLAIN: &[&str] = &["--size", "512", "--steps", "120", "--plain", "1"];
/// As many as a machine has GPUs, each with one of its own.
const EIGHT: &[&str] = &["--size", "512", "--steps", "8", "--ranks", "8"];
/// The step at which the first rank stands still, and the other waits for it on its device.
const HELD: u64 = 20;

#[test]
fn ranks_in_collectives_come_back_from_an_image_of_stop() -> Result<()> {
    Scene::comes_back("allreduce", NAMED, Mode::Stop)
}

#[test]
fn ranks_in_collectives_come_back_from_an_image_of_cow() -> Result<()> {
    Scene::comes_back("allreduce", NAMED, Mode::Cow)
}

#[test]
fn ranks_whose_kernels_wait_for_each_other_unnoticed_come_back() -> Result<()> {
    Scene::comes_back("allreduce", PLAIN, Mode::Cow)
}

#[test]
fn eight_ranks_on_eight_devices_come_back() -> Result<()> {
    let devices = ("FERMATA_SOFTGPU_DEVICES", "8".to_owned());
    Scene::comes_back_with(&[devices], "allreduce", EIGHT, Mode::Snapshot)
}

#[test]
fn a_rank_that_does_not_enter_is_waited_for_so_long_and_its_peers_are_named() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let limit = [("FERMATA_DEVICE_WAIT", "2")];
    fermata.call_with(&["ps"], &limit)?.success("fermata ps")?;
    let program = scene.tree().program("allreduce")?;
    fermata.run_with(&scene.hold(HELD)?, "one", Device::Soft, &program, NAMED)?;
    scene.wait_steps("one", HELD as usize)?;
    let path = fermata.image("image");
    let path = path.to_str().unwrap_or_default();
    // The first rank's host is ahead of the devices, so at first all may still stand before a collective that waits for it.
    let mut refused = None;
    wait_until("the peers wait in a collective", || {
        let done = fermata.call(&["checkpoint", "one", "-o", path])?;
        let is_taken = done.status == 0;
        if is_taken {
            fermata
                .call(&["images", "rm", path])?
                .success("images rm")?;
        }
        refused = Some(done);
        Ok(!is_taken)
    })?;
    let refused = refused.context("no checkpoint")?;
    ensure!(
        refused.status == 14,
        "{}: {}",
        refused.status,
        refused.stderr
    );
    for word in [
        "ncclLikeReduce",
        "process",
        "every rank",
        "FERMATA_DEVICE_WAIT",
    ] {
        let said = &refused.stderr;
        ensure!(said.contains(word), "`{word}` is missing in: {said}");
    }
    ensure!(!fermata.image("image").exists(), "there is an image");
    scene.let_go()?;
    scene.check_ends_as("one", &scene.straight("allreduce", NAMED)?)?;
    scene.close()
}
