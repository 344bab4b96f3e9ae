//! Memory of programs in the store: what a program has not changed is there once, comes back page by page, and is checked before it
//! is seen.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::Mode;
use fermata_e2e::command;
use fermata_e2e::scene::{Scene, wait_until};
use serde_json::Value;

const DAMAGED: i32 = 12;
const MIB: u64 = 1 << 20;
/// Bytes of the memory that the program never changes again: so much comes on demand.
const LARGE: u64 = 96 * MIB;
/// How each page of it begins; its number follows.
const MARK: &str = "one of the pages that never change:";

/// Fills memory and waits for a file `stop`; then it says how many pages are not as they were.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define PAGES (96 << 8)
static void fill(char *page, uint64_t number) {
    uint64_t *words = (uint64_t *)page, state = number * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 512; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
    sprintf(page, "one of the pages that never change: %05u.", (unsigned)number);
}
int main(void) {
    static char page[4096];
    char *all = mmap(0, PAGES * 4096l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t n = 0; n < PAGES; n++) fill(all + n * 4096, n);
    puts("filled");
    fflush(stdout);
    while (access("stop", F_OK)) usleep(20000);
    long wrong = 0;
    for (uint64_t n = 0; n < PAGES; n++) {
        fill(page, n);
        wrong += memcmp(page, all + n * 4096, 4096) != 0;
    }
    printf("%ld pages are wrong\n", wrong);
    return wrong != 0;
}
"#;

/// A program that has filled its memory, in a session.
fn filled(scene: &Scene) -> Result<()> {
    let program = scene.compile("filled", PROGRAM)?;
    let program = program.to_str().context("a path")?;
    let words = ["run", "--detach", "--name", "filled", "--", program];
    scene.fermata().call(&words)?.success("fermata run")?;
    wait_until("memory is filled", || {
        Ok(scene.fermata().log("filled")?.contains("filled"))
    })
}

fn manifest(scene: &Scene, image: &str) -> Result<Value> {
    let path = scene.fermata().image(image).join("manifest.json");
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

fn restore(scene: &Scene, image: &str, name: &str, options: &[&str]) -> Result<command::Finished> {
    let words = ["restore", image, "--name", name, "--detach"];
    scene.fermata().call(&[&words[..], options].concat())
}

/// Takes an image, with which the program ends.
fn taken(scene: &Scene, image: &str) -> Result<()> {
    let stop = ["--then", "stop"];
    let mode = Mode::Auto;
    scene
        .fermata()
        .checkpoint_with("filled", image, mode, &stop)
        .map(drop)
}

/// Has a restored program look at its memory.
fn check_whole(scene: &Scene, name: &str) -> Result<()> {
    let stop = scene.sandbox().work().join("stop");
    fs::write(&stop, "")?;
    wait_until("the program ends", || {
        Ok(scene.fermata().session(name)?.state == "exited")
    })?;
    fs::remove_file(&stop)?;
    let log = scene.fermata().log(name)?;
    ensure!(log.contains("\n0 pages are wrong"), "{log}");
    Ok(())
}

#[test]
fn memory_that_a_program_has_not_changed_is_there_once() -> Result<()> {
    let scene = Scene::new()?;
    filled(&scene)?;
    let mut written = Vec::new();
    for (image, mode) in [
        ("one", Mode::Auto),
        ("two", Mode::Stop),
        ("three", Mode::Auto),
    ] {
        scene.fermata().checkpoint("filled", image, mode)?;
        let manifest = manifest(&scene, image)?;
        let totals = &manifest["totals"];
        let bytes = |name: &str| totals[name].as_u64().context("bytes");
        ensure!(bytes("memory_bytes")? > LARGE, "{totals}");
        written.push(bytes("written_bytes")?);
        for entry in fs::read_dir(scene.fermata().image(image).join("host"))? {
            let name = entry?.file_name();
            let pages = name.to_string_lossy().starts_with("pages-");
            ensure!(!pages, "its memory is in files: {name:?}");
        }
    }
    ensure!(written[0] > LARGE, "{written:?}");
    ensure!(written[1].max(written[2]) < 4 * MIB, "{written:?}");
    scene.fermata().kill("filled")?;
    // None needs another.
    for image in ["one", "three"] {
        scene
            .fermata()
            .call(&["images", "rm", image])?
            .success("rm")?;
    }
    scene.fermata().call(&["images", "gc"])?.success("gc")?;
    scene
        .fermata()
        .call(&["images", "verify", "two"])?
        .success("verify")?;
    restore(&scene, "two", "on-demand", &[])?.success("restore")?;
    check_whole(&scene, "on-demand")?;
    restore(&scene, "two", "eager", &["--eager"])?.success("restore")?;
    check_whole(&scene, "eager")?;
    let two = scene.fermata().image("two");
    let left = fs::read_dir(two.parent().context("a folder")?)?;
    let names: Vec<_> = left.flatten().map(|it| it.file_name()).collect();
    let scratch = names
        .iter()
        .find(|it| it.to_string_lossy().contains("scratch"));
    ensure!(scratch.is_none(), "{names:?}");
    scene.close()
}

/// Waits until a restore has kept what its program has waited for.
fn learnt(scene: &Scene, image: &str) -> Result<PathBuf> {
    let profile = scene.fermata().image(image).join("host/profile");
    wait_until("a restore has kept what it has learnt", || {
        Ok(profile.exists())
    })?;
    Ok(profile)
}

#[test]
fn what_a_restored_program_has_waited_for_is_kept_and_handed_on_and_harms_nobody() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    filled(&scene)?;
    taken(&scene, "image")?;
    restore(&scene, "image", "again", &[])?.success("restore")?;
    let profile = learnt(&scene, "image")?;
    ensure!(
        fs::read(&profile)?.starts_with(b"FERMLRNT"),
        "another profile"
    );
    // An image of the restored program begins with it.
    fermata.checkpoint("again", "next", Mode::Auto)?;
    let handed = fermata.image("next").join("host/profile");
    ensure!(fs::read(&handed)? == fs::read(&profile)?, "not handed on");
    fermata.kill("again")?;
    // It is no part of what is checked, and one that is of no use changes nothing.
    let whole = fs::read(&profile)?;
    let profiles = [&whole[..], &whole[..whole.len() / 2], &[0xff; 64]];
    for (bytes, name) in profiles.into_iter().zip(["whole", "half", "other"]) {
        fs::write(&profile, bytes)?;
        fermata
            .call(&["images", "verify", "image"])?
            .success("verify")?;
        restore(&scene, "image", name, &[])?.success("restore")?;
        check_whole(&scene, name)?;
    }
    fs::remove_file(&profile)?;
    std::os::unix::fs::symlink("/dev/zero", &profile)?;
    restore(&scene, "image", "last", &[])?.success("restore")?;
    check_whole(&scene, "last")?;
    for image in ["image", "next"] {
        fermata.call(&["images", "rm", image])?.success("rm")?;
    }
    scene.close()
}

/// Entries of a folder, if it is there.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|it| it.path()).collect()
}

#[test]
fn what_criu_reads_of_a_warm_image_is_kept_until_that_is_removed() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let runtime = scene.sandbox().runtime().to_owned();
    let kept = runtime.join("pages");
    filled(&scene)?;
    taken(&scene, "image")?;
    restore(&scene, "image", "cold", &[])?.success("restore")?;
    ensure!(entries(&kept).is_empty(), "{:?}", entries(&kept));
    check_whole(&scene, "cold")?;
    for _ in 0..2 {
        let warm = ["images", "warm", "image"];
        fermata.call(&warm)?.success("images warm")?;
        ensure!(entries(&kept).len() == 1, "{:?}", entries(&kept));
    }
    // Restores at the same time have the same files.
    for name in ["one", "two"] {
        restore(&scene, "image", name, &[])?.success("restore")?;
        let work = runtime.join("sessions").join(name).join("criu");
        let links = entries(&work)
            .into_iter()
            .filter_map(|it| it.read_link().ok());
        ensure!(
            links.filter(|it| it.starts_with(&kept)).count() == 1,
            "{name}"
        );
    }
    fermata.checkpoint("two", "next", Mode::Auto)?;
    fermata.kill("one")?;
    check_whole(&scene, "two")?;
    fermata.call(&["images", "rm", "image"])?.success("rm")?;
    let before = entries(&kept);
    let warm = ["images", "warm", "next"];
    fermata.call(&warm)?.success("images warm")?;
    let after = entries(&kept);
    ensure!(after.len() == 1 && after != before, "{before:?}, {after:?}");
    restore(&scene, "next", "three", &[])?.success("restore")?;
    check_whole(&scene, "three")?;
    fermata
        .call(&["shutdown", "--force"])?
        .success("shutdown")?;
    ensure!(!kept.exists(), "{:?}", entries(&kept));
    scene.close()
}

/// The place of a page in the packs: the pack, and the offset of the page there.
fn place_of(scene: &Scene, page: u32) -> Result<(PathBuf, usize)> {
    let image = scene.fermata().image("image");
    let packs = image.parent().context("a folder")?.join(".store/packs");
    let mark = format!("{MARK} {page:05}.");
    for entry in fs::read_dir(&packs).with_context(|| format!("{packs:?}"))? {
        let pack = entry?.path();
        let bytes = fs::read(&pack)?;
        // Pages lie at multiples of their length.
        let at = bytes
            .chunks(4096)
            .position(|it| it.starts_with(mark.as_bytes()));
        if let Some(at) = at {
            return Ok((pack, at * 4096));
        }
    }
    anyhow::bail!("no pack has page {page}")
}

#[test]
fn damaged_memory_is_never_seen() -> Result<()> {
    let scene = Scene::new()?;
    filled(&scene)?;
    taken(&scene, "image")?;
    let (pack, at) = place_of(&scene, 20_000)?;
    let whole = fs::read(&pack)?;
    let mut bytes = whole.clone();
    bytes[at + 2000] ^= 4;
    fs::write(&pack, bytes)?;
    let verified = scene.fermata().call(&["images", "verify", "image"])?;
    let said = format!("{}{}", verified.stdout, verified.stderr);
    ensure!(
        verified.status == DAMAGED && said.contains("`pages-"),
        "{said}"
    );
    let refused = restore(&scene, "image", "eager", &["--eager"])?;
    ensure!(refused.status == DAMAGED, "{}", refused.stderr);
    // What brings it on demand finds that when it comes to it, and ends the program, whatever that does.
    restore(&scene, "image", "on-demand", &[])?.success("restore")?;
    let ended = scene.fermata().call(&["wait", "on-demand"])?;
    ensure!(
        ended.status != 0 && ended.stderr.contains("memory cannot be brought on demand"),
        "{}",
        ended.stderr
    );
    ensure!(ended.stderr.contains("hash"), "{}", ended.stderr);
    let log = scene.fermata().log("on-demand")?;
    ensure!(!log.contains("wrong"), "{log}");
    fs::write(&pack, whole)?;
    restore(&scene, "image", "again", &[])?.success("restore")?;
    check_whole(&scene, "again")?;
    scene.close()
}

/// The program's pages come from the store as long as they are missing: nothing may be collected there meanwhile.
#[test]
fn a_collection_waits_for_memory_that_is_still_coming() -> Result<()> {
    let scene = Scene::new()?;
    filled(&scene)?;
    taken(&scene, "image")?;
    restore(&scene, "image", "again", &[])?.success("restore")?;
    scene
        .fermata()
        .call(&["images", "rm", "image"])?
        .success("rm")?;
    // Refused, or done behind the last page.
    scene.fermata().call(&["images", "gc"])?;
    check_whole(&scene, "again")?;
    scene.close()
}
