//! `fermata share`: the files that packages install beside the programs, made from the command line's own description.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use fermata_control::settings;

use crate::failure::Failure;

/// Where each shell looks for completions below `share/`.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/fermata"),
    (Shell::Zsh, "zsh/site-functions/_fermata"),
    (Shell::Fish, "fish/vendor_completions.d/fermata.fish"),
];

/// Write the files that packages install beside the programs.
///
/// Manual pages, completions for bash, zsh and fish, and an example of the configuration file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder such as `share`.
    folder: PathBuf,
}

/// Does it; `whole` is the command line with all verbs.
pub fn call(args: &Args, whole: Command) -> Result<u8, Failure> {
    write(&args.folder, whole)
        .map_err(|e| Failure::io(&format!("write `{}`", args.folder.display()), &e))?;
    Ok(0)
}

fn write(folder: &Path, mut whole: Command) -> io::Result<()> {
    let pages = folder.join("man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(whole.clone(), &pages)?;
    for (shell, name) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut whole, "fermata", &mut script);
        put(&folder.join(name), &script)?;
    }
    put(
        &folder.join("doc/fermata/fermata.toml"),
        settings::example().as_bytes(),
    )
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)
}
