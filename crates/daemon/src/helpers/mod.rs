//! Modes in which the daemon's executable runs as a helper process, and the PID namespace that restored programs live in.

pub mod init;
pub mod modes;
pub mod namespace;
