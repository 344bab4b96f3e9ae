//! The host's memory, which file systems in memory share with all programs, whatever size they say they have; in a container, or another
//! control group with a limit, that of the group.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// tmpfs, ramfs, hugetlbfs.
const FILE_SYSTEMS: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// That the host has, or this process's control groups may have.
    pub total: u64,
    /// Of these, what programs can still have.
    pub available: u64,
}

/// How a version of control groups tells of memory (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
struct Groups {
    /// Where they are, below the root.
    folder: &'static str,
    /// Files with limits, of which any may have none, and the one with what is used.
    limits: &'static [&'static str],
    used: &'static str,
    /// Lines of `memory.stat` with what is used of it for files, which the kernel takes back.
    files: [&'static str; 2],
}

const SECOND: Groups = Groups {
    folder: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    files: ["inactive_file", "active_file"],
};
const FIRST: Groups = Groups {
    folder: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

impl Groups {
    /// The memory of a group; none if it has no limit.
    fn memory(&self, group: &Path) -> Option<HostMemory> {
        let number = |name: &str| {
            let text = fs::read_to_string(group.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let total = self.limits.iter().filter_map(|it| number(it)).min()?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let files = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let bytes = bytes.trim().parse::<u64>().ok()?;
            self.files.contains(&name).then_some(bytes)
        });
        let used = number(self.used)?.saturating_sub(files.sum());
        Some(HostMemory {
            total,
            available: total.saturating_sub(used),
        })
    }
}

impl HostMemory {
    /// As it is now; `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    /// As the files below `root` tell it: the least of the machine's and of the groups' that this process is in, and of those that these are in. In a
    /// container those are not to be seen, and the uppermost is its own.
    fn below(root: &Path) -> Option<Self> {
        let machine = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let limits = groups.lines().filter_map(|line| {
            // Number, controllers, path.
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let kind = match controllers {
                "" => SECOND,
                it if it.split(',').any(|it| it == "memory") => FIRST,
                _ => return None,
            };
            let top: PathBuf = root.join(kind.folder);
            let own = top.join(path.trim_start_matches('/'));
            let all = own.ancestors().take_while(|it| it.starts_with(&top));
            let limits = all.filter_map(|it| kind.memory(it));
            limits.reduce(Self::least)
        });
        Some(limits.fold(Self::parse(&machine)?, Self::least))
    }

    fn least(self, other: Self) -> Self {
        Self {
            total: self.total.min(other.total),
            available: self.available.min(other.available),
        }
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

    /// Files below a folder.
    fn put(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
    }

    #[test]
    fn a_control_group_has_no_more_than_its_limit_and_those_that_it_is_in() {
        let root = tempfile::tempdir().expect("a folder");
        let memory = |total: u64, available: u64| HostMemory { total, available };
        let told = || HostMemory::below(root.path()).expect("told");
        put(
            root.path(),
            &[("proc/meminfo", "MemTotal: 64 kB\nMemAvailable: 32 kB\n")],
        );
        assert_eq!(told(), memory(64 << 10, 32 << 10));
        put(
            root.path(),
            &[
                ("proc/self/cgroup", "4:cpu:/x\n0::/one/two\n"),
                ("sys/fs/cgroup/one/memory.max", "40000\n"),
                ("sys/fs/cgroup/one/memory.current", "30000\n"),
                ("sys/fs/cgroup/one/two/memory.max", "max\n"),
                ("sys/fs/cgroup/one/two/memory.current", "20000\n"),
            ],
        );
        assert_eq!(told(), memory(40000, 10000));
        // What is used for files can be had, and a lower limit counts.
        let stat = "anon 9000\nactive_file 3000\ninactive_file 8000\n";
        put(
            root.path(),
            &[
                ("sys/fs/cgroup/one/two/memory.high", "24000\n"),
                ("sys/fs/cgroup/one/two/memory.stat", stat),
            ],
        );
        assert_eq!(told(), memory(24000, 10000));
        put(root.path(), &[("sys/fs/cgroup/one/memory.stat", stat)]);
        assert_eq!(told(), memory(24000, 15000));
        // One that is full, by the first version, whose folder is not to be seen here.
        put(
            root.path(),
            &[
                ("proc/self/cgroup", "4:cpu,memory:/of/the/host\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "20000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "21000\n"),
                (
                    "sys/fs/cgroup/memory/memory.stat",
                    "total_active_file 100\n",
                ),
            ],
        );
        assert_eq!(told(), memory(20000, 0));
    }

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
