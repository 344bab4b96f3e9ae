//! The exported functions, in the driver API's groups.

mod array;
mod boxes;
mod context;
mod copy;
mod device;
mod error;
mod event;
mod fill;
mod function;
mod host;
mod init;
mod launch;
mod library;
mod memory;
mod module;
mod occupancy;
mod per_thread;
mod physical;
mod pointer;
mod pool;
mod proc_table;
mod stream;
mod unsupported;
