//! Drawing a graph in the DOT language.

use std::fmt::Write;

use crate::{ConditionalKind, Graph, NodeKind};

/// The graph in the DOT language; with `verbose`, nodes show their parameters.
pub fn print(graph: &Graph, verbose: bool) -> String {
    let mut text = String::from("digraph dot {\n");
    body(graph, "graph", verbose, &mut text);
    text.push_str("}\n");
    text
}

fn body(graph: &Graph, prefix: &str, verbose: bool, text: &mut String) {
    for (id, node) in graph.nodes() {
        let name = format!("{prefix}_node_{}", id.0);
        let mut label = format!("{}\\n{}", id.0, node.kind.name());
        if verbose {
            label.push_str(&details(&node.kind));
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  \"{name}\" [shape=\"box\" label=\"{label}\"];");
        for (index, inside) in node.kind.graphs().iter().enumerate() {
            let name = match &node.kind {
                NodeKind::Conditional(_) => format!("{name}_{index}"),
                _ => name.clone(),
            };
            let _ = writeln!(text, "  subgraph \"cluster_{name}\" {{");
            body(inside, &name, verbose, text);
            text.push_str("  }\n");
        }
    }
    for edge in graph.edges() {
        let (from, to) = (edge.from.0, edge.to.0);
        let _ = writeln!(
            text,
            "  \"{prefix}_node_{from}\" -> \"{prefix}_node_{to}\";"
        );
    }
}

fn details(kind: &NodeKind) -> String {
    match kind {
        NodeKind::Kernel(node) => {
            let ([x, y, z], [a, b, c]) = (node.grid, node.block);
            format!(
                "\\nfunction {:#x}\\n<<<({x},{y},{z}), ({a},{b},{c}), {}>>>",
                node.function, node.shared_bytes
            )
        }
        NodeKind::Memcpy(copy) => {
            let (src, dst) = (copy.src.address, copy.dst.address);
            format!(
                "\\n{src:#x} to {dst:#x}\\n{} x {} x {}",
                copy.width_bytes, copy.height, copy.depth
            )
        }
        NodeKind::Memset(set) => format!(
            "\\n{:#x} = {}\\n{} x {}",
            set.dst, set.value, set.width, set.height
        ),
        NodeKind::EventRecord(event) | NodeKind::EventWait(event) => format!("\\nevent {event:#x}"),
        NodeKind::MemAlloc(node) => format!("\\n{} bytes at {:#x}", node.bytes, node.address),
        NodeKind::MemFree(address) => format!("\\n{address:#x}"),
        NodeKind::Conditional(node) => {
            let kind = match node.kind {
                ConditionalKind::If => "if",
                ConditionalKind::While => "while",
                ConditionalKind::Switch => "switch",
            };
            let default = node.default.map(|it| format!(", at first {it}"));
            let default = default.unwrap_or_default();
            format!("\\n{kind} {:#x}{default}", node.condition.0)
        }
        NodeKind::Host(_) | NodeKind::ChildGraph(_) | NodeKind::Empty | NodeKind::BatchMemOp(_) => {
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EdgeData;
    use fermata_abi::op::EventId;

    #[test]
    fn nodes_edges_and_inner_graphs_are_drawn() {
        let mut inner = Graph::new();
        inner.add(NodeKind::Empty, &[]).unwrap();
        let mut graph = Graph::new();
        let first = graph
            .add(NodeKind::ChildGraph(Box::new(inner)), &[])
            .unwrap();
        graph
            .add(
                NodeKind::EventWait(EventId::from_raw(0x20)),
                &[(first, EdgeData::default())],
            )
            .unwrap();
        let text = print(&graph, true);
        assert!(text.contains("\"graph_node_1\" -> \"graph_node_2\""));
        assert!(text.contains("\"graph_node_1_node_1\""));
        assert!(text.contains("event 0x20"));
    }
}
