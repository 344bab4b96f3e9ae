//! Whether the host part of an image is what was written, before anything runs from it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use fermata_control::worker::FailureKind;
use fermata_store::image::{CHUNKS, Image, STATE};

use crate::failure::{Hint, OrFail, Result, fail};

/// Hashes every file that CRIU and the daemon read. Those of the device part are checked by the worker
/// as it reads them.
///
/// # Errors
/// `Damaged`, naming the first file that is not what was written.
pub fn check_files(image: &Image) -> Result<()> {
    for record in &image.manifest().files {
        if record.path == STATE || record.path == CHUNKS {
            continue;
        }
        let path = image.dir().join(&record.path);
        if hash(&path)? != record.blake3 {
            let message = format!(
                "`{}` is damaged: its hash is not the one in the manifest",
                path.display()
            );
            return Err(fail(FailureKind::Damaged, message)
                .hint("`fermata images verify` names everything that is damaged"));
        }
    }
    Ok(())
}

fn hash(path: &Path) -> Result<String> {
    let what = || format!("cannot read `{}`", path.display());
    let mut file = File::open(path).or_fail(FailureKind::Damaged, what)?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece).or_fail(FailureKind::Damaged, what)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            bytes => hasher.update(&piece[..bytes]),
        };
    }
}
