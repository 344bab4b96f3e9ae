//! Streams.
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use fermata_abi::sys::driver::{CUstreamAttrValue, cuuint64_t};
use fermata_abi::sys::runtime::{
    cudaEvent_t, cudaLaunchAttributeID, cudaLaunchAttributeValue, cudaStream_t,
    cudaStreamCallback_t,
};

use crate::context;
use crate::error::{Error, export, put};

export! {
    /// Creates a stream that waits for the legacy default stream.
    fn cudaStreamCreate(stream: *mut cudaStream_t) {
        if stream.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamCreate(stream.cast(), 0)
    }

    /// Creates a stream; the flags are the driver's.
    fn cudaStreamCreateWithFlags(stream: *mut cudaStream_t, flags: c_uint) {
        if stream.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamCreate(stream.cast(), flags)
    }

    /// Creates a stream with a priority.
    fn cudaStreamCreateWithPriority(stream: *mut cudaStream_t, flags: c_uint, priority: c_int) {
        if stream.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamCreateWithPriority(stream.cast(), flags, priority)
    }

    /// Destroys a stream; work issued to it goes on.
    fn cudaStreamDestroy(stream: cudaStream_t) {
        context::ready()?.cuStreamDestroy_v2(stream.cast())
    }

    /// Waits for all work of a stream.
    fn cudaStreamSynchronize(stream: cudaStream_t) {
        context::ready()?.cuStreamSynchronize(stream.cast())
    }

    /// `cudaErrorNotReady` while a stream has work.
    fn cudaStreamQuery(stream: cudaStream_t) {
        context::ready()?.cuStreamQuery(stream.cast())
    }

    /// Makes later work of a stream wait for an event.
    fn cudaStreamWaitEvent(stream: cudaStream_t, event: cudaEvent_t, flags: c_uint) {
        context::ready()?.cuStreamWaitEvent(stream.cast(), event.cast(), flags)
    }

    /// Calls back on the host when the stream gets there. Both APIs pass stream, status and data.
    fn cudaStreamAddCallback(
        stream: cudaStream_t,
        callback: cudaStreamCallback_t,
        data: *mut c_void,
        flags: c_uint,
    ) {
        if callback.is_none() {
            return Err(Error::INVALID_VALUE);
        }
        // The status of the driver and of the runtime have the same numbers and width.
        let callback = core::mem::transmute::<
            cudaStreamCallback_t,
            fermata_abi::sys::driver::CUstreamCallback,
        >(callback);
        context::ready()?.cuStreamAddCallback(stream.cast(), callback, data, flags)
    }

    /// The priority a stream was created with.
    fn cudaStreamGetPriority(stream: cudaStream_t, priority: *mut c_int) {
        if priority.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamGetPriority(stream.cast(), priority)
    }

    /// The flags a stream was created with.
    fn cudaStreamGetFlags(stream: cudaStream_t, flags: *mut c_uint) {
        if flags.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamGetFlags(stream.cast(), flags)
    }

    /// A number unique to the stream.
    fn cudaStreamGetId(stream: cudaStream_t, id: *mut c_ulonglong) {
        if id.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamGetId(stream.cast(), id)
    }

    /// The device of a stream.
    fn cudaStreamGetDevice(stream: cudaStream_t, device: *mut c_int) {
        let calls = context::ready()?;
        let mut owner = 0;
        match calls.cuStreamGetDevice(stream.cast(), &mut owner) {
            Err(Error::MISSING_DRIVER_FUNCTION) => owner = context::chosen()?,
            result => result?,
        }
        put(device, owner)
    }

    /// Ties managed memory to a stream.
    fn cudaStreamAttachMemAsync(
        stream: cudaStream_t,
        start: *mut c_void,
        length: usize,
        flags: c_uint,
    ) {
        let start = crate::api::memory::address(start);
        context::ready()?.cuStreamAttachMemAsync(stream.cast(), start, length, flags)
    }

    /// Copies the attributes of a stream to another.
    fn cudaStreamCopyAttributes(to: cudaStream_t, from: cudaStream_t) {
        context::ready()?.cuStreamCopyAttributes(to.cast(), from.cast())
    }

    /// Reads an attribute.
    fn cudaStreamGetAttribute(
        stream: cudaStream_t,
        attribute: cudaLaunchAttributeID,
        value: *mut cudaLaunchAttributeValue,
    ) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamGetAttribute(stream.cast(), attribute, value.cast())
    }

    /// Sets an attribute.
    fn cudaStreamSetAttribute(
        stream: cudaStream_t,
        attribute: cudaLaunchAttributeID,
        value: *const cudaLaunchAttributeValue,
    ) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuStreamSetAttribute(stream.cast(), attribute, value.cast())
    }

    /// Lowest and highest priority of streams; 0 and 0 if the device has one only.
    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        context::ready()?.cuCtxGetStreamPriorityRange(least, greatest)
    }
}

const _: () = assert!(size_of::<CUstreamAttrValue>() == size_of::<cudaLaunchAttributeValue>());
const _: () = assert!(size_of::<cuuint64_t>() == size_of::<c_ulonglong>());
