//! The client: the driver library that the program loads. It forwards calls to the worker.
//!
//! ```text
//!   program ─► api ─► frame (gate, panic guard) ─► work, object (context, module, stream, copy ...) ─► link ─► ring
//!                                                          │
//!   daemon ◄─► agent ─► quiesce, detach, reattach ─────────┘
//! ```
//! The library has no driver state: handles are numbers made here, device addresses belong to the worker.
//! It does nothing before `cuInit`, prints nothing, and has no thread but its agent (and one that runs
//! host callbacks, if the program uses them).
//!
//! A file may use what lies in its own folder and in those below it; `cargo xtask check` holds it to that:
//!
//! | folder, from above | what is in it |
//! | --- | --- |
//! | `api` | the exported functions, by family |
//! | `frame` | what surrounds every call: gate and panic guard, the end of a thread, a fork |
//! | `agent` | the thread that serves the daemon; how the session begins and stops |
//! | `work` | what families of functions have in common, over the objects of the session |
//! | `object` | a table for each kind of object, and the session, which holds them |
//! | `link` | the ring and the daemon's socket: what goes out and comes in |
//! | `thread` | the program's threads: the gate at which they stop, signals |
//! | the crate's root | arguments, results, handles, notices |
mod agent;
mod api;
mod args;
mod frame;
mod handles;
mod link;
mod notice;
mod object;
mod result;
mod thread;
mod work;
