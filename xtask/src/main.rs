//! Developer tasks: generated files and checks.
fn main() {}
