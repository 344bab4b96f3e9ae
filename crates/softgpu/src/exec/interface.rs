//! The types that the driver part and the compiler exchange.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::texture;

/// First address of the range in which everything the device can reach by a direct pointer lies
/// (device memory, pinned and managed host memory that softgpu itself placed).
pub const WINDOW_BASE: u64 = 0x1000_0000_0000;
/// One past the last address of that range.
pub const WINDOW_END: u64 = 0x4000_0000_0000;

/// Why PTX was refused. Names the construct, the function it stands in and the line.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is not PTX.
    #[error("PTX line {line}: {message}")]
    Syntax {
        /// Line in the PTX text, from 1.
        line: u32,
        /// What was expected or found.
        message: String,
    },
    /// A valid construct that this software GPU does not execute.
    #[error("PTX line {line}, in `{function}`: {instruction} is not supported by the software GPU")]
    Unsupported {
        /// Line in the PTX text, from 1.
        line: u32,
        /// The function or kernel it stands in.
        function: String,
        /// The instruction or directive as written, in backticks, or what it is in words.
        instruction: String,
    },
    /// A name that nothing in the module or the linked environment defines.
    #[error("PTX: `{name}` is referred to but not defined")]
    Undefined {
        /// The symbol.
        name: String,
    },
}

/// One kernel parameter's place in the parameter block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamInfo {
    /// Bytes from the start of the block.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// The properties of a kernel that the driver API reports.
#[derive(Debug, Clone)]
pub struct KernelInfo {
    /// Mangled name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// Bytes of the whole parameter block.
    pub param_bytes: usize,
    /// Bytes of statically declared shared memory per block.
    pub static_shared: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    /// Bytes of module constant memory it may use.
    pub const_bytes: u32,
    /// An estimate of the registers per thread (declared virtual registers, clamped to 255).
    pub registers: u32,
    /// Upper bound on threads per block (`.maxntid`/`.reqntid` product, else 1024).
    pub max_threads: u32,
    /// `.target sm_XX` as 10 * major + minor.
    pub target: u32,
    /// `.version X.Y` as 10 * major + minor.
    pub ptx_version: u32,
    /// Why it cannot be launched: it, or a function that it may call, holds something that is not executed here.
    pub refused: Option<Arc<str>>,
}

/// Where a module variable lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VarSpace {
    /// `.global`
    Global,
    /// `.const`
    Const,
}

/// A word of an initialiser that holds an address known only once variables are placed.
#[derive(Debug, Clone)]
pub struct Relocation {
    /// Byte offset within the variable.
    pub offset: usize,
    /// Bytes written (8, or 4 for shared-style addresses).
    pub size: usize,
    /// Symbol whose address is written (a variable or a function).
    pub symbol: String,
    /// Added to it.
    pub addend: i64,
}

/// A module variable that the driver part places.
#[derive(Debug, Clone)]
pub struct GlobalVar {
    /// Name as in the PTX.
    pub name: String,
    /// Global or constant.
    pub space: VarSpace,
    /// Bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Initial bytes (length `size`), relocations not applied.
    pub init: Vec<u8>,
    /// Words to be patched after placement.
    pub relocations: Vec<Relocation>,
    /// Declared `.attribute(.managed)`.
    pub managed: bool,
    /// It is a reference, which must not be read or written as memory.
    pub reference: Option<Referent>,
}

/// What a variable refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referent {
    /// A texture: `.texref`.
    Texture,
    /// A surface: `.surfref`.
    Surface,
    /// How a texture is read: `.samplerref`.
    Sampler,
}

/// How a launch failed. The context is dead afterwards, as on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Load, store or atomic at an address that is not mapped, not accessible or write-protected.
    #[error("kernel `{kernel}`: illegal address {address:#x}")]
    IllegalAddress {
        /// The kernel.
        kernel: String,
        /// The address.
        address: u64,
    },
    /// Address not a multiple of the access size.
    #[error("kernel `{kernel}`: misaligned address {address:#x}")]
    Misaligned {
        /// The kernel.
        kernel: String,
        /// The address.
        address: u64,
    },
    /// `trap` was executed.
    #[error("kernel `{kernel}`: trap")]
    Trap {
        /// The kernel.
        kernel: String,
    },
    /// A device-side `assert` failed; the message has been passed to the print sink.
    #[error("kernel `{kernel}`: assertion failed")]
    Assert {
        /// The kernel.
        kernel: String,
    },
    /// An indirect call or jump to something that is not a function, or a stack overflow.
    #[error("kernel `{kernel}`: {what}")]
    Illegal {
        /// The kernel.
        kernel: String,
        /// What happened.
        what: String,
    },
    /// It ran longer than the configured limit.
    #[error("kernel `{kernel}`: exceeded the limit of {seconds} s")]
    Timeout {
        /// The kernel.
        kernel: String,
        /// The limit.
        seconds: u64,
    },
    /// Stopped because the device was lost or the context destroyed.
    #[error("kernel `{kernel}`: stopped")]
    Stopped {
        /// The kernel.
        kernel: String,
    },
    /// No block ended for long, more blocks than a GPU would run at once were running, and others had not begun.
    #[error(
        "kernel `{kernel}`: none of its {running} running blocks has ended for {seconds} s and others have not begun: \
         blocks that wait for later ones wait for ever where a device runs no more at once; launch at most \
         cuOccupancyMaxActiveBlocksPerMultiprocessor blocks per multiprocessor, or set FERMATA_SOFTGPU_BLOCK_WAIT"
    )]
    Unbegun {
        /// The kernel.
        kernel: String,
        /// Blocks that were running.
        running: u64,
        /// The limit.
        seconds: u64,
    },
    /// Threads of a block wait at a barrier that can never complete.
    #[error("kernel `{kernel}`: threads wait for one another for ever at a barrier")]
    Deadlock {
        /// The kernel.
        kernel: String,
    },
}

/// Memory outside the window that a kernel may access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Its addresses.
    pub range: std::ops::Range<u64>,
    /// Whether it may be written.
    pub writable: bool,
}

impl Reach {
    /// Whether it has all of `len` bytes at `address`, and they may be written if `write`.
    pub fn allows(&self, address: u64, len: u64, write: bool) -> bool {
        let end = address.saturating_add(len);
        self.range.contains(&address) && end <= self.range.end && (self.writable || !write)
    }
}

/// Decides on addresses outside the window (registered host memory), and receives device output.
pub trait Host: Send + Sync {
    /// The memory around `address`, outside the window, that a kernel may access. It stays as it is until the launch has ended.
    fn reach(&self, address: u64) -> Option<Reach>;
    /// A level of the texture or surface of a handle that a kernel has.
    fn texture(&self, handle: u64, level: u32) -> Option<texture::Texture> {
        let _ = (handle, level);
        None
    }
    /// Gives the condition of a handle that a kernel has a value (`cudaGraphSetConditional`); false if there is none.
    fn set_condition(&self, handle: u64, value: u32) -> bool {
        let _ = (handle, value);
        false
    }
    /// Bytes printed by device `printf`, in whole calls.
    fn print(&self, bytes: &[u8]);
    /// A line that says which assertion has failed.
    fn complain(&self, line: &[u8]);
}

/// One launch.
pub struct Launch<'a> {
    /// Blocks in x, y, z; none is 0.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z; product at most 1024.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared: u32,
    /// The parameter block, `param_bytes` long.
    pub params: &'a [u8],
    /// Multiprocessors reported by `%nsmid`.
    pub multiprocessors: u32,
    /// A bit for each multiprocessor, by `%smid`, that it runs on; at least one of them.
    pub processors: u64,
    /// Unique id of this launch, for `%gridid`.
    pub grid_id: u64,
    /// Seconds after which the kernel is stopped with [`Fault::Timeout`]; 0 means never.
    pub limit_seconds: u64,
    /// Blocks that a device runs at once; at least 1.
    pub resident: u64,
    /// All blocks run at once (a cooperative launch), and this is the address of two zero words for their barrier.
    pub cooperative: Option<u64>,
    /// Seconds without an end of a block after which the kernel is stopped with [`Fault::Unbegun`], where blocks may
    /// be waiting for others that have not begun; 0 means never.
    pub block_wait: u64,
    /// Set by others to stop the kernel with [`Fault::Stopped`].
    pub stop: &'a AtomicBool,
    /// Address checks and output.
    pub host: Arc<dyn Host>,
}
