//! The type in which a session keeps loaded hash kernels.

use std::sync::Arc;

use fermata_device::ContextHandle;
use fermata_device::hash::Hasher;
use parking_lot::Mutex;

/// Hash kernels of a device, with the context they are loaded into. They may be used by several threads.
pub(crate) type SharedHasher = (ContextHandle, Arc<Mutex<Hasher>>);
