//! The session's objects in the driver, by the program's handles: the handles of the driver, and how objects are made.

mod attributes;
mod conditionals;
mod contexts;
mod exposed;
mod graphs;
mod green;
mod handles;
mod host_calls;
mod lasting;
mod mipmaps;
mod moved;
mod reach;
mod set_aside;
mod sharing;
mod spare;
mod templates;
mod undisturbed;
mod vacate;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use fermata_abi::op::{
    Address, ArrayId, ContextId, EventId, ExecId, FunctionId, MemoryId, MipmapId, ModuleId, Raw,
    STREAM_LEGACY, SmResource, SmSplit, StreamId, StreamRef,
};
use fermata_abi::sys::driver as cu;
use fermata_device::{
    AddressSpace, ArrayHandle, ContextHandle, Driver, DriverError, EventHandle, ExecHandle,
    FunctionHandle, GreenHandle, HostMapping, MemoryError, MipmapHandle, ModuleHandle,
    PhysicalHandle, PinnedPool, SplitResult, StreamHandle,
};

pub(crate) use exposed::Exposed;
pub(crate) use graphs::Instead;
pub use handles::HandleMap;
pub use host_calls::HostCaller;
use host_calls::HostCalls;
use lasting::Lasting;
pub use mipmaps::level_bytes;
pub use moved::Moved;
pub(crate) use reach::Reach;
pub use set_aside::SetAside;
pub use spare::SpareStaging;
use templates::Template;
pub use undisturbed::Undisturbed;

use crate::hashers::SharedHasher;
use crate::module_images::Examinations;
use crate::restore::Keeper;
use crate::share::Sharing;
use crate::{CHUNK, Elsewhere, HOST_BUFFER, STAGING_BUFFERS, Tier};

/// A context.
#[derive(Debug, Clone, Copy)]
pub struct LiveContext {
    /// In the driver.
    pub handle: ContextHandle,
    /// Its device.
    pub device: u32,
    /// Whether it is the primary one.
    pub primary: bool,
}

/// A kernel.
#[derive(Debug, Clone, Copy)]
pub struct LiveFunction {
    /// In the driver.
    pub handle: FunctionHandle,
    /// Its context.
    pub context: ContextId,
}

/// A stream.
#[derive(Debug, Clone, Copy)]
pub struct LiveStream {
    /// In the driver.
    pub handle: StreamHandle,
    /// Its context.
    pub context: ContextId,
}

/// A green context.
#[derive(Debug)]
pub struct LiveGreen {
    /// In the driver.
    pub handle: GreenHandle,
    /// The same as a context that can be current.
    pub converted: ContextHandle,
    /// The primary context of its device.
    pub context: ContextId,
    resource: SmResource,
}

/// The results of splits, by what was split and how.
#[derive(Debug, Default)]
struct Splits(HashMap<(SmResource, SmSplit), SplitResult>);

/// See the module. Before a driver call that acts on a context, [`Live::enter`] makes the context current.
pub struct Live {
    /// The driver.
    pub driver: Arc<Driver>,
    /// Device addresses.
    pub space: AddressSpace,
    /// Contexts.
    pub contexts: HandleMap<ContextId, LiveContext>,
    /// Modules.
    pub modules: HandleMap<ModuleId, ModuleHandle>,
    /// Modules that the program has unloaded and the worker keeps, by their place in the order of modules, each with its
    /// context.
    pub kept: HandleMap<u64, (ModuleHandle, ContextId)>,
    /// Kernels.
    pub functions: HandleMap<FunctionId, LiveFunction>,
    /// Green contexts.
    pub greens: HandleMap<ContextId, LiveGreen>,
    splits: Splits,
    /// Streams.
    pub streams: HandleMap<StreamId, LiveStream>,
    /// Events, each with its context.
    pub events: HandleMap<EventId, (EventHandle, ContextId)>,
    /// Executable graphs, each with its context.
    pub executables: HandleMap<ExecId, (ExecHandle, ContextId)>,
    /// The graphs that executable graphs were made from, if they are kept.
    pub(crate) templates: HandleMap<ExecId, Template>,
    /// [`Live::graph_revision`] of executable graphs, and the last number given.
    pub(crate) revisions: HandleMap<ExecId, u64>,
    last_revision: u64,
    /// Arrays, each with its context.
    pub arrays: HandleMap<ArrayId, (ArrayHandle, ContextId)>,
    /// Arrays with levels, each with its context. The levels are arrays too.
    pub mipmaps: HandleMap<MipmapId, (MipmapHandle, ContextId)>,
    /// Physical memory made by the program.
    pub memories: HandleMap<MemoryId, PhysicalHandle>,
    /// Memory shared with other processes.
    pub sharing: Sharing,
    /// Shared host memory.
    pub hosts: BTreeMap<Address, HostMapping>,
    /// Runs host callbacks of graphs.
    pub host_caller: HostCaller,
    pub(crate) host_calls: HostCalls,
    /// Whether devices hash their own memory; for software GPUs the processor is faster.
    pub device_hashes: bool,
    /// Whether the texts of kernels are used; without, every kernel is treated as one that has machine code only.
    pub texts: bool,
    /// Device variables that the driver has placed elsewhere than before the checkpoint.
    pub moved: Moved,
    /// Whether a restore is allowed on a device whose multiprocessors lie elsewhere than the program was told.
    pub other_places: bool,
    /// Staging buffers, if they have been made.
    pub staging: Option<PinnedPool>,
    /// Bytes of host memory, beside the staging buffers, for data that waits for the store.
    pub host_buffer: u64,
    /// Bytes a second that saves write to storage at most; 0 for no limit.
    pub write_rate: u64,
    /// What other workers of the session store for the next image, until a sink for that is opened.
    pub elsewhere: Option<Arc<dyn Elsewhere>>,
    /// Staging buffers that another thread makes ahead.
    pub spare_staging: SpareStaging,
    /// The registered memory tier, if there is one.
    pub tier: Option<Arc<Tier>>,
    /// The folder with copies of packs that lie on a disk.
    pub copies: Option<PathBuf>,
    /// The keeper of common memory, until the session is loaded.
    pub keeper: Option<Arc<dyn Keeper>>,
    /// Hash kernels by device, each loaded into the context it is used from.
    pub(crate) hashers: HashMap<u32, SharedHasher>,
    /// Device memory that a capture has set aside, which the program is told is free.
    pub set_aside: SetAside,
    /// The examination of the session's module images.
    pub(crate) examined: Examinations,
    /// Modules whose variables are all recorded; they never change, and handles are never given twice.
    pub(crate) discovered: HashSet<ModuleId>,
    /// What captures keep from one checkpoint to the next.
    pub(crate) lasting: Lasting,
    /// The number of captures that mis-speculations have overtaken.
    pub(crate) overtaken: u32,
    /// The context that the process keeps for all its life.
    pub home: Option<ContextHandle>,
    /// The device whose primary context that is.
    pub home_device: u32,
    current: Option<ContextHandle>,
}

fn invalid(call: &'static str, code: cu::CUresult, what: &str, handle: impl Raw) -> DriverError {
    DriverError {
        call,
        code,
        name: format!("there is no {what} {:#x}", handle.raw()).into(),
    }
}

impl Live {
    /// A session without objects, on this driver.
    ///
    /// # Errors
    /// The device range cannot be reserved.
    pub fn new(driver: Arc<Driver>, host_caller: HostCaller) -> Result<Self, MemoryError> {
        let space = AddressSpace::new(&driver)?;
        Ok(Self {
            driver,
            space,
            contexts: HandleMap::default(),
            modules: HandleMap::default(),
            kept: HandleMap::default(),
            functions: HandleMap::default(),
            greens: HandleMap::default(),
            splits: Splits::default(),
            streams: HandleMap::default(),
            events: HandleMap::default(),
            executables: HandleMap::default(),
            templates: HandleMap::default(),
            revisions: HandleMap::default(),
            last_revision: 0,
            arrays: HandleMap::default(),
            mipmaps: HandleMap::default(),
            memories: HandleMap::default(),
            sharing: Sharing::default(),
            hosts: BTreeMap::new(),
            host_caller,
            host_calls: HostCalls::default(),
            device_hashes: false,
            texts: true,
            hashers: HashMap::new(),
            set_aside: SetAside::default(),
            examined: Examinations::default(),
            discovered: HashSet::new(),
            lasting: Lasting::default(),
            overtaken: 0,
            moved: Moved::default(),
            other_places: false,
            staging: None,
            host_buffer: HOST_BUFFER,
            write_rate: 0,
            elsewhere: None,
            spare_staging: SpareStaging::default(),
            tier: None,
            copies: None,
            keeper: None,
            home: None,
            home_device: 0,
            current: None,
        })
    }

    /// Makes a context current for this thread, unless it is already.
    ///
    /// # Errors
    /// The context is unknown, or a driver error.
    pub fn enter(&mut self, context: ContextId) -> Result<LiveContext, DriverError> {
        let found = *self.contexts.get(&context).ok_or_else(|| {
            invalid(
                "cuCtxSetCurrent",
                cu::CUDA_ERROR_INVALID_CONTEXT,
                "context",
                context,
            )
        })?;
        if self.current != Some(found.handle) {
            self.driver.set_current(found.handle)?;
            self.current = Some(found.handle);
        }
        Ok(found)
    }

    /// Does `work` in the context that the process keeps, if there is one, so that what it makes does not end with a context
    /// of the program. The context that was current is current again afterwards.
    ///
    /// # Errors
    /// What `work` or the driver says.
    pub fn at_home<T>(
        &mut self,
        work: impl FnOnce(&Driver) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let before = self.current;
        if let Some(home) = self.home
            && before != Some(home)
        {
            self.driver.set_current(home)?;
            self.current = Some(home);
        }
        let done = work(&self.driver);
        if let Some(before) = before
            && self.current != Some(before)
        {
            self.driver.set_current(before)?;
            self.current = Some(before);
        }
        done
    }

    /// Forgets which context is current: to be called when another thread takes over, or a call has changed it.
    pub fn forget_current(&mut self) {
        self.current = None;
    }

    /// Makes a stream's context current; returns the driver's stream.
    ///
    /// # Errors
    /// Unknown, or what the driver says.
    pub fn stream(&mut self, stream: StreamRef) -> Result<StreamHandle, DriverError> {
        if stream.stream == STREAM_LEGACY {
            self.enter(stream.context)?;
            return Ok(StreamHandle::LEGACY);
        }
        let found = *self.streams.get(&stream.stream).ok_or_else(|| {
            invalid(
                "cuStreamQuery",
                cu::CUDA_ERROR_INVALID_HANDLE,
                "stream",
                stream.stream,
            )
        })?;
        self.enter(found.context)?;
        Ok(found.handle)
    }

    /// An event.
    ///
    /// # Errors
    /// Unknown, or what the driver says.
    pub fn event(&self, event: EventId) -> Result<EventHandle, DriverError> {
        let (handle, _) = *self.events.get(&event).ok_or_else(|| {
            invalid(
                "cuEventQuery",
                cu::CUDA_ERROR_INVALID_HANDLE,
                "event",
                event,
            )
        })?;
        Ok(handle)
    }

    /// A kernel, its context made current.
    ///
    /// # Errors
    /// Unknown, or what the driver says.
    pub fn function(&mut self, function: FunctionId) -> Result<LiveFunction, DriverError> {
        let found = *self.functions.get(&function).ok_or_else(|| {
            invalid(
                "cuLaunchKernel",
                cu::CUDA_ERROR_INVALID_HANDLE,
                "function",
                function,
            )
        })?;
        self.enter(found.context)?;
        Ok(found)
    }

    /// An array.
    ///
    /// # Errors
    /// Unknown.
    pub fn array(&self, array: ArrayId) -> Result<ArrayHandle, DriverError> {
        let found = self.arrays.get(&array);
        let (handle, _) = found
            .ok_or_else(|| invalid("cuMemcpy", cu::CUDA_ERROR_INVALID_HANDLE, "array", array))?;
        Ok(*handle)
    }

    /// Any context on `device`, made current; used for work that belongs to the device alone.
    ///
    /// # Errors
    /// The session has none there, or what the driver says.
    pub fn enter_device(&mut self, device: u32) -> Result<LiveContext, DriverError> {
        let handle = self
            .contexts
            .iter()
            .filter(|(_, it)| it.device == device)
            .map(|(handle, _)| *handle)
            .min();
        let handle = handle.ok_or_else(|| {
            invalid(
                "cuCtxSetCurrent",
                cu::CUDA_ERROR_INVALID_CONTEXT,
                "context on device",
                u64::from(device),
            )
        })?;
        self.enter(handle)
    }

    /// Waits until every context is idle.
    ///
    /// # Errors
    /// A driver error, and the context that has it.
    pub(crate) fn settle(&mut self) -> Result<(), (ContextId, DriverError)> {
        let contexts: Vec<_> = self.contexts.keys().copied().collect();
        contexts.into_iter().try_for_each(|context| {
            self.enter(context)
                .and_then(|_| self.driver.synchronize_context())
                .map_err(|error| (context, error))
        })
    }

    /// Takes staging buffers that have been made ahead.
    pub(crate) fn adopt_staging(&mut self) {
        if self.staging.is_none() {
            let tier = self.tier.as_ref();
            self.staging = tier
                .and_then(|tier| tier.staging())
                .or_else(|| self.spare_staging.get());
        }
    }

    /// Makes the staging buffers, and keeps them for later transfers.
    ///
    /// # Errors
    /// No context, or no memory to pin.
    pub fn prepare_staging(&mut self) -> Result<(), DriverError> {
        self.adopt_staging();
        if self.staging.is_none() {
            self.enter_any()?;
            self.staging = Some(PinnedPool::new(
                &self.driver,
                STAGING_BUFFERS,
                CHUNK as usize,
            )?);
        }
        Ok(())
    }

    /// Any context, made current.
    ///
    /// # Errors
    /// The session has none, or what the driver says.
    pub fn enter_any(&mut self) -> Result<(), DriverError> {
        let first = self.contexts.keys().min().copied();
        let first = first.ok_or_else(|| {
            invalid(
                "cuCtxSetCurrent",
                cu::CUDA_ERROR_INVALID_CONTEXT,
                "context",
                ContextId::NULL,
            )
        })?;
        self.enter(first).map(|_| ())
    }

    /// Lets `context` reach the memory of `peer`, allocations included.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enable_peer(&mut self, context: ContextId, peer: ContextId) -> Result<(), DriverError> {
        let other = self.contexts.get(&peer).copied();
        let other = other.ok_or_else(|| {
            invalid(
                "cuCtxEnablePeerAccess",
                cu::CUDA_ERROR_INVALID_CONTEXT,
                "context",
                peer,
            )
        })?;
        let own = self.enter(context)?;
        self.driver.enable_peer(other.handle)?;
        self.space
            .set_peer(&self.driver, other.device, own.device, true)
    }

    /// Ends [`Live::enable_peer`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn disable_peer(&mut self, context: ContextId, peer: ContextId) -> Result<(), DriverError> {
        let other = self.contexts.get(&peer).copied();
        let other = other.ok_or_else(|| {
            invalid(
                "cuCtxDisablePeerAccess",
                cu::CUDA_ERROR_INVALID_CONTEXT,
                "context",
                peer,
            )
        })?;
        let own = self.enter(context)?;
        self.driver.disable_peer(other.handle)?;
        self.space
            .set_peer(&self.driver, other.device, own.device, false)
    }
}
