//! The workers that wait for sessions: the answer to `fermata ps --pool`.

use serde::{Deserialize, Serialize};

use crate::memory::HostMemory;
use crate::text::Text;
use crate::worker::Device;

/// The pool of workers that wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareWorkers {
    /// How many of a kind are kept (`FERMATA_SPARE_WORKERS`), those apart that wait for an image.
    pub most: u64,
    /// Seconds that one may wait for a session (`FERMATA_SPARE_IDLE`); none for ever.
    pub idle_seconds: Option<u64>,
    /// How many have been ended for that since the daemon began.
    pub idle_ended: u64,
    /// How many could not be made, or have ended by themselves while they waited.
    pub failed: u64,
    /// The kinds; the one used last comes first.
    pub kinds: Vec<SpareKind>,
}

/// Workers of a kind: of one driver, with the same variables, and for the same image if for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareKind {
    /// Whether the driver is softgpu.
    pub soft: bool,
    /// The image for whose restore they wait, with its modules loaded; none if any session may have them.
    #[serde(default)]
    pub image: Option<Text>,
    /// How many are kept.
    #[serde(default)]
    pub most: u64,
    /// The device on which they have a context; none while no worker waits.
    pub device: Option<Device>,
    /// Those that wait for a session, the oldest first.
    pub ready: Vec<SpareWorker>,
    /// How many are being made.
    pub making: u32,
    /// Sessions that wait for what is being made.
    pub awaited: u32,
    /// Why the last one could not be made, or has ended, while that holds up the next one; else empty.
    pub trouble: String,
    /// Seconds until it is tried again.
    pub retry_seconds: Option<u64>,
}

/// A worker that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareWorker {
    /// Its process.
    pub pid: u32,
    /// Its host memory.
    pub host: HostMemory,
    /// Bytes of device memory, by NVML; none where that does not say.
    pub device_bytes: Option<u64>,
    /// Seconds for which it has waited.
    pub age_seconds: u64,
    /// Seconds until it is ended if no session uses it.
    pub ends_in_seconds: Option<u64>,
}
