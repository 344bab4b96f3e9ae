//! The process's session: begun by `cuInit`, it holds all tables of objects and never ends.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::sys::driver::{CUDA_ERROR_NOT_INITIALIZED, CUresult};

use crate::link;
use crate::object::array::Arrays;
use crate::object::context::Contexts;
use crate::object::devices::Devices;
use crate::object::event::Events;
use crate::object::graphs::Graphs;
use crate::object::green::Greens;
use crate::object::managed::Managed;
use crate::object::mipmap::Mipmaps;
use crate::object::mirror::Mirror;
use crate::object::modules::Modules;
use crate::object::physical::PhysicalMemory;
use crate::object::pool::Pools;
use crate::object::reference::References;
use crate::object::shared::OpenedMemory;
use crate::object::stream::Streams;
use crate::object::texture::Textures;
use crate::result::Result;

/// Everything the library knows of the program's CUDA objects.
#[derive(Debug)]
pub struct Session {
    /// The devices that the program sees.
    pub devices: Devices,
    /// Contexts.
    pub contexts: Contexts,
    /// Green contexts.
    pub greens: Greens,
    /// Modules, libraries, functions and kernels.
    pub modules: Modules,
    /// Blocks of memory by address.
    pub memory: Mirror,
    /// Physical memory.
    pub physical: PhysicalMemory,
    /// Memory of other processes that has been opened here.
    pub opened: OpenedMemory,
    /// Memory pools.
    pub pools: Pools,
    /// Arrays.
    pub arrays: Arrays,
    /// Texture and surface objects.
    pub textures: Textures,
    /// Texture and surface references.
    pub references: References,
    /// Arrays with levels.
    pub mipmaps: Mipmaps,
    /// Streams.
    pub streams: Streams,
    /// Events.
    pub events: Events,
    /// Graphs.
    pub graphs: Graphs,
    /// Managed variables.
    pub managed: Managed,
}

static SESSION: OnceLock<core::result::Result<Session, CUresult>> = OnceLock::new();
/// Whether a thread has come to begin the session. Stays set: at the end of the beginning, [`SESSION`] has a value.
static ASKED: AtomicBool = AtomicBool::new(false);

impl Session {
    /// A session that has no objects yet.
    pub fn new(devices: Devices) -> Self {
        Self {
            devices,
            contexts: Contexts::default(),
            greens: Greens::default(),
            modules: Modules::default(),
            memory: Mirror::default(),
            physical: PhysicalMemory::default(),
            opened: OpenedMemory::default(),
            pools: Pools::default(),
            arrays: Arrays::default(),
            textures: Textures::default(),
            references: References::default(),
            mipmaps: Mipmaps::default(),
            streams: Streams::default(),
            events: Events::default(),
            graphs: Graphs::default(),
            managed: Managed::default(),
        }
    }
}

/// Begins the session with `start` if this is the first call.
///
/// # Errors
/// The same error at every call if the session could not begin.
pub fn begin(start: impl FnOnce() -> core::result::Result<Session, CUresult>) -> Result {
    if SESSION.get().is_none() {
        ASKED.store(true, Ordering::SeqCst);
    }
    SESSION
        .get_or_init(start)
        .as_ref()
        .map(|_| ())
        .map_err(|status| *status)
}

/// Whether a thread is beginning the session. In a forked child that thread does not exist, and [`begin`] would wait for it for
/// ever.
pub fn is_beginning() -> bool {
    ASKED.load(Ordering::SeqCst) && SESSION.get().is_none()
}

/// The session, if it has begun and its worker lives.
///
/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED` before `cuInit`; the sticky error of a session whose worker is lost.
#[inline]
pub fn session() -> Result<&'static Session> {
    link::check()?;
    match SESSION.get() {
        Some(Ok(session)) => Ok(session),
        Some(Err(status)) => Err(*status),
        None => Err(CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// The session if it has begun, even if its worker is lost; for the agent.
pub fn begun() -> Option<&'static Session> {
    SESSION.get().and_then(|session| session.as_ref().ok())
}
