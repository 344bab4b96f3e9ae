//! NVML's functions, found by name in the loaded library. With `forward`, everything unsafe of this crate is here: each call hands the
//! library pointers to live locals of the types that NVML's reference documents.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use crate::{Bus, NvmlError};

/// `NVML_NVLINK_MAX_LINKS`, with room for machines that come.
const LINKS: c_uint = 36;
/// `NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON`.
const LINK_SPEED: c_uint = 90;
/// What a link gives since NVLink 2 where the library does not say, in MB/s.
const USUAL_SPEED: f64 = 25_000.0;
/// `NVML_FEATURE_ENABLED`.
const ENABLED: c_int = 1;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED: c_int = 1;
/// `NVML_ERROR_NO_PERMISSION`.
const NO_PERMISSION: c_int = 4;
/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`.
const SWITCH: c_int = 2;
/// `NVML_NVLINK_DEVICE_TYPE_UNKNOWN`.
const UNKNOWN: c_int = 255;
/// `NVML_VALUE_NOT_AVAILABLE`.
const UNKNOWN_BYTES: u64 = u64::MAX;
/// The most processes of a device that are asked for.
const MOST_PROCESSES: usize = 1024;

/// `nvmlDevice_t`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device(*mut c_void);

/// What the library says of a link's other end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    /// Where it is, if it is known.
    pub(crate) bus: Option<Bus>,
    /// Whether it may be a switch: it is one, or nobody knows what it is.
    pub(crate) may_be_switch: bool,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Default)]
struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    subsystem: c_uint,
    text: [c_char; 32],
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Default)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_int,
    answer: c_int,
    value: u64,
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Default, Clone)]
struct ProcessInfo {
    pid: c_uint,
    bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// NVML, initialised; shut down when dropped.
pub(crate) struct Library {
    loaded: Loaded,
}

type ByDevice<T> = unsafe extern "C" fn(*mut c_void, *mut T) -> c_int;
type ByLink<T> = unsafe extern "C" fn(*mut c_void, c_uint, *mut T) -> c_int;

impl Library {
    pub(crate) fn open(path: &Path) -> Result<Self, NvmlError> {
        let load = |source| NvmlError::Load {
            path: path.to_owned(),
            source,
        };
        // SAFETY: the caller names NVML; its initialisers are meant to run on load.
        let loaded = unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(load)?;
        let nvml = Self { loaded };
        let init = nvml.find::<unsafe extern "C" fn() -> c_int>("nvmlInit_v2")?;
        // SAFETY: it takes no arguments.
        let code = unsafe { init() };
        match nvml.checked("nvmlInit_v2", code) {
            Ok(()) => Ok(nvml),
            Err(e) => {
                // What was not initialised is not shut down.
                std::mem::forget(nvml);
                Err(e)
            }
        }
    }

    /// A function of the type that the caller knows it to have.
    pub(crate) fn find<T: Copy>(&self, name: &'static str) -> Result<T, NvmlError> {
        // SAFETY: the callers in this crate give each name the type that NVML's reference documents.
        let found = unsafe { self.loaded.get::<T>(name.as_bytes()) };
        found.map(|f| *f).map_err(|source| NvmlError::Load {
            path: name.into(),
            source,
        })
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), NvmlError> {
        if code == 0 {
            return Ok(());
        }
        type Text = unsafe extern "C" fn(c_int) -> *const c_char;
        let text = self.find::<Text>("nvmlErrorString").map(|text| {
            // SAFETY: it takes any number, and answers with a string of the library's own or null.
            let text = unsafe { text(code) };
            match text.is_null() {
                true => String::new(),
                // SAFETY: a string of the library, which stays loaded meanwhile.
                false => format!(": {}", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
            }
        });
        Err(NvmlError::Call {
            call,
            code,
            text: text.unwrap_or_default(),
        })
    }

    fn ask<T>(&self, call: &'static str, device: Device, out: &mut T) -> Result<(), NvmlError> {
        let ask = self.find::<ByDevice<T>>(call)?;
        // SAFETY: the device is the library's own, the pointer refers to a live value.
        let code = unsafe { ask(device.0, out) };
        self.checked(call, code)
    }

    fn ask_link<T>(&self, call: &'static str, device: Device, link: c_uint) -> Option<T>
    where
        T: Default,
    {
        let ask = self.find::<ByLink<T>>(call).ok()?;
        let mut out = T::default();
        // SAFETY: the device is the library's own, the pointer refers to a live local.
        let code = unsafe { ask(device.0, link, &mut out) };
        (code == 0).then_some(out)
    }

    /// Those that this process may use: the library counts the others of the machine too, and gives no handle of them
    /// (`nvmlDeviceGetCount_v2`).
    pub(crate) fn devices(&self) -> Result<Vec<Device>, NvmlError> {
        const COUNT: &str = "nvmlDeviceGetCount_v2";
        const HANDLE: &str = "nvmlDeviceGetHandleByIndex_v2";
        let ask = self.find::<unsafe extern "C" fn(*mut c_uint) -> c_int>(COUNT)?;
        let mut count = 0;
        // SAFETY: the pointer refers to a live local.
        let code = unsafe { ask(&mut count) };
        self.checked(COUNT, code)?;
        type Handle = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int;
        let ask = self.find::<Handle>(HANDLE)?;
        let one = |index| {
            let mut device = std::ptr::null_mut();
            // SAFETY: the pointer refers to a live local.
            let code = unsafe { ask(index, &mut device) };
            match code {
                NO_PERMISSION => None,
                code => Some(self.checked(HANDLE, code).map(|()| Device(device))),
            }
        };
        (0..count).filter_map(one).collect()
    }

    pub(crate) fn name(&self, device: Device) -> Result<String, NvmlError> {
        const NAME: &str = "nvmlDeviceGetName";
        type Name = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_int;
        let ask = self.find::<Name>(NAME)?;
        let mut text = [0u8; 128];
        // SAFETY: the buffer is as long as said.
        let code = unsafe { ask(device.0, text.as_mut_ptr().cast(), text.len() as c_uint) };
        self.checked(NAME, code)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    pub(crate) fn bus(&self, device: Device) -> Result<Bus, NvmlError> {
        let mut info = PciInfo::default();
        self.ask("nvmlDeviceGetPciInfo_v3", device, &mut info)?;
        Ok(info.bus())
    }

    /// All bytes, and those that are free.
    pub(crate) fn memory(&self, device: Device) -> Result<(u64, u64), NvmlError> {
        let mut memory = Memory::default();
        self.ask("nvmlDeviceGetMemoryInfo", device, &mut memory)?;
        Ok((memory.total, memory.free))
    }

    /// Bytes of device memory of each process that computes on it, as far as the library knows.
    pub(crate) fn process_bytes(&self, device: Device) -> Result<Vec<(u32, u64)>, NvmlError> {
        const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
        type Processes = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int;
        let ask = self.find::<Processes>(PROCESSES)?;
        let mut room = vec![ProcessInfo::default(); MOST_PROCESSES];
        let mut count = room.len() as c_uint;
        // SAFETY: the count says how many the pointer has room for.
        let code = unsafe { ask(device.0, &mut count, room.as_mut_ptr()) };
        self.checked(PROCESSES, code)?;
        let known = room.into_iter().take(count as usize);
        let known = known.filter(|it| it.bytes != UNKNOWN_BYTES);
        Ok(known.map(|it| (it.pid, it.bytes)).collect())
    }

    /// Generation and lanes of PCI Express; 0 where the library does not know.
    pub(crate) fn pcie(&self, device: Device) -> (u32, u32) {
        let number = |call| {
            let mut number: c_uint = 0;
            let known = self.ask(call, device, &mut number).is_ok();
            if known { number } else { 0 }
        };
        (
            number("nvmlDeviceGetMaxPcieLinkGeneration"),
            number("nvmlDeviceGetMaxPcieLinkWidth"),
        )
    }

    /// For each NVLink that works, its other end.
    pub(crate) fn link_ends(&self, device: Device) -> Vec<End> {
        let works = |link: &c_uint| {
            self.ask_link::<c_int>("nvmlDeviceGetNvLinkState", device, *link) == Some(ENABLED)
        };
        let end = |link| {
            let place = "nvmlDeviceGetNvLinkRemotePciInfo_v2";
            let kind = "nvmlDeviceGetNvLinkRemoteDeviceType";
            let kind = self.ask_link::<c_int>(kind, device, link);
            End {
                bus: self
                    .ask_link::<PciInfo>(place, device, link)
                    .map(|i| i.bus()),
                may_be_switch: matches!(kind, None | Some(SWITCH | UNKNOWN)),
            }
        };
        (0..LINKS).filter(works).map(end).collect()
    }

    /// Bytes per second of one NVLink, in one direction.
    pub(crate) fn link_rate(&self, device: Device) -> f64 {
        type Fields = unsafe extern "C" fn(*mut c_void, c_int, *mut FieldValue) -> c_int;
        let mut speed = FieldValue {
            field: LINK_SPEED,
            ..FieldValue::default()
        };
        let asked = self.find::<Fields>("nvmlDeviceGetFieldValues").map(|ask| {
            // SAFETY: one value, which the pointer refers to.
            unsafe { ask(device.0, 1, &mut speed) }
        });
        // The first half of the union is the number.
        let known = speed.value & u64::from(u32::MAX);
        let said = asked.is_ok_and(|code| code == 0) && (speed.answer, speed.kind) == (0, UNSIGNED);
        1e6 * if said && known > 0 {
            known as f64
        } else {
            USUAL_SPEED
        }
    }
}

impl PciInfo {
    fn bus(&self) -> Bus {
        Bus {
            domain: self.domain,
            bus: self.bus,
            device: self.device,
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Ok(end) = self.find::<unsafe extern "C" fn() -> c_int>("nvmlShutdown") {
            // SAFETY: it takes no arguments, and was initialised.
            unsafe { end() };
        }
    }
}
