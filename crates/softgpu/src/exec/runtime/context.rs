//! The context of a kernel's thread, which compiled code reads and writes: field offsets are part of the generated code.

use std::ffi::c_void;

use corosensei::Yielder;

use super::mma;

/// Why a thread stopped for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Load, store or atomic at a bad address.
    Address(u64),
    /// Misaligned access.
    Misaligned(u64),
    /// `trap`.
    Trap,
    /// `__assertfail`.
    Assert,
    /// Something that no program may do.
    Illegal(String),
    /// The launch's time is over.
    Timeout,
    /// The launch was told to stop.
    Stopped,
    /// Threads wait for one another for ever.
    Deadlock,
    /// This many blocks ran and none ended, while others had not begun.
    Unbegun(u64),
}

/// Why a fiber returns to its scheduler.
#[derive(Debug)]
pub enum Pause {
    /// There is no further thread that it could start.
    Idle,
    /// Something will make it ready again.
    Waiting,
    /// It has run for long; others may have to run before it can get on.
    Yielded,
    /// Its thread has executed `exit` inside a call: its stack is to be reset.
    Exited,
    /// The launch is over.
    Stopped(Stop),
}

/// Back-edges between two looks at the clock and at other threads.
pub const FUEL: i64 = 50_000;

/// A thread's block, without its type, which is made of threads; `BlockPointer::typed` gives it.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct BlockPointer(pub *mut c_void);

/// A thread, as compiled code and helpers see it. One per fiber, refilled for each thread it runs.
#[repr(C)]
pub struct DeviceThread {
    /// Used up by function calls; loops count in a register.
    pub fuel: i64,
    /// Native stack pointers below this are an overflow.
    pub stack_limit: u64,
    /// First free byte of the thread's local memory.
    pub local_top: u64,
    /// Start of the thread's local memory.
    pub local_base: u64,
    /// End of the thread's local memory.
    pub local_end: u64,
    /// Generic address of shared address 0.
    pub shared_base: u64,
    /// Bytes of shared memory of the block.
    pub shared_size: u64,
    /// Shared address at which dynamic shared memory begins.
    pub dynamic_shared: u64,
    /// Generic address of the parameter block.
    pub params: u64,
    /// `%gridid`
    pub grid_id: u64,
    /// Second result of a collective.
    pub flag: u64,
    /// `%tid`
    pub tid: [u32; 3],
    /// `%ntid`
    pub ntid: [u32; 3],
    /// `%ctaid`
    pub ctaid: [u32; 3],
    /// `%nctaid`
    pub nctaid: [u32; 3],
    /// `%laneid`
    pub lane: u32,
    /// `%warpid`
    pub warp: u32,
    /// `%nwarpid`
    pub warps: u32,
    /// `%smid`
    pub sm: u32,
    /// `%nsmid`
    pub sms: u32,
    /// `%dynamic_smem_size`
    pub dynamic_bytes: u32,
    /// First result of a collective, for a thread that waited.
    pub result: u64,
    /// The block; valid while compiled code runs.
    pub block: BlockPointer,
    /// The fiber's way back to its scheduler.
    pub yielder: *const Yielder<(), Pause>,
    /// Index of the fiber.
    pub fiber: u32,
    /// What a reducing barrier shall answer.
    pub barrier_mode: u32,
    /// Not 0 after accesses with which threads wait for one another, since others were last given their turn.
    pub polls: u32,
    /// `%envreg1` and `%envreg2`: the high and the low half of the address of a cooperative launch's barrier.
    pub workspace: [u32; 2],
    /// Coordinates for a texture or surface.
    pub coordinates: [u32; 4],
    /// The level of a texture that is to be read.
    pub level: f32,
    /// A texel, or the bytes of a surface.
    pub texel: [u32; 4],
    /// The registers that a lane brings to a product of matrices, and those that it takes.
    pub fragments: Fragments,
}

/// Registers of 32 or 64 bits, one after another.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub struct Fragments(pub [u8; mma::BYTES]);

impl DeviceThread {
    /// An empty context for fiber `fiber`.
    pub fn new(fiber: u32) -> Self {
        Self {
            fuel: FUEL,
            stack_limit: 0,
            local_top: 0,
            local_base: 0,
            local_end: 0,
            shared_base: 0,
            shared_size: 0,
            dynamic_shared: 0,
            params: 0,
            grid_id: 0,
            flag: 0,
            tid: [0; 3],
            ntid: [0; 3],
            ctaid: [0; 3],
            nctaid: [0; 3],
            lane: 0,
            warp: 0,
            warps: 0,
            sm: 0,
            sms: 0,
            dynamic_bytes: 0,
            result: 0,
            block: BlockPointer(std::ptr::null_mut()),
            yielder: std::ptr::null(),
            fiber,
            barrier_mode: 0,
            polls: 0,
            workspace: [0; 2],
            coordinates: [0; 4],
            level: 0.0,
            texel: [0; 4],
            fragments: Fragments([0; mma::BYTES]),
        }
    }

    /// Hands control to the scheduler until it resumes this fiber.
    pub fn pause(&self, pause: Pause) {
        // SAFETY: the fiber stores its own yielder before it runs compiled code, and the yielder lives
        // in the fiber's frame below this call.
        unsafe { (*self.yielder).suspend(pause) };
    }

    /// Ends the launch. Does not return: the scheduler resets this fiber's stack.
    pub fn stop(&self, why: Stop) -> ! {
        self.pause(Pause::Stopped(why));
        // A stopped fiber is never resumed; if it were, it would pause again.
        loop {
            self.pause(Pause::Stopped(Stop::Stopped));
        }
    }
}
