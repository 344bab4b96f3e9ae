//! The references on user objects that a graph, an executable graph or a launch holds.
//!
//! They are released when this is dropped, which may call the program: never under a lock.

use fermata_graph::{Held, NodeId};

use super::UserObject;
use crate::driver::{self, Driver};
use crate::error::{INVALID_VALUE, Result};

/// References on objects, by their handles.
#[derive(Debug, Default)]
pub struct HeldObjects(Held<u64>);

impl Drop for HeldObjects {
    fn drop(&mut self) {
        if let Ok(driver) = driver::running() {
            for (object, count) in self.0.objects() {
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
        self.0.add(way, object, count).ok_or(INVALID_VALUE)
    }

    /// Hands references of the graph at `way` to the caller.
    ///
    /// # Errors
    /// It has not that many.
    pub fn subtract(&mut self, way: &[NodeId], object: u64, count: u32) -> Result {
        self.0.subtract(way, object, count).ok_or(INVALID_VALUE)
    }

    /// As many references as the graph at `way` and all inside it hold, with ways from there.
    #[must_use]
    pub fn copied(&self, driver: &Driver, way: &[NodeId]) -> Self {
        let mut copy = self.0.inside(way);
        copy.retain(|object, count| UserObject::retain(driver, object, count).is_ok());
        Self(copy)
    }

    /// Gives the graph at `way` the references of `new`, and returns those that it and all inside it held.
    #[must_use]
    pub fn exchange(&mut self, way: &[NodeId], mut new: Self) -> Self {
        Self(self.0.exchange(way, std::mem::take(&mut new.0)))
    }

    /// The same references with the ways that `renamed` returns.
    #[must_use]
    pub fn renamed(mut self, renamed: impl Fn(&[NodeId]) -> Option<Vec<NodeId>>) -> Self {
        Self(std::mem::take(&mut self.0).renamed(renamed))
    }
}
