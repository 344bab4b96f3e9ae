//! The references on user objects that a graph, an executable graph or a launch holds.
//!
//! A clone, a child graph and an executable graph hold references of their own, and a launch those that its executable graph
//! had (CUDA C++ Programming Guide, CUDA User Objects). They are released when this is dropped, which may call the program:
//! never under a lock.

use std::collections::BTreeMap;

use fermata_graph::NodeId;

use super::UserObject;
use crate::driver::{self, Driver};
use crate::error::{INVALID_VALUE, Result};

/// Counts of references, by the way to the graph inside that was given them and the object's handle.
#[derive(Debug, Default)]
pub struct HeldObjects(BTreeMap<(Vec<NodeId>, u64), u32>);

impl Drop for HeldObjects {
    fn drop(&mut self) {
        if let Ok(driver) = driver::running() {
            for ((_, object), count) in std::mem::take(&mut self.0) {
                // An object that the program has released too often is gone already.
                let _ = UserObject::release(driver, object, count);
            }
        }
    }
}

impl HeldObjects {
    /// Takes over references for the graph at `way`.
    ///
    /// # Errors
    /// There are too many.
    pub fn add(&mut self, way: &[NodeId], object: u64, count: u32) -> Result {
        let held = self.0.entry((way.to_vec(), object)).or_default();
        *held = held.checked_add(count).ok_or(INVALID_VALUE)?;
        Ok(())
    }

    /// Hands references of the graph at `way` to the caller.
    ///
    /// # Errors
    /// It has not that many.
    pub fn subtract(&mut self, way: &[NodeId], object: u64, count: u32) -> Result {
        let key = (way.to_vec(), object);
        let held = self.0.get_mut(&key).ok_or(INVALID_VALUE)?;
        *held = held.checked_sub(count).ok_or(INVALID_VALUE)?;
        if *held == 0 {
            self.0.remove(&key);
        }
        Ok(())
    }

    /// As many references as the graph at `way` and all inside it hold, with ways from there.
    #[must_use]
    pub fn copied(&self, driver: &Driver, way: &[NodeId]) -> Self {
        let mut copy = Self::default();
        for ((path, object), count) in &self.0 {
            if let Some(path) = path.strip_prefix(way)
                && UserObject::retain(driver, *object, *count).is_ok()
            {
                copy.0.insert((path.to_vec(), *object), *count);
            }
        }
        copy
    }

    /// Gives the graph at `way` the references of `new`, and returns those that it and all inside it held.
    #[must_use]
    pub fn exchange(&mut self, way: &[NodeId], mut new: Self) -> Self {
        let all = std::mem::take(&mut self.0);
        let (before, rest) = all
            .into_iter()
            .partition(|((path, _), _)| path.starts_with(way));
        self.0 = rest;
        for ((path, object), count) in std::mem::take(&mut new.0) {
            self.0.insert(([way, &path].concat(), object), count);
        }
        Self(before)
    }

    /// The same references with the ways that `renamed` returns.
    #[must_use]
    pub fn renamed(mut self, renamed: impl Fn(&[NodeId]) -> Option<Vec<NodeId>>) -> Self {
        let mut all = Self::default();
        for ((path, object), count) in std::mem::take(&mut self.0) {
            let path = renamed(&path).unwrap_or_default();
            let held = all.0.entry((path, object)).or_default();
            *held = held.saturating_add(count);
        }
        all
    }
}
