//! Attributes of functions, and the settings that programs may change.

use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::attributes::{REGISTERS, SHARED_PER_BLOCK, SHARED_PER_BLOCK_OPTIN, WARP};
use crate::error::{INVALID_VALUE, Result};
use crate::exec::KernelInfo;

/// Settings of a function.
#[derive(Debug, Clone)]
pub struct Attributes {
    /// Most dynamic shared memory a launch may ask for, where set.
    pub max_dynamic_shared: Option<u32>,
    /// Preferred share of shared memory in percent; -1 is the default.
    pub carveout: i32,
    /// `CU_FUNC_CACHE_*`
    pub cache_config: u32,
    /// Clusters may have more blocks than every device runs.
    pub non_portable_cluster: bool,
    /// `CU_CLUSTER_SCHEDULING_POLICY_*`
    pub cluster_scheduling: i32,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            max_dynamic_shared: None,
            carveout: -1,
            cache_config: 0,
            non_portable_cluster: false,
            cluster_scheduling: 0,
        }
    }
}

impl Attributes {
    /// Fresh settings, to be shared.
    pub fn shared() -> Arc<Mutex<Self>> {
        Arc::default()
    }

    /// Most dynamic shared memory a launch may ask for.
    pub fn dynamic_limit(&self, info: &KernelInfo) -> u32 {
        self.max_dynamic_shared
            .unwrap_or(SHARED_PER_BLOCK.saturating_sub(info.static_shared))
    }

    /// Answers `cuFuncGetAttribute`. `sm` is the device's compute capability as 10 * major + minor.
    ///
    /// # Errors
    /// There is no such attribute.
    pub fn get(
        &self,
        info: &KernelInfo,
        attribute: cu::CUfunction_attribute,
        sm: u32,
    ) -> Result<i32> {
        Ok(match attribute {
            cu::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => max_threads(info) as i32,
            cu::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => info.static_shared as i32,
            cu::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => info.const_bytes as i32,
            cu::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => info.local_bytes as i32,
            cu::CU_FUNC_ATTRIBUTE_NUM_REGS => info.registers as i32,
            cu::CU_FUNC_ATTRIBUTE_PTX_VERSION => info.target as i32,
            cu::CU_FUNC_ATTRIBUTE_BINARY_VERSION => sm as i32,
            cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => self.dynamic_limit(info) as i32,
            cu::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => self.carveout,
            cu::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                i32::from(self.non_portable_cluster)
            }
            cu::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => self.cluster_scheduling,
            _ if attribute < cu::CU_FUNC_ATTRIBUTE_MAX => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    /// Does `cuFuncSetAttribute`.
    ///
    /// # Errors
    /// The attribute cannot be set, or not to this.
    pub fn set(
        &mut self,
        info: &KernelInfo,
        attribute: cu::CUfunction_attribute,
        value: i32,
    ) -> Result {
        match attribute {
            cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let bytes = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
                if bytes.saturating_add(info.static_shared) > SHARED_PER_BLOCK_OPTIN {
                    return Err(INVALID_VALUE);
                }
                self.max_dynamic_shared = Some(bytes);
            }
            cu::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                if !(-1..=100).contains(&value) {
                    return Err(INVALID_VALUE);
                }
                self.carveout = value;
            }
            cu::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                self.non_portable_cluster = value != 0;
            }
            cu::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                self.cluster_scheduling = value;
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

/// Registers a thread takes, rounded as the hardware hands them out.
pub fn allocated_registers(info: &KernelInfo) -> u32 {
    info.registers.max(1).next_multiple_of(8)
}

/// Most threads a block of this function may have.
pub fn max_threads(info: &KernelInfo) -> u32 {
    let by_registers = REGISTERS / allocated_registers(info) / WARP * WARP;
    info.max_threads.min(by_registers)
}
