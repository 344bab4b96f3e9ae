//! The cache of images that lie on a disk: what is in it is not read again, and whatever is wrong with it costs time
//! only.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::PROGRAM_LIMIT;
use fermata_e2e::output::Output;
use fermata_e2e::scene::{SHORT, Scene, gc_when_free, wait_until};
use serde_json::Value;

/// Of a pack, and of the steps in which damage is done.
const BLOCK: usize = 4096;

/// Image `image` of a program that is let go, on a disk, made by a daemon that keeps no cache and is gone.
struct Cached {
    scene: Scene,
    digest: String,
}

impl Cached {
    fn new() -> Result<Self> {
        let scene = Scene::new()?;
        let digest = scene.straight("heat2d", SHORT)?.digest;
        scene.make_held_image("image")?;
        scene.let_go()?;
        let cached = Self {
            scene,
            digest: digest.context("no digest")?,
        };
        ensure!(cached.status()?["cache"].is_null(), "a cache by default");
        cached.scene.kill_daemon()?;
        Ok(cached)
    }

    /// Starts a daemon that may keep so much.
    fn daemon(&self, limit: &str) -> Result<()> {
        let fermata = self.scene.fermata();
        let started = fermata.call_with(&["ps"], &[("FERMATA_CACHE", limit)])?;
        started.success("fermata ps").map(drop)
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        let told = self.scene.fermata().call(args)?.success("fermata")?.stdout;
        serde_json::from_str(&told).with_context(|| format!("{args:?} said {told}"))
    }

    fn status(&self) -> Result<Value> {
        self.json(&["version", "--json"])
            .map(|it| it["daemon"].clone())
    }

    fn used(&self) -> Result<u64> {
        let status = self.status()?;
        let used = status["cache"]["used"].as_u64();
        used.with_context(|| format!("no cache in {status}"))
    }

    /// Bytes of the image in the cache, and of its packs.
    fn warm(&self) -> Result<[u64; 2]> {
        let told = self.json(&["images", "warm", "image", "--json"])?;
        let number = |name: &str| {
            let number = told[name].as_u64();
            number.with_context(|| format!("no `{name}` in {told}"))
        };
        Ok([number("cached")?, number("bytes")?])
    }

    fn folder(&self) -> Result<PathBuf> {
        let status = self.status()?;
        let folder = status["cache"]["folder"].as_str();
        Ok(folder.context("no folder")?.into())
    }

    /// Files of packs in the cache.
    fn packs(&self) -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(self.folder()?)?.flatten().map(|it| it.path());
        let pack = |it: &PathBuf| it.extension().is_some_and(|it| it == "pack");
        Ok(files.filter(pack).collect())
    }

    /// Restores the image, which must end as an undisturbed run does; says how many bytes came from the cache, and from
    /// the disk.
    fn restore(&self, name: &str) -> Result<[u64; 2]> {
        let told = self.json(&[
            "restore", "image", "--name", name, "--eager", "--detach", "--json",
        ])?;
        let fermata = self.scene.fermata();
        let status = fermata.wait_exit(name, PROGRAM_LIMIT)?;
        let log = fermata.log(name)?;
        ensure!(status == 0, "`{name}` ended with {status}: {log}");
        let digest = Output::parse(&log)?.digest;
        ensure!(
            digest.as_ref() == Some(&self.digest),
            "`{name}`: {digest:?} instead of {}",
            self.digest
        );
        let phases = told["phases"].as_array().context("no phases")?;
        Ok(["device.cache", "device.disk"].map(|step| {
            let named = phases.iter().filter(|it| it["name"] == step);
            named.filter_map(|it| it["bytes"].as_u64()).sum()
        }))
    }
}

#[test]
fn an_image_is_read_from_the_disk_once() -> Result<()> {
    let cached = Cached::new()?;
    cached.daemon("256M")?;
    let [cache, data] = cached.restore("first")?;
    ensure!(
        cache == 0 && data > 0,
        "{cache} bytes from the cache, {data} from the disk; is `/tmp` in memory?"
    );
    wait_until("the image that was used is kept", || Ok(cached.used()? > 0))?;
    let [held, bytes] = cached.warm()?;
    ensure!(held == bytes, "{held} of {bytes} bytes are kept");
    let from = cached.restore("second")?;
    ensure!(from == [data, 0], "{from:?} of {data}");

    for pack in cached.packs()? {
        let bytes = fs::read(&pack)?;
        let file = OpenOptions::new().write(true).open(&pack)?;
        // In place: workers have it mapped.
        for at in (BLOCK..bytes.len()).step_by(BLOCK) {
            file.write_all_at(&[bytes[at] ^ 1], at as u64)?;
        }
    }
    let [_, disk] = cached.restore("third")?;
    ensure!(disk == data, "{disk} of {data} from the disk");
    cached.warm()?;
    let from = cached.restore("fourth")?;
    ensure!(from == [data, 0], "{from:?} of {data}");

    let fermata = cached.scene.fermata();
    fermata.call(&["images", "rm", "image"])?.success("rm")?;
    gc_when_free(|| fermata.call(&["images", "gc"]))?.success("gc")?;
    wait_until("the space is given back", || Ok(cached.used()? == 0))?;
    cached.scene.close()
}

#[test]
fn a_cache_that_cannot_be_kept_costs_time_only() -> Result<()> {
    let cached = Cached::new()?;
    cached.daemon("256M")?;
    let [held, bytes] = cached.warm()?;
    ensure!(held == bytes && cached.used()? == bytes, "{held}, {bytes}");
    let folder = cached.folder()?;
    fs::remove_dir_all(&folder)?;
    let [cache, data] = cached.restore("removed")?;
    ensure!(cache == 0 && data > 0, "{cache} bytes of nothing");
    ensure!(cached.warm()? == [bytes, bytes], "it is made again");

    // As if it were another user's.
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    let fermata = cached.scene.fermata();
    let refused = fermata.call(&["images", "warm", "image"])?;
    ensure!(
        refused.status != 0 && refused.stderr.contains("this user alone"),
        "{}",
        refused.stderr
    );
    let from = cached.restore("foreign")?;
    ensure!(from == [0, data], "{from:?} of {data}");
    let checks = cached.json(&["doctor", "--json"])?;
    let mut checks = checks["checks"].as_array().context("checks")?.iter();
    let check = checks.find(|it| it["name"] == "cache").context("check")?;
    ensure!(check["state"] == "warn", "{check}");

    // What a dead daemon has left does not fit any more.
    fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
    cached.scene.kill_daemon()?;
    cached.daemon("8K")?;
    wait_until("the limit holds", || Ok(cached.used()? == 0))?;
    ensure!(cached.warm()? == [0, bytes], "a limit less than a pack");
    let from = cached.restore("little")?;
    ensure!(from == [0, data] && cached.used()? == 0, "{from:?}");
    cached.scene.close()
}
