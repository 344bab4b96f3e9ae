//! Sessions, worker pool, CRIU, supervision.
#![deny(unsafe_code)]

pub mod criu;
mod criu_rpc;
pub mod failure;
mod init;
pub mod namespace;
pub mod proc;
mod sys;

pub use init::helper;
