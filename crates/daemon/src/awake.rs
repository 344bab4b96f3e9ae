//! Keeps the machine's processors awake while a program stands still, or has just been restored (decision 063).
//!
//! A stop is hundreds of short waits of one process for another: of CRIU for each thread, of the daemon for CRIU, the workers and the
//! program. A processor with nothing to do meanwhile goes to sleep, and waking it takes longer than what is waited for; most of all in a
//! virtual machine, where both are calls of the host. Who holds `/dev/cpu_dma_latency` open says how many microseconds that may take
//! (`Documentation/power/pm_qos_interface.rst`); with 0 they wait without sleeping. The kernel ends that with the descriptor, so also with
//! the daemon. Only a cpuidle driver heeds it: a machine without one would only be made to look, which wakes every processor.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;

use fermata_control::settings;

const FILE: &str = "/dev/cpu_dma_latency";
/// The cpuidle driver's name (`Documentation/admin-guide/pm/cpuidle.rst`).
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// Processors do not sleep while this lives; where they may not be kept from it, they do.
#[derive(Debug)]
pub(crate) struct Awake {
    _held: Option<File>,
}

impl Awake {
    /// From now on.
    pub fn new() -> Self {
        let asked = settings::is_on("FERMATA_AWAKE") && is_heeded();
        let _held = asked.then(ask).flatten();
        Self { _held }
    }
}

/// Whether the kernel lets a driver choose how deep processors sleep. If it does not say, it is asked all the same.
fn is_heeded() -> bool {
    fs::read_to_string(DRIVER).map_or(true, |name| is_driver(&name))
}

fn is_driver(name: &str) -> bool {
    name.trim() != "none"
}

fn ask() -> Option<File> {
    let mut file = OpenOptions::new().write(true).open(FILE).ok()?;
    file.write_all(&0_i32.to_ne_bytes()).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_not_asked() {
        assert!(!is_driver("none\n"));
        assert!(is_driver("haltpoll\n") && is_driver("intel_idle\n"));
    }

    #[test]
    fn processors_sleep_again_when_nobody_keeps_them_awake() {
        // Who may not ask for it has none.
        let told = || {
            let mut bytes = [0; 4];
            let mut file = File::open(FILE).ok()?;
            std::io::Read::read_exact(&mut file, &mut bytes).ok()?;
            Some(i32::from_ne_bytes(bytes))
        };
        let Some(before) = told() else {
            assert!(Awake::new()._held.is_none());
            return;
        };
        let one = Awake::new();
        if one._held.is_none() {
            // It may be read, and not written; or there is no driver.
            return;
        }
        let other = Awake::new();
        assert_eq!(told(), Some(0));
        drop(one);
        assert_eq!(told(), Some(0));
        drop(other);
        // Other tests may keep them awake.
        assert!(told() == Some(before) || told() == Some(0));
    }
}
