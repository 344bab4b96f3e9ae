//! Exported functions for user objects, which graphs keep alive.

use core::ffi::{c_uint, c_void};

use fermata_abi::op::{GraphId, UserObjectId};
use fermata_abi::sys::driver as sys;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::handles::{self, of, to_pointer};
use crate::object::graphs::UserObject;
use crate::object::session::{Session, session};
use crate::result::Result;

driver_api! {
    fn cuUserObjectCreate(
        object: Out<sys::CUuserObject>,
        data: *mut c_void,
        destroy: sys::CUhostFn,
        references: c_uint,
        flags: c_uint,
    ) {
        let destroy = destroy.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        if flags != sys::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let handle = handles::fresh();
        let new = UserObject { references, destroy, data: data.expose_provenance() };
        session()?.graphs.lock().objects.insert(handle, new);
        object.set(to_pointer(handle))
    }

    fn cuUserObjectRetain(object: sys::CUuserObject, count: c_uint) {
        retain(session()?, of(object), count)
    }

    fn cuUserObjectRelease(object: sys::CUuserObject, count: c_uint) {
        release(session()?, of(object), count)
    }

    fn cuGraphRetainUserObject(graph: sys::CUgraph, object: sys::CUuserObject, count: c_uint, flags: c_uint) {
        let session = session()?;
        session.graphs.lock().graph(of(graph))?;
        // With this flag the graph takes over references of the caller.
        if flags & sys::CU_GRAPH_USER_OBJECT_MOVE == 0 {
            retain(session, of(object), count)?;
        }
        *session.graphs.lock().held.entry((of(graph), of(object))).or_insert(0) += count;
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: sys::CUgraph, object: sys::CUuserObject, count: c_uint) {
        let session = session()?;
        {
            let mut graphs = session.graphs.lock();
            let held = graphs.held.get_mut(&(of(graph), of(object))).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
            *held = held.checked_sub(count).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        }
        release(session, of(object), count)
    }
}

/// Releases the references that a destroyed graph held.
pub(super) fn release_all(session: &Session, graph: GraphId) {
    let mut given_back = Vec::new();
    session
        .graphs
        .lock()
        .held
        .retain(|(holder, object), count| {
            if *holder == graph {
                given_back.push((*object, *count));
            }
            *holder != graph
        });
    for (object, count) in given_back {
        // An object the program has released too often is gone already.
        let _ = release(session, object, count);
    }
}

fn retain(session: &Session, object: UserObjectId, count: u32) -> Result {
    let mut graphs = session.graphs.lock();
    let object = graphs
        .objects
        .get_mut(&object)
        .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
    object.references = object
        .references
        .checked_add(count)
        .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
    Ok(())
}

fn release(session: &Session, object: UserObjectId, count: u32) -> Result {
    let gone = {
        let mut graphs = session.graphs.lock();
        let found = graphs
            .objects
            .get_mut(&object)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        found.references = found
            .references
            .checked_sub(count)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let found = *found;
        (found.references == 0)
            .then(|| graphs.objects.remove(&object))
            .map(|_| found)
    };
    if let Some(UserObject { destroy, data, .. }) = gone {
        // SAFETY: the program gave the function for this call with this argument.
        unsafe { destroy(std::ptr::with_exposed_provenance_mut(data)) };
    }
    Ok(())
}
