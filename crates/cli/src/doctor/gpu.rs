//! NVIDIA's driver and devices.

use std::fs;

use fermata_control::user::Check;

use super::verdict::{ok, warn};

/// The oldest driver on whose GPUs programs run: the first of CUDA 13.
const OLDEST: u32 = 580;

/// Device files and the driver's release.
pub fn check() -> Check {
    let name = "gpu";
    let devices = fs::read_dir("/dev").map_or(0, |entries| {
        let names = entries
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok());
        names
            .filter(|n| {
                n.strip_prefix("nvidia")
                    .is_some_and(|r| r.parse::<u32>().is_ok())
            })
            .count()
    });
    let driver = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let release = driver.as_deref().and_then(release).unwrap_or("unknown");
    match (devices, driver.is_some()) {
        (0, false) => warn(
            name,
            "no NVIDIA driver; programs run on the software GPU",
            "nothing, unless this machine has a GPU: then install NVIDIA's driver",
        ),
        (0, true) => warn(
            name,
            format!("driver {release}, but no device file `/dev/nvidia0`"),
            "give this container or user access to the GPU's device files",
        ),
        (n, _) if !fs::exists("/dev/nvidia-uvm").unwrap_or(false) => warn(
            name,
            format!("driver {release}, {n} devices, but no `/dev/nvidia-uvm`"),
            "as root: `nvidia-modprobe -u`",
        ),
        (n, _) if major(release).is_some_and(|it| it < OLDEST) => warn(
            name,
            format!("driver {release}, {n} devices; programs need driver {OLDEST} or newer"),
            "install a newer driver, or NVIDIA's package for forward compatibility; `fermata checkpoint PID` needs driver 570",
        ),
        (n, _) => ok(name, format!("driver {release}, {n} devices")),
    }
}

/// The number before the first dot of a release.
fn major(release: &str) -> Option<u32> {
    release.split('.').next()?.parse().ok()
}

/// The first word that is a release, such as 580.159.
fn release(text: &str) -> Option<&str> {
    let line = text.lines().find(|l| l.starts_with("NVRM"))?;
    line.split_whitespace()
        .find(|w| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

#[cfg(test)]
mod tests {
    use super::{major, release};

    #[test]
    fn the_release_is_found_in_the_version_line() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release\n";
        assert_eq!(release(text), Some("580.159.03"));
        assert_eq!(release("GCC version: 12.2.0"), None);
        assert_eq!(major("580.159.03"), Some(580));
        assert_eq!(major("unknown"), None);
    }
}
