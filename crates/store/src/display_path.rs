//! Paths in JSON reports, which hold text only: bytes that are not UTF-8 become replacement characters.

use std::path::{Path, PathBuf};

use serde::Serializer;

pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

pub(crate) fn paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|it| it.to_string_lossy()))
}
