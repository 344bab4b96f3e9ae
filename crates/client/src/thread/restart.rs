//! Restarts system calls that the kernel does not restart after a signal, so that the program does not see the
//! parking signal.
//!
//! The kernel restarts most calls by itself (`SA_RESTART`), but sleeping, polling and some waits return
//! `EINTR` whatever the handler says, and the handler is not told which call it was. So the agent reads
//! the call from `/proc` before it sends the signal, and the handler compares every register: if all
//! are as noted and the result is `EINTR`, it is the same call, and is issued again. If the agent looked before the
//! call began, the code before the call may name it. A sleep goes on with the rest of its time if the program passed
//! a buffer for that; else it begins again with its full time, like a poll.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::thread::threads;

/// Calls that may be issued anew, none of which has done anything when it returns `EINTR`.
const CALLS: [i64; 14] = [
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_futex,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pause,
    libc::SYS_semtimedop,
];

/// The code of a call: `mov $0, %eax; syscall`.
const CALL: [u8; 7] = [0xb8, 0, 0, 0, 0, 0x0f, 0x05];

/// Registers that hold a call's arguments.
const ARGUMENTS: [i32; 6] = [
    libc::REG_RDI,
    libc::REG_RSI,
    libc::REG_RDX,
    libc::REG_R10,
    libc::REG_R8,
    libc::REG_R9,
];

/// The system call that a thread was in when it was sent the signal: number, arguments, stack pointer, address.
struct Note {
    tid: AtomicI32,
    words: [AtomicU64; 9],
}

const NOTES: usize = 1024;
static NOTED: [Note; NOTES] = [const {
    Note {
        tid: AtomicI32::new(0),
        words: [const { AtomicU64::new(0) }; 9],
    }
}; NOTES];

/// Notes the system call that a thread is in, if it is one of `CALLS`. Called by the agent.
pub fn note(tid: i32) {
    let note = place(tid);
    note.tid.store(0, Ordering::Release);
    let Some(words) =
        threads::read(&format!("/proc/self/task/{tid}/syscall")).and_then(|text| parse(&text))
    else {
        return;
    };
    for (to, word) in note.words.iter().zip(words) {
        to.store(word, Ordering::Relaxed);
    }
    note.tid.store(tid, Ordering::Release);
}

/// Makes the interrupted thread issue its call again when the handler returns. Async-signal-safe.
///
/// # Safety
/// `context` is the third argument of a signal handler.
pub unsafe fn resume_call(tid: i32, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the interrupted thread's context, which the handler may change.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if registers[libc::REG_RAX as usize] != -i64::from(libc::EINTR) {
        return;
    }
    let Some(number) = noted(tid, registers).or_else(|| coded(registers)) else {
        return;
    };
    registers[libc::REG_RAX as usize] = number;
    // Back over the instruction `syscall`, which is two bytes long.
    registers[libc::REG_RIP as usize] -= 2;
    // The kernel has stored the rest of a sleep if the program passed a buffer for it.
    let (asked, left) = match number {
        libc::SYS_nanosleep => (libc::REG_RDI, registers[libc::REG_RSI as usize]),
        libc::SYS_clock_nanosleep if registers[libc::REG_RSI as usize] == 0 => {
            (libc::REG_RDX, registers[libc::REG_R10 as usize])
        }
        _ => return,
    };
    if left != 0 {
        registers[asked as usize] = left;
    }
}

/// The call that the agent has noted, if the thread was interrupted in just that one.
fn noted(tid: i32, registers: &[i64]) -> Option<i64> {
    let note = place(tid);
    if note.tid.load(Ordering::Acquire) != tid {
        return None;
    }
    let word = |n: usize| note.words[n].load(Ordering::Relaxed) as i64;
    let arguments_agree = (0..6).all(|n| registers[ARGUMENTS[n] as usize] == word(1 + n));
    let place_agrees = registers[libc::REG_RSP as usize] == word(7)
        && registers[libc::REG_RIP as usize] == word(8);
    (arguments_agree && place_agrees).then(|| word(0))
}

/// The call that the code before it names: `mov $number, %eax; syscall`, as in C libraries. For a thread
/// that began its call between the agent's look and the signal.
fn coded(registers: &[i64]) -> Option<i64> {
    let behind = registers[libc::REG_RIP as usize] as usize;
    if behind % 4096 < CALL.len() {
        return None;
    }
    let code = std::ptr::with_exposed_provenance::<u8>(behind - CALL.len());
    // SAFETY: the thread has just executed the `syscall` that ends at `behind`, in the same page as these
    // bytes; the page is mapped, and pages that can be executed can be read on this architecture.
    let code = unsafe { code.cast::<[u8; CALL.len()]>().read_unaligned() };
    let [0xb8, n0, n1, n2, n3, 0x0f, 0x05] = code else {
        return None;
    };
    let number = i64::from(u32::from_le_bytes([n0, n1, n2, n3]));
    CALLS.contains(&number).then_some(number)
}

fn place(tid: i32) -> &'static Note {
    &NOTED[tid as usize % NOTES]
}

/// `number arg0 ... arg5 sp pc`, the first decimal, the others hexadecimal; `running` if in no call.
fn parse(text: &str) -> Option<[u64; 9]> {
    let mut fields = text.split_whitespace();
    let number: i64 = fields.next()?.parse().ok()?;
    if !CALLS.contains(&number) {
        return None;
    }
    let mut words = [number as u64; 9];
    for word in &mut words[1..] {
        *word = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_may_be_issued_anew_are_noted() {
        let rest = "0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd0000 0x7f001234";
        assert_eq!(
            parse(&format!("230 {rest}")),
            Some([230, 1, 2, 3, 4, 5, 6, 0x7ffd_0000, 0x7f00_1234])
        );
        assert_eq!(parse(&format!("42 {rest}")), None);
        assert_eq!(parse("running"), None);
        assert_eq!(parse("-1 0x7ffd0000 0x7f001234"), None);
        assert_eq!(parse("230 0x1"), None);
    }
}
