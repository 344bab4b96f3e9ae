//! The loaded CUDA driver, NVIDIA's or softgpu's: its function table behind typed calls, the range of
//! device addresses that every worker reserves, and the pinned buffers data travels through.
//!
//! ```text
//!   Driver ──────── functions of one libcuda.so.1, chosen by path
//!     ▲
//!   AddressSpace ── Layout (pure: which address) + physical memory mapped there
//!   CopyEngine ──── a stream per direction, PinnedPool buffers or Window spans, events
//! ```
//! Handles of the driver are plain numbers here; a stale one gets an error from the driver. Calls act
//! on the calling thread's current context, as in CUDA: see [`Driver::set_current`].
//!
//! | files | subject |
//! | --- | --- |
//! | `driver`, `functions`, `error`, `handles`, `resident` | the library, its function table, its errors and handles |
//! | `address_space`, `layout`, `ranges`, `reusable_pages`, `block`, `memory` | device memory and its addresses |
//! | `transfer`, `pinned`, `window`, `host`, `copy`, `words` | host memory that devices reach, and copies |
//! | `hash/` | hashes of device memory |
//! | `context`, `green`, `stream`, `module`, `linker`, `launch`, `graph`, `conditional`, `arrays`, `textures`, `references`, `tensor` | calls by kind of object |
//! | `devices`, `capability`, `occupancy`, `places` | what a device is |
//! | `processes` | the driver's own checkpoint of another process |

mod address_space;
mod arrays;
mod background;
mod block;
mod capability;
mod conditional;
mod context;
mod copy;
mod devices;
mod driver;
mod error;
mod functions;
mod graph;
mod green;
mod handles;
pub mod hash;
mod host;
mod launch;
pub mod layout;
mod linker;
mod memory;
mod module;
mod occupancy;
mod pinned;
mod places;
mod processes;
mod ranges;
mod references;
mod resident;
mod reusable_pages;
pub mod slot;
mod stream;
mod tensor;
mod textures;
mod transfer;
mod window;
mod words;

pub use address_space::AddressSpace;
pub use arrays::ArrayShape;
pub use background::stand_back;
pub use block::DeviceBlock;
pub use copy::{CopyBox, CopySide, Endpoint};
pub use devices::DeviceFacts;
pub use driver::Driver;
pub use error::{DriverError, LoadError, MemoryError};
pub use graph::{BatchOp, HostFn, NodeSpec};
pub use green::{Multiprocessors, SplitResult};
pub use handles::{
    ArrayHandle, ContextHandle, EventHandle, ExecHandle, FunctionHandle, GraphHandle, GreenHandle,
    MipmapHandle, ModuleHandle, NodeHandle, PhysicalHandle, StreamHandle,
};
pub use host::HostMapping;
pub use launch::{Grid, KernelLaunch, LaunchAttribute};
pub use module::ModuleRefused;
pub use occupancy::{Clusters, SharedNeed};
pub use pinned::{PinnedBuffer, PinnedPool};
pub use processes::{ProcessStand, UuidPair};
pub use resident::{MemoryKind, Resident};
pub use stream::HIGHEST_PRIORITY;
pub use textures::Texels;
pub use transfer::{CopyEngine, Direction, HostEnd, InFlight};
pub use window::{SharedSpan, Span, Window};
pub use words::PinnedWords;
