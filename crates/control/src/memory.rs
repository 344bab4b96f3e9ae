//! What memory a session takes: the answer to `fermata ps --memory`.

use serde::{Deserialize, Serialize};

/// Host memory of some processes, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// Proportional set size: a page that several processes map counts for each with its share.
    pub pss: u64,
    /// Of that, pages that no other process maps.
    pub own: u64,
}

impl std::ops::Add for HostMemory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            pss: self.pss + other.pss,
            own: self.own + other.own,
        }
    }
}

/// Memory of a session on one device, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// The device's name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// What the session's processes have allocated; memory that several of them use counts once.
    pub bytes: u64,
    /// What its processes use of memory that another one of them has allocated, in addition for each.
    pub shared: u64,
    /// What of `bytes` other sessions have, too: it is on the device once.
    #[serde(default)]
    pub common: u64,
    /// The session's part of that: what n sessions have counts 1/n.
    #[serde(default)]
    pub common_part: u64,
}

/// Memory of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMemory {
    /// The session.
    pub session: String,
    /// Host memory of the program and its children.
    pub program: HostMemory,
    /// Host memory of its workers. Memory that program and worker both map counts for each with its share.
    pub workers: HostMemory,
    /// Its devices.
    pub devices: Vec<DeviceMemory>,
    /// Whether all of its workers have said what they have; one that is busy with an image does not.
    pub complete: bool,
}
