//! Gives the shared library its name, and takes its exports from the header alone.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfermata.so.0");
}
