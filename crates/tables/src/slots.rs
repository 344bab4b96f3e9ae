//! The shape of a table: an array of function addresses, whose first slot is its size in bytes.
//!
//! ```text
//!   slot 0          slots 1 to N-1                     slots N to 127
//!   size: 8 * N     functions; a refusal where none    refusals
//! ```
//! A newer runtime may call a slot that lies behind the end it was told: those refuse too, so that it gets
//! an error instead of a jump into nothing.

use core::ffi::c_void;

use fermata_abi::sys::driver::{CUDA_ERROR_NOT_SUPPORTED, CUresult};

use crate::driver::{call, name, refuse};

const ROWS: usize = 16;
const COLUMNS: usize = 8;

/// A slot: the address of a function, or the table's size.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Slot(*const c_void);

/// A table as its users see it.
#[repr(C)]
pub struct Table([[Slot; COLUMNS]; ROWS]);

// SAFETY: a table is never written after it was made, and its functions may be called by any thread.
unsafe impl Sync for Table {}

/// Which table a refusal speaks of.
pub trait Named {
    /// The table's identifier.
    const ID: [u8; 16];
}

impl Table {
    /// A table of `slots` slots, all of which refuse.
    pub const fn new<T: Named>(slots: usize) -> Self {
        let mut table = Self::without_size::<T>();
        table.0[0][0] = Slot(core::ptr::without_provenance(8 * slots));
        table
    }

    /// As [`Table::new`], for the one kind of table whose first slot is a function.
    pub const fn without_size<T: Named>() -> Self {
        Self([
            row::<T, 0>(),
            row::<T, 1>(),
            row::<T, 2>(),
            row::<T, 3>(),
            row::<T, 4>(),
            row::<T, 5>(),
            row::<T, 6>(),
            row::<T, 7>(),
            row::<T, 8>(),
            row::<T, 9>(),
            row::<T, 10>(),
            row::<T, 11>(),
            row::<T, 12>(),
            row::<T, 13>(),
            row::<T, 14>(),
            row::<T, 15>(),
        ])
    }

    /// The table with `function` in the slot `at`.
    pub const fn with(mut self, at: usize, function: *const c_void) -> Self {
        self.0[at / COLUMNS][at % COLUMNS] = Slot(function);
        self
    }

    /// Where it lies.
    pub fn address(&'static self) -> *const c_void {
        core::ptr::from_ref(self).cast()
    }

    /// The contents of a slot.
    pub fn slot(&self, at: usize) -> *const c_void {
        self.0[at / COLUMNS][at % COLUMNS].0
    }
}

const fn row<T: Named, const ROW: usize>() -> [Slot; COLUMNS] {
    [
        Slot(refusal::<T, ROW, 0> as *const c_void),
        Slot(refusal::<T, ROW, 1> as *const c_void),
        Slot(refusal::<T, ROW, 2> as *const c_void),
        Slot(refusal::<T, ROW, 3> as *const c_void),
        Slot(refusal::<T, ROW, 4> as *const c_void),
        Slot(refusal::<T, ROW, 5> as *const c_void),
        Slot(refusal::<T, ROW, 6> as *const c_void),
        Slot(refusal::<T, ROW, 7> as *const c_void),
    ]
}

/// What stands in a slot of which nothing is known. Its arguments are unknown and so left alone.
extern "C" fn refusal<T: Named, const ROW: usize, const COLUMN: usize>() -> CUresult {
    let slot = ROW * COLUMNS + COLUMN;
    let tell = || {
        let table = name(&T::ID);
        refuse(format!(
            "slot {slot} of the driver's undocumented table {table}"
        ));
        Err(CUDA_ERROR_NOT_SUPPORTED)
    };
    call(|_| tell())
}
