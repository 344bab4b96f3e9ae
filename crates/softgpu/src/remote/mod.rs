//! `cuCheckpointProcess*` for a process other than the caller: the software GPU's counterpart of the thread that NVIDIA's
//! driver keeps in every program for this.
//!
//! ```text
//!  caller                                        process with this driver
//!  command ──── signal with a value ───────────► helper thread, which waits for signals and does it (`helper`)
//!  answer  ◄─── /proc/PID/mem ─────────────────  a page at a fixed address (`page`): state, answers
//! ```
//! The thread and the page are memory and registers of the process and nothing else: no descriptor, no name in a file system
//! or network. So CRIU dumps them with the process, and they serve in a restored one, and in copies of it, under whatever
//! number it has there.

pub mod caller;
pub mod helper;
pub mod page;
