//! Copies the private memory of processes while they run, and, when they stand still, what they have written since.
//!
//! ```text
//!  program runs     acquire (a userfaultfd) ─► pass ─► pass ─► ... until little is written between two
//!  program stopped  CRIU dumps all but the tracked mappings ─► last ─► the copy is exact
//!  program runs     release; settle: CRIU's page map becomes that of both
//! ```
//! A userfaultfd with asynchronous write protection (Linux 6.7) has the kernel note which pages are written: it resolves
//! the faults by itself, so nothing waits for this process, and when the descriptor is closed, also by the death of its
//! holder, the protection is gone. `ioctl(PAGEMAP_SCAN)` reads the notes and protects again in one step.
//!
//! [`demand`] is the way back: it brings the memory of restored processes while they run.
//!
//! Whatever cannot be tracked is left to CRIU, inside the stop: shared and huge mappings, mappings that the kernel refuses,
//! and mappings made since the last pass. The kernel's own flag of a mapping (`PAGE_IS_WPALLOWED`) says who copies it, so
//! that each page is copied by exactly one of the two (`fermata-pagefilter` is CRIU's half). Beyond that CRIU leaves out what it is
//! told (`left_out`).
#![deny(unsafe_code)]

pub mod demand;
mod error;
mod extents;
mod filter;
mod frames;
mod image;
mod inject;
mod left_out;
mod looks;
mod maps;
mod memory;
mod overlay;
mod pieces;
mod places;
mod protection;
mod ranges;
mod scan;
mod slots;
mod smaps;
mod sys;
mod threads;
mod traced;
mod tracker;
mod working_set;

pub use error::{Error, Result};
pub use extents::{Exact, Extent, select};
pub use filter::WITHOUT_IO_URING;
pub use image::{InCommon, PageFile, Place, Settled, page_files, settle};
pub use inject::{acquire, check_kernel};
pub use left_out::{Known, inherited};
pub use maps::{Entry, Maps, open_flags};
pub use pieces::guards;
pub use scan::is_tracked;
pub use smaps::{can_describe, describe, private_of_files, without_file};
pub use threads::side_by_side;
pub use tracker::{Copied, Passed, Room, SETTLED, Tracker};

/// Bytes of a page: x86-64 has no other.
pub const PAGE: u64 = 4096;
