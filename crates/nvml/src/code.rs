//! `nvmlReturn_t`, and what NVML calls its values.

use std::ffi::CStr;

/// An `nvmlReturn_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Code(pub i32);

impl Code {
    /// The call was answered.
    pub const SUCCESS: Self = Self(0);
    /// `nvmlInit` has not been called, or as often as `nvmlShutdown`.
    pub const UNINITIALIZED: Self = Self(1);
    /// An argument cannot be.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// The device does not say, or cannot.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// The caller may not.
    pub const NO_PERMISSION: Self = Self(4);
    /// There is no such thing.
    pub const NOT_FOUND: Self = Self(6);
    /// The caller's room is too small; the count says what is needed.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// There is no driver to ask.
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    /// The answer did not come in time.
    pub const TIMEOUT: Self = Self(10);
    /// The driver's library lacks the function.
    pub const FUNCTION_NOT_FOUND: Self = Self(13);
    /// Library and driver are not of one release.
    pub const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    /// A structure is of a version that is not known.
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    /// Something else.
    pub const UNKNOWN: Self = Self(999);

    /// What `nvmlErrorString` says.
    pub fn text(self) -> &'static CStr {
        match self.0 {
            0 => c"Success",
            1 => c"Uninitialized",
            2 => c"Invalid Argument",
            3 => c"Not Supported",
            4 => c"Insufficient Permissions",
            5 => c"Already Initialized",
            6 => c"Not Found",
            7 => c"Insufficient Size",
            8 => c"Insufficient External Power",
            9 => c"Driver Not Loaded",
            10 => c"Timeout",
            11 => c"Interrupt Request Issue",
            12 => c"NVML Shared Library Not Found",
            13 => c"Function Not Found",
            14 => c"Corrupted infoROM",
            15 => c"GPU is lost",
            16 => c"GPU requires reset",
            17 => c"GPU access blocked by the operating system",
            18 => c"Driver/library version mismatch",
            19 => c"In use by another client",
            20 => c"Insufficient Memory",
            21 => c"No data",
            22 => c"vGPU ECC not supported",
            23 => c"Insufficient Resources",
            24 => c"Invalid Frequency",
            25 => c"Argument version mismatch",
            26 => c"Requested functionality has been deprecated",
            27 => c"System is not in ready state",
            28 => c"No supported GPUs were found",
            29 => c"Resource not in correct state to perform requested operation",
            _ => c"Unknown Error",
        }
    }
}
