//! Virtual handles: numbers chosen here, which the program sees as pointers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::op::{
    ArrayId, CallbackId, ContextId, DescriptorId, EventId, ExecId, FIRST_HANDLE, FunctionId,
    GraphId, GraphNodeId, GreenId, KernelId, LibraryId, LinkerId, MipmapId, ModuleId, PoolId, Raw,
    ReferenceId, StreamId, UserObjectId,
};
use fermata_abi::sys::driver as sys;
use parking_lot::RwLock;

use crate::result::Result;

static NEXT: AtomicU64 = AtomicU64::new(FIRST_HANDLE);

/// What a pointer of the driver API stands for: each opaque type of the API has its own kind of handle.
pub trait Opaque {
    /// The handle.
    type Handle: Raw;
}

macro_rules! opaque {
    ($($type:ident: $handle:ty;)*) => {
        $(impl Opaque for sys::$type {
            type Handle = $handle;
        })*
    };
}

opaque! {
    CUctx_st: ContextId;
    CUgreenCtx_st: GreenId;
    CUdevResourceDesc_st: DescriptorId;
    CUmod_st: ModuleId;
    CUfunc_st: FunctionId;
    CUlib_st: LibraryId;
    CUkern_st: KernelId;
    CUstream_st: StreamId;
    CUevent_st: EventId;
    CUarray_st: ArrayId;
    CUmipmappedArray_st: MipmapId;
    CUtexref_st: ReferenceId;
    CUsurfref_st: ReferenceId;
    CUgraph_st: GraphId;
    CUgraphNode_st: GraphNodeId;
    CUgraphExec_st: ExecId;
    CUmemPoolHandle_st: PoolId;
    CUuserObject_st: UserObjectId;
    CUlinkState_st: LinkerId;
    CUasyncCallbackEntry_st: CallbackId;
    CUlogsCallbackEntry_st: CallbackId;
}

/// A handle never used before in this session.
pub fn fresh<H: Raw>() -> H {
    H::from_raw(number())
}

/// A number that no handle of this session has.
pub fn number() -> u64 {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// A handle as the pointer type the driver API gives it.
pub fn to_pointer<T: Opaque>(handle: T::Handle) -> *mut T {
    std::ptr::without_provenance_mut(handle.raw() as usize)
}

/// The handle behind a pointer of the driver API.
pub fn of<T: Opaque>(pointer: *mut T) -> T::Handle {
    T::Handle::from_raw(pointer.addr() as u64)
}

/// A map whose keys are handles, or made of handles and node numbers.
pub type HandleMap<K, V> = HashMap<K, V, BuildHasherDefault<HandleHasher>>;

/// The living objects of one kind, by handle.
#[derive(Debug)]
pub struct Table<H, T>(RwLock<HandleMap<H, Arc<T>>>);

impl<H, T> Default for Table<H, T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<H: Raw, T> Table<H, T> {
    /// Adds an object.
    pub fn insert(&self, handle: H, object: Arc<T>) {
        self.0.write().insert(handle, object);
    }

    /// The object; `missing` is the error if there is none.
    pub fn get(&self, handle: H, missing: u32) -> Result<Arc<T>> {
        self.0.read().get(&handle).cloned().ok_or(missing)
    }

    /// An object that `is` accepts, if there is one.
    pub fn find(&self, is: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.0.read().values().find(|object| is(object)).cloned()
    }

    /// Removes and returns the object; `missing` is the error if there is none.
    pub fn remove(&self, handle: H, missing: u32) -> Result<Arc<T>> {
        self.0.write().remove(&handle).ok_or(missing)
    }

    /// Removes and returns all objects that `gone` accepts.
    pub fn remove_if(&self, gone: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut out = Vec::new();
        self.0.write().retain(|_, object| {
            let goes = gone(object);
            if goes {
                out.push(object.clone());
            }
            !goes
        });
        out
    }

    /// Calls `act` with all objects, none of which is removed meanwhile. It must not change the table.
    pub fn with_all<R>(&self, act: impl FnOnce(&mut dyn Iterator<Item = &Arc<T>>) -> R) -> R {
        act(&mut self.0.read().values())
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.read().values().cloned().collect()
    }
}

/// A hasher for handles: they are counted up, so spreading their bits is enough.
#[derive(Debug, Default)]
pub struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(26);
    }
}
