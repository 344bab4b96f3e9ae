//! An image is restored from its own files only, and from files that nobody else could have written: files of another
//! image, links to images, images of other users, and places where no image can be.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::Mode;
use fermata_e2e::scene::{Scene, gc_when_free};

const USER: i32 = 1;
const DAMAGED: i32 = 12;

/// A scene with two images of one session, `one` and `two`, and that session at work.
fn siblings() -> Result<Scene> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    for image in ["one", "two"] {
        scene.check_goes_on("heat")?;
        scene.fermata().checkpoint("heat", image, Mode::Stop)?;
    }
    Ok(scene)
}

/// Names of the regular files of an image.
fn names(image: &Path) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for folder in ["", "host"] {
        for entry in fs::read_dir(image.join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(Path::new(folder).join(entry.file_name()));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// Demands that image `one` is refused as damaged, by `verify` and by both ways to restore it.
fn check_damaged(scene: &Scene, what: &str) -> Result<()> {
    let image = scene.fermata().image("one");
    let image = image.to_str().context("path")?;
    for words in [
        &["images", "verify", image][..],
        &["restore", image, "--name", "lazy", "--detach"],
        &["restore", image, "--name", "eager", "--detach", "--eager"],
    ] {
        let done = scene.fermata().call(words)?;
        ensure!(
            done.status == DAMAGED && done.stderr.contains("damaged"),
            "`{}` with {what}: status {}, {}",
            words.join(" "),
            done.status,
            done.stderr
        );
    }
    Ok(())
}

#[test]
fn a_file_of_another_image_of_the_session_is_never_restored() -> Result<()> {
    let scene = siblings()?;
    let (one, two) = (scene.fermata().image("one"), scene.fermata().image("two"));
    let mut swapped = Vec::new();
    for name in names(&one)? {
        let (own, other) = (one.join(&name), two.join(&name));
        let Ok(bytes) = fs::read(&other) else {
            continue;
        };
        let whole = fs::read(&own)?;
        if whole == bytes {
            continue;
        }
        fs::write(&own, bytes)?;
        check_damaged(&scene, &format!("the `{}` of another", name.display()))?;
        fs::write(&own, whole)?;
        swapped.push(name);
    }
    ensure!(swapped.len() >= 4, "only {swapped:?} differ");
    ensure!(
        swapped.contains(&PathBuf::from("chunks")),
        "the images have the same data: {swapped:?}"
    );
    scene.check_restorable("one")?;
    scene.check_goes_on("heat")?;
    scene.close()
}

#[test]
fn a_manifest_that_lists_too_little_is_never_restored() -> Result<()> {
    let scene = siblings()?;
    let one = scene.fermata().image("one");
    let manifest = fs::read(one.join("manifest.json"))?;
    let every = ["chunks", "state", "log", "host/inventory.img", ""];
    for (lost, gone) in every
        .iter()
        .flat_map(|name| [(*name, false), (*name, true)])
    {
        let file = one.join(lost);
        let whole = fs::read(&file).ok();
        if gone && whole.is_some() {
            fs::remove_file(&file)?;
        }
        craft(&one, &manifest, |path| !lost.is_empty() && path != lost)?;
        check_damaged(&scene, &format!("no `{lost}` in the manifest"))?;
        if let Some(whole) = whole {
            fs::write(&file, whole)?;
        }
    }
    craft(&one, &manifest, |_| true)?;
    scene.check_restorable("one")?;
    scene.close()
}

/// Writes the manifest with those files only, and a checksum that fits.
fn craft(image: &Path, manifest: &[u8], keep: impl Fn(&str) -> bool) -> Result<()> {
    let mut json: serde_json::Value = serde_json::from_slice(manifest)?;
    let files = json["files"].as_array_mut().context("files")?;
    files.retain(|file| file["path"].as_str().is_some_and(&keep));
    let bytes = serde_json::to_vec_pretty(&json)?;
    let hash = format!("{}\n", blake3::hash(&bytes).to_hex());
    fs::write(image.join("manifest.json"), bytes)?;
    Ok(fs::write(image.join("manifest.b3"), hash)?)
}

#[test]
fn a_damaged_file_of_criu_is_named_itself() -> Result<()> {
    let scene = siblings()?;
    let one = scene.fermata().image("one");
    let host = names(&one)?;
    let host = host.iter().filter(|it| it.starts_with("host"));
    let mut seen = 0;
    for name in host {
        let file = one.join(name);
        let whole = fs::read(&file)?;
        if whole.is_empty() {
            continue;
        }
        let mut bytes = whole.clone();
        // What CRIU reads as a length, or a path, or a size of a file.
        let at = (whole.len() / 3).max(8).min(whole.len() - 1);
        bytes[at] ^= 0x11;
        fs::write(&file, bytes)?;
        let refused = scene.try_restore("one", "broken")?;
        let named = format!("`{}` is damaged", file.display());
        ensure!(
            refused.status == DAMAGED && refused.stderr.contains(&named),
            "{}: status {}, {}",
            name.display(),
            refused.status,
            refused.stderr
        );
        fs::write(&file, whole)?;
        seen += 1;
    }
    ensure!(seen > 5, "only {seen} files of CRIU");
    scene.check_restorable("one")?;
    scene.close()
}

#[test]
fn an_image_that_others_own_or_can_write_to_is_restored_only_if_trusted() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("one")?;
    let fermata = scene.fermata();
    let one = fermata.image("one");
    let store = scene.sandbox().images().join(".store");
    let pack = scene
        .image_files()?
        .into_iter()
        .find(|it| it.extension().is_some_and(|ending| ending == "pack"))
        .context("a pack")?;
    let trusted = |path: &Path, change: &dyn Fn() -> Result<()>| -> Result<()> {
        let mode = fs::metadata(path)?.permissions();
        change()?;
        let refused = scene.try_restore("one", "refused")?;
        let named = format!("`{}` is not trusted", path.display());
        ensure!(
            refused.status == USER
                && refused.stderr.contains(&named)
                && refused.stderr.contains("--trust-owner"),
            "`{}`: status {}, {}",
            path.display(),
            refused.status,
            refused.stderr
        );
        let image = one.to_str().context("path")?;
        fermata
            .call(&[
                "restore",
                image,
                "--name",
                "trusted",
                "--detach",
                "--trust-owner",
            ])?
            .success("fermata restore --trust-owner")?;
        fermata.kill("trusted")?;
        // Modes first: who owns a file changes them.
        fs::set_permissions(path, mode)?;
        let own = rustix::process::geteuid().as_raw();
        Ok(chown(path, Some(own), None)?)
    };
    // What is behind a folder that others cannot enter, they cannot change.
    fs::set_permissions(store.join("packs"), PermissionsExt::from_mode(0o777))?;
    scene.check_restorable("one")?;
    fs::set_permissions(store.join("packs"), PermissionsExt::from_mode(0o700))?;
    fs::set_permissions(&store, PermissionsExt::from_mode(0o755))?;
    for path in [&store, &store.join("packs"), &store.join("index"), &one] {
        trusted(path, &|| {
            Ok(fs::set_permissions(path, PermissionsExt::from_mode(0o777))?)
        })?;
    }
    // Only root can give files away.
    if rustix::process::geteuid().is_root() {
        for path in [&one, &one.join("host"), &one.join("state"), &store, &pack] {
            trusted(path, &|| Ok(chown(path, Some(4711), None)?))?;
        }
    }
    scene.check_restorable("one")?;
    scene.close()
}

#[test]
fn removing_a_link_to_an_image_removes_the_link() -> Result<()> {
    let scene = Scene::new()?;
    scene.make_image("one")?;
    let fermata = scene.fermata();
    let link = fermata.image("link");
    symlink(fermata.image("one"), &link)?;
    for words in [
        &["images", "verify", "link"],
        &["images", "inspect", "link"],
    ] {
        fermata.call(words)?.success("a link to an image")?;
    }
    scene.check_restorable("link")?;
    let taken = fermata.call(&["images", "rm", "link"])?.success("rm")?;
    ensure!(taken.stderr.contains("link"), "{}", taken.stderr);
    ensure!(!link.is_symlink() && fermata.image("one").is_dir());
    gc_when_free(|| fermata.call(&["images", "gc"]))?.success("gc")?;
    scene.check_restorable("one")?;
    scene.close()
}

#[test]
fn no_checkpoint_goes_into_a_store_an_image_or_onto_a_link() -> Result<()> {
    let scene = siblings()?;
    let images = scene.sandbox().images();
    symlink("/nowhere", images.join("dangling"))?;
    symlink(images.join(".store"), images.join("hidden"))?;
    for place in [
        ".store/x",
        ".store/images/x",
        "hidden/x",
        "one/x",
        ".x",
        "dangling",
        "one",
    ] {
        let output = images.join(place);
        let output = output.to_str().context("path")?;
        let refused = scene
            .fermata()
            .call(&["checkpoint", "heat", "-o", output])?;
        ensure!(
            refused.status == USER && !refused.stderr.trim().is_empty(),
            "`-o {place}`: status {}, {}",
            refused.status,
            refused.stderr
        );
    }
    for image in ["one", "two"] {
        let sound = scene.fermata().call(&["images", "verify", image])?;
        sound.success("fermata images verify")?;
    }
    scene.check_goes_on("heat")?;
    scene.close()
}
