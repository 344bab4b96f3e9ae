//! MXCSR, the control register of floating-point arithmetic, which each host thread has for itself.
//!
//! A program may have set it to flush subnormal numbers, to round in another way or to raise signals. Kernels must not
//! notice: they run under [`DEFAULT`], and the program's thread has its own value again afterwards.

use std::arch::asm;

/// Rounds to nearest, keeps subnormal numbers, raises no signals.
pub const DEFAULT: u32 = 0x1F80;

/// Has the calling thread compute under [`DEFAULT`] until dropped.
pub struct Defaults {
    found: u32,
}

impl Defaults {
    /// Keeps the thread's own value and loads [`DEFAULT`].
    pub fn load() -> Self {
        let found = get();
        set(DEFAULT);
        Self { found }
    }
}

impl Drop for Defaults {
    fn drop(&mut self) {
        set(self.found);
    }
}

fn get() -> u32 {
    let mut value = 0u32;
    // SAFETY: writes the register into a local variable.
    unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack)) };
    value
}

fn set(value: u32) {
    // SAFETY: `value` is [`DEFAULT`] or was read from the register, so that no reserved bit is set.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &value, options(nostack)) };
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    /// Flushes subnormal numbers, rounds up and masks nothing but inexact results.
    const OTHER: u32 = 0x8040 | 2 << 13 | 0x1000;

    #[test]
    fn the_thread_has_its_own_value_again_also_after_a_panic() {
        let own = get();
        set(OTHER);
        let inside = {
            let _defaults = Defaults::load();
            get()
        };
        let after = get();
        let failed = catch_unwind(|| {
            let _defaults = Defaults::load();
            std::panic::resume_unwind(Box::new(()));
        });
        let after_panic = get();
        set(own);
        assert!(failed.is_err());
        // The low bits tell which exceptions there have been.
        assert_eq!(inside & !0x3F, DEFAULT);
        assert_eq!([after & !0x3F, after_panic & !0x3F], [OTHER; 2]);
    }
}
