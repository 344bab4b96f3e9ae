//! What a device is: name, memory, attributes.

use std::ffi::{CStr, c_char};

use fermata_abi::sys::driver as cu;

use crate::Driver;
use crate::driver::Result;

/// Facts about a device that do not change while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Name of the model.
    pub name: String,
    /// Unique id.
    pub uuid: [u8; 16],
    /// Bytes of memory.
    pub memory: u64,
    /// Address on the PCI bus.
    pub bus_id: String,
    /// Attribute values by `CUdevice_attribute`; `i32::MIN` where the driver has none.
    pub attributes: Vec<i32>,
    /// For each device, whether its memory can be reached from this one.
    pub peers: Vec<bool>,
}

impl DeviceFacts {
    /// 10 * major + minor.
    pub fn compute_capability(&self) -> u32 {
        let value = |id: u32| {
            self.attributes
                .get(id as usize)
                .copied()
                .unwrap_or(0)
                .max(0)
                .unsigned_abs()
        };
        10 * value(cu::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
            + value(cu::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    }

    /// The id in the usual form, `GPU-` and 8-4-4-4-12 hexadecimal digits.
    pub fn uuid_text(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}

fn text(buffer: &[u8]) -> String {
    CStr::from_bytes_until_nul(buffer)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

impl Driver {
    /// The driver's handle of device `index`.
    pub(crate) fn device(&self, index: u32) -> Result<cu::CUdevice> {
        let mut device = 0;
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuDeviceGet(&mut device, i32::try_from(index).unwrap_or(i32::MAX))?
        };
        Ok(device)
    }

    /// Everything programs ask about device `index`.
    ///
    /// # Errors
    /// What the driver says; attributes it does not know are no error.
    pub fn device_facts(&self, index: u32) -> Result<DeviceFacts> {
        let device = self.device(index)?;
        let (mut name, mut bus) = ([0u8; 256], [0u8; 64]);
        let mut uuid = cu::CUuuid::default();
        let mut memory = 0usize;
        // SAFETY: buffers are as long as said, pointers refer to live locals.
        unsafe {
            self.f
                .cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 256, device)?;
            self.f
                .cuDeviceGetPCIBusId(bus.as_mut_ptr().cast::<c_char>(), 64, device)?;
            self.f.cuDeviceGetUuid_v2(&mut uuid, device)?;
            self.f.cuDeviceTotalMem_v2(&mut memory, device)?;
        }
        let attributes = (0..cu::CU_DEVICE_ATTRIBUTE_MAX)
            .map(|id| self.attribute(device, id).unwrap_or(i32::MIN))
            .collect();
        let peers = (0..self.device_count())
            .map(|peer| self.can_access(device, peer))
            .collect::<Result<_>>()?;
        Ok(DeviceFacts {
            name: text(&name),
            uuid: uuid.bytes.map(|byte| byte.to_ne_bytes()[0]),
            memory: memory as u64,
            bus_id: text(&bus),
            attributes,
            peers,
        })
    }

    /// Multiprocessors of device `index`.
    pub(crate) fn multiprocessors(&self, index: u32) -> Result<u32> {
        let count = self.attribute(
            self.device(index)?,
            cu::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )?;
        Ok(u32::try_from(count).unwrap_or(1))
    }

    pub(crate) fn attribute(&self, device: cu::CUdevice, id: u32) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuDeviceGetAttribute(&mut value, id, device)? };
        Ok(value)
    }

    /// Whether device `from` can reach the memory of device `to`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn can_reach(&self, from: u32, to: u32) -> Result<bool> {
        self.can_access(self.device(from)?, to)
    }

    fn can_access(&self, device: cu::CUdevice, peer: u32) -> Result<bool> {
        let peer = self.device(peer)?;
        let mut can = 0;
        if peer != device {
            // SAFETY: the pointer refers to a live local.
            unsafe { self.f.cuDeviceCanAccessPeer(&mut can, device, peer)? };
        }
        Ok(can != 0)
    }
}
