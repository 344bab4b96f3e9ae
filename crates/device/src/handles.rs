//! The driver's handles as distinct plain types that may cross threads.

use std::ffi::c_void;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident: $raw:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub struct $name(pub(crate) usize);

            impl $name {
                #[allow(dead_code)]
                pub(crate) fn from_raw(raw: fermata_abi::sys::driver::$raw) -> Self {
                    Self(raw as usize)
                }

                #[allow(dead_code)]
                pub(crate) fn raw(self) -> fermata_abi::sys::driver::$raw {
                    self.0 as *mut c_void as fermata_abi::sys::driver::$raw
                }
            }
        )*
    };
}

handles! {
    /// A context of the driver.
    ContextHandle: CUcontext;
    /// A green context.
    GreenHandle: CUgreenCtx;
    /// A loaded module.
    ModuleHandle: CUmodule;
    /// A kernel in a module.
    FunctionHandle: CUfunction;
    /// A stream.
    StreamHandle: CUstream;
    /// An event.
    EventHandle: CUevent;
    /// An array.
    ArrayHandle: CUarray;
    /// An array with levels.
    MipmapHandle: CUmipmappedArray;
    /// A graph under construction.
    GraphHandle: CUgraph;
    /// A node of a graph.
    NodeHandle: CUgraphNode;
    /// An executable graph.
    ExecHandle: CUgraphExec;
}

impl EventHandle {
    /// What the driver's structures hold for it.
    pub fn address(self) -> u64 {
        self.0 as u64
    }
}

impl StreamHandle {
    /// The legacy default stream of the current context.
    pub const LEGACY: Self = Self(0);
}

/// Physical device memory (`cuMemCreate`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysicalHandle(pub(crate) u64);
