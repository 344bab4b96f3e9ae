//! Entry of the worker process.
fn main() {}
