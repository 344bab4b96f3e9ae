//! CRIU's question for pages.
//!
//! CRIU asks the kernel by one call, `ioctl(PAGEMAP_SCAN)`, which pages of a mapping have content. This library answers
//! that call by the kernel as well, with one condition more: the mapping must not be write-protected by an asynchronous
//! userfaultfd. Such mappings are those that `fermata-hostmem` tracks. Of a process with a list of pages that need not be dumped
//! (`left_out`), the kernel is asked about what lies between them. For all others nothing changes.
//!
//! By the same call CRIU asks for pages that the program has made inaccessible. If they are listed (`guards`), the kernel is not asked.

use libc::{c_int, c_long, c_ulong, c_void};

use crate::list::Pages;
use crate::{guards, left_out};

/// `PAGEMAP_SCAN`, from Linux 6.7 on.
const PAGEMAP_SCAN: c_ulong = 0xc060_6610;

/// Mappings with asynchronous write protection.
const WP_ALLOWED: u64 = 1 << 0;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
const GUARD: u64 = 1 << 8;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    inverted: u64,
    mask: u64,
    any: u64,
    returned: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// CRIU's question for pages with content, with the condition; none for other questions.
fn narrowed(scan: &Scan) -> Option<Scan> {
    let asks = scan.size == size_of::<Scan>() as u64
        && scan.flags == 0
        && scan.inverted == ZERO | FILE
        && scan.mask == ZERO | FILE
        && scan.any == PRESENT | SWAPPED;
    asks.then_some(Scan {
        inverted: scan.inverted | WP_ALLOWED,
        mask: scan.mask | WP_ALLOWED,
        ..*scan
    })
}

/// Whether this is CRIU's question for inaccessible pages.
fn is_for_guards(scan: &Scan) -> bool {
    scan.size == size_of::<Scan>() as u64
        && [scan.flags, scan.inverted, scan.any, scan.max_pages] == [0; 4]
        && [scan.mask, scan.returned] == [GUARD; 2]
}

/// `ioctl(2)`: the system call, but for CRIU's questions for pages.
///
/// # Safety
/// As the system call with these arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let call = |argument: *mut c_void| -> c_long {
        // SAFETY: the caller's own call, or one whose argument lies on this stack.
        unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) }
    };
    let scan = argument.cast::<Scan>();
    // The kernel takes the low 32 bits.
    if request as u32 != PAGEMAP_SCAN as u32 || scan.is_null() || !scan.is_aligned() {
        return call(argument) as c_int;
    }
    // SAFETY: an argument of this request is a `struct pm_scan_arg`, aligned by the line above.
    let asked = unsafe { *scan };
    if is_for_guards(&asked)
        // SAFETY: CRIU's question has room for as many regions as it says.
        && let Some((count, walk_end)) = guards::with(fd, |it| unsafe { list(&asked, it) })
    {
        // SAFETY: as above; the kernel writes this field, too.
        unsafe { (*scan).walk_end = walk_end };
        return count;
    }
    let Some(question) = narrowed(&asked) else {
        return call(argument) as c_int;
    };
    let kernel = |question: &mut Scan| call((&raw mut *question).cast());
    let (answer, walk_end) = left_out::with(fd, |out| around(question, out, kernel));
    // SAFETY: as above; the kernel writes this field, too.
    unsafe { (*scan).walk_end = walk_end };
    answer as c_int
}

/// Answers a question for inaccessible pages, which these are; how many regions there are, and where the answer ends.
///
/// # Safety
/// The question's vector has room for so many regions.
unsafe fn list(question: &Scan, guards: &[Pages]) -> (c_int, u64) {
    let regions = question.vec as *mut Region;
    let first = guards.partition_point(|[_, end]| *end <= question.start);
    let (mut count, mut last) = (0, question.start);
    for [start, end] in &guards[first..] {
        if *start >= question.end {
            break;
        }
        if count as u64 == question.vec_len {
            return (count, last);
        }
        last = *end.min(&question.end);
        let region = Region {
            start: *start.max(&question.start),
            end: last,
            categories: GUARD,
        };
        // SAFETY: one of so many, by the line above.
        unsafe { regions.add(count as usize).write(region) };
        count += 1;
    }
    (count, question.end)
}

/// Asks `kernel` this question about what lies between the pages that are left out; its answer, and where it ends. The regions
/// are in the question's own vector, as those of one answer.
fn around(
    question: Scan,
    out: &[Pages],
    mut kernel: impl FnMut(&mut Scan) -> c_long,
) -> (c_long, u64) {
    let first = out.partition_point(|[_, end]| *end <= question.start);
    let mut out = out[first..].iter();
    let (mut at, mut told) = (question.start, 0_u64);
    while at < question.end {
        let [start, end] = match out.next() {
            Some([start, end]) => [*start.min(&question.end), *end.min(&question.end)],
            None => [question.end; 2],
        };
        if at < start {
            let mut part = Scan {
                start: at,
                end: start,
                walk_end: 0,
                vec: question.vec + told * size_of::<Region>() as u64,
                vec_len: question.vec_len - told,
                ..question
            };
            let Ok(count) = u64::try_from(kernel(&mut part)) else {
                return (-1, at);
            };
            told += count;
            if part.walk_end < start {
                return (told as c_long, part.walk_end);
            }
            if told == question.vec_len {
                return (told as c_long, start);
            }
        }
        at = end;
    }
    (told as c_long, question.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Scan = Scan {
        size: 96,
        flags: 0,
        start: 0x1000,
        end: 0x9000,
        walk_end: 0,
        vec: 8,
        vec_len: 9,
        max_pages: 0,
        inverted: ZERO | FILE,
        mask: ZERO | FILE,
        any: PRESENT | SWAPPED,
        returned: PRESENT | SWAPPED,
    };

    #[test]
    fn only_the_question_for_pages_is_narrowed() {
        assert_eq!(size_of::<Scan>(), 96);
        let narrowed_one = narrowed(&ASKED).expect("CRIU's question");
        assert_eq!(narrowed_one.mask, ASKED.mask | WP_ALLOWED);
        assert_eq!(narrowed_one.inverted, ASKED.inverted | WP_ALLOWED);
        assert_eq!((narrowed_one.start, narrowed_one.vec), (0x1000, 8));
        // The one for guard pages, one that protects, one of another kernel's length.
        let guards = Scan {
            inverted: 0,
            mask: 1 << 8,
            any: 0,
            ..ASKED
        };
        let protects = Scan { flags: 1, ..ASKED };
        let longer = Scan { size: 104, ..ASKED };
        for other in [guards, protects, longer] {
            assert_eq!(narrowed(&other), None);
        }
    }

    #[test]
    fn listed_guards_are_told_as_the_kernel_tells_them() {
        const GUARDS: [Pages; 3] = [[0x1000, 0x2000], [0x5000, 0x8000], [0xa000, 0xb000]];
        let told = |start, end, room: usize| {
            let mut regions = [Region::default(); 4];
            let question = Scan {
                inverted: 0,
                mask: GUARD,
                any: 0,
                returned: GUARD,
                start,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: room as u64,
                ..ASKED
            };
            assert!(is_for_guards(&question) && narrowed(&question).is_none());
            // SAFETY: there is room for four.
            let (count, walk_end) = unsafe { list(&question, &GUARDS) };
            let told = regions[..count as usize].iter();
            assert!(told.clone().all(|it| it.categories == GUARD));
            (
                told.map(|it| [it.start, it.end]).collect::<Vec<_>>(),
                walk_end,
            )
        };
        assert_eq!(told(0, 0x10000, 4), (GUARDS.to_vec(), 0x10000));
        assert_eq!(told(0, 0x10000, 3), (GUARDS.to_vec(), 0x10000));
        // CRIU goes on where the answer ends.
        assert_eq!(told(0, 0x10000, 2), (GUARDS[..2].to_vec(), 0x8000));
        assert_eq!(told(0x8000, 0x10000, 2), (GUARDS[2..].to_vec(), 0x10000));
        assert_eq!(told(0x6000, 0x7000, 2), (vec![[0x6000, 0x7000]], 0x7000));
        assert_eq!(told(0x8000, 0xa000, 2), (vec![], 0xa000));
        assert!(!is_for_guards(&ASKED));
    }

    /// Answers like a kernel for which the pages of `own` have content, in `vector`.
    fn asks(start: u64, end: u64, out: &[Pages], vector: &mut [Region]) -> (c_long, u64) {
        const OWN: [Pages; 3] = [[0x1000, 0x4000], [0x6000, 0x7000], [0x8000, 0xa000]];
        let question = Scan {
            start,
            end,
            vec: vector.as_mut_ptr() as u64,
            vec_len: vector.len() as u64,
            ..ASKED
        };
        let base = question.vec;
        around(question, out, |part| {
            assert!(part.start < part.end && part.vec_len > 0);
            let mut at = (part.vec - base) as usize / size_of::<Region>();
            let before = at;
            for [start, end] in OWN.map(|[a, b]| [a.max(part.start), b.min(part.end)]) {
                if at == vector.len() {
                    part.walk_end = start.max(part.start);
                    return (at - before) as c_long;
                }
                if start < end {
                    vector[at] = Region {
                        start,
                        end,
                        categories: 2,
                    };
                    at += 1;
                }
            }
            part.walk_end = part.end;
            (at - before) as c_long
        })
    }

    fn told(start: u64, end: u64, out: &[Pages], most: usize) -> (Vec<Pages>, u64) {
        let mut vector = vec![Region::default(); most];
        let (count, walk_end) = asks(start, end, out, &mut vector);
        let regions = vector[..count as usize].iter();
        (regions.map(|it| [it.start, it.end]).collect(), walk_end)
    }

    #[test]
    fn pages_of_the_list_are_left_out() {
        let all = [[0x1000, 0x4000], [0x6000, 0x7000], [0x8000, 0xa000]];
        assert_eq!(told(0, 0xb000, &[], 9), (all.to_vec(), 0xb000));
        // In the middle, at the beginning, beyond the end, and where nothing is asked.
        let out = [
            [0x800, 0x900],
            [0x2000, 0x3000],
            [0x6000, 0x7000],
            [0x9000, 0xf000],
            [0xf800, 0xf900],
        ];
        let rest = vec![[0x1000, 0x2000], [0x3000, 0x4000], [0x8000, 0x9000]];
        assert_eq!(told(0x1000, 0xb000, &out, 9), (rest.clone(), 0xb000));
        assert_eq!(told(0x1000, 0xb000, &out, 3), (rest, 0x9000));
        assert_eq!(told(0x2000, 0x3000, &out, 9), (vec![], 0x3000));
        assert_eq!(
            told(0x2000, 0x4000, &out, 9),
            (vec![[0x3000, 0x4000]], 0x4000)
        );
        assert_eq!(told(0x6000, 0x7000, &[[0, 0x10000]], 9), (vec![], 0x7000));
    }

    #[test]
    fn an_answer_that_is_cut_goes_on_where_it_ended() {
        let out = [[0x2000, 0x3000]];
        for most in 1..5 {
            let (mut all, mut at) = (Vec::new(), 0);
            while at < 0xb000 {
                let (some, end) = told(at, 0xb000, &out, most);
                assert!(end > at, "it comes to an end");
                all.extend(some);
                at = end;
            }
            let rest = [
                [0x1000, 0x2000],
                [0x3000, 0x4000],
                [0x6000, 0x7000],
                [0x8000, 0xa000],
            ];
            assert_eq!(all, rest);
        }
    }

    #[test]
    fn an_error_of_the_kernel_is_the_answer() {
        let failed = around(ASKED, &[[0x2000, 0x3000]], |_| -1);
        assert_eq!(failed, (-1, 0x1000));
    }
}
