//! The ranks' bridge as a table of functions.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use fermata_app::{AppError, Comm};

use crate::error::misuse;

/// `fermata_comm`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table {
    size_of_this: usize,
    context: *mut c_void,
    rank: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    size: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    barrier: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    broadcast: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> c_int>,
    gather: Option<
        unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, c_int) -> c_int,
    >,
    send: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int) -> c_int>,
    receive: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> c_int>,
    /// A context for another thread, or null. Not in the first release's table.
    behind: *mut c_void,
}

/// Bytes of the table in the first release.
const FIRST: usize = std::mem::offset_of!(Table, behind);

/// The table with its rank and size read once.
pub(crate) struct Bridge {
    table: Table,
    rank: u32,
    size: u32,
}

// SAFETY: the table's functions are called with one context by one thread at a time; the header says which.
unsafe impl Send for Bridge {}

const OP: &str = "use the ranks' bridge";

impl Bridge {
    /// Copies the table at `table`.
    ///
    /// # Safety
    /// `table` can be read, and its functions do what the header says.
    pub(crate) unsafe fn new(table: *const Table) -> Result<Self, AppError> {
        // SAFETY: the first field says how much of it there is.
        let bytes = unsafe { (*table).size_of_this };
        if bytes < FIRST {
            return Err(misuse(OP, "size_of_this is not sizeof(fermata_comm)"));
        }
        // SAFETY: the caller vouches for as many bytes; what is not there is null, a value of each field.
        let table = unsafe {
            let mut copy = MaybeUninit::<Table>::zeroed();
            let known = bytes.min(size_of::<Table>());
            std::ptr::copy_nonoverlapping(table.cast::<u8>(), copy.as_mut_ptr().cast(), known);
            copy.assume_init()
        };
        let (mut rank, mut size) = (0, 0);
        let (Some(get_rank), Some(get_size)) = (table.rank, table.size) else {
            return Err(misuse(OP, "it has no rank or no size"));
        };
        // SAFETY: the caller vouches for the functions; the pointers are live locals.
        unsafe {
            check("rank", get_rank(table.context, &mut rank))?;
            check("size", get_size(table.context, &mut size))?;
        }
        match (u32::try_from(rank), u32::try_from(size)) {
            (Ok(rank), Ok(size)) if rank < size => Ok(Self { table, rank, size }),
            _ => Err(misuse(OP, &format!("rank {rank} of {size} cannot be"))),
        }
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), AppError> {
    match code {
        0 => Ok(()),
        code => Err(AppError::Ranks { call, code }),
    }
}

fn absent(call: &'static str) -> AppError {
    misuse(OP, &format!("it has no `{call}`"))
}

impl Comm for Bridge {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn barrier(&self) -> Result<(), AppError> {
        let f = self.table.barrier.ok_or_else(|| absent("barrier"))?;
        // SAFETY: `new`'s caller vouches for the function.
        check("barrier", unsafe { f(self.table.context) })
    }

    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<(), AppError> {
        let f = self.table.broadcast.ok_or_else(|| absent("broadcast"))?;
        let data = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: `new`'s caller vouches for the function; the buffer has that many bytes.
        let code = unsafe { f(self.table.context, data, bytes.len(), root as c_int) };
        check("broadcast", code)
    }

    fn gather(&self, mine: &[u8], all: &mut [u8], root: u32) -> Result<(), AppError> {
        let f = self.table.gather.ok_or_else(|| absent("gather"))?;
        let from = mine.as_ptr().cast::<c_void>();
        let to = match self.rank == root {
            true if all.len() == mine.len() * self.size as usize => all.as_mut_ptr(),
            true => return Err(AppError::Fault("a gather of the wrong length")),
            false => std::ptr::null_mut(),
        };
        let to = to.cast::<c_void>();
        // SAFETY: `new`'s caller vouches for the function; the buffers have the bytes that are said.
        let code = unsafe { f(self.table.context, from, mine.len(), to, root as c_int) };
        check("gather", code)
    }

    fn send(&self, bytes: &[u8], to: u32) -> Result<(), AppError> {
        let f = self.table.send.ok_or_else(|| absent("send"))?;
        let data = bytes.as_ptr().cast::<c_void>();
        // SAFETY: `new`'s caller vouches for the function; the buffer has that many bytes.
        let code = unsafe { f(self.table.context, data, bytes.len(), to as c_int) };
        check("send", code)
    }

    fn receive(&self, bytes: &mut [u8], from: u32) -> Result<(), AppError> {
        let f = self.table.receive.ok_or_else(|| absent("receive"))?;
        let data = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: `new`'s caller vouches for the function; the buffer has that many bytes.
        let code = unsafe { f(self.table.context, data, bytes.len(), from as c_int) };
        check("receive", code)
    }

    fn behind(&self) -> Result<Option<Box<dyn Comm>>, AppError> {
        let table = Table {
            context: self.table.behind,
            behind: std::ptr::null_mut(),
            ..self.table
        };
        Ok((!table.context.is_null())
            .then(|| -> Box<dyn Comm> { Box::new(Self { table, ..*self }) }))
    }
}
