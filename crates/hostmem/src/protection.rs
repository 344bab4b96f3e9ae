//! What of a process its userfaultfd protects against writes.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};

use rangemap::RangeSet;

use crate::maps::{self, Mapping};
use crate::scan::Pagemap;
use crate::sys;

/// Bytes whose protection is ended at once; the program's faults wait for that.
const RELEASED: u64 = 32 << 20;

/// Mappings whose pages are protected; they are no more when this is dropped.
#[derive(Debug)]
pub struct Protection {
    uffd: OwnedFd,
    /// What has ever been tracked.
    registered: RangeSet<u64>,
    /// Tracked pages whose marks say nothing: they are read again each time.
    unmarked: RangeSet<u64>,
}

impl Protection {
    /// None yet.
    pub fn new(uffd: OwnedFd) -> Self {
        Self {
            uffd,
            registered: RangeSet::new(),
            unmarked: RangeSet::new(),
        }
    }

    /// What was tracked at some time; the kernel says what of it is.
    pub fn registered(&self) -> &RangeSet<u64> {
        &self.registered
    }

    /// Tracked pages whose marks say nothing.
    pub fn unmarked(&self) -> &RangeSet<u64> {
        &self.unmarked
    }

    /// Begins to track `mappings` of process `pid`, which had `all` a moment ago; those that it has tracked.
    ///
    /// The kernel cuts a mapping where a tracked range ends. If the program has put a larger one in the place of one of these
    /// meanwhile, its parts are made one again.
    ///
    /// # Errors
    /// The process has ended.
    pub fn add(
        &mut self,
        pid: u32,
        pagemap: &mut Pagemap,
        mappings: &[Mapping],
        all: &HashSet<Mapping>,
    ) -> io::Result<RangeSet<u64>> {
        let register = |it: &&Mapping| sys::register(self.uffd.as_fd(), &it.range).is_ok();
        let added: Vec<&Mapping> = mappings.iter().filter(register).collect();
        let ranges = added.iter().map(|it| it.range.clone());
        let new: RangeSet<u64> = ranges.collect();
        self.registered.extend(new.iter().cloned());
        let after = maps::read(pid)?;
        let mut given_back = HashSet::new();
        for mapping in &added {
            if is_cut(pagemap, &mapping.range, &after, all)
                && sys::unregister(self.uffd.as_fd(), &mapping.range).is_ok()
            {
                self.registered.remove(mapping.range.clone());
                given_back.insert(*mapping);
            }
        }
        // This takes long, and what was looked at must not be old by then.
        for mapping in added.iter().filter(|it| !given_back.contains(*it)) {
            self.clear_marks(&mapping.range);
        }
        Ok(new)
    }

    /// Removes marks that an earlier tracking has left. When the program moves a mapping so that it becomes one with its
    /// neighbour, the kernel ends the tracking of both and leaves the neighbour's pages marked as protected, although they
    /// can be written from then on: writes to them would never be noted.
    fn clear_marks(&mut self, range: &Range<u64>) {
        self.unmarked.remove(range.clone());
        if self.unprotect(range).is_err() {
            // The mapping has been replaced, or a part of it.
            self.unmarked.insert(range.clone());
        }
    }

    /// Ends the protection of pages, bit by bit so that the running program's faults do not wait long; the first error.
    fn unprotect(&self, range: &Range<u64>) -> io::Result<()> {
        let mut result = Ok(());
        let mut at = range.start;
        while at < range.end {
            let part = at..(at + RELEASED).min(range.end);
            at = part.end;
            result = result.and(sys::unprotect(self.uffd.as_fd(), &part));
        }
        result
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        for range in self.registered.iter() {
            // What is not tracked any more needs nothing; what is left is released with the descriptor.
            let _ = self.unprotect(range);
        }
    }
}

/// Whether `range` is a part of one of the mappings in `after`: the rest of it is not tracked, and was no mapping `before`.
fn is_cut(
    pagemap: &mut Pagemap,
    range: &Range<u64>,
    after: &[Mapping],
    before: &HashSet<Mapping>,
) -> bool {
    let at = after.partition_point(|it| it.range.end <= range.start);
    // With a neighbour that is tracked, too, the kernel may have made it one.
    let Some(whole) = after.get(at).map(|it| &it.range) else {
        return true;
    };
    if range.start < whole.start || whole.end < range.end {
        return true;
    }
    let beside = &after[at.saturating_sub(1)..(at + 2).min(after.len())];
    let touches = |it: &&Mapping| it.range.end == whole.start || it.range.start == whole.end;
    let mut rests = beside.iter().filter(touches);
    rests.any(|it| !before.contains(it) && !matches!(pagemap.is_tracked(it.range.start), Ok(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::maps::Kind;
    use crate::sys::Prepared;

    fn uffd() -> OwnedFd {
        let uffd = sys::userfaultfd().expect("a userfaultfd");
        sys::handshake(uffd.as_fd()).expect("it notes writes");
        uffd
    }

    /// Memory of this process, in which pages 32 to 64 are one mapping whatever is beside it: its neighbours are tracked by
    /// another.
    struct Memory {
        start: u64,
        _memory: Prepared,
        _other: OwnedFd,
    }

    impl Memory {
        fn new() -> Self {
            let memory = Prepared::new(96 * PAGE as usize).expect("memory");
            let start = memory.bytes().as_ptr() as u64;
            let other = uffd();
            for beside in [0..32, 64..96] {
                let beside = start + beside.start * PAGE..start + beside.end * PAGE;
                sys::register(other.as_fd(), &beside).expect("tracked");
            }
            Self {
                start,
                _memory: memory,
                _other: other,
            }
        }

        fn pages(&self, from: u64, to: u64) -> Mapping {
            let range = self.start + from * PAGE..self.start + to * PAGE;
            let kind = Kind::Anonymous;
            Mapping { range, kind }
        }
    }

    fn mappings() -> HashSet<Mapping> {
        let all = maps::read(std::process::id()).expect("own mappings");
        all.into_iter().collect()
    }

    fn pagemap() -> Pagemap {
        Pagemap::open(std::process::id()).expect("own pages")
    }

    fn is_tracked(mapping: &Mapping) -> bool {
        let tracked = pagemap().is_tracked(mapping.range.start);
        tracked.expect("asked")
    }

    #[test]
    fn a_mapping_that_took_the_place_of_another_is_not_cut() {
        let (memory, own) = (Memory::new(), std::process::id());
        let mut protection = Protection::new(uffd());
        let whole = memory.pages(32, 64);
        let gone = [(32, 48), (48, 64), (40, 56)].map(|(from, to)| memory.pages(from, to));
        for gone in gone {
            assert!(mappings().contains(&whole));
            let before = HashSet::from([gone.clone()]);
            let added = protection.add(own, &mut pagemap(), &[gone], &before);
            added.expect("this process has mappings");
            assert!(mappings().contains(&whole), "it is one mapping");
            assert!(!is_tracked(&whole));
        }
        let added = protection.add(
            own,
            &mut pagemap(),
            std::slice::from_ref(&whole),
            &mappings(),
        );
        added.expect("this process has mappings");
        assert!(is_tracked(&whole));
    }

    #[test]
    fn a_mapping_that_becomes_one_with_a_tracked_one_is_tracked() {
        let (memory, own) = (Memory::new(), std::process::id());
        let mut protection = Protection::new(uffd());
        let (whole, former) = (memory.pages(32, 64), memory.pages(32, 48));
        sys::register(protection.uffd.as_fd(), &former.range).expect("tracked");
        protection.registered.insert(former.range);
        let added = protection.add(own, &mut pagemap(), &[memory.pages(48, 64)], &mappings());
        added.expect("this process has mappings");
        assert!(mappings().contains(&whole), "the kernel makes it one");
        assert!(is_tracked(&whole));
    }

    #[test]
    fn pages_are_unprotected_before_the_descriptor_goes() {
        let memory = Memory::new();
        let uffd = uffd();
        let mut protection = Protection::new(uffd.try_clone().expect("another descriptor"));
        let whole = memory.pages(32, 64);
        let added = protection.add(
            std::process::id(),
            &mut pagemap(),
            std::slice::from_ref(&whole),
            &mappings(),
        );
        added.expect("this process has mappings");
        let mut pagemap = pagemap();
        let mut protect = || {
            let written = pagemap.protect(&whole.range, whole.kind).expect("tracked");
            written.len()
        };
        assert_eq!([protect(), protect()], [1, 0]);
        drop(protection);
        assert_eq!(protect(), 1, "all pages could be written");
    }
}
