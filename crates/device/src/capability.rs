//! What devices can do beyond their attributes.

use fermata_abi::op::DeviceQuestion;

use crate::Driver;
use crate::driver::Result;

/// More operations than any release of CUDA names.
const MOST: usize = 1024;

impl Driver {
    /// The answer to a question about a device: as many numbers as it asks for.
    ///
    /// # Errors
    /// What the driver says.
    pub fn ask_device(&self, ordinal: u32, question: &DeviceQuestion) -> Result<Vec<u64>> {
        let device = self.device(ordinal)?;
        match question {
            DeviceQuestion::PeerAtomics { peer, operations } => {
                let peer = self.device(*peer)?;
                atomics(operations, |into, from, count| {
                    // SAFETY: both lists have `count` entries.
                    unsafe {
                        self.f
                            .cuDeviceGetP2PAtomicCapabilities(into, from, count, device, peer)
                    }
                })
            }
            DeviceQuestion::HostAtomics { operations } => {
                atomics(operations, |into, from, count| {
                    // SAFETY: both lists have `count` entries.
                    unsafe {
                        self.f
                            .cuDeviceGetHostAtomicCapabilities(into, from, count, device)
                    }
                })
            }
            DeviceQuestion::LinearTextureWidth { format, channels } => {
                let mut width = 0;
                // SAFETY: the pointer refers to a live local.
                unsafe {
                    self.f.cuDeviceGetTexture1DLinearMaxWidth(
                        &mut width, *format, *channels, device,
                    )?;
                }
                Ok(vec![width as u64])
            }
        }
    }
}

fn atomics(
    operations: &[u32],
    call: impl FnOnce(*mut u32, *const u32, u32) -> Result<()>,
) -> Result<Vec<u64>> {
    let operations = &operations[..operations.len().min(MOST)];
    let mut capabilities = vec![0u32; operations.len()];
    let count = operations.len() as u32;
    call(capabilities.as_mut_ptr(), operations.as_ptr(), count)?;
    Ok(capabilities.into_iter().map(u64::from).collect())
}
