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

    /// Reads `ranges`, whole pages, into `buffers`, one for each and as long. Pages that are not there are handed to
    /// `missing`, and their bytes are undefined.
    pub fn read(
        &self,
        ranges: &[Range<u64>],
        buffers: &mut [&mut [u8]],
        missing: &mut impl FnMut(u64),
    ) {
        let bytes = buffers.iter().map(|it| it.len()).sum();
        if sys::read_process(self.pid, ranges, buffers).is_ok_and(|it| it == bytes) {
            return;
        }
        let pages = ranges
            .iter()
            .flat_map(|it| it.clone().step_by(PAGE as usize));
        let buffers = buffers
            .iter_mut()
            .flat_map(|it| it.chunks_exact_mut(PAGE as usize));
        for (address, page) in pages.zip(buffers) {
            if self.file.read_exact_at(page, address).is_err() {
                missing(address);
            }
        }
    }
}
