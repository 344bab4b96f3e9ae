//! Objects of the program that graphs keep alive.
use core::ffi::{c_uint, c_void};

use fermata_abi::sys::runtime::{cudaGraph_t, cudaHostFn_t, cudaUserObject_t};

use crate::context;
use crate::error::{Error, export};

export! {
    /// Wraps an object with the function that destroys it.
    fn cudaUserObjectCreate(
        object: *mut cudaUserObject_t,
        data: *mut c_void,
        destroy: cudaHostFn_t,
        references: c_uint,
        flags: c_uint,
    ) {
        if object.is_null() || destroy.is_none() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuUserObjectCreate(object.cast(), data, destroy, references, flags)
    }

    /// Adds references.
    fn cudaUserObjectRetain(object: cudaUserObject_t, count: c_uint) {
        context::ready()?.cuUserObjectRetain(object.cast(), count)
    }

    /// Drops references.
    fn cudaUserObjectRelease(object: cudaUserObject_t, count: c_uint) {
        context::ready()?.cuUserObjectRelease(object.cast(), count)
    }

    /// Makes a graph hold references.
    fn cudaGraphRetainUserObject(
        graph: cudaGraph_t,
        object: cudaUserObject_t,
        count: c_uint,
        flags: c_uint,
    ) {
        context::ready()?.cuGraphRetainUserObject(graph.cast(), object.cast(), count, flags)
    }

    /// Makes a graph drop references.
    fn cudaGraphReleaseUserObject(graph: cudaGraph_t, object: cudaUserObject_t, count: c_uint) {
        context::ready()?.cuGraphReleaseUserObject(graph.cast(), object.cast(), count)
    }
}
