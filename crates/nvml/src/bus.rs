//! Where a GPU is on the PCI bus.

/// Where a GPU is on the PCI bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bus {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device.
    pub device: u32,
}
