//! Gives the shared library the name by which programs ask for cuBLAS; the other names lead to it (tools/install-tree.sh).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcublas.so.13");
    // Handles and kernels of it live until the process ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
