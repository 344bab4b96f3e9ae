//! Writes the targets' inputs to a folder each, for libFuzzer to start from: `seeds FOLDER`.

use std::path::Path;
use std::{env, fs, io};

use fermata_fuzz::TARGETS;

fn main() -> io::Result<()> {
    let folder = env::args().nth(1).unwrap_or_else(|| "fuzz/corpus".into());
    for target in TARGETS {
        let folder = Path::new(&folder).join(target.name);
        fs::create_dir_all(&folder)?;
        for (at, input) in target.inputs().iter().enumerate() {
            fs::write(folder.join(format!("seed-{at}")), input)?;
        }
    }
    Ok(())
}
