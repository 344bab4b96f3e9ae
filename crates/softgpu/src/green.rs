//! Green contexts: parts of a device's multiprocessors, and the streams that use one.
//!
//! Kernels of such a stream see only those multiprocessors in `%smid`. They run on the same host threads as all others, so a
//! part is no faster or slower than the whole.
//!
//! Parts are made by the rules for compute capability 9.0 (CUDA driver API, "Green Contexts"): groups have 8 multiprocessors
//! or a multiple of that, or of what the settings say.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::capture;
use crate::context::{self, Context};
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{CuError, INVALID_CONTEXT, INVALID_VALUE, Result};
use crate::handle::{self, Table, Tag};
pub use crate::objects::Green;
use crate::primary::Primary;
use crate::settings::MULTIPROCESSORS;
use crate::stream::{Stream, StreamKind};

/// A multiprocessor of each device for each bit.
pub const ALL: u64 = (1 << MULTIPROCESSORS) - 1;

/// Multiprocessors that a group without promises is a multiple of.
const LOOSE_UNIT: u32 = 2;
/// The same for a group in which clusters of the largest size run.
const CLUSTER_UNIT: u32 = 16;

/// What begins a description that this library has written.
const MAGIC: [u8; 8] = *b"SOFTSMS\x01";

/// Multiprocessors of a device, as the program has them in a `CUdevResource`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The device.
    pub device: cu::CUdevice,
    /// A bit for each.
    pub mask: u64,
    /// Number of the call that has made it.
    pub call: u64,
    /// It is what a device or a context has, and may be split.
    pub whole: bool,
    /// Multiprocessors that a group of a split of it is a multiple of.
    pub unit: u32,
}

impl Driver {
    /// Green contexts, each by both of its handles.
    pub fn greens(&self) -> &'static Table<Green> {
        static ALL: LazyLock<Table<Green>> = LazyLock::new(Table::default);
        &ALL
    }

    /// The descriptors that were made.
    pub fn descriptors(&self) -> &'static Table<Part> {
        static ALL: LazyLock<Table<Part>> = LazyLock::new(Table::default);
        &ALL
    }
}

fn fresh_call() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Part {
    /// What a device has.
    pub fn of_device(device: &Device) -> Self {
        Self {
            device: device.ordinal,
            mask: ALL,
            call: fresh_call(),
            whole: true,
            unit: device.settings.group,
        }
    }

    /// What a green context has.
    pub fn of_green(green: &Green) -> Self {
        Self {
            device: green.context.device.ordinal,
            mask: green.mask,
            call: fresh_call(),
            whole: true,
            unit: green.unit,
        }
    }

    /// The program's description of it; one of nothing says that it is invalid.
    pub fn describe(&self) -> cu::CUdevResource {
        let mut out = cu::CUdevResource::default();
        if self.mask == 0 {
            return out;
        }
        out.type_ = cu::CU_DEV_RESOURCE_TYPE_SM;
        let bytes = &mut out._internal_padding;
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.mask.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.call.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.device.to_le_bytes());
        bytes[28] = u8::from(self.whole);
        bytes[29] = self.unit as u8;
        out.__bindgen_anon_1.sm = cu::CUdevSmResource {
            smCount: self.mask.count_ones(),
            minSmPartitionSize: self.unit,
            smCoscheduledAlignment: self.unit,
        };
        out
    }

    /// The inverse of [`Part::describe`].
    ///
    /// # Errors
    /// It describes no multiprocessors.
    pub fn read(given: &cu::CUdevResource) -> Result<Self> {
        if given.type_ != cu::CU_DEV_RESOURCE_TYPE_SM {
            return Err(CuError(cu::CUDA_ERROR_INVALID_RESOURCE_TYPE));
        }
        let bytes = &given._internal_padding;
        let long = |at: usize| {
            let bytes = bytes[at..at + 8].try_into();
            bytes.map_or(0, u64::from_le_bytes)
        };
        let part = Self {
            mask: long(8) & ALL,
            call: long(16),
            device: long(24) as u32 as cu::CUdevice,
            whole: bytes[28] != 0,
            unit: u32::from(bytes[29]),
        };
        match bytes[..8] == MAGIC && part.mask != 0 {
            true => Ok(part),
            false => Err(INVALID_VALUE),
        }
    }

    /// Groups of at least `minimum`, as many as there may be, up to `most`; and what is left.
    ///
    /// # Errors
    /// There are no such flags, fewer multiprocessors, or this is a group itself.
    pub fn split(&self, most: u32, flags: u32, minimum: u32) -> Result<(Vec<Self>, Self)> {
        let loose = flags & cu::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING != 0;
        let clusters = flags & cu::CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE != 0;
        let known = cu::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING
            | cu::CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
        let all = self.mask.count_ones();
        if flags & !known != 0 || minimum > all {
            return Err(INVALID_VALUE);
        }
        let impossible = CuError(cu::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        if !self.whole {
            return Err(impossible);
        }
        let unit = match (loose, clusters) {
            (true, _) => LOOSE_UNIT,
            (false, true) => CLUSTER_UNIT,
            (false, false) => self.unit,
        };
        let size = minimum.max(1).next_multiple_of(unit);
        let count = (all / size).min(most);
        if count == 0 {
            return Err(impossible);
        }
        let part = |mask| Self {
            mask,
            call: 0,
            whole: false,
            unit: unit.min(self.unit),
            ..*self
        };
        let call = fresh_call();
        let mut rest = self.mask;
        let groups = (0..count).map(|_| {
            let mask = lowest(rest, size);
            rest &= !mask;
            Self { call, ..part(mask) }
        });
        let groups: Vec<_> = groups.collect();
        let rest = Self { call, ..part(rest) };
        Ok((groups, rest))
    }

    /// Several parts as one.
    ///
    /// # Errors
    /// There are none, or they do not come from one call.
    pub fn together(parts: &[Self]) -> Result<Self> {
        let first = parts.first().ok_or(INVALID_VALUE)?;
        let impossible = CuError(cu::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        let mut sum = *first;
        for part in &parts[1..] {
            let same = part.call == sum.call && part.device == sum.device && !part.whole;
            if !same || part.mask & sum.mask != 0 {
                return Err(impossible);
            }
            sum.mask |= part.mask;
        }
        Ok(sum)
    }
}

/// The lowest `count` bits that are set in `mask`.
fn lowest(mask: u64, count: u32) -> u64 {
    let mut rest = mask;
    for _ in 0..count {
        rest &= rest.wrapping_sub(1);
    }
    mask & !rest
}

impl Green {
    /// Makes a green context, for which the primary context of its device is retained.
    ///
    /// # Errors
    /// The device is lost, or a fault has ended its primary context.
    pub fn create(driver: &Driver, device: &Arc<Device>, part: &Part) -> Result<Arc<Self>> {
        let context = Primary::retain(driver, device)?;
        let green = Arc::new(Self {
            handle: handle::fresh(Tag::Green),
            converted: handle::fresh(Tag::Context),
            id: Context::fresh_id(),
            context: Arc::clone(&context),
            mask: part.mask,
            unit: part.unit,
            default: Mutex::default(),
            awaited: Mutex::default(),
        });
        let default = Stream::create_hidden(&context, &green);
        *green.default.lock() = Some(default);
        driver.greens().insert(green.handle, Arc::clone(&green));
        driver.greens().insert(green.converted, Arc::clone(&green));
        driver.contexts().insert(green.converted, context);
        Ok(green)
    }

    /// The green context behind a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn resolve(driver: &Driver, handle: u64) -> Result<Arc<Self>> {
        let green = driver.greens().get(handle);
        let green = green.filter(|green| green.handle == handle);
        green.ok_or(INVALID_CONTEXT)
    }

    /// The green context that is current to the calling thread.
    pub fn current(driver: &Driver) -> Option<Arc<Self>> {
        driver.greens().get(context::current_handle())
    }

    /// Destroys it, and what is left of its streams.
    ///
    /// # Errors
    /// There is none.
    pub fn destroy(driver: &Driver, handle: u64) -> Result {
        let green = Self::resolve(driver, handle)?;
        green.end(driver);
        Primary::release(driver, &green.context.device)
    }

    /// Ends those of a primary context that is gone.
    pub fn end_all(driver: &Driver, context: u64) {
        for green in driver.greens().all() {
            if green.context.id == context {
                green.end(driver);
            }
        }
    }

    fn end(&self, driver: &Driver) {
        if driver.greens().remove(self.handle).is_none() {
            return;
        }
        // While its handle is still good.
        fermata_tables::context_gone(std::ptr::without_provenance_mut(self.converted as usize));
        driver.greens().remove(self.converted);
        driver.contexts().remove(self.converted);
        for stream in self.streams() {
            capture::abandon(driver, &stream);
            for point in stream.ends() {
                point.wait();
            }
            stream.destroy();
        }
        *self.default.lock() = None;
    }

    /// Its streams.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = self.context.all_streams();
        streams.retain(|it| it.green.as_ref().is_some_and(|of| of.id == self.id));
        streams
    }

    /// Its default stream.
    ///
    /// # Errors
    /// It has been destroyed.
    pub fn default_stream(&self) -> Result<Arc<Stream>> {
        let default = self.default.lock().clone();
        default.ok_or(CuError(cu::CUDA_ERROR_CONTEXT_IS_DESTROYED))
    }

    /// Whether it has not been destroyed.
    ///
    /// # Errors
    /// It has.
    pub fn check(&self) -> Result {
        self.default_stream().map(drop)
    }

    /// Waits for the work of its streams.
    ///
    /// # Errors
    /// The fault that its primary context has met.
    pub fn synchronize(&self) -> Result {
        for point in self.streams().iter().flat_map(|it| it.ends()) {
            point.wait();
        }
        self.context.flush_output();
        self.context.check()
    }
}

impl Stream {
    /// A default stream of a green context, which has no handle that the program knows.
    fn create_hidden(context: &Arc<Context>, green: &Arc<Green>) -> Arc<Self> {
        let stream = Self::new_in(context, Some(green), StreamKind::NonBlocking, 0, 0);
        context.streams.lock().others.push(Arc::clone(&stream));
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Part = Part {
        device: 0,
        mask: ALL,
        call: 1,
        whole: true,
        unit: 8,
    };

    fn masks(most: u32, flags: u32, minimum: u32) -> Result<(Vec<u64>, u64)> {
        let (groups, rest) = WHOLE.split(most, flags, minimum)?;
        Ok((groups.iter().map(|it| it.mask).collect(), rest.mask))
    }

    #[test]
    fn groups_are_multiples_of_eight_and_disjoint() {
        assert_eq!(masks(9, 0, 1), Ok((vec![0xff, 0xff00], 0)));
        assert_eq!(masks(1, 0, 0), Ok((vec![0xff], 0xff00)));
        assert_eq!(masks(9, 0, 9), Ok((vec![ALL], 0)));
        let loose = cu::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
        assert_eq!(masks(2, loose, 5), Ok((vec![0x3f, 0xfc0], 0xf000)));
        let clusters = cu::CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
        assert_eq!(masks(2, clusters, 1), Ok((vec![ALL], 0)));
        assert_eq!(masks(2, 0, 17), Err(INVALID_VALUE));
        assert_eq!(masks(2, 4, 8), Err(INVALID_VALUE));
        assert!(masks(0, 0, 8).is_err());
    }

    #[test]
    fn groups_are_not_split_and_go_together_with_those_of_their_call() {
        let (groups, rest) = WHOLE.split(1, 0, 8).unwrap();
        assert!(groups[0].split(1, 0, 8).is_err());
        let both = Part::together(&[rest, groups[0]]).unwrap();
        assert_eq!(both.mask, ALL);
        let (others, _) = WHOLE.split(2, 0, 8).unwrap();
        assert!(Part::together(&[groups[0], others[1]]).is_err());
        assert!(Part::together(&[groups[0], groups[0]]).is_err());
        assert!(Part::together(&[WHOLE, WHOLE]).is_err());
        assert!(Part::together(&[]).is_err());
        for part in [WHOLE, groups[0], rest] {
            assert_eq!(Part::read(&part.describe()), Ok(part));
        }
    }
}
