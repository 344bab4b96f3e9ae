//! Machines to plan for: known ones, and this one as NVML describes it.

use std::path::PathBuf;

use clap::ValueEnum;
use fermata_control::settings;
use fermata_nvml::Gpu;
use fermata_planner::{Topology, topology};

use crate::failure::{Failure, HOST};

/// Bytes per second of a lane of PCI Express, by generation from 1.
const LANE: [f64; 7] = [0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9, 15.125e9];
/// What copies get of a link's rate: on an H200 55.5 GB/s of 63.0, and 397 GB/s of 478 over NVLink.
const PCIE_SHARE: f64 = 0.88;
const LINK_SHARE: f64 = 0.83;
/// Generation and lanes of an unknown GPU: the slowest that has NVLink.
const USUAL: (u32, u32) = (3, 16);
/// The share of a device's memory that the library leaves free (`stage.device_bytes` in docs/library.md).
const FREE_SHARE: u64 = 32;

/// Machines that need no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Machine {
    /// This one, as NVML describes it.
    Here,
    /// Eight GPUs in a hybrid cube mesh: 24 GB/s a link, 12 GB/s to the host.
    Dgx1,
    /// GPUs behind a switch with 48 GB/s between every pair, 12 GB/s to the host.
    Switch,
    /// Four H200 as measured: 397 GB/s a port, 55.5 GB/s to the host, 167 GB/s together.
    H200x4,
}

impl Machine {
    /// The topology; `gpus` counts for machines of any size.
    pub(super) fn topology(self, gpus: usize) -> Result<Topology, Failure> {
        Ok(match self {
            Machine::Here => topology_of(&here()?),
            Machine::Dgx1 => topology::dgx1(),
            Machine::Switch => topology::all_to_all(gpus, 48e9, 12e9),
            Machine::H200x4 => topology::h200x4(),
        })
    }
}

/// This machine's GPUs. `FERMATA_NVML` names another library than the system's.
pub(super) fn here() -> Result<Vec<Gpu>, Failure> {
    let library = settings::value("FERMATA_NVML").map(PathBuf::from);
    let hint = "`--machine` names known machines, and `--topology FILE` describes any other";
    let gpus = fermata_nvml::gpus(library.as_deref()).map_err(|e| {
        let message = format!("cannot ask NVML for this machine's GPUs: {e}");
        Failure::new(HOST, message).hint(hint)
    })?;
    match gpus.is_empty() {
        true => Err(Failure::new(HOST, "NVML knows no GPU of this machine").hint(hint)),
        false => Ok(gpus),
    }
}

/// What may be used of each GPU's free memory, in bytes.
pub(super) fn room(gpus: &[Gpu]) -> Vec<u64> {
    let room = |gpu: &Gpu| gpu.free.saturating_sub(gpu.memory / FREE_SHARE);
    gpus.iter().map(room).collect()
}

/// Rates that copies can be expected to have. Links that end at a switch reach every GPU that has such links, and then
/// a GPU's port limits all of them together. What all GPUs together can send to the host NVML does not know.
pub(super) fn topology_of(gpus: &[Gpu]) -> Topology {
    let rate = |i: usize, links: usize| links as f64 * gpus[i].link_rate * LINK_SHARE;
    let to = |i: usize, end: Option<usize>| gpus[i].links.iter().filter(|l| **l == end).count();
    let link = |i: usize, j: usize| match i == j {
        true => 0.0,
        false => rate(i, to(i, Some(j))) + rate(i, to(i, None)).min(rate(j, to(j, None))),
    };
    let all = 0..gpus.len();
    let switched = all.clone().any(|i| to(i, None) > 0);
    // A rate of nothing is no limit of anything: such a GPU has no links.
    let ports = || all.clone().map(|i| rate(i, gpus[i].links.len()).max(1.0));
    let host = |gpu: &Gpu| {
        let known = gpu.pcie_generation > 0 && gpu.pcie_lanes > 0;
        let (generation, lanes) = match known {
            true => (gpu.pcie_generation, gpu.pcie_lanes),
            false => USUAL,
        };
        LANE[(generation as usize).min(LANE.len()) - 1] * f64::from(lanes) * PCIE_SHARE
    };
    Topology {
        links: all
            .clone()
            .map(|i| all.clone().map(|j| link(i, j)).collect())
            .collect(),
        host: gpus.iter().map(host).collect(),
        port_out: switched.then(|| ports().collect()),
        port_in: switched.then(|| ports().collect()),
        host_total: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(links: &[Option<usize>], pcie: (u32, u32)) -> Gpu {
        Gpu {
            name: "test".into(),
            bus: fermata_nvml::Bus {
                domain: 0,
                bus: 0,
                device: 0,
            },
            free: 60,
            memory: 64,
            pcie_generation: pcie.0,
            pcie_lanes: pcie.1,
            link_rate: 26.562e9,
            links: links.to_vec(),
        }
    }

    #[test]
    fn a_switch_joins_all_and_its_ports_limit_them() {
        let gpus = vec![gpu(&[None; 18], (5, 16)); 4];
        let made = topology_of(&gpus);
        // The machine that was measured: 397 GB/s a port, 55.5 GB/s to the host.
        assert!((made.links[0][3] - 397e9).abs() < 1e9, "{made:?}");
        assert_eq!(made.links[2][2], 0.0);
        assert_eq!(made.port_in, Some(vec![made.links[0][1]; 4]));
        assert!((made.host[1] - 55.5e9).abs() < 0.1e9, "{made:?}");
        assert_eq!(room(&gpus), [58; 4]);
    }

    #[test]
    fn direct_links_join_those_at_their_ends() {
        let mesh = [
            gpu(&[Some(1), Some(1), Some(2)], (3, 16)),
            gpu(&[Some(0), Some(0)], (0, 0)),
            gpu(&[Some(0)], (9, 16)),
            gpu(&[], (4, 8)),
        ];
        let made = topology_of(&mesh);
        assert_eq!(made.links[0][1], 2.0 * made.links[0][2]);
        assert_eq!((made.links[1][2], made.links[0][3]), (0.0, 0.0));
        assert_eq!((made.port_out, made.host[1]), (None, made.host[0]));
        assert!(made.host.iter().all(|rate| *rate > 1e9));
    }
}
