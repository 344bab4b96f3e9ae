//! The device runtime: launches kernels from kernels, and synchronises the threads of a grid.
//!
//! A launch is two calls. The first gives memory for the parameters, which the kernel fills; the second launches:
//!
//! ```text
//! local memory of the thread   [ header, 64 bytes | parameters ]
//!                                                  ^ what the first call gives, what the second takes
//! ```
//! The grid keeps what its threads launch, and it runs when the grid has ended, in order. That is an order that a GPU
//! may choose too: since CUDA 12 no kernel can wait for one that it has launched.

use std::sync::atomic::{AtomicU32, Ordering};

use super::context::{DeviceThread, Pause, Stop};
use super::grid::Child;
use super::helpers::block;

/// Bytes before the parameters.
const HEADER: u64 = 64;
/// The first word of a header.
const MAGIC: u64 = 0x6665_726D_6174_6131;
/// `cudaStreamTailLaunch`
const TAIL: u64 = 3;
/// Launches that a grid keeps at most.
const MOST: usize = 1 << 20;
/// `cudaErrorLaunchPendingCountExceeded`
const TOO_MANY: u64 = 69;

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    magic: u64,
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    bytes: u32,
}

const _: () = assert!(size_of::<Header>() as u64 <= HEADER);

/// `cudaGetParameterBufferV2`: memory for the parameters of `function`, 0 if there is none. `shape` points to the
/// dimensions of grid and block, which compiled code has put into its frame.
///
/// # Safety
/// Called by compiled code with its own context; `grid` and `block` point to three words each.
pub unsafe extern "C" fn buffer(
    context: *mut DeviceThread,
    function: u64,
    grid: *const [u32; 3],
    threads: *const [u32; 3],
    shared: u64,
) -> u64 {
    // SAFETY: by contract; the reference to the block ends at once.
    let (context, bytes) = unsafe { (&mut *context, (block(context).grid().parameters)(function)) };
    let Some(bytes) = bytes else { return 0 };
    let start = context.local_top.next_multiple_of(16);
    let params = start + HEADER;
    let end = (params + bytes as u64).next_multiple_of(16);
    if end > context.local_end {
        return 0;
    }
    // SAFETY: the range lies in the free part of this thread's own local memory; `grid` and `threads` by contract.
    unsafe {
        let header = Header {
            magic: MAGIC,
            function,
            grid: grid.read_unaligned(),
            block: threads.read_unaligned(),
            shared: shared as u32,
            bytes: bytes as u32,
        };
        (start as *mut Header).write(header);
    }
    context.local_top = end;
    params
}

/// `cudaLaunchDeviceV2`: launches with parameters in memory that [`buffer`] gave, into a stream. A code of the runtime.
///
/// # Safety
/// Called by compiled code with its own context.
pub unsafe extern "C" fn launch(context: *mut DeviceThread, params: u64, stream: u64) -> u64 {
    // SAFETY: by contract.
    let context = unsafe { &mut *context };
    let wrong = || Stop::Illegal("a launch by a kernel without its parameters' memory".to_owned());
    let inside = params >= context.local_base + HEADER && params <= context.local_top;
    if !inside || !params.is_multiple_of(16) {
        context.stop(wrong());
    }
    // SAFETY: the header lies in this thread's own local memory, which is mapped.
    let header = unsafe { ((params - HEADER) as *const Header).read() };
    if header.magic != MAGIC || u64::from(header.bytes) > context.local_top - params {
        context.stop(wrong());
    }
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(params as *const u8, header.bytes as usize) };
    let child = Child {
        function: header.function,
        grid: header.grid,
        block: header.block,
        shared: header.shared,
        params: bytes.to_vec(),
        tail: stream == TAIL,
    };
    // The last that was given is taken back.
    if context.local_top == (params + u64::from(header.bytes)).next_multiple_of(16) {
        context.local_top = params - HEADER;
    }
    // SAFETY: by contract; the reference to the block ends at once.
    let mut launched = unsafe { block(context) }.grid().launched.lock();
    if launched.len() >= MOST {
        return TOO_MANY;
    }
    launched.push(child);
    0
}

/// The part of a barrier of a whole grid in which one thread of each block waits for those of the others. It uses the words
/// of the launch as the toolkit's own barrier does: the upper bit of the second turns when all have come.
///
/// # Safety
/// Called by compiled code with its own context.
pub unsafe extern "C" fn meet(context: *mut DeviceThread) {
    // SAFETY: by contract; the copies are of what does not change while the thread runs.
    let (tid, workspace, blocks, index) = unsafe {
        let thread = &*context;
        (thread.tid, thread.workspace, thread.nctaid, thread.ctaid)
    };
    if tid != [0; 3] {
        return;
    }
    let [high, low] = workspace.map(u64::from);
    let address = high << 32 | low;
    if address == 0 {
        let why = "a barrier of a whole grid that was not launched cooperatively";
        // SAFETY: by contract.
        unsafe { (*context).stop(Stop::Illegal(why.to_owned())) };
    }
    // SAFETY: the driver gives every cooperative launch two words that stay until it has ended.
    let word = unsafe { &*((address + 4) as *const AtomicU32) };
    let others = blocks.iter().product::<u32>() - 1;
    let first = index == [0; 3];
    let step = if first { 0x8000_0000 - others } else { 1 };
    let before = word.fetch_add(step, Ordering::AcqRel);
    while (before ^ word.load(Ordering::Acquire)) & 0x8000_0000 == 0 {
        // SAFETY: by contract; the reference to the block ends before the fiber pauses.
        unsafe {
            if let Some(why) = block(context).grid().interrupted() {
                (*context).stop(why);
            }
            (*context).polls = 1;
            (*context).pause(Pause::Yielded);
        }
    }
}
