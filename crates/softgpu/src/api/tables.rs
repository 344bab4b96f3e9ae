//! Serves the driver's undocumented tables, which NVIDIA's runtimes ask for.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use fermata_abi::sys::driver as cu;
use fermata_tables::{CodeCache, Driver, Identity, Places, Result};

use super::args::{In, Out};
use super::init::{driver, version};
use super::{context as contexts, module as modules, to_pointer};
use crate::attributes::attribute;
use crate::context;
use crate::device::Device;
use crate::error::{CuError, INVALID_VALUE};
use crate::log;
use crate::primary::Primary;
use crate::stream::Stream;

/// The software GPU as the tables see it.
#[derive(Debug)]
struct SoftGpu;

api! {
    /// The tables that NVIDIA's runtimes and libraries need; what is unknown is refused.
    fn cuGetExportTable(table: Out<*const c_void>, id: In<cu::CUuuid>) {
        if table.is_null() {
            return Err(INVALID_VALUE);
        }
        let found = fermata_tables::serve(&SoftGpu, &id.get()?);
        table.set(found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(CuError(cu::CUDA_ERROR_NOT_FOUND))
    }
}

fn code(error: CuError) -> cu::CUresult {
    error.0
}

impl Driver for SoftGpu {
    fn call(&self, body: &mut dyn FnMut() -> Result) -> cu::CUresult {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => cu::CUDA_SUCCESS,
            Ok(Err(status)) => status,
            Err(_) => cu::CUDA_ERROR_UNKNOWN,
        }
    }

    fn version(&self) -> i32 {
        version().unwrap_or(0)
    }

    fn devices(&self) -> Vec<Identity> {
        let Ok(driver) = driver() else {
            return Vec::new();
        };
        let identity = |device: &Arc<Device>| {
            let of = |id| attribute(device, id).unwrap_or(0);
            Identity {
                uuid: device.uuid(),
                pci: [
                    of(cu::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                    of(cu::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                    of(cu::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
                ],
            }
        };
        driver.devices.iter().map(identity).collect()
    }

    fn current(&self) -> cu::CUcontext {
        to_pointer(context::current_handle())
    }

    fn primary(&self, device: cu::CUdevice) -> Result<cu::CUcontext> {
        let driver = driver().map_err(code)?;
        let device = driver.device(device).map_err(code)?;
        Ok(to_pointer(Primary::handle(driver, device)))
    }

    fn context_id(&self, context: cu::CUcontext) -> Result<u64> {
        contexts::id_of(context).map_err(code)
    }

    fn stream_id(&self, _: cu::CUcontext, stream: cu::CUstream) -> Result<u64> {
        Stream::resolve_any(stream).map(|it| it.id).map_err(code)
    }

    fn functions(&self, module: cu::CUmodule) -> Result<Vec<cu::CUfunction>> {
        let module = modules::resolve(module).map_err(code)?;
        let functions = module.functions();
        Ok(functions.iter().map(|it| to_pointer(it.handle)).collect())
    }

    unsafe fn load(&self, image: *const c_void) -> Result<cu::CUmodule> {
        // SAFETY: a complete image, or null, by the caller's promise.
        unsafe { modules::load_image(image) }.map_err(code)
    }

    fn places(&self) -> Result<Places> {
        let context = context::current().map_err(code)?;
        // Multiprocessors of a device that is none have places only if the settings say so.
        let sizes = context.device.settings.places.as_ref();
        let sizes = sizes.ok_or(cu::CUDA_ERROR_NOT_SUPPORTED)?;
        let pairs = (0..)
            .zip(sizes)
            .flat_map(|(cluster, size)| (0..*size).map(move |it| (cluster, it)));
        let (clusters, indices) = pairs.unzip();
        Ok(Places { clusters, indices })
    }

    fn code(&self) -> Option<&CodeCache> {
        static CODE: OnceLock<Option<CodeCache>> = OnceLock::new();
        CODE.get_or_init(|| CodeCache::of_environment(|name| std::env::var_os(name)))
            .as_ref()
    }

    fn refused(&self, what: &str) {
        log::note(what.to_owned());
    }
}
