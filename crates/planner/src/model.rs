//! The problem of collaborative multi-level checkpoints and what a solution is
//! (Collaborative Multi-Level Checkpointing, section II).
//!
//! Every GPU has a checkpoint and some free memory. Where the checkpoint is larger, the GPU is a
//! sender of the remainder; where it is smaller, a receiver with spare capacity. Remainders go to
//! receivers over GPU links and to the host; the blocking time is that of the slowest transfer.

use serde::{Deserialize, Serialize};

/// How GPUs are linked to one another and to the host. All rates are bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// `links[i][j]`: from GPU i to GPU j; 0 where there is no link. Square.
    pub links: Vec<Vec<f64>>,
    /// From each GPU to host memory; above 0.
    pub host: Vec<f64>,
    /// What each GPU can send to all its peers together, if that is less than its links' sum
    /// (a switched machine is limited by the port, not by the pair).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_out: Option<Vec<f64>>,
    /// What each GPU can receive from all its peers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_in: Option<Vec<f64>>,
    /// What all GPUs together can send to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_total: Option<f64>,
}

/// One moment: what must be sent and where there is room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// The machine.
    pub topology: Topology,
    /// Bytes that do not fit, per GPU (C in the paper).
    pub remainder: Vec<u64>,
    /// Bytes of room left, per GPU (S in the paper); 0 for senders.
    pub spare: Vec<u64>,
}

/// Where a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// Another GPU's spare memory.
    Gpu(usize),
    /// Host memory.
    Host,
}

/// One transfer; all transfers of a schedule run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The sending GPU.
    pub from: usize,
    /// Where to.
    pub to: Destination,
    /// Bytes.
    pub bytes: u64,
}

/// A solution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Transfers, each above 0 bytes, at most one per pair.
    pub transfers: Vec<Transfer>,
    /// Seconds until the last one ends.
    pub seconds: f64,
}

/// Why a problem cannot be solved as given.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ProblemError {
    /// Lists of different lengths.
    #[error("`{field}` has {found} entries for {gpus} GPUs")]
    Shape {
        /// The field.
        field: &'static str,
        /// Its length.
        found: usize,
        /// GPUs, from `host`.
        gpus: usize,
    },
    /// A rate that is negative, infinite or not a number, or a host link of 0.
    #[error("`{field}` of GPU {gpu} is {value}, which is no rate in bytes per second")]
    Rate {
        /// The field.
        field: &'static str,
        /// The GPU.
        gpu: usize,
        /// The value.
        value: f64,
    },
    /// A GPU cannot both overflow and have room.
    #[error("GPU {gpu} has a remainder and spare capacity at once")]
    SenderAndReceiver {
        /// The GPU.
        gpu: usize,
    },
}

impl Problem {
    /// A moment at which GPU i wants to keep `checkpoint[i]` bytes and has `free[i]` bytes of room.
    pub fn from_sizes(topology: Topology, checkpoint: &[u64], free: &[u64]) -> Self {
        let pairs = || checkpoint.iter().zip(free);
        Problem {
            remainder: pairs().map(|(c, f)| c.saturating_sub(*f)).collect(),
            spare: pairs().map(|(c, f)| f.saturating_sub(*c)).collect(),
            topology,
        }
    }

    /// Number of GPUs.
    pub fn gpus(&self) -> usize {
        self.topology.host.len()
    }

    /// Checks shapes and rates.
    ///
    /// # Errors
    /// The first inconsistency found, naming field and GPU.
    pub fn check(&self) -> Result<(), ProblemError> {
        let gpus = self.gpus();
        let shape = |field, found| {
            if found == gpus {
                Ok(())
            } else {
                Err(ProblemError::Shape { field, found, gpus })
            }
        };
        let t = &self.topology;
        shape("links", t.links.len())?;
        for row in &t.links {
            shape("links", row.len())?;
        }
        shape("remainder", self.remainder.len())?;
        shape("spare", self.spare.len())?;
        let rates = |field: &'static str, values: &[f64], least: f64| match values
            .iter()
            .position(|v| !v.is_finite() || *v < least)
        {
            Some(gpu) => Err(ProblemError::Rate {
                field,
                gpu,
                value: values[gpu],
            }),
            None => Ok(()),
        };
        for row in &t.links {
            rates("links", row, 0.0)?;
        }
        rates("host", &t.host, f64::MIN_POSITIVE)?;
        for (field, ports) in [("port_out", &t.port_out), ("port_in", &t.port_in)] {
            if let Some(ports) = ports {
                shape(field, ports.len())?;
                rates(field, ports, f64::MIN_POSITIVE)?;
            }
        }
        if let Some(total) = t.host_total {
            rates("host_total", &[total], f64::MIN_POSITIVE)?;
        }
        match (0..gpus).find(|&g| self.remainder[g] > 0 && self.spare[g] > 0) {
            Some(gpu) => Err(ProblemError::SenderAndReceiver { gpu }),
            None => Ok(()),
        }
    }

    /// Seconds until `transfers`, all started together, have ended under every limit of the
    /// topology: the largest ratio of bytes to rate over links, ports and the host's total.
    pub fn blocking_time(&self, transfers: &[Transfer]) -> f64 {
        let t = &self.topology;
        let gpus = self.gpus();
        let (mut out, mut inward, mut host) = (vec![0u64; gpus], vec![0u64; gpus], 0u64);
        let mut seconds = 0f64;
        for transfer in transfers {
            let rate = match transfer.to {
                Destination::Gpu(j) => {
                    out[transfer.from] += transfer.bytes;
                    inward[j] += transfer.bytes;
                    t.links[transfer.from][j]
                }
                Destination::Host => {
                    host += transfer.bytes;
                    t.host[transfer.from]
                }
            };
            seconds = seconds.max(transfer.bytes as f64 / rate);
        }
        let ports = [(&t.port_out, &out), (&t.port_in, &inward)];
        for (limits, bytes) in ports {
            for (limit, bytes) in limits.iter().flatten().zip(bytes) {
                seconds = seconds.max(*bytes as f64 / limit);
            }
        }
        if let Some(total) = t.host_total {
            seconds = seconds.max(host as f64 / total);
        }
        seconds
    }

    /// A schedule of these transfers, empty ones dropped, with its blocking time.
    pub(crate) fn schedule(&self, mut transfers: Vec<Transfer>) -> Schedule {
        transfers.retain(|t| t.bytes > 0);
        transfers.sort_by_key(|t| (t.from, t.to));
        let seconds = self.blocking_time(&transfers);
        Schedule { transfers, seconds }
    }
}

impl Schedule {
    /// Whether every remainder is sent once and no receiver gets more than its room.
    pub fn is_valid_for(&self, problem: &Problem) -> bool {
        let gpus = problem.gpus();
        let (mut sent, mut received) = (vec![0u64; gpus], vec![0u64; gpus]);
        for t in &self.transfers {
            if t.from >= gpus || t.bytes == 0 {
                return false;
            }
            sent[t.from] += t.bytes;
            if let Destination::Gpu(j) = t.to {
                if j >= gpus || problem.topology.links[t.from][j] <= 0.0 {
                    return false;
                }
                received[j] += t.bytes;
            }
        }
        sent == problem.remainder && received.iter().zip(&problem.spare).all(|(r, s)| r <= s)
    }
}
