//! Order between streams, events, host functions and memory operations.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{context, copy, event, launch, memop, memory, memset, stream};

use crate::common::{Context, check, cuda};

/// A stream that lives as long as its context.
fn new_stream(flags: u32) -> cu::CUstream {
    let mut handle = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut handle), flags)));
    handle
}

fn new_event(flags: u32) -> cu::CUevent {
    let mut handle = null_mut();
    check(cuda!(event::cuEventCreate(Out::from(&mut handle), flags)));
    handle
}

/// Blocks its stream until told to go on.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) open: AtomicBool,
    reached: AtomicBool,
}

impl Gate {
    pub(crate) fn close(&self, stream: cu::CUstream) {
        let data = crate::common::out((&raw const *self).cast_mut().cast::<c_void>());
        check(cuda!(launch::cuLaunchHostFunc(
            stream,
            Some(wait_at_gate),
            data
        )));
    }

    /// Waits until its stream has come to it.
    fn wait_until_reached(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.reached.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "nobody comes to the gate");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Until a test gives up: what it waits for comes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) unsafe extern "C" fn wait_at_gate(gate: *mut c_void) {
    // SAFETY: tests keep the gate until its stream has been synchronised.
    let gate = unsafe { &*gate.cast::<Gate>() };
    gate.reached.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    while !gate.open.load(Ordering::SeqCst) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: tests keep the counter until its stream has been synchronised.
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

fn count_on(stream: cu::CUstream, counter: &AtomicU32) {
    let data = crate::common::out((&raw const *counter).cast_mut().cast::<c_void>());
    check(cuda!(launch::cuLaunchHostFunc(stream, Some(count), data)));
}

#[test]
fn a_stream_keeps_its_order_and_does_not_hold_up_another() {
    let _context = Context::new();
    let (slow, free) = (new_stream(1), new_stream(1));
    let (gate, counter) = (Gate::default(), AtomicU32::new(0));
    gate.close(slow);
    count_on(slow, &counter);
    assert_eq!(cuda!(stream::cuStreamQuery(slow)), cu::CUDA_ERROR_NOT_READY);
    count_on(free, &counter);
    check(cuda!(stream::cuStreamSynchronize(free)));
    assert_eq!(counter.load(Ordering::SeqCst), 1);
    gate.open.store(true, Ordering::SeqCst);
    check(cuda!(stream::cuStreamSynchronize(slow)));
    assert_eq!(counter.load(Ordering::SeqCst), 2);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let _context = Context::new();
    let (blocking, other, free) = (new_stream(0), new_stream(0), new_stream(1));
    let (gate, counter) = (Gate::default(), AtomicU32::new(0));
    gate.close(blocking);
    count_on(null_mut(), &counter);
    count_on(other, &counter);
    count_on(free, &counter);
    check(cuda!(stream::cuStreamSynchronize(free)));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(
        counter.load(Ordering::SeqCst),
        1,
        "only the non-blocking stream may go on"
    );
    gate.open.store(true, Ordering::SeqCst);
    check(cuda!(stream::cuStreamSynchronize(other)));
    assert_eq!(counter.load(Ordering::SeqCst), 3);
}

#[test]
fn threads_have_default_streams_of_their_own() {
    let context = Context::new();
    let own: cu::CUstream = std::ptr::without_provenance_mut(2);
    let gate = Gate::default();
    gate.close(own);
    let handle = context.0.addr();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            check(cuda!(context::cuCtxSetCurrent(
                std::ptr::without_provenance_mut(handle)
            )));
            let own: cu::CUstream = std::ptr::without_provenance_mut(2);
            check(cuda!(stream::cuStreamSynchronize(own)));
        });
    });
    assert_eq!(cuda!(stream::cuStreamQuery(own)), cu::CUDA_ERROR_NOT_READY);
    gate.open.store(true, Ordering::SeqCst);
    check(cuda!(context::cuCtxSynchronize()));
}

#[test]
fn events_order_streams_and_measure_time() {
    let _context = Context::new();
    let (first, second) = (new_stream(1), new_stream(1));
    let (start, end) = (new_event(0), new_event(0));
    let (gate, counter) = (Gate::default(), AtomicU32::new(0));
    check(cuda!(event::cuEventRecord(start, first)));
    gate.close(first);
    check(cuda!(event::cuEventRecord(end, first)));
    check(cuda!(stream::cuStreamWaitEvent(second, end, 0)));
    count_on(second, &counter);
    // The first event has its time now.
    gate.wait_until_reached();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(counter.load(Ordering::SeqCst), 0);
    assert_eq!(cuda!(event::cuEventQuery(end)), cu::CUDA_ERROR_NOT_READY);
    let mut milliseconds = 0.0;
    let elapsed = |out: &mut f32, a, b| cuda!(event::cuEventElapsedTime_v2(Out::from(out), a, b));
    assert_eq!(
        elapsed(&mut milliseconds, start, end),
        cu::CUDA_ERROR_NOT_READY
    );
    gate.open.store(true, Ordering::SeqCst);
    check(cuda!(event::cuEventSynchronize(end)));
    check(elapsed(&mut milliseconds, start, end));
    assert!(milliseconds >= 25.0, "{milliseconds}");
    check(cuda!(stream::cuStreamSynchronize(second)));
    assert_eq!(counter.load(Ordering::SeqCst), 1);
    let untimed = new_event(cu::CU_EVENT_DISABLE_TIMING);
    assert_eq!(
        elapsed(&mut milliseconds, start, untimed),
        cu::CUDA_ERROR_INVALID_HANDLE
    );
    assert_eq!(
        elapsed(&mut milliseconds, start, new_event(0)),
        cu::CUDA_ERROR_INVALID_HANDLE
    );
}

#[test]
fn host_functions_may_not_call_the_driver() {
    unsafe extern "C" fn call(result: *mut c_void) {
        let mut address = 0;
        let code = cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), 4));
        // SAFETY: the test keeps the word until the stream has been synchronised.
        unsafe { &*result.cast::<AtomicU32>() }.store(code, Ordering::SeqCst);
    }
    let _context = Context::new();
    let code = AtomicU32::new(0);
    let data = crate::common::out((&raw const code).cast_mut().cast::<c_void>());
    check(cuda!(launch::cuLaunchHostFunc(
        null_mut(),
        Some(call),
        data
    )));
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(code.load(Ordering::SeqCst), cu::CUDA_ERROR_NOT_PERMITTED);
}

#[test]
fn streams_wait_for_and_write_words() {
    let context = Context::new();
    let (waiter, writer) = (new_stream(1), new_stream(1));
    let words = context.upload(&[0u32; 4]);
    check(cuda!(memop::cuStreamWaitValue32_v2(
        waiter,
        words,
        7,
        cu::CU_STREAM_WAIT_VALUE_EQ
    )));
    check(cuda!(memset::cuMemsetD32Async(words + 8, 5, 1, waiter)));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(
        cuda!(stream::cuStreamQuery(waiter)),
        cu::CUDA_ERROR_NOT_READY
    );
    check(cuda!(memop::cuStreamWriteValue32_v2(writer, words, 7, 0)));
    check(cuda!(stream::cuStreamSynchronize(waiter)));
    assert_eq!(context.download::<u32>(words, 3), [7, 0, 5]);
    let odd = cuda!(memop::cuStreamWaitValue64_v2(waiter, words + 4, 0, 0));
    assert_eq!(odd, cu::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_pageable_source_may_change_as_soon_as_the_call_returns() {
    let context = Context::new();
    let stream = new_stream(1);
    let gate = Gate::default();
    let address = context.allocate(16);
    gate.close(stream);
    let mut source = [1u8; 16];
    let from: In<c_void> = In::from(&source[..]).cast();
    check(cuda!(copy::cuMemcpyHtoDAsync_v2(address, from, 16, stream)));
    source.fill(9);
    gate.open.store(true, Ordering::SeqCst);
    check(cuda!(stream::cuStreamSynchronize(stream)));
    assert_eq!(context.download::<u8>(address, 16), [1; 16]);
    assert_eq!(source, [9; 16]);
}

#[test]
fn pinned_memory_is_copied_asynchronously_and_reachable_by_kernels() {
    let context = Context::new();
    let stream = new_stream(1);
    let mut pointer = null_mut();
    check(cuda!(memory::cuMemHostAlloc(
        Out::from(&mut pointer),
        4096,
        0
    )));
    let mut device = 0;
    let from = crate::common::out(pointer);
    check(cuda!(memory::cuMemHostGetDevicePointer_v2(
        Out::from(&mut device),
        from,
        0
    )));
    assert_eq!(device, pointer.addr() as u64);
    check(cuda!(memset::cuMemsetD32Async(device, 3, 1024, stream)));
    let kernel = context.load(crate::common::COUNT).function(c"count");
    let params: [&[u8]; 4] = [
        &device.to_ne_bytes(),
        &1024u32.to_ne_bytes(),
        &2u32.to_ne_bytes(),
        &5u32.to_ne_bytes(),
    ];
    kernel.launch([8, 1, 1], [128, 1, 1], 0, stream, &params);
    check(cuda!(stream::cuStreamSynchronize(stream)));
    // SAFETY: the driver gave 4096 bytes, and the stream that wrote them has been synchronised.
    let words = unsafe { std::slice::from_raw_parts(pointer.cast::<u32>(), 1024) };
    assert!(words.iter().all(|word| *word == 13));
    check(cuda!(memory::cuMemFreeHost(crate::common::out(pointer))));
}

#[test]
fn callbacks_get_their_stream_and_its_state() {
    unsafe extern "C" fn note(stream: cu::CUstream, code: cu::CUresult, data: *mut c_void) {
        // SAFETY: the test keeps the word until the stream has been synchronised.
        let word = unsafe { &*data.cast::<std::sync::atomic::AtomicU64>() };
        word.store(stream.addr() as u64 + u64::from(code), Ordering::SeqCst);
    }
    let _context = Context::new();
    let stream = new_stream(0);
    let word = std::sync::atomic::AtomicU64::new(0);
    let data = crate::common::out((&raw const word).cast_mut().cast::<c_void>());
    check(cuda!(stream::cuStreamAddCallback(
        stream,
        Some(note),
        data,
        0
    )));
    check(cuda!(stream::cuStreamSynchronize(stream)));
    assert_eq!(word.load(Ordering::SeqCst), stream.addr() as u64);
}
