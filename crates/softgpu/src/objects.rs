//! The objects that lead to one another: contexts, their streams, the work in these, and the code that it runs.
//!
//! ```text
//!  Context ─► Streams ─► Stream ─► Work ─┬► KernelWork ─► Function ─► Module ─► Context
//!     ▲                     │            └► Run ─► Work
//!     └─────────────────────┘
//! ```
//! This file only defines them. Their functions are in `context`, `stream`, `work`, `module` and `graph`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::thread::ThreadId;

use fermata_abi::sys::driver as cu;
use fermata_graph::{ConditionalKind, HostCall, MemOp, MemsetNode};
use parking_lot::{Condvar, Mutex};

use crate::copy::Plan;
use crate::device::Device;
use crate::exec::{self, KernelInfo, LinkedModule};
use crate::function::Attributes;
use crate::graph::{Condition, HeldObjects, Root};
use crate::mark::Mark;
use crate::opened::Whole;

/// A context.
#[derive(Debug)]
pub struct Context {
    /// Its handle. A primary context keeps it over resets.
    pub handle: u64,
    /// Its device.
    pub device: Arc<Device>,
    /// It is the device's primary context.
    pub primary: bool,
    /// Number unique in the process.
    pub id: u64,
    /// `CU_CTX_*`
    pub flags: AtomicU32,
    /// Set when running kernels must end.
    pub stop: AtomicBool,
    /// Its streams. Work that orders streams among each other is submitted under this lock.
    pub streams: Mutex<Streams>,
    /// Contexts whose memory it may use.
    pub peers: Mutex<HashSet<u64>>,
    /// `CU_LIMIT_*` that were set.
    pub limits: Mutex<HashMap<cu::CUlimit, usize>>,
    /// `CU_FUNC_CACHE_*`
    pub cache_config: AtomicU32,
    /// Device output that has not been written yet.
    pub(crate) output: Mutex<Vec<u8>>,
    /// Code of the fault that ended it; 0 if there was none.
    pub(crate) fault: AtomicU32,
    /// Its end has begun.
    pub(crate) gone: AtomicBool,
    /// Holders by `cuCtxAttach`.
    pub attached: AtomicU32,
}

/// A green context.
#[derive(Debug)]
pub struct Green {
    /// Its handle.
    pub handle: u64,
    /// Its handle as a context that can be current.
    pub converted: u64,
    /// Number unique among contexts.
    pub id: u64,
    /// The primary context of its device.
    pub context: Arc<Context>,
    /// A bit for each of its multiprocessors.
    pub mask: u64,
    pub(crate) unit: u32,
    pub(crate) default: Mutex<Option<Arc<Stream>>>,
    /// What streams that are created later wait for.
    pub awaited: Mutex<Vec<Arc<Mark>>>,
}

/// Streams of a context.
#[derive(Debug, Default)]
pub struct Streams {
    /// The legacy default stream.
    pub(crate) legacy: Option<Arc<Stream>>,
    /// Every stream with work or a handle, the legacy one apart.
    pub others: Vec<Arc<Stream>>,
}

/// Which kind of stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// The default stream that synchronises with all blocking streams.
    Legacy,
    /// A thread's own default stream.
    PerThread(ThreadId),
    /// Created by the program, synchronising with the legacy default stream.
    Blocking,
    /// Created by the program, going its own way.
    NonBlocking,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Handle of a created stream; 0 for default streams.
    pub handle: u64,
    /// Its context; of a stream of a green context, the primary one.
    pub context: Arc<Context>,
    /// Its green context.
    pub green: Option<Arc<Green>>,
    /// Which kind it is.
    pub kind: StreamKind,
    /// `CU_STREAM_*` it was made with.
    pub flags: u32,
    /// Priority, from -5 (first) to 0.
    pub priority: AtomicI32,
    /// Number unique in the process.
    pub id: u64,
    pub(crate) queue: Arc<Queue>,
    /// The program has destroyed it; its submitted work is still executed.
    pub(crate) destroyed: AtomicBool,
}

/// A place in a stream's queue.
#[derive(Debug, Clone)]
pub struct Point {
    pub(crate) queue: Arc<Queue>,
    /// Jobs of the queue up to here.
    pub(crate) number: u64,
}

/// What a stream has still to do.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) state: Mutex<QueueState>,
    /// Something of the state has changed.
    pub(crate) changed: Condvar,
}

/// What changes of a queue.
#[derive(Debug, Default)]
pub(crate) struct QueueState {
    pub(crate) jobs: VecDeque<Job>,
    /// Jobs so far; the number of a job's point.
    pub(crate) submitted: u64,
    /// Those of them that are done.
    pub(crate) completed: u64,
    /// There is a thread.
    pub(crate) running: bool,
    /// A thread of the program executes the last job submitted; the queue's own waits.
    pub(crate) borrowed: bool,
}

/// Work in a queue.
#[derive(Debug)]
pub(crate) struct Job {
    /// Places in other queues that it waits for.
    pub(crate) after: Vec<Point>,
    pub(crate) work: Work,
}

/// One piece of work in a stream.
#[derive(Debug)]
pub enum Work {
    /// Run a kernel.
    Kernel(KernelWork),
    /// Move bytes.
    Copy(Plan),
    /// Fill memory.
    Memset(MemsetNode),
    /// Call the program.
    Host(HostCall),
    /// Tell the program that the stream is here, and how the context is.
    Callback(Callback),
    /// Pass an event's mark.
    Record(Arc<Mark>),
    /// Wait for an event's mark.
    Wait(Arc<Mark>),
    /// Wait for or write words of memory.
    MemOps(Vec<MemOp>),
    /// Free memory of a pool.
    Free {
        /// Its first address.
        address: u64,
        /// The number of its range: after a context's end, other memory may lie there.
        id: u64,
    },
    /// Take memory of another process away.
    Unmap(Whole),
    /// Run a graph.
    Graph(Arc<Run>),
    /// Run parts of a graph by a condition.
    Conditional(Branches),
    /// Nothing.
    Nothing,
}

/// The bodies of a conditional node.
#[derive(Debug)]
pub struct Branches {
    /// What decides.
    pub condition: Arc<Condition>,
    /// How.
    pub kind: ConditionalKind,
    /// The work of each body, in order.
    pub bodies: Vec<Vec<Work>>,
}

/// A checked launch.
#[derive(Debug)]
pub struct KernelWork {
    /// What runs.
    pub function: Arc<Function>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// All blocks run at once.
    pub cooperative: bool,
    /// Blocks that the device runs at once.
    pub resident: u64,
    /// A bit for each multiprocessor that it runs on.
    pub processors: u64,
    /// The parameter block.
    pub params: Vec<u8>,
}

/// A callback of `cuStreamAddCallback`.
#[derive(Debug, Clone, Copy)]
pub struct Callback {
    /// The function.
    pub function: unsafe extern "C" fn(cu::CUstream, cu::CUresult, *mut c_void),
    /// The stream's handle as the program gave it.
    pub stream: u64,
    /// The argument.
    pub user_data: u64,
}

/// A module in a context.
pub struct Module {
    /// Its handle.
    pub handle: u64,
    /// Its context.
    pub context: Arc<Context>,
    /// What can be launched.
    pub code: LinkedModule,
    /// Its variables.
    pub variables: Vec<Variable>,
    /// Its functions, in the image's order; filled right after the module is made.
    pub(crate) functions: Mutex<Vec<Arc<Function>>>,
}

/// A variable that has been placed.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Name in the image.
    pub name: String,
    /// Where it is.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// It is managed memory.
    pub managed: bool,
    /// It is its library's, for the modules in all contexts.
    pub shared: bool,
    /// It is a reference.
    pub reference: Option<exec::Referent>,
}

/// A kernel of a module.
#[derive(Debug)]
pub struct Function {
    /// Its handle.
    pub handle: u64,
    /// Its module.
    pub module: Arc<Module>,
    /// What is known about it.
    pub info: KernelInfo,
    /// Its name as C shows it.
    pub c_name: CString,
    /// What the program has set; shared with the library kernel it was made from.
    pub attributes: Arc<Mutex<Attributes>>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("handle", &self.handle)
            .field("variables", &self.variables)
            .finish()
    }
}

/// The work of one launch, in an order that keeps all dependencies.
#[derive(Debug)]
pub struct Run {
    /// What the executable graph was made from: its memory stays until the steps are done, even if both are destroyed.
    pub(crate) _root: Arc<Root>,
    /// What the executable graph held when it was launched.
    pub(crate) users: Arc<HeldObjects>,
    /// Its conditions, which are given their values when it begins.
    pub(crate) conditions: Vec<Arc<Condition>>,
    pub(crate) steps: Vec<Work>,
}
