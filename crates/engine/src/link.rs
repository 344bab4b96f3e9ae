//! Operations of the program that move data between a device and the host, over the link that images need, too.
//!
//! A device has an engine for each way, which serves a stream as long as that has copies that are ready, and only then another. So whoever
//! copies for an image while the program runs leaves gaps (decision 064).

use fermata_abi::op::{Address, Op, Place};
use fermata_graph::{Copy, CopyEnd, Graph, NodeKind};
use fermata_state::Session;

fn is_on_device(place: &Place<'_>) -> bool {
    match place {
        Place::Address(address) => address.is_on_device(),
        Place::Array { .. } => true,
        Place::Blob(_) => false,
    }
}

fn end_is_on_device(end: &CopyEnd) -> bool {
    end.array().is_some() || Address::from_raw(end.address).is_on_device()
}

/// Bytes that an operation by itself moves between device and host.
pub(crate) fn bytes(op: &Op<'_>) -> u64 {
    match op {
        Op::Copy { to, from, len, .. } if is_on_device(to) != is_on_device(from) => *len,
        _ => 0,
    }
}

/// Whether an operation copies from the host to a device.
pub(crate) fn copies_to_device(op: &Op<'_>, session: &Session) -> bool {
    match op {
        Op::Copy { to, from, .. } | Op::Copy3d { to, from, .. } => {
            is_on_device(to) && !is_on_device(from)
        }
        Op::GraphLaunch { exec, .. } => {
            let executable = session.executables.get(*exec);
            executable.is_ok_and(|it| graph_copies_to_device(&it.graph))
        }
        _ => false,
    }
}

fn graph_copies_to_device(graph: &Graph) -> bool {
    let copies = |copy: &Copy| end_is_on_device(&copy.dst) && !end_is_on_device(&copy.src);
    graph.nodes().any(|(_, node)| {
        let mut inside = node.kind.graphs().iter();
        matches!(&node.kind, NodeKind::Memcpy(copy) if copies(copy))
            || inside.any(graph_copies_to_device)
    })
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::{ArrayId, Blob, ContextId, DEVICE_BASE, StreamId, StreamRef};
    use fermata_graph::Place as End;

    use super::*;

    const HOST: u64 = 0x1000;

    fn copy(to: Place<'static>, from: Place<'static>) -> Op<'static> {
        Op::Copy {
            to,
            from,
            len: 4,
            stream: StreamRef {
                context: ContextId::from_raw(0x100),
                stream: StreamId::from_raw(1),
            },
            answered: true,
        }
    }

    #[test]
    fn a_copy_between_device_and_host_uses_the_link() {
        let session = Session::default();
        let device = || Place::Address(DEVICE_BASE);
        let array = || Place::Array {
            array: ArrayId::from_raw(1),
            x: 0,
            y: 0,
            z: 0,
        };
        let pinned = || Place::Address(Address::from_raw(HOST));
        let message = || Place::Blob(Blob::Inline(&[0; 4]));
        for there in [device, array] {
            for here in [message, pinned] {
                let (up, down) = (copy(there(), here()), copy(here(), there()));
                assert_eq!((bytes(&up), bytes(&down)), (4, 4));
                assert!(copies_to_device(&up, &session) && !copies_to_device(&down, &session));
            }
            for other in [device, array] {
                let within = copy(other(), there());
                assert!(bytes(&within) == 0 && !copies_to_device(&within, &session));
            }
        }
        assert_eq!(bytes(&copy(pinned(), message())), 0);
    }

    #[test]
    fn a_node_that_copies_to_the_device_is_found_also_in_an_inner_graph() {
        let of = |dst, src| {
            let mut graph = Graph::new();
            let node = NodeKind::Memcpy(Copy::linear(dst, src, 8));
            graph.add(node, &[]).expect("a first node");
            let mut around = Graph::new();
            let inner = NodeKind::ChildGraph(Box::new(graph.clone()));
            around.add(inner, &[]).expect("a first node");
            (graph, around)
        };
        let device = CopyEnd::linear(End::Unified, DEVICE_BASE.raw());
        let array = CopyEnd::of_array(ArrayId::from_raw(1));
        let host = CopyEnd::linear(End::Host, HOST);
        for (dst, src, copies) in [
            (device, host, true),
            (array, host, true),
            (host, device, false),
            (device, array, false),
        ] {
            let (graph, around) = of(dst, src);
            assert_eq!(graph_copies_to_device(&graph), copies);
            assert_eq!(graph_copies_to_device(&around), copies);
        }
    }
}
