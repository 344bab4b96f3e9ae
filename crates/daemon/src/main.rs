//! Entry of the daemon.
fn main() {}
