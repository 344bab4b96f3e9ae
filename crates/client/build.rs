//! Gives the shared library the name by which programs ask for the CUDA driver, and keeps it loaded: its threads and its
//! handlers of forks and of the ends of threads run on after a `dlclose`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
