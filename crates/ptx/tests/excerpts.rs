//! An excerpt says of its kernel what the whole text says: over the texts that this repository has, compilers' and written ones.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use fermata_ptx::analysis::Analysis;
use fermata_ptx::excerpt::Excerpts;
use fermata_ptx::parse;

fn texts() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["kernels", "tests/ptx", "crates/ptx/tests/assembled"];
    let files = folders
        .iter()
        .flat_map(|it| fs::read_dir(root.join(it)).unwrap());
    let paths = files.map(|it| it.unwrap().path());
    paths
        .filter(|it| it.extension().is_some_and(|it| it == "ptx"))
        .collect()
}

#[test]
fn every_kernel_is_as_in_its_whole_text() {
    let mut kernels = 0;
    for path in texts() {
        let text = fs::read_to_string(&path).unwrap();
        let whole = Analysis::of(&parse(&text).unwrap());
        let excerpts = Excerpts::of(text).unwrap();
        for (name, expected) in whole.kernels() {
            let excerpt = excerpts.excerpt(name).unwrap();
            let part = Analysis::of(&parse(&excerpt).unwrap());
            let found = part.kernel(name).map(|it| format!("{it:?}"));
            assert_eq!(found, Some(format!("{expected:?}")), "{name} of {path:?}");
            assert_eq!(part.kernels().count(), 1);
            kernels += 1;
        }
    }
    assert!(kernels > 100, "{kernels} kernels");
}
