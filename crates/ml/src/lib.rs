//! `libnvidia-ml.so.1` for programs under Fermata: NVML's functions, answered by the daemon, so that no program opens
//! `/dev/nvidia*`, which CRIU cannot dump ([decision 027](../../../docs/decisions/027-nvml-by-datagram.md)).
//!
//! ```text
//!   program ─► exports ─► call: takes the parameters apart ─► known: what stays is asked once
//!                 │                                             └─ ask: one datagram to the daemon and one back
//!                 ├─► local: init, shutdown, error strings, what concerns the calling thread
//!                 └─► refused: what is not answered, with NVML's own errors
//! ```
//! Between two calls nothing is held: no descriptor, no thread, no lock, nothing of a device, and what is known is
//! forgotten after a restore. So it works before `cuInit`
//! and without it, in forked children, in destructors and after a restore, where the next call is answered for the new
//! devices. It never prints, and nothing unwinds out of it.

mod ask;
mod call;
mod exports;
mod known;
mod local;
mod refused;
mod users;

/// A panic of this library is an error of its caller's call, and says nothing on the program's standard error. The
/// runtime in this library is its own, so the program's and other libraries' panics are told as ever.
#[cfg(not(test))]
extern "C" fn quiet() {
    std::panic::set_hook(Box::new(|_| ()));
}

// Tests must say why they fail.
#[cfg(not(test))]
// SAFETY: the section holds pointers to functions that the loader calls once the library is mapped and relocated.
#[used]
#[unsafe(link_section = ".init_array")]
static QUIET: extern "C" fn() = quiet;
