//! Brings the memory of restored processes while they run: pages that they touch first, the others behind them.
//!
//! ```text
//!  criu restore ─ lazy-pages.socket ─► Server ── a copy of each userfaultfd ──► hold (process 1 of the namespace)
//!    one userfaultfd for each process     │
//!                                         ├─ page fault: the pages around it, from `pages-N.img` (`content`), or zeros
//!                                         ├─ fork, mremap, munmap, madvise: the same is done to what is missing
//!                                         └─ nothing to answer: what earlier restores have waited for (`learnt`) and the working set,
//!                                            read before there was a place for it (`process_pages`), then pages in the order of addresses
//!  nothing is missing: both let go of the descriptors, and the kernel forgets that there were any
//! ```
//! Pages that nobody waits for take a part of a disk's time only (`share`), as long as others bring the program's data from there.
//!
//! This takes the place of `criu lazy-pages`, with the same socket. That one waits for ever for pages of a mapping that the
//! program has split since, forgets page faults that come while the program moves memory, gives up the surveillance of
//! discarded memory, which splits mappings, and ends at an error, whereupon the kernel shows zeros to the program.
//!
//! The kernel shows zeros in place of missing pages as soon as nothing holds a userfaultfd any more. So a second process
//! holds each of them, and ends the program if the first one dies ([`hold()`]).
//!
//! **Order.** The kernel reports page faults before events, whichever came first, and what a program has done to its memory
//! may be undone before it is reported. It refuses (`EAGAIN`) every page while an event has not been read. So events are
//! applied before page faults are answered, and what was refused is tried again.

mod ahead;
mod bytes;
mod content;
mod hold;
mod learnt;
mod missing;
mod process;
mod process_pages;
mod server;
mod share;
mod sys;

pub use content::{Folder, PageBytes, PageFiles};
pub use hold::hold;
pub use learnt::Learnt;
pub use server::{Server, Turn};
