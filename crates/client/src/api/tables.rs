//! Serves the driver's undocumented tables, which NVIDIA's runtime and libraries ask for, from the session.

use core::ffi::{c_int, c_void};
use std::sync::OnceLock;

use fermata_abi::op::{Op, ReplyBody};
use fermata_abi::sys::driver as sys;
use fermata_tables::{CodeCache, Driver, Identity, Places};

use crate::args::In;
use crate::frame::entry;
use crate::handles::{of, to_pointer};
use crate::link;
use crate::link::image;
use crate::notice;
use crate::object::context::{current, current_pointer};
use crate::object::session::{begun, session};
use crate::result::Result;

/// The version whose functions this library has; the worker's driver is no older. Runtimes ask before a session begins
/// and make their handshake afterwards: the answer must not change.
pub const VERSION: c_int = sys::CUDA_VERSION as c_int;

/// This library as the tables see it.
#[derive(Debug)]
struct Client;

/// The table with this identifier, `None` if it is refused.
pub fn serve(id: &sys::CUuuid) -> Option<*const c_void> {
    fermata_tables::serve(&Client, id)
}

impl Driver for Client {
    fn call(&self, body: &mut dyn FnMut() -> Result) -> sys::CUresult {
        entry::call("tables", body)
    }

    fn version(&self) -> i32 {
        VERSION
    }

    fn devices(&self) -> Vec<Identity> {
        let Some(session) = begun() else {
            return Vec::new();
        };
        let identity = |device: &crate::object::devices::Device| {
            let of = |id| device.attribute(id).unwrap_or(0);
            Identity {
                uuid: device.info.uuid,
                pci: [
                    of(sys::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                    of(sys::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                    of(sys::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
                ],
            }
        };
        session.devices.all().iter().map(identity).collect()
    }

    fn current(&self) -> sys::CUcontext {
        current_pointer()
    }

    fn primary(&self, device: sys::CUdevice) -> Result<sys::CUcontext> {
        let session = session()?;
        Ok(session
            .contexts
            .primary(&session.devices, device)?
            .pointer())
    }

    fn context_id(&self, context: sys::CUcontext) -> Result<u64> {
        session()?.contexts.id(context)
    }

    fn stream_id(&self, context: sys::CUcontext, stream: sys::CUstream) -> Result<u64> {
        let session = session()?;
        let context = session.contexts.get(context)?;
        session.streams.id(&context, stream)
    }

    fn functions(&self, module: sys::CUmodule) -> Result<Vec<sys::CUfunction>> {
        let modules = &session()?.modules;
        let module = modules
            .modules
            .get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let handle = |name: &String| Ok(to_pointer(modules.function(&module, name)?.handle));
        module.names()?.iter().map(handle).collect()
    }

    unsafe fn load(&self, image: *const c_void) -> Result<sys::CUmodule> {
        // SAFETY: null, which is refused, or a complete image, by the caller's promise.
        let image = image::find(unsafe { In::from_raw(image) })?;
        let module = session()?
            .modules
            .load(&current()?, image.bytes()?, |_| ())?;
        Ok(to_pointer(module.handle))
    }

    fn places(&self) -> Result<Places> {
        let context = current()?.handle;
        link::ask(&Op::Places { context }, |body| match body {
            ReplyBody::Places(clusters, indices) if clusters.len() == indices.len() => {
                Ok(Places { clusters, indices })
            }
            _ => Err(sys::CUDA_ERROR_UNKNOWN),
        })
    }

    fn code(&self) -> Option<&CodeCache> {
        static CODE: OnceLock<Option<CodeCache>> = OnceLock::new();
        CODE.get_or_init(|| CodeCache::of_environment(|name| std::env::var_os(name)))
            .as_ref()
    }

    fn refused(&self, what: &str) {
        notice::write(what);
    }
}
