//! Exported functions for attributes of streams and of ranges of managed memory, for events of contexts, and functions
//! that have no effect here.

use core::ffi::c_void;

use fermata_abi::op::{Address, HostKind};
use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::object::mirror::{Block, Kind};
use crate::object::session::session;
use crate::result::Result;
use crate::work::context_events;

driver_api! {
    fn cuStreamSetAttribute(
        stream: sys::CUstream,
        attribute: sys::CUstreamAttrID,
        value: In<sys::CUstreamAttrValue>,
    ) {
        let value = value.cast::<[u8; 64]>().get()?;
        let session = session()?;
        let stream = session.streams.get(stream)?;
        check_attribute(attribute)?;
        if let Some(stream) = stream {
            stream.attributes.lock().insert(attribute, value);
        }
        Ok(())
    }

    fn cuStreamGetAttribute(
        stream: sys::CUstream,
        attribute: sys::CUstreamAttrID,
        value: Out<sys::CUstreamAttrValue>,
    ) {
        let stream = session()?.streams.get(stream)?;
        check_attribute(attribute)?;
        let mut bytes = [0; 64];
        if let Some(stream) = stream {
            if attribute == sys::CU_LAUNCH_ATTRIBUTE_PRIORITY {
                bytes[..4].copy_from_slice(&stream.priority.to_ne_bytes());
            }
            bytes = stream.attributes.lock().get(&attribute).copied().unwrap_or(bytes);
        }
        value.cast().set(bytes)
    }

    fn cuStreamCopyAttributes(to: sys::CUstream, from: sys::CUstream) {
        let streams = &session()?.streams;
        if let (Some(to), Some(from)) = (streams.get(to)?, streams.get(from)?) {
            let attributes = from.attributes.lock().clone();
            *to.attributes.lock() = attributes;
        }
        Ok(())
    }

    fn cuMemRangeGetAttribute(
        data: Out<c_void>,
        size: usize,
        attribute: sys::CUmem_range_attribute,
        address: sys::CUdeviceptr,
        count: usize,
    ) {
        check_managed(address, count)?;
        put_range_attribute(data, size, attribute)
    }

    fn cuMemRangeGetAttributes(
        data: In<*mut c_void>,
        sizes: In<usize>,
        attributes: In<sys::CUmem_range_attribute>,
        number: usize,
        address: sys::CUdeviceptr,
        count: usize,
    ) {
        check_managed(address, count)?;
        for n in 0..number {
            put_range_attribute(data.out_at(n)?, sizes.get_at(n)?, attributes.get_at(n)?)?;
        }
        Ok(())
    }

    fn cuDeviceSetGraphMemAttribute(
        device: sys::CUdevice,
        attribute: sys::CUgraphMem_attribute,
        _value: *mut c_void,
    ) {
        session()?.devices.get(device)?;
        match attribute {
            sys::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH | sys::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => Ok(()),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuFlushGPUDirectRDMAWrites(
        _target: sys::CUflushGPUDirectRDMAWritesTarget,
        _scope: sys::CUflushGPUDirectRDMAWritesScope,
    ) {
        session().map(|_| ())
    }

    fn cuProfilerStart() {
        session().map(|_| ())
    }

    fn cuProfilerStop() {
        session().map(|_| ())
    }

    fn cuCtxRecordEvent(context: sys::CUcontext, event: sys::CUevent) {
        let session = session()?;
        context_events::record(session, &*session.contexts.get(context)?, event)
    }

    fn cuCtxWaitEvent(context: sys::CUcontext, event: sys::CUevent) {
        let session = session()?;
        context_events::wait(session, &*session.contexts.get(context)?, event)
    }
}

fn check_attribute(attribute: sys::CUstreamAttrID) -> Result {
    match attribute {
        sys::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        | sys::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
        | sys::CU_LAUNCH_ATTRIBUTE_PRIORITY
        | sys::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
        | sys::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => Ok(()),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

fn check_managed(address: u64, count: usize) -> Result {
    let managed = |block: &Block| block.kind == Kind::Host(HostKind::Managed);
    let fine = session()?
        .memory
        .holds(Address::from_raw(address), count as u64, managed);
    if fine {
        Ok(())
    } else {
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }
}

/// Writes an attribute as for memory that all devices share: no preferred location, nothing prefetched, no device
/// recorded as accessing it.
fn put_range_attribute(
    data: Out<c_void>,
    size: usize,
    attribute: sys::CUmem_range_attribute,
) -> Result {
    let value = match attribute {
        sys::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => 0,
        sys::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION
        | sys::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY
        | sys::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => NOWHERE,
        sys::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
        | sys::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => 0,
        sys::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID
        | sys::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => 0,
        _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
    };
    if size == 0 || !size.is_multiple_of(4) {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    // Only the list of devices is longer than one number.
    let many = attribute == sys::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    for n in 0..if many { size / 4 } else { 1 } {
        data.cast::<i32>().set_at(n, value)?;
    }
    Ok(())
}

/// `CU_DEVICE_INVALID`.
const NOWHERE: i32 = -2;
