//! Tells the compiler that `--cfg loom` is a known switch: it builds the model of the ring's protocol.
fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rerun-if-changed=build.rs");
}
