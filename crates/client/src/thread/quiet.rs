//! Keeps panics of this library off the program's stderr; they go to the notice file.
//!
//! Rust's panic hook writes before the panic can be caught. The shared library has its own copy of Rust's standard
//! library, so the hook set here is not that of a program written in Rust. Where the copy is shared (in tests), panics
//! outside this library go to the previous hook.

use std::cell::Cell;
use std::sync::Once;

use crate::thread::gate;

use crate::notice;

thread_local! {
    /// Whether the thread is the library's own.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as the library's own.
pub fn is_ours() {
    OURS.set(true);
}

/// Installs the hook that writes panics of this library to the notice file.
pub fn arm() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if OURS.get() || gate::is_current_inside() {
                notice::write(&format!("a defect of Fermata's driver library: {panic}"));
            } else {
                before(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use fermata_abi::sys::driver::CUDA_ERROR_UNKNOWN;

    use crate::thread::scene::alone;

    #[test]
    #[ignore = "a program for the test below"]
    fn defect() {
        let status = crate::frame::entry::call("test", || panic!("a defect, made for a test"));
        assert_eq!(status, CUDA_ERROR_UNKNOWN);
    }

    #[test]
    fn a_panic_inside_a_call_is_an_error_and_silent() {
        let errors = alone("thread::quiet::tests::defect");
        assert!(!errors.contains("a defect"), "{errors}");
    }
}
