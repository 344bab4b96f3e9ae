//! Damaged images: every one is refused with status 12 and a sentence that names
//! what is wrong, and the same image restores once the damage is undone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::scene::Scene;

const DAMAGED: i32 = 12;

/// Applies `change` to each file of an image in turn and demands that `verify`
/// and `restore` refuse it; puts the file back every time.
fn damage_each(change: impl Fn(&Path, &[u8]) -> Result<()>) -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("image")?;
    let mut seen = 0;
    for file in scene.image_files()? {
        let whole = fs::read(&file)?;
        let name = file
            .file_name()
            .context("file name")?
            .to_string_lossy()
            .into_owned();
        if whole.is_empty() || name.contains("lock") {
            continue;
        }
        seen += 1;
        change(&file, &whole)?;
        let verify = scene.fermata().call(&["images", "verify", "image"])?;
        ensure!(
            verify.status == DAMAGED,
            "`verify` with damaged `{}`: status {}, stderr {}",
            file.display(),
            verify.status,
            verify.stderr
        );
        ensure!(
            !verify.stderr.trim().is_empty(),
            "`verify` says nothing about `{name}`"
        );
        let restore = scene.try_restore("image", "broken")?;
        ensure!(
            restore.status != 0,
            "an image with damaged `{}` was restored",
            file.display()
        );
        fs::write(&file, &whole)?;
    }
    ensure!(seen >= 3, "the image has only {seen} files");
    scene.check_restorable("image")?;
    scene.close()
}

#[test]
fn a_flipped_bit_in_any_file_is_found() -> Result<()> {
    damage_each(|file, whole| {
        let mut bytes = whole.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        Ok(fs::write(file, bytes)?)
    })
}

#[test]
fn a_cut_file_is_found() -> Result<()> {
    damage_each(|file, whole| Ok(fs::write(file, &whole[..whole.len() / 2])?))
}

#[test]
fn a_missing_file_is_found() -> Result<()> {
    damage_each(|file, _| Ok(fs::remove_file(file)?))
}
