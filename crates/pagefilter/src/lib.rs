//! A library that is loaded into CRIU (`LD_PRELOAD`) for a dump, so that CRIU passes over memory that the daemon copies
//! itself, and asks the kernel for less.
//!
//! | CRIU's call | what this library does |
//! | --- | --- |
//! | `ioctl(PAGEMAP_SCAN)`: which pages of a mapping have content | `pages`: leaves out mappings that the daemon tracks, and what it lists |
//! | the same: which pages are inaccessible | `pages`: answers with what the daemon lists |
//! | `openat64` of `/proc/PID/smaps`: the flags of mappings | `mappings`: asks the daemon, which need not count pages |
//! | `fstatat64` in `/proc/PID/map_files`: the file of a mapping | `files`: answers for what the daemon lists |
//! | `fstatat64` of `/proc/PID/ns/cgroup` | `files`: says that there is none, if it is CRIU's own |
//! | `sendmsg`, `recvmsg`: all TCP sockets | `connections`: asks the kernel for those that the daemon lists |
//!
//! Every other call is the system call. CRIU's own program stays as it is, and without this library it dumps everything.
//!
//! It must never allocate, print or panic.

mod connections;
mod daemon;
mod files;
mod guards;
mod left_out;
mod list;
mod mappings;
mod pages;
mod process;
