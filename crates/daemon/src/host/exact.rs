//! Exact copies of processes' memory, when the program runs again: they become part of the image.

use std::fs::File;
use std::io;
use std::path::Path;

use fermata_control::worker::FailureKind;
use fermata_hostmem::{Copied, Exact, Extent, Settled};

use crate::failure::{OrFail, Result};

/// An exact copy of memory that CRIU has left out.
pub(crate) struct HostPages {
    pub(super) copies: Vec<CopyOfProcess>,
    pub(super) heirs: Vec<Heir>,
}

/// That of one process.
pub(super) struct CopyOfProcess {
    /// Its number in CRIU's files.
    pub inner: u32,
    pub copied: fermata_hostmem::Result<Copied>,
    /// Which of [`HostPages::copies`], one before it, is of the process that has forked it, and what is in that one's copy.
    pub parents: Option<(usize, Vec<Extent>)>,
}

/// A process, not tracked, with pages that are in the copy of another.
pub(super) struct Heir {
    /// Its number in CRIU's files.
    pub inner: u32,
    /// Which of [`HostPages::copies`] has them, and where.
    pub from: usize,
    pub exact: Exact,
}

impl HostPages {
    /// Makes the copy part of the image in `dir`; whose pages are in both it and CRIU's file.
    ///
    /// # Errors
    /// There is no image.
    pub fn settle(self, dir: &Path) -> Result<Vec<Settled>> {
        let unsettled = || format!("cannot complete the image in `{}`", dir.display());
        let (mut copies, mut all) = (Vec::new(), Vec::new());
        for one in self.copies {
            let mut copied = one.copied.or_fail(FailureKind::User, unsettled)?;
            let parents = one
                .parents
                .map(|(from, extents)| file_of(&copies[from], extents));
            copied.parents = parents
                .transpose()
                .or_fail(FailureKind::Internal, unsettled)?;
            all.extend(settle(dir, one.inner, &copied).or_fail(FailureKind::User, unsettled)?);
            copies.push(copied);
        }
        for Heir { inner, from, exact } in self.heirs {
            let copied = inherit(&copies[from], exact);
            let copied = copied.or_fail(FailureKind::Internal, unsettled)?;
            all.extend(settle(dir, inner, &copied).or_fail(FailureKind::User, unsettled)?);
        }
        Ok(all)
    }
}

fn file_of(copy: &Copied, extents: Vec<Extent>) -> io::Result<(File, Vec<Extent>)> {
    Ok((copy.file.try_clone()?, extents))
}

/// What of a copy is another process's, too.
fn inherit(copy: &Copied, exact: Exact) -> io::Result<Copied> {
    let parents = copy.parents.as_ref().map(|(file, _)| file.try_clone());
    Ok(Copied {
        file: copy.file.try_clone()?,
        extents: exact.own,
        parents: parents.transpose()?.map(|file| (file, exact.parents)),
        working_set: Vec::new(),
    })
}

fn settle(dir: &Path, inner: u32, copied: &Copied) -> fermata_hostmem::Result<Option<Settled>> {
    let parents = copied.parents.iter().flat_map(|(_, extents)| extents);
    match copied.extents.iter().chain(parents).next() {
        None => Ok(None),
        Some(_) => fermata_hostmem::settle(dir, inner, copied).map(Some),
    }
}
