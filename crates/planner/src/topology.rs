//! Machines of the paper and of our measurements, as topologies. Rates in bytes per second.

use crate::model::Topology;

const GB: f64 = 1e9;

/// Links of the 8-GPU hybrid cube mesh, in lanes (1 or 2) between GPU pairs (figure 1 of the paper).
const CUBE_MESH: [[u8; 8]; 8] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

/// The paper's DGX-1: 24 GB/s per lane, 12 GB/s to the host from each GPU.
pub fn dgx1() -> Topology {
    Topology {
        links: CUBE_MESH
            .iter()
            .map(|row| {
                row.iter()
                    .map(|&lanes| f64::from(lanes) * 24.0 * GB)
                    .collect()
            })
            .collect(),
        host: vec![12.0 * GB; 8],
        port_out: None,
        port_in: None,
        host_total: None,
    }
}

/// The paper's switched machine of `gpus` GPUs: every pair linked at `link`, no port limit.
pub fn all_to_all(gpus: usize, link: f64, host: f64) -> Topology {
    let row = |i| (0..gpus).map(|j| if i == j { 0.0 } else { link }).collect();
    Topology {
        links: (0..gpus).map(row).collect(),
        host: vec![host; gpus],
        port_out: None,
        port_in: None,
        host_total: None,
    }
}

/// A switched machine as it measures: a GPU's port limits all its peers together.
pub fn switched(gpus: usize, port: f64, host: f64, host_total: f64) -> Topology {
    Topology {
        port_out: Some(vec![port; gpus]),
        port_in: Some(vec![port; gpus]),
        host_total: Some(host_total),
        ..all_to_all(gpus, port, host)
    }
}

/// Four H200 of one host as measured: 397 GB/s a port, 55.5 GB/s to the host
/// each, 167 GB/s to the host together.
pub fn h200x4() -> Topology {
    switched(4, 397.0 * GB, 55.5 * GB, 167.0 * GB)
}
