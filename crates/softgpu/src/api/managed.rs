//! Exported functions for hints about managed memory. All devices share one memory, so hints are checked, stored where
//! they can be queried, and otherwise without effect.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use fermata_abi::sys::driver as cu;
use fermata_graph::NodeKind;

use super::args::{In, Out};
use super::init::driver;
use crate::capture;
use crate::context;
use crate::error::{INVALID_VALUE, Result};
use crate::memory::{Advice, Kind};
use crate::stream::Stream;

/// Device number of host memory, as these calls report it.
const CPU: c_int = -1;

pub(super) fn check_managed(address: u64, len: usize) -> Result {
    let range = driver()?.memory.find(address).ok_or(INVALID_VALUE)?;
    let within = address
        .checked_add(len as u64)
        .is_some_and(|end| end <= range.base + range.size);
    if len == 0 || !within || !matches!(range.kind, Kind::Managed { .. }) {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

pub(super) fn prefetch(address: u64, len: usize, device: c_int, stream: cu::CUstream) -> Result {
    let stream = Stream::resolve(stream)?;
    check_managed(address, len)?;
    capture::forbid_on(&stream)?;
    driver()?
        .memory
        .advise(address, |advice| advice.prefetched = Some(device))?;
    capture::submit(&stream, NodeKind::Empty)
}

pub(super) fn ordinal(location: &cu::CUmemLocation) -> Result<c_int> {
    super::vmm::device_of(location)
}

fn advise(address: u64, len: usize, kind: cu::CUmem_advise, device: c_int) -> Result {
    if let Ok(context) = context::current_any() {
        context.check()?;
    }
    check_managed(address, len)?;
    if device != CPU {
        driver()?.device(device)?;
    }
    driver()?.memory.advise(address, |advice| match kind {
        cu::CU_MEM_ADVISE_SET_READ_MOSTLY => advice.read_mostly = true,
        cu::CU_MEM_ADVISE_UNSET_READ_MOSTLY => advice.read_mostly = false,
        cu::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => advice.preferred = Some(device),
        cu::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => advice.preferred = None,
        cu::CU_MEM_ADVISE_SET_ACCESSED_BY => {
            advice.accessed_by.insert(device);
        }
        _ => {
            advice.accessed_by.remove(&device);
        }
    })
}

/// One attribute of a managed range, as the words to write.
fn attribute(advice: &Advice, kind: cu::CUmem_range_attribute, words: usize) -> Result<Vec<c_int>> {
    // CU_DEVICE_INVALID
    const NOWHERE: c_int = -2;
    let location = |device: Option<c_int>| device.unwrap_or(NOWHERE);
    Ok(match kind {
        cu::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => vec![c_int::from(advice.read_mostly)],
        cu::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => vec![location(advice.preferred)],
        cu::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => vec![location(advice.prefetched)],
        cu::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
            let all = advice.accessed_by.iter().copied();
            all.chain(std::iter::repeat(NOWHERE)).take(words).collect()
        }
        cu::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => vec![location_type(advice.preferred)],
        cu::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => {
            vec![advice.preferred.unwrap_or(0).max(0)]
        }
        cu::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => {
            vec![location_type(advice.prefetched)]
        }
        cu::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => {
            vec![advice.prefetched.unwrap_or(0).max(0)]
        }
        _ => return Err(INVALID_VALUE),
    })
}

fn location_type(device: Option<c_int>) -> c_int {
    (match device {
        None => cu::CU_MEM_LOCATION_TYPE_INVALID,
        Some(CPU) => cu::CU_MEM_LOCATION_TYPE_HOST,
        Some(_) => cu::CU_MEM_LOCATION_TYPE_DEVICE,
    }) as c_int
}

fn range_attribute(
    out: Out<c_void>,
    bytes: usize,
    kind: cu::CUmem_range_attribute,
    address: u64,
    len: usize,
) -> Result {
    if bytes == 0 || !bytes.is_multiple_of(4) {
        return Err(INVALID_VALUE);
    }
    check_managed(address, len)?;
    let advice = driver()?.memory.advice(address)?;
    for (index, word) in attribute(&advice, kind, bytes / 4)?.into_iter().enumerate() {
        out.cast::<c_int>().set_at(index, word)?;
    }
    Ok(())
}

api! {
    fn cuMemPrefetchAsync_v2(
        address: cu::CUdeviceptr,
        len: usize,
        location: cu::CUmemLocation,
        flags: c_uint,
        stream: cu::CUstream,
    ) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        prefetch(address, len, ordinal(&location)?, stream)
    }

    fn cuMemPrefetchAsync(address: cu::CUdeviceptr, len: usize, device: cu::CUdevice, stream: cu::CUstream) {
        if device != CPU {
            driver()?.device(device)?;
        }
        prefetch(address, len, device, stream)
    }

    fn cuMemAdvise_v2(
        address: cu::CUdeviceptr,
        len: usize,
        advice: cu::CUmem_advise,
        location: cu::CUmemLocation,
    ) {
        // Advice that takes something back needs no location.
        let device = match advice {
            cu::CU_MEM_ADVISE_SET_PREFERRED_LOCATION
            | cu::CU_MEM_ADVISE_SET_ACCESSED_BY
            | cu::CU_MEM_ADVISE_UNSET_ACCESSED_BY => ordinal(&location)?,
            cu::CU_MEM_ADVISE_SET_READ_MOSTLY
            | cu::CU_MEM_ADVISE_UNSET_READ_MOSTLY
            | cu::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => CPU,
            _ => return Err(INVALID_VALUE),
        };
        advise(address, len, advice, device)
    }

    fn cuMemAdvise(
        address: cu::CUdeviceptr,
        len: usize,
        advice: cu::CUmem_advise,
        device: cu::CUdevice,
    ) {
        if !(cu::CU_MEM_ADVISE_SET_READ_MOSTLY..=cu::CU_MEM_ADVISE_UNSET_ACCESSED_BY).contains(&advice) {
            return Err(INVALID_VALUE);
        }
        let placed = matches!(
            advice,
            cu::CU_MEM_ADVISE_SET_PREFERRED_LOCATION
                | cu::CU_MEM_ADVISE_SET_ACCESSED_BY
                | cu::CU_MEM_ADVISE_UNSET_ACCESSED_BY
        );
        advise(address, len, advice, if placed { device } else { CPU })
    }

    fn cuMemRangeGetAttribute(
        out: Out<c_void>,
        bytes: usize,
        attribute: cu::CUmem_range_attribute,
        address: cu::CUdeviceptr,
        len: usize,
    ) {
        range_attribute(out, bytes, attribute, address, len)
    }

    fn cuMemRangeGetAttributes(
        outs: In<*mut c_void>,
        sizes: In<usize>,
        attributes: In<cu::CUmem_range_attribute>,
        count: usize,
        address: cu::CUdeviceptr,
        len: usize,
    ) {
        for index in 0..count {
            let out = outs.out_at(index)?;
            range_attribute(out, sizes.get_at(index)?, attributes.get_at(index)?, address, len)?;
        }
        Ok(())
    }

    fn cuMemPrefetchBatchAsync(
        addresses: In<cu::CUdeviceptr>,
        sizes: In<usize>,
        count: usize,
        locations: In<cu::CUmemLocation>,
        indices: In<usize>,
        location_count: usize,
        flags: c_ulonglong,
        stream: cu::CUstream,
    ) {
        let firsts = indices.list(location_count)?;
        if flags != 0 || count == 0 || firsts.first() != Some(&0) {
            return Err(INVALID_VALUE);
        }
        for index in 0..count {
            let group = firsts.partition_point(|first| *first <= index) - 1;
            let device = ordinal(&locations.get_at(group)?)?;
            prefetch(addresses.get_at(index)?, sizes.get_at(index)?, device, stream)?;
        }
        Ok(())
    }
}
