//! Damaged images: every one is refused with status 12 and a sentence that names
//! what is wrong, and the same image restores once the damage is undone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::scene::Scene;

const DAMAGED: i32 = 12;
const NOT_FOUND: i32 = 10;
/// Ending of the files by which the store knows its images; `gc` reads them.
const REGISTERED: &str = ".image";

/// Applies `change` to each file of an image in turn and demands that `verify`
/// (with one of the `statuses`) and `restore` refuse it; puts the file back
/// every time.
fn damage_each(statuses: &[i32], change: impl Fn(&Path, &[u8]) -> Result<()>) -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    let mut seen = 0;
    for file in scene.image_files()? {
        let whole = fs::read(&file).with_context(|| format!("`{}`", file.display()))?;
        let name = file
            .file_name()
            .context("file name")?
            .to_string_lossy()
            .into_owned();
        if whole.is_empty() || name.contains("lock") || name.ends_with(REGISTERED) {
            continue;
        }
        seen += 1;
        change(&file, &whole)?;
        let verify = scene.fermata().call(&["images", "verify", "image"])?;
        ensure!(
            statuses.contains(&verify.status),
            "`verify` with damaged `{}`: status {}, stderr {}",
            file.display(),
            verify.status,
            verify.stderr
        );
        ensure!(
            !verify.stderr.trim().is_empty(),
            "`verify` says nothing about `{name}`"
        );
        ensure!(
            is_refused(&scene, "image")?,
            "an image with damaged `{}` was restored",
            file.display()
        );
        fs::write(&file, &whole).with_context(|| format!("put back `{}`", file.display()))?;
    }
    ensure!(seen >= 3, "the image has only {seen} files");
    scene.check_restorable("image")?;
    scene.close()
}

/// Whether `image` is not restored: at once, or, when the damage is in data that comes while the program
/// runs, by ending the session for it, with the reason.
fn is_refused(scene: &Scene, image: &str) -> Result<bool> {
    let restore = scene.try_restore(image, "broken")?;
    if restore.status != 0 {
        return Ok(true);
    }
    let ended = scene.fermata().call(&["wait", "broken"])?;
    Ok(ended.status != 0 && ended.stderr.contains("error: session `broken` has ended: "))
}

#[test]
fn a_flipped_bit_in_any_file_is_found() -> Result<()> {
    damage_each(&[DAMAGED], |file, whole| {
        let mut bytes = whole.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        Ok(fs::write(file, bytes)?)
    })
}

#[test]
fn a_cut_file_is_found() -> Result<()> {
    damage_each(&[DAMAGED], |file, whole| {
        Ok(fs::write(file, &whole[..whole.len() / 2])?)
    })
}

#[test]
fn a_missing_file_is_found() -> Result<()> {
    // Without its version file there is no store: that may be told as such.
    damage_each(&[DAMAGED, NOT_FOUND], |file, _| Ok(fs::remove_file(file)?))
}

#[test]
fn a_damaged_registry_never_costs_an_image_its_chunks() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    let mut seen = 0;
    for file in scene.image_files()? {
        if file.extension().is_none_or(|ending| ending != "image") {
            continue;
        }
        seen += 1;
        let whole = fs::read(&file)?;
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 0x10;
        for damaged in [&flipped[..], &whole[..whole.len() / 2], &[]] {
            fs::write(&file, damaged)?;
            // It may refuse; it must not take what the image needs.
            scene.fermata().call(&["images", "gc"])?;
            let verify = scene.fermata().call(&["images", "verify", "image"])?;
            ensure!(
                verify.status == 0,
                "`gc` broke the image: {}",
                verify.stderr
            );
        }
        fs::write(&file, &whole)?;
    }
    ensure!(seen == 1, "{seen} registered images");
    scene.check_restorable("image")?;
    scene.close()
}
