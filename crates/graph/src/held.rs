//! The references that a graph, an executable graph or a launch holds on objects of the program.
//!
//! A clone, a child graph and an executable graph hold references of their own (CUDA C++ Programming Guide, CUDA User Objects). This
//! only counts them: who owns the objects retains and releases them.

use std::collections::BTreeMap;

use crate::model::NodeId;

/// Counts of references on objects of type `O`, by the way to the graph inside that was given them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<O>(BTreeMap<(Vec<NodeId>, O), u32>);

impl<O> Default for Held<O> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<O: Copy + Ord> Held<O> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each object with its references; an object may come several times.
    pub fn objects(&self) -> impl Iterator<Item = (O, u32)> {
        self.0.iter().map(|((_, object), count)| (*object, *count))
    }

    /// Adds references of the graph at `way`; `None` if there would be too many.
    pub fn add(&mut self, way: &[NodeId], object: O, count: u32) -> Option<()> {
        let held = self.0.entry((way.to_vec(), object)).or_default();
        *held = held.checked_add(count)?;
        Some(())
    }

    /// Removes references of the graph at `way`; `None` if it has not that many.
    pub fn subtract(&mut self, way: &[NodeId], object: O, count: u32) -> Option<()> {
        let key = (way.to_vec(), object);
        let held = self.0.get_mut(&key)?;
        *held = held.checked_sub(count)?;
        if *held == 0 {
            self.0.remove(&key);
        }
        Some(())
    }

    /// Keeps the references for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(O, u32) -> bool) {
        self.0.retain(|(_, object), count| keep(*object, *count));
    }

    /// The references of the graph at `way` and of all inside it, as that graph names them.
    pub fn inside(&self, way: &[NodeId]) -> Self {
        let from_there = |((path, object), count): (&(Vec<NodeId>, O), &u32)| {
            let path = path.strip_prefix(way)?.to_vec();
            Some(((path, *object), *count))
        };
        Self(self.0.iter().filter_map(from_there).collect())
    }

    /// Replaces the references of the graph at `way` and of all inside it by `held`, and returns those that it had.
    #[must_use]
    pub fn exchange(&mut self, way: &[NodeId], held: Self) -> Self {
        let before = self.inside(way);
        self.0.retain(|(path, _), _| !path.starts_with(way));
        for ((path, object), count) in held.0 {
            self.0.insert(([way, &path].concat(), object), count);
        }
        before
    }

    /// The same references with the ways that `renamed` returns.
    pub fn renamed(&self, renamed: impl Fn(&[NodeId]) -> Option<Vec<NodeId>>) -> Self {
        let mut all = Self::default();
        for ((path, object), count) in &self.0 {
            let path = renamed(path).unwrap_or_default();
            let held = all.0.entry((path, *object)).or_default();
            *held = held.saturating_add(*count);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_a_graph_inside_go_with_it() {
        let (object, way) = (16, [NodeId(3)]);
        let mut child = Held::default();
        child.add(&[], object, 2).unwrap();
        child.add(&[NodeId(1)], object, 5).unwrap();
        let mut graph = Held::default();
        graph.add(&[], object, 1).unwrap();
        assert!(graph.exchange(&way, child.clone()).is_empty());
        assert_eq!(graph.inside(&way), child);
        assert_eq!(graph.inside(&[]), graph);
        graph.subtract(&way, object, 2).unwrap();
        assert!(graph.subtract(&way, object, 1).is_none());
        assert!(graph.subtract(&[], object, 2).is_none());
        let mut rest = Held::default();
        rest.add(&[NodeId(1)], object, 5).unwrap();
        assert_eq!(graph.exchange(&way, Held::default()), rest);
        assert!(graph.inside(&way).is_empty() && !graph.is_empty());
    }
}
