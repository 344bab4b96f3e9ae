//! `libcublas.so.13` and `libcublasLt.so.13` for programs on the software GPU: NVIDIA's libraries hold machine code only,
//! which it cannot run ([decision 042](../../../docs/decisions/042-blas-for-the-software-gpu.md)).
//!
//! ```text
//!   product, vector ─┐                          ┌─ types: which kernel multiplies these types
//!   lt ──────────────┼─► request: one launch ───┤
//!   settings ────────┘      │                   └─ handle: stream, pointer mode, the loaded kernels
//!                           └─► kernels: kernels/blas.ptx ─► driver: the program's libcuda.so.1
//! ```
//! All work is launches of kernels through the program's driver, in the order of the handle's stream. So it is captured,
//! checkpointed and restored as any other kernel, and under Fermata, where device memory is not the program's, it works too.
//! What cannot be computed is refused with `CUBLAS_STATUS_NOT_SUPPORTED`; on a GPU, no handle is made. It never prints,
//! and nothing unwinds out of it.

mod absent;
mod copies;
mod driver;
mod handle;
mod kernels;
mod lt;
mod product;
mod registry;
mod request;
mod settings;
mod status;
mod types;
mod vector;
