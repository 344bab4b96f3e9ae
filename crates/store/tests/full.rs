//! A full disk: a clear error, nothing lost; a disk that cannot be written: still read. The inner test
//! runs alone on a file system of 4 MiB in a mount namespace of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use fermata_store::image::{self, Draft, Manifest};
use fermata_store::{ChunkId, Store, StoreError};
use support::{content, files, write_image};

const VARIABLE: &str = "FERMATA_TEST_SMALL_DISK";

#[test]
fn a_full_disk_costs_nothing_that_was_stored() {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "--", "sh", "-ec", script]);
        command.stdin(Stdio::null());
        command
    };
    let dir = tempfile::tempdir().unwrap();
    let mount = format!(
        "mount -t tmpfs -o size=4m,nr_inodes=200 none '{}'",
        dir.path().display()
    );
    let mounted = unshare(&mount).status().is_ok_and(|s| s.success());
    assert!(
        mounted,
        "this test needs mount namespaces: `unshare --map-root-user --mount`"
    );
    let binary = std::env::current_exe().unwrap();
    let script = format!(
        "{mount}; exec '{}' --exact on_a_small_disk --ignored --nocapture",
        binary.display()
    );
    let out = unshare(&script).env(VARIABLE, dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "is started by the test above on a small disk"]
fn on_a_small_disk() {
    let disk = PathBuf::from(std::env::var_os(VARIABLE).unwrap());
    let images = disk.join("images");
    let store = Store::open(&disk.join("store"), true).unwrap();
    let old = write_image(&store, &images, "old", &[&[(1, 500_000)]]);
    let sound = || image::verify(&old, &store, &|_| {}).unwrap().is_sound();

    let draft = Draft::create(&store, &images, "new").unwrap();
    let writer = store.begin().unwrap();
    let error = (0..8)
        .find_map(|n| {
            let bytes = content(100 + n, 1 << 20);
            writer.put(&ChunkId::of(&bytes), &bytes).err()
        })
        .unwrap();
    let StoreError::Full {
        path, needed, left, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(path.starts_with(&disk), "{error}");
    assert!(*needed >= 1 << 20, "{error}");
    let left = left.unwrap().bytes;
    assert!(left < 1 << 20, "{error}");
    let says = format!("no space left to write `{}", path.display());
    assert!(error.to_string().starts_with(&says), "{error}");
    assert!(
        error.to_string().contains(&format!("{left} bytes left")),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("free some space"));
    assert!(writer.finish().is_err(), "a pack with a hole was published");
    drop(draft);
    assert_eq!(files(&disk.join("store/tmp")).len(), 0);
    assert!(sound());

    let draft = Draft::create(&store, &images, "new").unwrap();
    let filler = disk.join("filler");
    let mut size = 4 << 20;
    while size > 0 {
        let mut bytes = std::fs::read(&filler).unwrap_or_default();
        bytes.resize(bytes.len() + size, 0);
        if std::fs::write(&filler, &bytes).is_err() {
            bytes.truncate(bytes.len() - size);
            std::fs::write(&filler, &bytes).unwrap();
            size /= 2;
        }
    }
    let error = draft.commit(Manifest::default()).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    std::fs::remove_file(&filler).unwrap();
    assert!(sound());
    assert_eq!(image::ls(&images).unwrap().len(), 1);
    let again = write_image(&store, &images, "new", &[&[(1, 500_000), (2, 100_000)]]);
    assert!(image::verify(&again, &store, &|_| {}).unwrap().is_sound());

    // A disk that has bytes left and takes no more files: what has no size says so too.
    let fillers: Vec<_> = (0..200)
        .map(|n| disk.join(format!("filler-{n}")))
        .take_while(|path| std::fs::write(path, b"").is_ok())
        .collect();
    let error = Draft::create(&store, &images, "newer").err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("no space left to make folder") && text.ends_with("takes no more files"),
        "{text}"
    );
    for filler in fillers {
        std::fs::remove_file(filler).unwrap();
    }
    assert!(sound());

    // The same disk as a medium that cannot be written.
    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,ro"]).arg(&disk);
    assert!(remount.status().unwrap().success());
    let store = Store::open(&disk.join("store"), false).unwrap();
    assert!(image::verify(&again, &store, &|_| {}).unwrap().is_sound());
    assert!(
        store
            .begin()
            .unwrap()
            .put(&ChunkId::of(b"x"), b"x")
            .is_err()
    );
}
