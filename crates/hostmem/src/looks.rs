//! What the last pass over a process has to know of its mappings, in questions that several threads ask.

use std::collections::HashSet;
use std::io;
use std::ops::Range;

use crate::maps::{Kind, Mapping};
use crate::pieces;
use crate::scan::{Pagemap, Pages};

/// A part of mappings that follow each other.
#[derive(Debug)]
struct Looked {
    /// Where the first begins, and of what kind it is.
    first: u64,
    kind: Kind,
    is_left_out: bool,
    part: Range<u64>,
}

/// What the kernel says of it.
#[derive(Debug)]
pub struct Look {
    /// Whether the first mapping, then the only one, is tracked.
    pub is_tracked: bool,
    /// What was asked for of the pages.
    pub pages: Vec<Pages>,
}

impl Look {
    fn at(pagemap: &mut Pagemap, looked: &Looked) -> io::Result<Self> {
        let Looked { kind, part, .. } = looked;
        let is_tracked = pagemap.is_tracked(looked.first)?;
        let pages = match (is_tracked, kind) {
            (true, Kind::Anonymous) => pagemap.changed(part)?,
            (true, Kind::File) => pagemap.private(part, Kind::File)?,
            (false, _) if looked.is_left_out => pagemap.content(part)?,
            (false, _) => Vec::new(),
        };
        Ok(Self { is_tracked, pages })
    }
}

/// What the kernel says of these groups of mappings of process `pid`, asked on up to `threads` threads. Those in `left_out` are looked at even
/// if they are not tracked.
///
/// # Errors
/// The process has ended or does not stand still, or may not be examined.
pub fn looks(
    pid: u32,
    groups: &[&[Mapping]],
    left_out: &HashSet<&Range<u64>>,
    threads: usize,
) -> io::Result<Vec<Look>> {
    let parts = groups.iter().enumerate().flat_map(|(at, group)| {
        let Mapping { range, kind } = &group[0];
        let (first, is_left_out) = (range.start, left_out.contains(range));
        let all = first..group[group.len() - 1].range.end;
        let looked = move |part| Looked {
            first,
            kind: *kind,
            is_left_out,
            part,
        };
        pieces::pieces(&all).map(move |part| (at, looked(part)))
    });
    let (of, parts): (Vec<_>, Vec<_>) = parts.unzip();
    let told = pieces::each(pid, parts, threads, Look::at)?;
    let mut looks: Vec<Look> = Vec::with_capacity(groups.len());
    for (at, mut look) in of.into_iter().zip(told) {
        match looks.get_mut(at) {
            // What was asked of the parts would not fit together.
            Some(before) if before.is_tracked != look.is_tracked => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Some(before) => before.pages.append(&mut look.pages),
            None => looks.push(look),
        }
    }
    Ok(looks)
}
