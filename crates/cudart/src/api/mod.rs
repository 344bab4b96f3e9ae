//! The exports, by subject. What is not here is refused by `unsupported`, which is generated.
pub mod device;
pub mod error;
pub mod event;
pub mod host_memory;
pub mod launch;
pub mod memcpy;
pub mod memory;
pub mod memset;
pub mod per_thread;
pub mod registration;
pub mod stream;
pub mod symbol;
pub mod unsupported;
