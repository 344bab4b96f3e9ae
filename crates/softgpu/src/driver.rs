//! The driver of this process, made by `cuInit`, with the state that all kinds of objects share.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fermata_abi::sys::driver as cu;

use crate::device::Device;
use crate::error::{CuError, INVALID_DEVICE, Result};
use crate::exec;
use crate::handle::Table;
use crate::hold::Hold;
use crate::memory::{Memory, Physical};
use crate::settings::Settings;

/// The driver's common state. Each kind of object has its table in the file that defines it: `driver.streams()`.
#[derive(Debug, Default)]
pub struct Driver {
    /// Devices by ordinal.
    pub devices: Vec<Arc<Device>>,
    /// All memory.
    pub memory: Memory,
    /// Handles of physical memory.
    pub physical: Table<Physical>,
    /// What a test holds up.
    pub hold: Hold,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// This process is a child of one that had initialised the driver.
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread runs a host function or callback, from which the API must not be called.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn after_fork_in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Starts the driver; once it has started, does nothing.
///
/// # Errors
/// A setting cannot be read, there are no devices, or the process is a fork of one that uses the driver.
pub fn init() -> Result {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuError(cu::CUDA_ERROR_NOT_INITIALIZED));
    }
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let settings = Arc::new(Settings::from_env()?);
    if settings.devices == 0 {
        return Err(CuError(cu::CUDA_ERROR_NO_DEVICE));
    }
    DRIVER.get_or_init(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed after fork.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        // Asking the system at every launch would cost more than a small kernel.
        let cores = || std::thread::available_parallelism().map_or(1, |count| count.get());
        exec::set_threads(if settings.threads == 0 {
            cores()
        } else {
            settings.threads
        });
        let all = || (0..settings.devices as i32).collect();
        let places: Vec<i32> = settings.visible.clone().unwrap_or_else(all);
        let device = |(ordinal, place)| {
            let device = Device::new(ordinal, Arc::clone(&settings));
            device.move_to(place);
            device
        };
        let devices = (0..).zip(places).map(device).collect();
        Driver {
            devices,
            hold: Hold::by(settings.hold.clone()),
            ..Driver::default()
        }
    });
    Ok(())
}

/// The driver.
///
/// # Errors
/// `cuInit` has not been called in this process, or the thread runs a callback.
pub fn get() -> Result<&'static Driver> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuError(cu::CUDA_ERROR_NOT_INITIALIZED));
    }
    if IN_CALLBACK.get() {
        return Err(CuError(cu::CUDA_ERROR_NOT_PERMITTED));
    }
    running()
}

/// The driver, for its own threads: does not check whether a callback runs.
///
/// # Errors
/// It has not been started.
pub fn running() -> Result<&'static Driver> {
    DRIVER.get().ok_or(CuError(cu::CUDA_ERROR_NOT_INITIALIZED))
}

/// Whether the thread runs a host function or callback.
pub fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs a function of the program, in which calls of the API are refused.
pub fn in_callback(call: impl FnOnce()) {
    IN_CALLBACK.set(true);
    call();
    IN_CALLBACK.set(false);
}

impl Driver {
    /// The device with this number.
    ///
    /// # Errors
    /// There is none.
    pub fn device(&self, ordinal: cu::CUdevice) -> Result<&Arc<Device>> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(INVALID_DEVICE)
    }
}
