//! Algorithm 2: the min-time max-flow schedule as published. Flow is pushed one unit at a time along
//! the path whose slowest transfer would end first; back edges undo earlier decisions.
//!
//! Kept as published, for comparison: it is a heuristic. [`crate::optimum`] is the optimum.

use std::collections::VecDeque;

use crate::model::{Destination, Problem, Schedule, Transfer};

struct Edge {
    to: usize,
    capacity: i64,
    /// Seconds per unit; negative on back edges.
    cost: f64,
}

/// The published schedule with units of `unit` bytes (the paper uses 1 MB). Remainders are rounded
/// up and room is rounded down to whole units; the last unit of a sender may be partial.
pub fn min_time(problem: &Problem, unit: u64) -> Schedule {
    let gpus = problem.gpus();
    let unit = unit.max(1);
    let (source, host, sink) = (gpus, gpus + 1, gpus + 2);
    let mut network = Network {
        edges: Vec::new(),
        out: vec![Vec::new(); gpus + 3],
    };
    let units = |bytes: u64| bytes.div_ceil(unit) as i64;
    let mut everything = 0;
    for i in (0..gpus).filter(|&i| problem.remainder[i] > 0) {
        let remainder = units(problem.remainder[i]);
        everything += remainder;
        network.add(source, i, remainder, 0.0);
        network.add(i, host, remainder, unit as f64 / problem.topology.host[i]);
        for j in (0..gpus).filter(|&j| problem.topology.links[i][j] > 0.0) {
            let room = (problem.spare[j] / unit) as i64;
            if room > 0 {
                network.add(
                    i,
                    j,
                    room.min(remainder),
                    unit as f64 / problem.topology.links[i][j],
                );
            }
        }
    }
    for j in (0..gpus).filter(|&j| problem.spare[j] >= unit) {
        network.add(j, sink, (problem.spare[j] / unit) as i64, 0.0);
    }
    network.add(host, sink, everything, 0.0);
    while network.push_one(source, sink) {}

    let mut left = problem.remainder.clone();
    let mut transfers = Vec::new();
    for (index, edge) in network.edges.iter().enumerate().step_by(2) {
        let from = network.edges[index + 1].to;
        if from >= gpus || edge.to == sink {
            continue;
        }
        let sent = network.edges[index + 1].capacity as u64 * unit;
        let bytes = sent.min(left[from]);
        left[from] -= bytes;
        let to = if edge.to == host {
            Destination::Host
        } else {
            Destination::Gpu(edge.to)
        };
        transfers.push(Transfer { from, to, bytes });
    }
    problem.schedule(transfers)
}

struct Network {
    /// Edge 2k and its back edge 2k + 1.
    edges: Vec<Edge>,
    out: Vec<Vec<usize>>,
}

impl Network {
    fn add(&mut self, from: usize, to: usize, capacity: i64, cost: f64) {
        self.out[from].push(self.edges.len());
        self.edges.push(Edge { to, capacity, cost });
        self.out[to].push(self.edges.len());
        self.edges.push(Edge {
            to: from,
            capacity: 0,
            cost: -cost,
        });
    }

    /// Lines 2 to 23: one unit along the best path; false when there is none.
    fn push_one(&mut self, source: usize, sink: usize) -> bool {
        let mut distance = vec![f64::INFINITY; self.out.len()];
        let mut parent = vec![usize::MAX; self.out.len()];
        let mut queue = VecDeque::from([source]);
        distance[source] = 0.0;
        while let Some(u) = queue.pop_front() {
            for &index in &self.out[u] {
                let edge = &self.edges[index];
                if edge.capacity <= 0 {
                    continue;
                }
                // What already flows: the back edge's capacity (line 9), or this one's (line 10).
                let flow = if edge.cost > 0.0 {
                    self.edges[index ^ 1].capacity
                } else {
                    edge.capacity
                };
                let through = distance[u].max((flow as f64 * edge.cost).abs() + edge.cost);
                if through < distance[edge.to] {
                    distance[edge.to] = through;
                    parent[edge.to] = index;
                    queue.push_back(edge.to);
                }
            }
        }
        if distance[sink].is_infinite() {
            return false;
        }
        let mut at = sink;
        while at != source {
            let index = parent[at];
            self.edges[index].capacity -= 1;
            self.edges[index ^ 1].capacity += 1;
            at = self.edges[index ^ 1].to;
        }
        true
    }
}
