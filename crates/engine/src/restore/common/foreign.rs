//! Memory of another worker, as a descriptor.

use std::os::fd::OwnedFd;

/// Memory of another worker.
#[derive(Debug)]
pub(in crate::restore) struct Foreign(pub OwnedFd);

#[cfg(test)]
impl PartialEq for Foreign {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(test)]
impl Eq for Foreign {}
