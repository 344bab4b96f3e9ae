//! Turns a memory fault of compiled code into the end of its launch.
//!
//! All accesses of a kernel are made by compiled code, never by helpers, so a fault is the kernel's exactly
//! when the instruction pointer lies in compiled code and the thread is running a fiber. Every other
//! fault is passed to the previous handler.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use corosensei::trap::CoroutineTrapHandler;

use super::context::Stop;

/// A range of compiled code. Nodes are never freed, since a handler may be reading them; a range that
/// is gone has length 0.
struct Range {
    start: AtomicUsize,
    len: AtomicUsize,
    next: *const Range,
}

// SAFETY: `next` is set before a node is published and points to a node that is never freed.
unsafe impl Sync for Range {}

static RANGES: AtomicPtr<Range> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps a range known as compiled code until dropped.
pub struct CodeRange(&'static Range);

impl CodeRange {
    /// Makes `[start, start + len)` known.
    pub fn new(start: usize, len: usize) -> Self {
        install();
        let mut head = RANGES.load(Ordering::Acquire);
        let mut at = head;
        while !at.is_null() {
            // SAFETY: nodes are leaked, so every pointer in the list stays valid.
            let range: &'static Range = unsafe { &*at };
            if range
                .start
                .compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                range.len.store(len, Ordering::Release);
                return Self(range);
            }
            at = range.next.cast_mut();
        }
        let fresh = Box::leak(Box::new(Range {
            start: start.into(),
            len: len.into(),
            next: head,
        }));
        while let Err(seen) =
            RANGES.compare_exchange_weak(head, fresh, Ordering::AcqRel, Ordering::Acquire)
        {
            head = seen;
            fresh.next = head;
        }
        // SAFETY: leaked above; from here on only its atomic fields change.
        Self(unsafe { &*std::ptr::from_ref(fresh) })
    }
}

impl Drop for CodeRange {
    fn drop(&mut self) {
        self.0.len.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

fn is_compiled_code(ip: usize) -> bool {
    let mut at = RANGES.load(Ordering::Acquire).cast_const();
    while !at.is_null() {
        // SAFETY: nodes are leaked.
        let range = unsafe { &*at };
        if ip.wrapping_sub(range.start.load(Ordering::Acquire)) < range.len.load(Ordering::Acquire)
        {
            return true;
        }
        at = range.next;
    }
    false
}

thread_local! {
    static RUNNING: Cell<Option<CoroutineTrapHandler<Stop>>> = const { Cell::new(None) };
}

/// Where a host thread notes which of its coroutines runs. It is found once for a block: a library that is loaded finds it by
/// a call, and a thread of a kernel is let on at each barrier.
#[derive(Clone, Copy)]
pub struct Guard(*const Cell<Option<CoroutineTrapHandler<Stop>>>);

impl Guard {
    /// The calling host thread's. It must not be used by another one, which [`Guard`] is not `Send` for, nor after this one's
    /// end.
    pub fn of_this_thread() -> Self {
        Self(RUNNING.with(std::ptr::from_ref))
    }

    /// Runs `work`, during which faults of compiled code end the coroutine of `handler`.
    pub fn during<T>(self, handler: CoroutineTrapHandler<Stop>, work: impl FnOnce() -> T) -> T {
        // SAFETY: of the calling thread, which lives; the cell needs no drop, so it is there to the thread's end.
        let running = unsafe { &*self.0 };
        running.set(Some(handler));
        let result = work();
        running.set(None);
        result
    }
}

const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The previous handler of each of [`SIGNALS`]; written once, before the handlers here are installed.
struct Previous(std::cell::UnsafeCell<[std::mem::MaybeUninit<libc::sigaction>; SIGNALS.len()]>);

// SAFETY: written only inside `Once`, read only by handlers that are installed afterwards.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(std::cell::UnsafeCell::new(
    [std::mem::MaybeUninit::uninit(); SIGNALS.len()],
));

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (index, &signal) in SIGNALS.iter().enumerate() {
            // SAFETY: plain sigaction calls with valid structures; nothing reads PREVIOUS[index]
            // before the second call succeeds.
            unsafe {
                let slot = (*PREVIOUS.0.get())[index].as_mut_ptr();
                libc::sigaction(signal, std::ptr::null(), slot);
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
    });
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid structures to a SA_SIGINFO handler.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let ip = machine.gregs[libc::REG_RIP as usize] as usize;
        let sp = machine.gregs[libc::REG_RSP as usize] as usize;
        if is_compiled_code(ip)
            && let Some(handler) = RUNNING.take()
            && handler.stack_ptr_in_bounds(sp)
        {
            let why = match signal {
                libc::SIGSEGV | libc::SIGBUS => Stop::Address((*info).si_addr() as u64),
                _ => Stop::Illegal("an invalid operation".to_owned()),
            };
            let regs = handler.setup_trap_handler(move || why);
            machine.gregs[libc::REG_RIP as usize] = regs.rip as i64;
            machine.gregs[libc::REG_RSP as usize] = regs.rsp as i64;
            machine.gregs[libc::REG_RBP as usize] = regs.rbp as i64;
            machine.gregs[libc::REG_RDI as usize] = regs.rdi as i64;
            machine.gregs[libc::REG_RSI as usize] = regs.rsi as i64;
            return;
        }
        pass_on(signal, info, context);
    }
}

/// Passes the signal to the previous handler.
///
/// # Safety
/// Only from a handler, with its arguments.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(index) = SIGNALS.iter().position(|&s| s == signal) else {
        return;
    };
    // SAFETY: `install` wrote the entry before it installed this handler.
    unsafe {
        let previous = (*PREVIOUS.0.get())[index].assume_init_ref();
        match previous.sa_sigaction {
            // Back to the default; the instruction is run again and the default applies.
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(signal, libc::SIG_DFL);
            }
            address if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(address);
                call(signal, info, context);
            }
            address => {
                let call: extern "C" fn(i32) = std::mem::transmute(address);
                call(signal);
            }
        }
    }
}
