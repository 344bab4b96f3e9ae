//! Reading the memory of another process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use crate::PAGE;
use crate::sys;

/// The memory of a process.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    /// Also reads what the process itself may not; slower.
    file: File,
}

impl Memory {
    /// That of process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        let file = File::open(format!("/proc/{pid}/mem"))?;
        Ok(Self { pid, file })
    }

    /// Reads `ranges`, whole pages, one behind the other into `buffer`, which is as long as they are together. Pages that
    /// are not there are handed to `missing`, and their bytes are undefined.
    pub fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8], missing: &mut impl FnMut(u64)) {
        if sys::read_process(self.pid, ranges, buffer).is_ok_and(|it| it == buffer.len()) {
            return;
        }
        let pages = ranges
            .iter()
            .flat_map(|it| it.clone().step_by(PAGE as usize));
        for (address, page) in pages.zip(buffer.chunks_exact_mut(PAGE as usize)) {
            if self.file.read_exact_at(page, address).is_err() {
                missing(address);
            }
        }
    }
}
