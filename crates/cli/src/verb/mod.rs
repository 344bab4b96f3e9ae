//! One file per verb: its options, its help, what it does.

pub mod bench;
pub mod checkpoint;
pub mod completions;
pub mod doctor;
pub mod function;
pub mod images;
pub mod kill;
pub mod logs;
pub mod pause;
pub mod plan;
pub mod protect;
pub mod ps;
pub mod report;
pub mod restore;
pub mod resume;
pub mod run;
pub mod serve;
pub mod share;
pub mod shutdown;
pub mod trace;
pub mod version;
pub mod wait;

use clap::ValueEnum;
use fermata_control::user;

/// `--device`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum Device {
    /// The GPU if there is one, the software GPU else.
    #[default]
    Auto,
    /// The GPU.
    Gpu,
    /// The software GPU.
    Soft,
}

impl From<Device> for user::DeviceChoice {
    fn from(device: Device) -> Self {
        match device {
            Device::Auto => Self::Auto,
            Device::Gpu => Self::Gpu,
            Device::Soft => Self::Soft,
        }
    }
}
