//! Questions to the kernel about the pages of a process (`ioctl(PAGEMAP_SCAN)` of `/proc/PID/pagemap`).
//!
//! | question | answer |
//! | --- | --- |
//! | `private` | pages with content of the process's own |
//! | `content` | pages with content, and which of them are a file's, and which are tracked |
//! | `protect` | those written since they were last protected, which protects them again |
//! | `changed` | pages written or gone since: fast, for large mappings that hardly change |
//! | `guards` | pages that the program has made inaccessible |
//!
//! The same file says in which frame of memory a page lies (`frames`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use crate::maps::{Kind, Mapping};
use crate::sys::{self, Region, ScanArgument};

const WP_ALLOWED: u64 = 1 << 0;
const WRITTEN: u64 = 1 << 1;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
/// Pages that a program has made inaccessible (`MADV_GUARD_INSTALL`); known from Linux 6.15 on.
const GUARD: u64 = 1 << 8;

/// Protect what matches.
const PROTECT: u64 = 1 << 0;
/// Fail with `EPERM` where nothing is tracked.
const ONLY_TRACKED: u64 = 1 << 1;

/// In an entry of the file (Documentation/admin-guide/mm/pagemap.rst): the page is in memory, and in which frame.
const IN_MEMORY: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Regions that one call can return.
const REGIONS: usize = 4096;

/// Some pages, one behind the other, that are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pages {
    /// Their addresses.
    pub range: Range<u64>,
    categories: u64,
}

impl Pages {
    /// Whether they have no content: nothing is there, or the kernel's page of zeros.
    pub fn are_empty(&self) -> bool {
        self.categories & (PRESENT | SWAPPED) == 0 || self.categories & (ZERO | GUARD) != 0
    }

    /// Whether they are certainly what they were when they were protected.
    pub fn are_unchanged(&self) -> bool {
        self.categories & (WRITTEN | PRESENT) == PRESENT
    }

    /// Whether their mapping is tracked, by whomever; for answers to [`Pagemap::content`].
    pub fn are_tracked(&self) -> bool {
        self.categories & WP_ALLOWED != 0
    }

    /// Whether they may have been written. A page that was swapped out is, as far as is known.
    pub fn are_written(&self) -> bool {
        self.categories & WRITTEN != 0
    }
}

/// The pages of one process, as long as it does not execute another program.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    regions: Vec<Region>,
}

impl Pagemap {
    /// Those of process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            file: File::open(format!("/proc/{pid}/pagemap"))?,
            regions: vec![Region::default(); REGIONS],
        })
    }

    /// Pages in `range` with content of the process's own.
    pub fn private(&mut self, range: &Range<u64>, kind: Kind) -> io::Result<Vec<Pages>> {
        self.ask(range, with_content(kind, WRITTEN))
    }

    /// Pages in `range`, of any mappings, with content of whomever.
    pub fn content(&mut self, range: &Range<u64>) -> io::Result<Vec<Pages>> {
        self.ask(range, with_content(Kind::Anonymous, FILE | WP_ALLOWED))
    }

    /// Pages among these that were written since they were last protected; they are protected now.
    ///
    /// # Errors
    /// `EPERM` where the mapping is not tracked.
    pub fn protect(&mut self, range: &Range<u64>, kind: Kind) -> io::Result<Vec<Pages>> {
        let own = with_content(kind, WRITTEN);
        self.ask(
            range,
            ScanArgument {
                flags: PROTECT | ONLY_TRACKED,
                mask: own.mask | WRITTEN,
                ..own
            },
        )
    }

    /// Pages in `range`, of an anonymous mapping, that were written since they were protected, or are not in memory.
    ///
    /// # Errors
    /// `EPERM` where the mapping is not tracked.
    pub fn changed(&mut self, range: &Range<u64>) -> io::Result<Vec<Pages>> {
        self.ask(
            range,
            ScanArgument {
                flags: ONLY_TRACKED,
                inverted: PRESENT,
                mask: 0,
                any: WRITTEN | PRESENT,
                returned: PRESENT | SWAPPED | WRITTEN | ZERO | guard(),
                ..ScanArgument::default()
            },
        )
    }

    /// Pages in `range`, of any mappings, that the process has made inaccessible.
    ///
    /// # Errors
    /// `EINVAL` from a kernel that does not tell ([`knows_guards`]).
    pub fn guards(&mut self, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let argument = ScanArgument {
            mask: GUARD,
            returned: GUARD,
            ..ScanArgument::default()
        };
        let found = self.ask(range, argument)?;
        Ok(found.into_iter().map(|it| it.range).collect())
    }

    /// Whether the mapping that begins at `start` is tracked.
    pub fn is_tracked(&mut self, start: u64) -> io::Result<bool> {
        let argument = ScanArgument {
            flags: ONLY_TRACKED,
            any: PRESENT,
            returned: PRESENT,
            ..ScanArgument::default()
        };
        match self.ask(&(start..start + crate::PAGE), argument) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The frame of each page of `range`; none of one that is not in memory, and without `CAP_SYS_ADMIN` none of any.
    pub fn frames(&self, range: &Range<u64>) -> io::Result<Vec<Option<u64>>> {
        let pages = (range.end - range.start) / crate::PAGE;
        let mut bytes = vec![0; pages as usize * 8];
        let offset = range.start / crate::PAGE * 8;
        self.file.read_exact_at(&mut bytes, offset)?;
        let frame = |entry: &[u8; 8]| {
            let entry = u64::from_le_bytes(*entry);
            let frame = entry & FRAME;
            (entry & IN_MEMORY != 0 && frame != 0).then_some(frame)
        };
        Ok(bytes.as_chunks().0.iter().map(frame).collect())
    }

    fn ask(&mut self, range: &Range<u64>, question: ScanArgument) -> io::Result<Vec<Pages>> {
        let mut found: Vec<Pages> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let mut argument = ScanArgument {
                start: at,
                end: range.end,
                ..question
            };
            // The kernel makes room for as many of them, each time.
            let most = self
                .regions
                .len()
                .min(((range.end - at) / crate::PAGE) as usize);
            let regions = &mut self.regions[..most];
            let count = match sys::scan(self.file.as_fd(), &mut argument, regions) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            for region in regions.iter().take(count) {
                match found.last_mut() {
                    Some(last)
                        if last.range.end == region.start
                            && last.categories == region.categories =>
                    {
                        last.range.end = region.end;
                    }
                    _ => found.push(Pages {
                        range: region.start..region.end,
                        categories: region.categories,
                    }),
                }
            }
            if argument.walk_end <= at {
                return Err(io::ErrorKind::InvalidData.into());
            }
            // The kernel gives the first place where its own buffer was full instead of the last. What it has told of lies
            // behind it.
            let told = found.last().map_or(0, |it| it.range.end);
            at = argument.walk_end.max(told);
        }
        Ok(found)
    }
}

/// Those of `pages` that are the process's own in `mapping`; for answers to [`Pagemap::content`].
pub fn own(pages: &[Pages], mapping: &Mapping) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = mapping.range;
    let not = not_own(mapping.kind);
    let first = pages.partition_point(|it| it.range.end <= start);
    let inside = pages[first..]
        .iter()
        .take_while(move |it| it.range.start < end);
    let own = inside.filter(move |it| it.categories & not == 0);
    own.map(move |it| it.range.start.max(start)..it.range.end.min(end))
}

/// The question for pages of the process's own in a mapping of this kind, and for these categories of them.
fn with_content(kind: Kind, categories: u64) -> ScanArgument {
    let not = not_own(kind);
    ScanArgument {
        inverted: not,
        mask: not,
        any: PRESENT | SWAPPED,
        returned: PRESENT | SWAPPED | categories,
        ..ScanArgument::default()
    }
}

/// Pages that are not the process's own.
fn not_own(kind: Kind) -> u64 {
    match kind {
        Kind::Anonymous => ZERO | guard(),
        Kind::File => ZERO | FILE | guard(),
    }
}

/// Whether a private mapping of process `pid` is tracked, by any userfaultfd.
///
/// # Errors
/// It cannot be examined.
pub fn is_tracked(pid: u32) -> io::Result<bool> {
    let mappings = crate::maps::read(pid)?;
    if mappings.is_empty() {
        // It has ended; nobody has waited for it yet.
        return Ok(false);
    }
    let mut pagemap = Pagemap::open(pid)?;
    for mapping in mappings {
        if pagemap.is_tracked(mapping.range.start)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether this kernel can track writes.
pub fn is_supported() -> bool {
    answers(WP_ALLOWED)
}

/// [`GUARD`], if the kernel knows it.
fn guard() -> u64 {
    static KNOWN: OnceLock<u64> = OnceLock::new();
    *KNOWN.get_or_init(|| if answers(GUARD) { GUARD } else { 0 })
}

/// Whether this kernel tells which pages are inaccessible.
pub fn knows_guards() -> bool {
    guard() != 0
}

/// Whether the kernel knows these categories.
fn answers(categories: u64) -> bool {
    let byte = 0_u8;
    let start = (&raw const byte) as u64 & !(crate::PAGE - 1);
    let asked = Pagemap::open(std::process::id()).and_then(|mut it| {
        it.ask(
            &(start..start + crate::PAGE),
            ScanArgument {
                any: PRESENT,
                returned: categories,
                ..ScanArgument::default()
            },
        )
    });
    asked.is_ok()
}
