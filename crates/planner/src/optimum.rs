//! The true optimum: the least time in which all remainders can be sent, under link, port and
//! host limits, by parametric maximum flow.
//!
//! For a time t every limit of rate r is an edge of capacity r t, and t suffices when the maximum
//! flow carries all remainders. Where it does not, the minimum cut is a line a + b t below the
//! total; the next t is where that line reaches it (Newton's method for parametric cuts). No cut
//! repeats, so it ends, in practice after two to six flows.
//!
//! ```text
//!            ┌─ r t ─► receiver ─ port t ─► ┐
//!  source ─► sender ─ port t ─► (peers)     spare ─► sink
//!            └─ host t ─► host ─ total t ──────────► ┘
//! ```

use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::model::{Destination, Problem, Schedule, Transfer};

/// A limit: bytes whatever the time, and bytes per second.
#[derive(Clone, Copy)]
struct Limit {
    bytes: u64,
    rate: f64,
}

impl Limit {
    const NONE: Limit = Limit {
        bytes: u64::MAX >> 8,
        rate: 0.0,
    };
    fn bytes(bytes: u64) -> Self {
        Limit { bytes, rate: 0.0 }
    }
    fn rate(rate: f64) -> Self {
        Limit { bytes: 0, rate }
    }
    fn at(&self, seconds: f64) -> u64 {
        self.bytes + (self.rate * seconds).ceil() as u64
    }
}

/// The network for a problem, with the nodes that transfers are read off from.
struct Network {
    graph: DiGraph<(), Limit>,
    source: NodeIndex,
    sink: NodeIndex,
    host: NodeIndex,
    /// Node from which a sender's peer transfers leave.
    peer_out: Vec<Option<NodeIndex>>,
    /// Node at which a receiver's peer transfers arrive.
    peer_in: Vec<Option<NodeIndex>>,
    /// Whether one hub stands for all pairs (no pair's own link can be the limit).
    hub: Option<NodeIndex>,
}

/// An optimal schedule. Its time is within one byte per link of the least possible.
pub fn optimum(problem: &Problem) -> Schedule {
    let total: u64 = problem.remainder.iter().sum();
    if total == 0 {
        return problem.schedule(Vec::new());
    }
    let network = Network::new(problem);
    let mut seconds = lower_bound(problem);
    loop {
        let sized = network.graph.map(|_, ()| (), |_, limit| limit.at(seconds));
        let (flow, flows) = dinics(&sized, network.source, network.sink);
        if flow >= total {
            return problem.schedule(network.transfers(problem, &flows));
        }
        let (bytes, rate) = network.cut(&sized, &flows);
        let next = (total as f64 - bytes as f64) / rate;
        // A cut without any rate cannot be below the total: the host link always has one.
        seconds = next.max(seconds * (1.0 + f64::EPSILON) + f64::MIN_POSITIVE);
    }
}

/// The largest of the cuts that need no flow: each sender alone, and all senders once every
/// receiver is full. Starting there saves most of the flows.
fn lower_bound(problem: &Problem) -> f64 {
    let t = &problem.topology;
    let senders = || (0..problem.gpus()).filter(|&i| problem.remainder[i] > 0);
    let alone = senders().map(|i| {
        let links: f64 = (0..problem.gpus())
            .filter(|&j| problem.spare[j] > 0)
            .map(|j| t.links[i][j])
            .sum();
        let peers = t
            .port_out
            .as_ref()
            .map_or(links, |ports| links.min(ports[i]));
        problem.remainder[i] as f64 / (peers + t.host[i])
    });
    let to_host: f64 = senders().map(|i| t.host[i]).sum();
    let to_host = t.host_total.map_or(to_host, |total| total.min(to_host));
    let homeless = problem
        .remainder
        .iter()
        .sum::<u64>()
        .saturating_sub(problem.spare.iter().sum());
    alone.fold(homeless as f64 / to_host, f64::max)
}

impl Network {
    fn new(problem: &Problem) -> Self {
        let t = &problem.topology;
        let gpus = problem.gpus();
        let mut graph = DiGraph::new();
        let (source, sink, host) = (graph.add_node(()), graph.add_node(()), graph.add_node(()));
        graph.add_edge(host, sink, t.host_total.map_or(Limit::NONE, Limit::rate));
        let mut peer_out = vec![None; gpus];
        let mut peer_in = vec![None; gpus];
        for i in 0..gpus {
            if problem.remainder[i] > 0 {
                let sender = graph.add_node(());
                graph.add_edge(source, sender, Limit::bytes(problem.remainder[i]));
                graph.add_edge(sender, host, Limit::rate(t.host[i]));
                let out = graph.add_node(());
                let port = t
                    .port_out
                    .as_ref()
                    .map_or(Limit::NONE, |p| Limit::rate(p[i]));
                graph.add_edge(sender, out, port);
                peer_out[i] = Some(out);
            } else if problem.spare[i] > 0 {
                let (arrive, room) = (graph.add_node(()), graph.add_node(()));
                let port = t
                    .port_in
                    .as_ref()
                    .map_or(Limit::NONE, |p| Limit::rate(p[i]));
                graph.add_edge(arrive, room, port);
                graph.add_edge(room, sink, Limit::bytes(problem.spare[i]));
                peer_in[i] = Some(arrive);
            }
        }
        let pairs = || {
            let inward = |i| {
                peer_in
                    .iter()
                    .enumerate()
                    .filter_map(move |(j, n)| n.map(|n| (i, j, n)))
            };
            peer_out
                .iter()
                .enumerate()
                .filter_map(|(i, n)| n.map(|n| (i, n)))
                .flat_map(move |(i, out)| inward(i).map(move |(i, j, n)| (i, out, j, n)))
        };
        let port_bound = pairs().all(|(i, _, j, _)| {
            let port =
                |ports: &Option<Vec<f64>>, g: usize| ports.as_ref().map_or(f64::INFINITY, |p| p[g]);
            t.links[i][j] >= port(&t.port_out, i).min(port(&t.port_in, j))
        });
        let hub = port_bound.then(|| graph.add_node(()));
        match hub {
            Some(hub) => {
                for &out in peer_out.iter().flatten() {
                    graph.add_edge(out, hub, Limit::NONE);
                }
                for &arrive in peer_in.iter().flatten() {
                    graph.add_edge(hub, arrive, Limit::NONE);
                }
            }
            None => {
                for (i, out, j, arrive) in pairs() {
                    if t.links[i][j] > 0.0 {
                        graph.add_edge(out, arrive, Limit::rate(t.links[i][j]));
                    }
                }
            }
        }
        Network {
            graph,
            source,
            sink,
            host,
            peer_out,
            peer_in,
            hub,
        }
    }

    /// The minimum cut that this maximum flow shows, as bytes + rate * time.
    fn cut(&self, sized: &DiGraph<(), u64>, flows: &[u64]) -> (u64, f64) {
        let mut reached = vec![false; sized.node_count()];
        let mut stack = vec![self.source];
        reached[self.source.index()] = true;
        while let Some(u) = stack.pop() {
            let forward = sized
                .edges(u)
                .filter(|e| flows[e.id().index()] < *e.weight())
                .map(|e| e.target());
            let backward = sized
                .edges_directed(u, petgraph::Direction::Incoming)
                .filter(|e| flows[e.id().index()] > 0)
                .map(|e| e.source());
            for v in forward.chain(backward) {
                if !std::mem::replace(&mut reached[v.index()], true) {
                    stack.push(v);
                }
            }
        }
        let across = self
            .graph
            .edge_references()
            .filter(|e| reached[e.source().index()] && !reached[e.target().index()]);
        across.fold((0, 0.0), |(bytes, rate), e| {
            (bytes + e.weight().bytes, rate + e.weight().rate)
        })
    }

    fn transfers(&self, problem: &Problem, flows: &[u64]) -> Vec<Transfer> {
        let flow = |from, to| {
            self.graph
                .find_edge(from, to)
                .map_or(0, |e| flows[e.index()])
        };
        let mut transfers = Vec::new();
        let mut arriving: Vec<(usize, u64)> = match self.hub {
            Some(hub) => self
                .peer_in
                .iter()
                .enumerate()
                .filter_map(|(j, n)| n.map(|n| (j, flow(hub, n))))
                .collect(),
            None => Vec::new(),
        };
        for (from, out) in self.peer_out.iter().enumerate() {
            let Some(out) = *out else { continue };
            let mut to_peers = 0;
            match self.hub {
                Some(hub) => {
                    to_peers = flow(out, hub);
                    let mut left = to_peers;
                    while left > 0 {
                        let Some((to, room)) = arriving.last_mut() else {
                            break;
                        };
                        let bytes = left.min(*room);
                        transfers.push(Transfer {
                            from,
                            to: Destination::Gpu(*to),
                            bytes,
                        });
                        left -= bytes;
                        *room -= bytes;
                        if *room == 0 {
                            arriving.pop();
                        }
                    }
                }
                None => {
                    for (to, arrive) in self.peer_in.iter().enumerate() {
                        let bytes = arrive.map_or(0, |arrive| flow(out, arrive));
                        to_peers += bytes;
                        transfers.push(Transfer {
                            from,
                            to: Destination::Gpu(to),
                            bytes,
                        });
                    }
                }
            }
            transfers.push(Transfer {
                from,
                to: Destination::Host,
                bytes: problem.remainder[from] - to_peers,
            });
        }
        debug_assert!(
            flow(self.host, self.sink) > 0
                || transfers
                    .iter()
                    .all(|t| t.bytes == 0 || t.to != Destination::Host)
        );
        transfers
    }
}
