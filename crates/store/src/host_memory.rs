//! The host's memory, which file systems in memory share with all programs, whatever size they say they have.

use std::os::fd::AsFd;
use std::path::Path;

/// tmpfs, ramfs, hugetlbfs.
const FILE_SYSTEMS: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// That the host has.
    pub total: u64,
    /// Of these, what programs can still have.
    pub available: u64,
}

impl HostMemory {
    /// As it is now; `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|it| it.strip_prefix(name))?;
            let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kilobytes << 10)
        };
        Some(Self {
            total: field("MemTotal:")?,
            available: field("MemAvailable:")?,
        })
    }

    /// What may be taken ahead of need, so that one part of `parts` is left.
    pub fn beyond(&self, parts: u64) -> u64 {
        self.available.saturating_sub(self.total / parts)
    }
}

/// Whether the file's bytes are in memory.
pub(crate) fn holds(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|s| FILE_SYSTEMS.contains(&s.f_type))
}

/// Whether what is written below `folder`, or where that will be made, is in memory.
pub fn is_memory(folder: &Path) -> bool {
    let there = folder.ancestors().find(|it| it.exists());
    there
        .and_then(|it| rustix::fs::statfs(it).ok())
        .is_some_and(|s| FILE_SYSTEMS.contains(&s.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_it_is_left() {
        let memory =
            HostMemory::parse("MemTotal:  1600 kB\nMemFree: 1 kB\nMemAvailable:  150 kB\n");
        let memory = memory.expect("told");
        assert_eq!((memory.total, memory.available), (1600 << 10, 150 << 10));
        assert_eq!(memory.beyond(16), 50 << 10);
        assert_eq!(memory.beyond(8), 0);
        assert_eq!(HostMemory::parse("MemTotal: 5 kB"), None);
        let now = HostMemory::now().expect("told");
        assert!(now.available > 1 << 20 && now.available <= now.total);
    }
}
