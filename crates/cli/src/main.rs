//! The fermata command.
fn main() {}
