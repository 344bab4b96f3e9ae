//! Where the build tree lies, and the library path of a straight run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::case::Device;

/// The tree that `make build` leaves.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree named by `FERMATA_BUILD`, else the one this executable lies in,
    /// else `build/` of this repository.
    ///
    /// # Errors
    /// When it holds no `bin/fermata`.
    pub fn find() -> Result<Self> {
        let root = std::env::var_os("FERMATA_BUILD")
            .map(PathBuf::from)
            .or_else(own_tree)
            .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build"));
        let root = root
            .canonicalize()
            .with_context(|| format!("no build tree at `{}`; run `make build`", root.display()))?;
        if !root.join("bin/fermata").exists() {
            bail!(
                "`{}` holds no bin/fermata; run `make build`",
                root.display()
            );
        }
        Ok(Self { root })
    }

    /// The command line tool.
    pub fn fermata(&self) -> PathBuf {
        self.root.join("bin/fermata")
    }

    /// CRIU of the tree.
    pub fn criu(&self) -> PathBuf {
        self.root.join("lib/criu/criu")
    }

    /// The folder of our programs.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// Program `name` of ours.
    ///
    /// # Errors
    /// When it was not built.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.programs().join(name);
        if !path.exists() {
            bail!("no program `{}`; run `make programs`", path.display());
        }
        Ok(path)
    }

    /// The library path with which a program runs on `device` without Fermata.
    pub fn library_path(&self, device: Device) -> String {
        match device {
            Device::Soft => self.root.join("lib/softgpu").display().to_string(),
            Device::Gpu => String::new(),
        }
    }
}

/// The tree around this executable, if it was installed into one (`test/e2e`).
fn own_tree() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let root = exe.parent()?.parent()?;
    root.join("bin/fermata").exists().then(|| root.to_owned())
}
