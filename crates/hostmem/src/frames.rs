//! Which pages two processes have in the same frame of memory.
//!
//! The kernel gives a process and the one that it has forked the same frame at the same address until one of them writes (copy on write), and
//! `/proc/PID/pagemap` tells the frame.

use std::io;
use std::ops::Range;

use crate::PAGE;
use crate::scan::Pagemap;

/// Bytes whose frames are looked at together.
pub const TOGETHER: u64 = 64 << 20;

/// The pages of `parts` that both have in the same frame. None without the right to see frames (`CAP_SYS_ADMIN`).
pub fn common(
    own: &Pagemap,
    theirs: &Pagemap,
    parts: &[Range<u64>],
) -> io::Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    for part in parts {
        for start in part.clone().step_by(TOGETHER as usize) {
            let end = part.end.min(start + TOGETHER);
            add_common(own, theirs, &(start..end), &mut found)?;
        }
    }
    Ok(found)
}

/// Adds the pages of `part` that both have in the same frame.
pub fn add_common(
    own: &Pagemap,
    theirs: &Pagemap,
    part: &Range<u64>,
    found: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    // The kernel may move a frame meanwhile, and give its place to another. One that is there before and after was there.
    let before = theirs.frames(part)?;
    let here = own.frames(part)?;
    let after = theirs.frames(part)?;
    let frames = before.into_iter().zip(here).zip(after);
    for (page, ((before, here), after)) in part.clone().step_by(PAGE as usize).zip(frames) {
        if before.is_some() && before == here && before == after {
            match found.last_mut() {
                Some(last) if last.end == page => last.end += PAGE,
                _ => found.push(page..page + PAGE),
            }
        }
    }
    Ok(())
}
