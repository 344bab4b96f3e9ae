//! How device memory is copied, and what that costs the program.

use serde::{Deserialize, Serialize};

use crate::choice::choice;

choice! {
    /// The protocol of a checkpoint.
    Mode {
        #[default]
        Auto = "auto": "The best there is for this session",
        Snapshot = "snapshot": "Copy on the device while the program stands still, to storage while it runs; needs as much free device memory as the program uses",
        Cow = "cow": "Copy while the program runs; what it is about to write is copied aside first. The image shows the start",
        Recopy = "recopy": "Copy while the program runs, then stop it for what it has written meanwhile. The image shows the end",
        Stop = "stop": "Copy while the program stands still",
    }
}

choice! {
    /// What becomes of the program after a checkpoint.
    Then {
        #[default]
        Run = "run": "The program goes on",
        Stop = "stop": "The program is ended",
    }
}

/// Protocols that copy while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// All device memory is copied on the device in the stop, and from there to storage behind the program.
    Snapshot,
    /// What the program is about to write is copied aside first.
    Cow,
    /// Copied ahead; the stop takes what was written meanwhile.
    Recopy,
}

/// What a capture behind the program has cost it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// Operations that had to wait for a copy.
    pub waits: u64,
    /// Seconds they waited, in all.
    pub waited_seconds: f64,
    /// Seconds spent on putting copies before operations.
    pub issuing_seconds: f64,
    /// Bytes copied aside on the devices.
    pub isolated_bytes: u64,
    /// The most bytes that lay aside at once.
    pub pool_bytes: u64,
    /// Operations with an open access set.
    pub incomplete: u64,
    /// Seconds until everything had been copied; what has been copied is hashed and checked behind it.
    #[serde(default)]
    pub copying_seconds: f64,
    /// When what was done.
    #[serde(default)]
    pub timeline: Timeline,
}

/// When a capture behind the program did what: sums over spans of equal length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Seconds after the checkpoint's begin at which the first span began; the daemon knows.
    pub start: f64,
    /// Seconds of each span.
    pub span: f64,
    /// Bytes copied to the host, or found to be in the store.
    pub copied: Vec<u64>,
    /// Bytes copied aside on devices.
    pub aside: Vec<u64>,
    /// Seconds that an operation of the program waited for a copy.
    pub waited: Vec<f64>,
}

/// A step of a stop or of a load. Steps may overlap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Seconds from the request's begin to its own.
    pub start: f64,
    /// Seconds it took.
    pub seconds: f64,
    /// Bytes moved, or 0.
    pub bytes: u64,
}
