//! Which `libcuda.so.1` a worker loads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fermata_control::settings;
use fermata_control::user::DeviceChoice;
use fermata_control::worker::FailureKind;

use crate::failure::{Hint, Result, fail};

/// Folders in which NVIDIA's driver library is looked for.
const FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
];

/// The driver library.
const CUDA: &str = "libcuda.so.1";
/// The management library.
const NVML: &str = "libnvidia-ml.so.1";

/// A driver library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its path.
    pub path: PathBuf,
    /// Whether it is softgpu.
    pub soft: bool,
}

impl Driver {
    /// The driver for `choice` in the installation at `home`.
    ///
    /// # Errors
    /// `Host` when the GPU is asked for and there is none, or softgpu is not installed.
    pub fn find(choice: DeviceChoice, home: &Path) -> Result<Self> {
        match choice {
            DeviceChoice::Gpu => real(home),
            DeviceChoice::Soft => soft(home),
            DeviceChoice::Auto => real(home).or_else(|_| soft(home)),
        }
    }

    /// NVIDIA's management library of this driver; `None` for softgpu, which has none, and where it is not installed.
    /// `FERMATA_NVML` names another.
    pub fn nvml(&self, home: &Path) -> Option<PathBuf> {
        if let Some(path) = settings::value("FERMATA_NVML") {
            return Some(path.into());
        }
        if self.soft {
            return None;
        }
        let beside = self.path.parent().map(|folder| folder.join(NVML));
        let known = FOLDERS.iter().map(|folder| Path::new(folder).join(NVML));
        beside
            .into_iter()
            .chain(known)
            .chain(cached(NVML))
            .find(|path| path.is_file() && !path.starts_with(home))
    }
}

fn soft(home: &Path) -> Result<Driver> {
    let path = home.join("lib/softgpu/libcuda.so.1");
    if path.is_file() {
        return Ok(Driver { path, soft: true });
    }
    let message = format!("the software GPU is not installed: no `{}`", path.display());
    Err(fail(FailureKind::Host, message).hint("set FERMATA_HOME to the folder of the installation"))
}

fn real(home: &Path) -> Result<Driver> {
    if let Some(path) = settings::value("FERMATA_REAL_LIBCUDA") {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(Driver { path, soft: false });
        }
        let message = format!("FERMATA_REAL_LIBCUDA names no file: `{}`", path.display());
        return Err(fail(FailureKind::Host, message));
    }
    if !Path::new("/dev/nvidiactl").exists() && !Path::new("/dev/dxg").exists() {
        return Err(fail(
            FailureKind::Host,
            "this host has no NVIDIA GPU: no `/dev/nvidiactl`",
        )
        .hint("`--device soft` runs on the software GPU"));
    }
    let ours = |path: &Path| path.starts_with(home);
    let known = FOLDERS.iter().map(|f| Path::new(f).join(CUDA));
    known
        .chain(cached(CUDA))
        .find(|path| path.is_file() && !ours(path))
        .map(|path| Driver { path, soft: false })
        .ok_or_else(|| {
            fail(
                FailureKind::Host,
                "NVIDIA's driver library `libcuda.so.1` is not found",
            )
            .hint("set FERMATA_REAL_LIBCUDA to its path")
        })
}

/// Where the loader's cache knows `library` to be; it is read when the first path is asked for, by a process that takes
/// milliseconds.
fn cached(library: &str) -> impl Iterator<Item = PathBuf> {
    std::iter::once_with(|| listed(library)).flatten()
}

fn listed(library: &str) -> Vec<PathBuf> {
    let list = |program| {
        Command::new(program)
            .arg("-p")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()
    };
    let output = list("/sbin/ldconfig").or_else(|| list("ldconfig"));
    let text = output
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    text.lines()
        .filter(|line| line.contains("x86-64"))
        .filter(|line| line.split_whitespace().next() == Some(library))
        .filter_map(|line| {
            line.split_once("=> ")
                .map(|(_, path)| PathBuf::from(path.trim()))
        })
        .collect()
}
