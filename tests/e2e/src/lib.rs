//! End-to-end runner: crosses program, device, protocol, moment and fault.
//!
//! It knows Fermata only from outside: the files in `build/` and the command
//! line. A case runs a program under Fermata, checkpoints it at a seeded moment,
//! kills program and worker, restores the image, and demands the digest of the
//! uninterrupted run, from a new process that did not run the prefix again.
//!
//! It must never leave anything behind: what a case started is found by a mark
//! in its environment, reported if it outlives the case, and ended.

#![forbid(unsafe_code)]

#[path = "../../adversary/mod.rs"]
pub mod adversary;
pub mod appender;
pub mod case;
pub mod command;
pub mod deaths;
pub mod disk;
pub mod executable;
pub mod fermata;
pub mod halt;
pub mod held;
#[path = "../../../crates/softgpu/tests/common/hold.rs"]
pub mod hold;
pub mod moment;
pub mod output;
pub mod processes;
pub mod programs;
pub mod report;
pub mod sandbox;
pub mod scene;
pub mod tree;
