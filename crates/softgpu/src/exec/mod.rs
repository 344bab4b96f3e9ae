//! Running PTX on the CPU: the interface between the driver part of the software GPU and its compiler.
//!
//! The driver part loads a module's PTX text, places its variables in device memory, and asks for
//! launches. This part parses, compiles (Cranelift) and executes. It never allocates device memory,
//! knows nothing of streams or contexts, and never prints.

mod compile;
mod descriptor;
mod interface;
mod layout;
mod module;
mod runtime;
pub mod texture;
mod translate;

pub use interface::{
    Fault, GlobalVar, Host, KernelInfo, Launch, LoadError, ParamInfo, Reach, Referent, Relocation,
    VarSpace, WINDOW_BASE, WINDOW_END,
};
pub use module::{LinkedModule, UnlinkedModule};
pub use runtime::threads::set as set_threads;

/// Blocks that can run at once in a process, whatever a device would run.
pub const MOST_BLOCKS: u64 = runtime::window::SLOTS;
