//! A software GPU: the CUDA driver API on the CPU.
//!
//! ```text
//!   api        exported functions: arguments in, result codes out
//!   context, stream, event, work ...   what exists and what runs when
//!   memory     what lies where
//!   exec       PTX to machine code, and its execution
//! ```
//!
//! | files | subject |
//! | --- | --- |
//! | `driver`, `handle`, `objects`, `primary`, `settings`, `error`, `names`, `log` | the driver of the process, and what all objects need |
//! | `device`, `attributes`, `occupancy`, `account` | devices and what they say of themselves |
//! | `context`, `disposal`, `module`, `image`, `jit`, `library`, `link`, `function` | contexts and code |
//! | `stream`, `work`, `event`, `mark`, `recordings`, `launch`, `copy`, `capture`, `graph/` | what runs when |
//! | `memory/`, `pool`, `opened`, `array`, `mipmap`, `view`, `reference` | memory, arrays, textures |
//! | `checkpoint`, `remote/` | the driver's own checkpoint, of this process and of others |
//! | `hold` | what tests hold up |
//!
//! The library is `libcuda.so.1` for programs that link or load it. Its settings are environment
//! variables, listed in [`settings`].

mod account;
pub mod api;
mod array;
mod attributes;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod device;
mod disposal;
mod driver;
mod error;
mod event;
pub mod exec;
mod function;
mod graph;
mod green;
mod handle;
mod hold;
mod image;
mod jit;
mod launch;
mod library;
mod link;
mod log;
mod mark;
mod memory;
mod mipmap;
mod module;
mod names;
mod objects;
mod occupancy;
mod opened;
mod pool;
mod primary;
mod recordings;
mod reference;
mod remote;
pub mod settings;
mod stream;
mod uuid;
mod view;
mod work;
