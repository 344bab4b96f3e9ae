//! What the store makes is its owner's alone, whatever the umask is. One test: the umask is the whole process's.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fermata_store::image::{Draft, Manifest};
use fermata_store::{Owners, READY_BYTES, Store, StoreError};
use rustix::fs::Mode;
use support::write_image;

/// Demands that folders have mode 0700 and files 0600; how many there are.
fn check(folder: &Path) -> usize {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(folder), 0o700, "{}", folder.display());
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        seen += match path.is_dir() {
            true => check(&path),
            false => {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                1
            }
        };
    }
    seen
}

#[test]
fn modes_are_set_whatever_the_umask_is() {
    let before = rustix::process::umask(Mode::empty());
    for mask in [0, 0o777] {
        let dir = tempfile::tempdir().unwrap();
        rustix::process::umask(Mode::from_raw_mode(mask));
        let images = dir.path().join("deep/images");
        let store = Store::open(&images.join(".store"), true).unwrap();
        match store.prepare(READY_BYTES) {
            // A disk without so much room makes the rest all the same.
            Err(StoreError::Full { .. }) => {}
            ready => assert!(ready.unwrap() > 0),
        }
        let image = write_image(&store, &images, "one", &[&[(1, 5000)]]);
        let mut draft = Draft::create(&store, &images, "two").unwrap();
        // As CRIU leaves them.
        fs::create_dir(draft.host().join("folder")).unwrap();
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        open(&draft.host().join("folder"), 0o777).unwrap();
        fs::write(draft.host().join("folder/core.img"), "x").unwrap();
        open(&draft.host().join("folder/core.img"), 0o666).unwrap();
        draft.seal().unwrap();
        draft.commit(Manifest::default()).unwrap();
        rustix::process::umask(before);
        assert!(check(&dir.path().join("deep")) > 10);
        Owners::trusted().check_image(&image).unwrap();
        Owners::trusted().check_store(&store).unwrap();
    }
}
