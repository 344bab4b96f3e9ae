//! The machine's GPUs and how they are linked, as NVIDIA's management library (NVML) tells it: what planning needs to
//! know of a machine whose GPUs nobody has to use for it. No context is made, and no setting is touched.
//!
//! ```text
//!  libnvidia-ml.so.1 ─► library ─┬─► [Gpu { memory, PCI Express, NVLinks to GPUs and to switches }]
//!                                └─► forward: calls of programs under Fermata (see `ask`)
//!       the CUDA driver ──────────► facts: the same calls, where there is no NVML
//! ```

pub mod ask;
mod bus;
pub mod code;
mod error;
pub mod facts;
mod forward;
mod library;
pub mod table;

pub use bus::Bus;
pub use error::NvmlError;
pub use forward::Forward;

use std::collections::BTreeMap;
use std::path::Path;

use library::{End, Library};

/// What NVML is called on every machine that has it.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// A GPU and its links.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Name of the model.
    pub name: String,
    /// Where it is.
    pub bus: Bus,
    /// Bytes of its memory that nobody uses at this moment.
    pub free: u64,
    /// Bytes of its memory.
    pub memory: u64,
    /// The newest generation of PCI Express that it and its slot can have; an idle link may be slower just now. 0 if
    /// nobody knows.
    pub pcie_generation: u32,
    /// Lanes of that link.
    pub pcie_lanes: u32,
    /// Bytes per second of one NVLink in one direction; 0 where there is none.
    pub link_rate: f64,
    /// For each working NVLink the GPU at its other end, by its place in the list; `None` where a switch is there. Links
    /// to what is neither, GPUs of others among it, are left out.
    pub links: Vec<Option<usize>>,
}

/// All GPUs of this machine that this process may use, by NVML in `library`, or where the machine has it.
///
/// # Errors
/// There is no NVML, or it says no. What it does not know about a GPU's links is no error: then there are none.
pub fn gpus(library: Option<&Path>) -> Result<Vec<Gpu>, NvmlError> {
    let nvml = Library::open(library.unwrap_or(Path::new(LIBRARY)))?;
    let devices = nvml.devices()?;
    let buses = devices.iter().map(|device| nvml.bus(*device));
    let buses = buses.collect::<Result<Vec<_>, _>>()?;
    let one = |(device, bus): (&library::Device, &Bus)| {
        let (memory, free) = nvml.memory(*device)?;
        let (pcie_generation, pcie_lanes) = nvml.pcie(*device);
        let ends = nvml.link_ends(*device);
        let at = |end: End| {
            let known = buses.iter().position(|bus| Some(*bus) == end.bus);
            (known.is_some() || end.may_be_switch).then_some(known)
        };
        let links: Vec<_> = ends.into_iter().filter_map(at).collect();
        let link_rate = match links.is_empty() {
            true => 0.0,
            false => nvml.link_rate(*device),
        };
        Ok(Gpu {
            name: nvml.name(*device)?,
            bus: *bus,
            free,
            memory,
            pcie_generation,
            pcie_lanes,
            link_rate,
            links,
        })
    };
    devices.iter().zip(&buses).map(one).collect()
}

/// Bytes of device memory of each process that computes on a GPU of this machine, over all GPUs; those of which NVML does not
/// know it are left out. Numbers of processes are those of the PID namespace that the driver tells them in.
///
/// # Errors
/// There is no NVML in `library`, or it says no.
pub fn memory_by_process(library: &Path) -> Result<BTreeMap<u32, u64>, NvmlError> {
    let nvml = Library::open(library)?;
    let mut bytes = BTreeMap::new();
    for device in nvml.devices()? {
        for (pid, more) in nvml.process_bytes(device)? {
            *bytes.entry(pid).or_default() += more;
        }
    }
    Ok(bytes)
}
