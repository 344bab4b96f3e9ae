//! A grid: the state of a launch, shared by the host threads that run its blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::context::{DeviceThread, Stop};
use crate::exec::interface::Host;

/// The compiled form of a kernel.
pub type EntryPoint = unsafe extern "C" fn(*mut DeviceThread);

/// A launch. Lives on the stack of the launching thread, which waits for all others to leave it.
pub struct Grid<'l> {
    /// The kernel.
    pub entry: EntryPoint,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Parameter block.
    pub params: &'l [u8],
    /// Statically declared shared memory, rounded up to where dynamic memory begins.
    pub static_shared: u32,
    /// Dynamic shared memory.
    pub dynamic_shared: u32,
    /// `%nsmid`
    pub multiprocessors: u32,
    /// A bit for each value that `%smid` may have.
    pub processors: u64,
    /// `%gridid`
    pub grid_id: u64,
    /// When to give up.
    pub deadline: Option<Instant>,
    /// Which blocks run, and when one has ended.
    pub residents: Residents,
    /// Address of the barrier of a cooperative launch, else 0.
    pub workspace: u64,
    /// Set by others to stop.
    pub stop: &'l AtomicBool,
    /// Address checks and output.
    pub host: Arc<dyn Host>,
    /// Next block to hand out.
    pub next: AtomicU64,
    /// Set with the first fault.
    pub failed: AtomicBool,
    /// The first fault.
    pub fault: Mutex<Option<Stop>>,
    /// Bytes of parameters of the kernel with an address, for kernels that launch kernels.
    pub parameters: &'l (dyn Fn(u64) -> Option<usize> + Sync),
    /// What its threads have launched, in order.
    pub launched: Mutex<Vec<Child>>,
}

/// A kernel that a thread has launched; it runs when the grid of that thread has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// Address of the kernel.
    pub function: u64,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared: u32,
    /// Parameter block.
    pub params: Vec<u8>,
    /// It runs after all others, and what they launch.
    pub tail: bool,
}

/// Shared memory behind a block's own that libraries of the toolkit use for their barriers; zero at
/// the start of a block.
pub const RESERVED_SHARED: u64 = 1024;

/// Threads of the host that run blocks of a grid, and whether more are needed.
///
/// Blocks are begun in order, a few at a time. A device runs more of them at once, and there are programs whose blocks
/// wait for later ones of those. So when threads poll memory and no block ends for a while, more host threads join, up
/// to as many as a device would run blocks.
pub struct Residents {
    /// When the launch began.
    pub begun: Instant,
    /// Blocks that a device would run at once.
    pub most: u64,
    /// How long blocks may be waiting for ones that have not begun.
    pub patience: Option<Duration>,
    /// Threads that run blocks.
    pub threads: AtomicU64,
    /// Milliseconds from the beginning to the last end of a block.
    pub last_end: AtomicU64,
    /// Milliseconds from the beginning to the last time that threads were called.
    pub last_call: AtomicU64,
}

/// How long no block has to end before more threads are called.
const STALL: u64 = 250;

/// What a thread that polls shall do.
#[derive(Debug, PartialEq, Eq)]
pub enum Poll {
    /// Go on.
    GoOn,
    /// Call so many threads, then go on.
    Call(u64),
    /// End the launch.
    Stop(Stop),
}

impl Residents {
    /// Nothing has run yet.
    pub fn new(most: u64, patience: u64) -> Self {
        Self {
            begun: Instant::now(),
            most: most.max(1),
            patience: (patience > 0).then(|| Duration::from_secs(patience)),
            threads: AtomicU64::new(0),
            last_end: AtomicU64::new(0),
            last_call: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// A block has ended.
    pub fn ended(&self) {
        self.last_end.fetch_max(self.now(), Ordering::Relaxed);
    }

    /// A block polls memory and `unbegun` blocks have not begun.
    pub fn poll(&self, unbegun: u64) -> Poll {
        let (now, end) = (self.now(), self.last_end.load(Ordering::Relaxed));
        let call = self.last_call.load(Ordering::Relaxed);
        if unbegun == 0 || now.saturating_sub(end.max(call)) < STALL {
            return Poll::GoOn;
        }
        let threads = self.threads.load(Ordering::Relaxed);
        let wanted = threads.min(unbegun).min(self.most.saturating_sub(threads));
        if wanted == 0 {
            let quiet = Duration::from_millis(now.saturating_sub(end));
            return match self.patience {
                Some(patience) if quiet >= patience => Poll::Stop(Stop::Unbegun(threads)),
                _ => Poll::GoOn,
            };
        }
        // One of those that poll at the same time calls.
        match self
            .last_call
            .compare_exchange(call, now, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => Poll::Call(wanted),
            Err(_) => Poll::GoOn,
        }
    }
}

impl Grid<'_> {
    /// Blocks that no thread has taken.
    pub fn unbegun(&self) -> u64 {
        let begun = self.next.load(Ordering::Relaxed);
        self.blocks().saturating_sub(begun)
    }

    /// Bytes of shared memory of a block, rounded up so that what is behind is aligned.
    pub fn shared_bytes(&self) -> u64 {
        (u64::from(self.static_shared) + u64::from(self.dynamic_shared)).next_multiple_of(16)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Takes the next block in order.
    pub fn take(&self) -> Option<u64> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.blocks()).then_some(index)
    }

    /// Records a fault; the first one counts.
    pub fn fail(&self, why: Stop) {
        self.fault.lock().get_or_insert(why);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether threads must end now, and why.
    pub fn interrupted(&self) -> Option<Stop> {
        if self.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed) {
            return Some(Stop::Stopped);
        }
        self.deadline
            .filter(|&at| Instant::now() >= at)
            .map(|_| Stop::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_called_when_no_block_ends_and_the_limit_comes_when_all_run() {
        let mut residents = Residents::new(8, 1);
        residents.threads = 3.into();
        assert_eq!(residents.poll(10), Poll::GoOn, "too early");
        residents.begun -= Duration::from_secs(5);
        assert_eq!(residents.poll(0), Poll::GoOn, "all have begun");
        assert_eq!(residents.poll(10), Poll::Call(3));
        assert_eq!(residents.poll(10), Poll::GoOn, "just called");
        residents.threads = 8.into();
        residents.begun -= Duration::from_secs(5);
        assert_eq!(residents.poll(10), Poll::Stop(Stop::Unbegun(8)));
        residents.ended();
        assert_eq!(residents.poll(10), Poll::GoOn, "one has ended");
    }
}
