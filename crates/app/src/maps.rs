//! Which addresses of this process can be read and written, as the kernel lists them.
//!
//! A protected pointer that has been freed is found here before it is touched, where its pages are gone.

use std::path::Path;

use crate::{AppError, Result};

/// The process's mappings at one moment, by ascending address.
pub(crate) struct Maps {
    ranges: Vec<Range>,
}

struct Range {
    start: u64,
    end: u64,
    read: bool,
    write: bool,
}

impl Maps {
    /// The mappings as they are now.
    pub(crate) fn now() -> Result<Self> {
        let path = Path::new("/proc/self/maps");
        let text = std::fs::read(path).map_err(|source| AppError::Io {
            op: "read",
            path: path.into(),
            source,
        })?;
        // Names of files need not be UTF-8.
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let (addresses, rest) = line.split_once(' ')?;
            let (start, end) = addresses.split_once('-')?;
            let flags = rest.as_bytes();
            Some(Range {
                start: u64::from_str_radix(start, 16).ok()?,
                end: u64::from_str_radix(end, 16).ok()?,
                read: flags.first() == Some(&b'r'),
                write: flags.get(1) == Some(&b'w'),
            })
        };
        Self {
            ranges: text.lines().filter_map(range).collect(),
        }
    }

    /// Whether all bytes from `start` can be read, and written if `write`.
    pub(crate) fn allows(&self, start: u64, bytes: u64, write: bool) -> bool {
        let Some(end) = start.checked_add(bytes) else {
            return false;
        };
        let mut at = start;
        let first = self.ranges.partition_point(|r| r.end <= start);
        for r in &self.ranges[first..] {
            if at >= end {
                break;
            }
            if r.start > at || !r.read || (write && !r.write) {
                return false;
            }
            at = r.end;
        }
        at >= end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_protections_are_seen() {
        let maps = Maps::parse(
            "1000-2000 rw-p 0 00:00 0\n2000-3000 r--p 0 00:00 0 /x\n4000-5000 ---p 0 00:00 0\n",
        );
        assert!(maps.allows(0x1000, 0x1000, true));
        assert!(maps.allows(0x1800, 0x1000, false));
        assert!(!maps.allows(0x1800, 0x1000, true));
        assert!(!maps.allows(0x2800, 0x1000, false));
        assert!(!maps.allows(0x4000, 1, false));
        assert!(!maps.allows(0x6000, 1, false));
        assert!(!maps.allows(u64::MAX, 2, false));
        assert!(maps.allows(0x1000, 0, true));
    }

    #[test]
    fn this_process_can_read_its_stack() {
        let here = 7u64;
        let at = std::ptr::from_ref(&here) as u64;
        assert!(Maps::now().unwrap().allows(at, 8, true));
        assert!(!Maps::now().unwrap().allows(8, 8, false));
    }
}
