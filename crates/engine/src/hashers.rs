//! Hash kernels as they are kept: loaded into a context, used by several threads.

use std::sync::Arc;

use fermata_device::ContextHandle;
use fermata_device::hash::Hasher;
use parking_lot::Mutex;

/// Hash kernels of a device, with the context they are loaded into. They may be used by several threads.
pub(crate) type SharedHasher = (ContextHandle, Arc<Mutex<Hasher>>);
