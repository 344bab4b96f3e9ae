//! Images in a bucket of an object store: they come back where the machine has lost its own, `fermata protect` copies them
//! there by itself, and a service that is not there costs the copies only.

use std::fs;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::scene::{Scene, Which, gc_when_free, kill_nine, wait_until};
use serde_json::Value;

use crate::protect::{Protection, start_held};
use crate::server::{BUCKET, Server};

/// How commands reach a server.
fn variables(server: &Server) -> Result<Vec<(&'static str, String)>> {
    let config = server.config();
    let (key, secret) = config.keys.context("keys")?;
    Ok(vec![
        ("AWS_ENDPOINT_URL_S3", config.endpoint.context("endpoint")?),
        ("AWS_ACCESS_KEY_ID", key),
        ("AWS_SECRET_ACCESS_KEY", secret.0),
    ])
}

fn borrowed<'a>(variables: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    let pairs = variables.iter();
    pairs.map(|(name, value)| (*name, value.as_str())).collect()
}

fn address(name: &str) -> String {
    format!("s3://{BUCKET}/jobs/{name}")
}

#[test]
fn a_program_comes_back_from_a_bucket_on_a_machine_without_its_image() -> Result<()> {
    let scene = Scene::new()?;
    let server = Server::start(&scene.sandbox().work().join("s3"));
    let variables = variables(&server)?;
    let fermata = scene.fermata();
    let call = |words: &[&str]| fermata.call_with(words, &borrowed(&variables));
    // Two processes, each with a part of the image.
    let program = scene.tree().program("family")?;
    let options = ["--steps", "60"];
    let straight = scene.straight("family", &options)?;
    let hold = scene.hold(30)?;
    fermata.run_with(&hold, "family", Device::Soft, &program, &options)?;
    scene.wait_steps("family", 20)?;
    fermata.checkpoint("family", "family-1", Mode::Cow)?;
    fermata.kill("family")?;
    let image = fermata.image("family-1");
    let path = image.to_str().context("path")?;

    let folder = format!("s3://{BUCKET}/jobs");
    let told = call(&["images", "push", path, &folder, "--json"])?.success("push")?;
    let told: Value = serde_json::from_str(&told.stdout)?;
    ensure!(told["address"] == address("family-1"), "{told}");
    ensure!(told["bytes"] == told["written_bytes"], "{told}");
    let again = call(&["images", "push", path, &folder, "--json"])?.success("push")?;
    let again: Value = serde_json::from_str(&again.stdout)?;
    ensure!(again["written_bytes"] == 0, "{again}");
    let listed = call(&["images", "ls", &folder])?.success("ls")?.stdout;
    ensure!(listed.contains(&address("family-1")), "{listed}");

    // The machine loses what it has.
    fermata.call(&["images", "rm", path])?.success("rm")?;
    gc_when_free(|| fermata.call(&["images", "gc"]))?.success("gc")?;
    let refused = fermata.call(&["restore", &address("family-1")])?;
    ensure!(
        refused.status == 1 && refused.stderr.contains("images pull"),
        "{refused:?}"
    );
    let told = call(&["images", "pull", &address("family-1")])?.success("pull")?;
    ensure!(told.stdout.contains("family-1: "), "{told:?}");
    fermata
        .call(&["images", "verify", path])?
        .success("verify")?;
    scene.try_restore("family-1", "again")?.success("restore")?;
    scene.let_go()?;
    scene.check_ends_as("again", &straight)?;

    call(&["images", "rm", &address("family-1")])?.success("rm")?;
    let gone = call(&["images", "pull", &address("family-1")])?;
    ensure!(gone.status == 10, "{gone:?}");
    ensure!(server.objects().is_empty(), "{:?}", server.objects());
    scene.close()
}

#[test]
fn a_protected_program_comes_back_from_the_bucket_when_its_images_here_are_damaged() -> Result<()> {
    let scene = Scene::new()?;
    let server = Server::start(&scene.sandbox().work().join("s3"));
    let variables = variables(&server)?;
    let fermata = scene.fermata();
    let straight = start_held(&scene)?;
    let folder = format!("s3://{BUCKET}/jobs");
    let words = ["--every", "3600", "--to", &folder];
    let mut protection = Protection::start_with(&scene, "heat", &words, &borrowed(&variables))?;
    protection.wait("copied", 1)?;
    let copied = protection.of("copied")?[0].clone();
    ensure!(copied["address"] == address("heat-protect-1"), "{copied}");
    fs::write(fermata.image("heat-protect-1").join("state"), "")?;
    kill_nine(&scene.process("heat", Which::Program)?)?;
    protection.wait("restored", 1)?;
    ensure!(
        protection.of("fetched")?.len() == 1,
        "{}",
        protection.told()?
    );
    let restored = protection.of("restored")?[0]["image"].clone();
    let restored = restored.as_str().context("no image")?;
    ensure!(restored.ends_with("fetched/heat-protect-1"), "{restored}");
    scene.let_go()?;
    let status = protection.end()?;
    ensure!(status == 0, "{status}: {}", protection.told()?);
    scene.check_ends_as("heat", &straight)?;
    scene.close()
}

#[test]
fn a_bucket_that_goes_away_costs_a_protection_its_copies_only() -> Result<()> {
    let scene = Scene::new()?;
    let place = scene.sandbox().work().join("s3");
    let server = Server::start(&place);
    let variables = variables(&server)?;
    let fermata = scene.fermata();
    scene.start_slow("heat")?;
    let folder = format!("s3://{BUCKET}/jobs");
    let words = ["--every", "0.5", "--keep", "2", "--to", &folder];
    // Keys that are not right end it before anything is taken.
    let mut wrong = borrowed(&variables);
    wrong.push(("AWS_SECRET_ACCESS_KEY", "another"));
    let mut protection = Protection::start_with(&scene, "heat", &words, &wrong)?;
    let status = protection.end()?;
    let told = protection.told()?;
    ensure!(
        status == 1 && told.contains("SignatureDoesNotMatch"),
        "{status}: {told}"
    );
    ensure!(told.contains("AWS_SECRET_ACCESS_KEY"), "{told}");
    ensure!(!fermata.image("heat-protect-1").exists(), "{told}");

    let mut protection = Protection::start_with(&scene, "heat", &words, &borrowed(&variables))?;
    protection.wait("copied", 3)?;
    // As many as here are kept there, and the one that is being copied.
    let there = fermata.call_with(&["images", "ls", &folder, "--json"], &borrowed(&variables))?;
    let there: Value = serde_json::from_str(&there.success("ls")?.stdout)?;
    let count = there["images"].as_array().map_or(0, Vec::len);
    ensure!((1..=3).contains(&count), "{there}");
    let (bucket, elsewhere) = (place.join(BUCKET), place.join("elsewhere"));
    fs::rename(&bucket, &elsewhere)?;
    wait_until("a copy fails", || {
        // A request that was under way may make it again.
        let _ = fs::remove_dir_all(&bucket);
        Ok(!protection.of("copy-failed")?.is_empty())
    })?;
    let failed = protection.of("copy-failed")?[0].clone();
    let hint = failed["hint"].as_str().context("a hint")?;
    ensure!(hint.contains("make the bucket"), "{failed}");
    let images = protection.of("checkpoint")?.len();
    protection.wait("checkpoint", images + 2)?;
    wait_until("the bucket is back", || {
        let _ = fs::remove_dir_all(&bucket);
        Ok(fs::rename(&elsewhere, &bucket).is_ok())
    })?;
    let copies = protection.of("copied")?.len();
    protection.wait("copied", copies + 1)?;
    fermata.kill("heat")?;
    ensure!(protection.end()? == 137, "{}", protection.told()?);
    scene.close()
}
