//! Gives the shared library the name by which programs ask for the CUDA driver.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads run its code until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Addresses handed out by cuGetProcAddress are ours even where another libcuda was loaded first.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
