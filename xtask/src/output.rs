//! Generated files: formatting them, writing them, and telling whether they are fresh.
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A file that a task makes, with its path below the workspace folder.
pub struct Generated {
    /// Path below the workspace folder.
    pub path: PathBuf,
    /// The whole text.
    pub text: String,
}

impl Generated {
    /// Whether the file in the work tree holds exactly this text.
    pub fn is_fresh(&self, root: &Path) -> bool {
        std::fs::read_to_string(root.join(&self.path)).is_ok_and(|old| old == self.text)
    }
}

/// Writes the files that differ and names each on standard output.
pub fn write_all(root: &Path, files: Vec<Generated>) -> Result<()> {
    for file in files {
        if file.is_fresh(root) {
            continue;
        }
        let path = root.join(&file.path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make `{}`", folder.display()))?;
        }
        std::fs::write(&path, &file.text)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        println!("{}", file.path.display());
    }
    Ok(())
}

/// Rust text as rustfmt leaves it.
pub fn rustfmt(text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start rustfmt")?;
    let mut stdin = child.stdin.take().context("rustfmt has no input")?;
    let input = text.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().context("rustfmt did not finish")?;
    ensure!(output.status.success(), "rustfmt refused generated text");
    writer
        .join()
        .map_err(|_| anyhow::anyhow!("the thread that feeds rustfmt panicked"))?
        .context("cannot feed rustfmt")?;
    String::from_utf8(output.stdout).context("rustfmt gave no UTF-8")
}
