//! Green contexts: parts of a device's multiprocessors, and the streams that use one (CUDA driver API, "Green Contexts").
//!
//! Drivers before 550 have none of these functions, and answer `CUDA_ERROR_NOT_SUPPORTED` here.

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{ContextHandle, Driver, GreenHandle, StreamHandle};

/// Multiprocessors as the driver describes them: opaque, and of no meaning to another driver.
#[derive(Clone, Copy)]
pub struct Multiprocessors(cu::CUdevResource);

impl std::fmt::Debug for Multiprocessors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Multiprocessors")
            .field(&self.numbers())
            .finish()
    }
}

impl Multiprocessors {
    /// How many they are, the fewest that a group of a split has, and the number that such groups are multiples of; zeros if
    /// there are none.
    pub fn numbers(&self) -> [u64; 3] {
        if self.0.type_ != cu::CU_DEV_RESOURCE_TYPE_SM {
            return [0; 3];
        }
        // SAFETY: the type says that the driver has written this part of the union; any bytes are numbers.
        let sm = unsafe { self.0.__bindgen_anon_1.sm };
        [sm.smCount, sm.minSmPartitionSize, sm.smCoscheduledAlignment].map(u64::from)
    }

    /// Whether there are any.
    pub fn is_some(&self) -> bool {
        self.numbers()[0] > 0
    }
}

/// What a split has made.
#[derive(Debug, Clone)]
pub struct SplitResult {
    /// Groups, which have no multiprocessor in common.
    pub groups: Vec<Multiprocessors>,
    /// What is left over, which may be nothing.
    pub rest: Multiprocessors,
}

impl Driver {
    /// The multiprocessors of device `index`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn all_multiprocessors(&self, index: u32) -> Result<Multiprocessors> {
        let device = self.device(index)?;
        let mut found = cu::CUdevResource::default();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuDeviceGetDevResource(device, &mut found, cu::CU_DEV_RESOURCE_TYPE_SM)?
        };
        Ok(Multiprocessors(found))
    }

    /// The multiprocessors of a green context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn multiprocessors_of(&self, green: GreenHandle) -> Result<Multiprocessors> {
        let mut found = cu::CUdevResource::default();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuGreenCtxGetDevResource(green.raw(), &mut found, cu::CU_DEV_RESOURCE_TYPE_SM)?
        };
        Ok(Multiprocessors(found))
    }

    /// How many groups of at least `minimum` multiprocessors a split makes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn group_count(&self, of: &Multiprocessors, flags: u32, minimum: u32) -> Result<u32> {
        let mut count = 0;
        let (none, rest) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the other pointers refer to live values; null asks for the count alone.
        unsafe {
            self.f
                .cuDevSmResourceSplitByCount(none, &mut count, &of.0, rest, flags, minimum)?
        };
        Ok(count)
    }

    /// Splits multiprocessors into up to `groups` groups of at least `minimum`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn split(
        &self,
        of: &Multiprocessors,
        groups: u32,
        flags: u32,
        minimum: u32,
    ) -> Result<SplitResult> {
        let mut made = vec![cu::CUdevResource::default(); groups as usize];
        let mut count = groups;
        let mut rest = cu::CUdevResource::default();
        // SAFETY: the list has `count` entries; the other pointers refer to live values.
        unsafe {
            self.f.cuDevSmResourceSplitByCount(
                made.as_mut_ptr(),
                &mut count,
                &of.0,
                &mut rest,
                flags,
                minimum,
            )?
        };
        made.truncate(count as usize);
        Ok(SplitResult {
            groups: made.into_iter().map(Multiprocessors).collect(),
            rest: Multiprocessors(rest),
        })
    }

    /// Makes a green context with these multiprocessors of device `index`; also as a context that can be current.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_green(
        &self,
        index: u32,
        parts: &[Multiprocessors],
    ) -> Result<(GreenHandle, ContextHandle)> {
        let device = self.device(index)?;
        let mut parts: Vec<cu::CUdevResource> = parts.iter().map(|it| it.0).collect();
        let mut descriptor = std::ptr::null_mut();
        let (mut green, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the list has as many entries as is said; the other pointers refer to live locals.
        unsafe {
            self.f.cuDevResourceGenerateDesc(
                &mut descriptor,
                parts.as_mut_ptr(),
                parts.len() as u32,
            )?;
            self.f.cuGreenCtxCreate(
                &mut green,
                descriptor,
                device,
                cu::CU_GREEN_CTX_DEFAULT_STREAM,
            )?;
        }
        let made = GreenHandle::from_raw(green);
        // SAFETY: the pointer refers to a live local.
        let converted = unsafe { self.f.cuCtxFromGreenCtx(&mut context, green) };
        converted.inspect_err(|_| {
            // The first failure is the one to report.
            let _ = self.destroy_green(made);
        })?;
        Ok((made, ContextHandle::from_raw(context)))
    }

    /// Destroys a green context, whose streams must have been destroyed before.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_green(&self, green: GreenHandle) -> Result<()> {
        // SAFETY: the argument is a plain value, which the driver checks.
        unsafe { self.f.cuGreenCtxDestroy(green.raw()) }
    }

    /// Creates a stream in a green context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_green_stream(
        &self,
        green: GreenHandle,
        flags: u32,
        priority: i32,
    ) -> Result<StreamHandle> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuGreenCtxStreamCreate(&mut stream, green.raw(), flags, priority)?
        };
        Ok(StreamHandle::from_raw(stream))
    }
}
