//! Free space of a file system, in bytes and files: checked before much is written, and named in the error when it runs out.

use std::path::Path;

use crate::{HostMemory, is_memory};

/// What a file system has left for this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes.
    pub bytes: u64,
    /// Files and folders; `None` where they are not counted.
    pub files: Option<u64>,
}

impl FreeSpace {
    /// That of the file system of `path`, or of where it will be made; of one in memory no more than the host has available.
    pub fn of(path: &Path) -> Option<Self> {
        let there = path.ancestors().find(|it| it.exists())?;
        let stat = rustix::fs::statvfs(there).ok()?;
        let memory = is_memory(there).then(HostMemory::now).flatten();
        let available = memory.map_or(u64::MAX, |it| it.available);
        Some(Self {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize).min(available),
            files: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }

    /// The end of a message about something that needed `needed` bytes.
    pub(crate) fn text(left: &Option<Self>, needed: u64) -> String {
        let need = match needed {
            0 => String::new(),
            n => format!("{n} bytes more are needed, "),
        };
        match left {
            None => format!("{need}the file system has none"),
            Some(Self { files: Some(0), .. }) => {
                format!("{need}the file system takes no more files")
            }
            // Others may have freed some since, and a quota is not seen here.
            Some(left) => format!("{need}its file system has {} bytes left", left.bytes),
        }
    }
}
