//! Ends contexts, modules and libraries with all objects in them.

use std::sync::Arc;

use fermata_abi::op::{ContextId, LibraryId, ModuleId, Op};
use fermata_abi::sys::driver::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_PERMITTED, CUcontext, CUdevice, CUgreenCtx,
};

use crate::link;
use crate::link::fault;
use crate::object::context::Context;
use crate::object::host;
use crate::object::mirror::Kind;
use crate::object::module::Module;
use crate::object::session::Session;
use crate::result::Result;
use crate::thread::exit;
use crate::work::green;

/// Ends a context that was created.
pub fn destroy_context(session: &Session, context: CUcontext) -> Result {
    end(session, &*session.contexts.take_created(context)?)
}

/// Removes a holder that `cuCtxAttach` added; ends the context if there is none.
pub fn detach_context(session: &Session, context: CUcontext) -> Result {
    match session.contexts.detach(context)? {
        true => destroy_context(session, context),
        false => Ok(()),
    }
}

/// Removes a holder of a primary context; ends the context with the last, or leaves that to the end of the process.
pub fn release_primary(session: &Session, device: CUdevice) -> Result {
    let last = session.contexts.release(&session.devices, device)?;
    let last = last.filter(|_| !exit::has_begun());
    last.map_or(Ok(()), |context| end_primary(session, &context, false))
}

/// Ends a primary context even if it is still retained.
pub fn reset_primary(session: &Session, device: CUdevice) -> Result {
    let living = session.contexts.reset(&session.devices, device)?;
    living.map_or(Ok(()), |context| end_primary(session, &context, true))
}

/// Ends a green context.
pub fn destroy_green(session: &Session, green: CUgreenCtx) -> Result {
    let context = session.greens.take(green)?;
    green::forget(session, &context);
    // As with primary contexts, a program that ends leaves the rest to its end.
    if exit::has_begun() {
        return Ok(());
    }
    let ended = match &context.green {
        Some(green) => link::ask(&Op::GreenDestroy { green: green.name }, link::nothing),
        None => Ok(()),
    };
    ended.and(release_primary(session, context.device))
}

/// Destroys a context and forgets its objects.
fn end(session: &Session, context: &Context) -> Result {
    // While its handle is still valid.
    fermata_tables::context_gone(context.pointer());
    session.contexts.forget(context);
    destroy(session, context.handle)
}

/// As [`end`], for a primary context, which another thread may retain meanwhile: it then stays, unless it has to end `anyway`.
fn end_primary(session: &Session, context: &Context, anyway: bool) -> Result {
    if !anyway && session.contexts.is_held(context) {
        return Ok(());
    }
    // Before threads that retain it wait: these are destructors of the program, which may take locks that such a thread has.
    fermata_tables::context_gone(context.pointer());
    match session.contexts.begin_end(context, anyway) {
        Some(_ending) => {
            // The next primary context of the device has the same handle. What a thread has stored meanwhile is not its own.
            fermata_tables::forget_context(context.pointer());
            destroy(session, context.handle)
        }
        None => Ok(()),
    }
}

/// Forgets the objects of a context whose handle is no longer valid, and has the worker destroy it.
fn destroy(session: &Session, gone: ContextId) -> Result {
    for context in session.greens.take_all(gone) {
        green::forget(session, &context);
    }
    session.managed.forget_context(&session.memory, gone);
    host::forget(&session.memory, gone);
    session.modules.forget(gone);
    session.streams.forget(&session.graphs, gone);
    session.events.forget(gone);
    session.textures.forget(gone);
    session.mipmaps.forget(gone);
    session.arrays.forget(gone);
    session
        .references
        .forget(|module| module.context.handle == gone);
    session.memory.forget(gone);
    let ended = link::ask(&Op::ContextDestroy { context: gone }, link::nothing);
    fault::forget(gone);
    ended
}

/// Unloads a module that the program has loaded, not one of a library.
pub fn unload_module(session: &Session, handle: ModuleId) -> Result {
    let modules = &session.modules.modules;
    if modules.get(handle, CUDA_ERROR_INVALID_HANDLE)?.of_library {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    unload(session, handle)
}

fn unload(session: &Session, handle: ModuleId) -> Result {
    let module = session.modules.take(handle)?;
    let streams = (&session.streams, &session.graphs);
    session.managed.forget(&session.memory, streams, handle);
    session.references.forget(|module| module.handle == handle);
    session
        .memory
        .remove_if(|block| block.kind == Kind::Variable(handle));
    let module = module.handle;
    link::ask(&Op::ModuleUnload { module }, link::nothing)
}

/// Unloads a library from every context.
pub fn unload_library(session: &Session, handle: LibraryId) -> Result {
    let (library, modules) = session.modules.take_library(handle)?;
    // An error of earlier work must not keep modules loaded for which the program has no handle any more.
    let unload = |module: Arc<Module>| unload(session, module.handle);
    let unloaded = modules.into_iter().map(unload).fold(Ok(()), Result::and);
    if let Some(image) = library.held() {
        link::post(&Op::ImageRelease { image })?;
    }
    unloaded
}
