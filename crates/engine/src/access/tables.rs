//! Finds buffers that a kernel reaches through tables of pointers in device memory.
//!
//! ```text
//!  parameter ──► buffer, from the parameter on ──► pointers copied there (Session::pointers) ──► buffers
//!                          ▲                                                                        │
//!                          └──────────────────────── at most DEPTH times ◄──────────────────────────┘
//! ```
//! Batched products take the addresses of their matrices so. Only pointers that the program has copied there are known,
//! not those that a kernel has written since.

use std::collections::HashSet;

use fermata_abi::op::Address;
use fermata_state::{LONGEST_TABLE, Session};

use super::{AccessSet, Places, Target};

/// A table of structures that point to tables is followed; a linked list is not.
const DEPTH: usize = 3;

/// How a kernel uses what it reaches through pointers that it loads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Through {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
}

impl Through {
    /// Whether the kernel loads no pointer at all.
    pub fn is_nothing(self) -> bool {
        !self.read && !self.write
    }
}

/// Adds the buffers named by tables behind each of `pointers`.
pub(super) fn follow(
    session: &Session,
    places: &mut Places,
    pointers: impl Iterator<Item = Address>,
    how: Through,
    set: &mut AccessSet,
) {
    if session.pointers.is_empty() || how.is_nothing() {
        return;
    }
    let (mut read, mut named) = (HashSet::new(), HashSet::new());
    let mut level: Vec<Address> = pointers.collect();
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for pointer in level {
            let Some(buffer) = places.around(session, pointer) else {
                continue;
            };
            let behind = buffer.start + buffer.len - pointer;
            for (place, found) in session.pointers.within(pointer, behind.min(LONGEST_TABLE)) {
                if !read.insert(place) {
                    continue;
                }
                let Some(target) = places.around(session, found) else {
                    continue;
                };
                if named.insert(target.start) {
                    set.add(Target::Around(found), how.read, how.write);
                }
                next.push(found);
            }
        }
        level = next;
    }
}
