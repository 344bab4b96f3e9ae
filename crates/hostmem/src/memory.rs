//! Reading the memory of another process.
//!
//! | | `/proc/PID/mem` | `process_vm_readv` |
//! | --- | --- | --- |
//! | at once | one range | many |
//! | reads what the process itself may not | yes | no |
//! | a page that the process has in common with one that it has forked, or that has forked it | stays so | becomes its own first |
//!
//! `process_vm_readv` pins the pages that it reads, and the kernel pins none that is in common (`gup_must_unshare` in its `mm/gup.c`): a copy
//! would cost the program as much memory as it reads, and a child would have nothing in common with its parent any more.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use crate::PAGE;
use crate::sys;

/// The memory of a process.
#[derive(Debug)]
pub struct Memory {
    file: File,
    /// The process whose pages are read many at once.
    written: Option<u32>,
}

impl Memory {
    /// That of process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        let file = File::open(format!("/proc/{pid}/mem"))?;
        let written = None;
        Ok(Self { file, written })
    }

    /// The same, of which nearly nothing is read but what the process has just written: those pages are its own.
    pub fn written(pid: u32) -> io::Result<Self> {
        let written = Some(pid);
        Ok(Self {
            written,
            ..Self::open(pid)?
        })
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
        let at_once = |pid| sys::read_process(pid, ranges, buffers);
        if self
            .written
            .map(at_once)
            .is_some_and(|it| it.is_ok_and(|it| it == bytes))
        {
            return;
        }
        for (range, buffer) in ranges.iter().zip(buffers) {
            if self.file.read_exact_at(buffer, range.start).is_ok() {
                continue;
            }
            let pages = range.clone().step_by(PAGE as usize);
            for (address, page) in pages.zip(buffer.chunks_exact_mut(PAGE as usize)) {
                if self.file.read_exact_at(page, address).is_err() {
                    missing(address);
                }
            }
        }
    }
}
