//! Functions that need no answer of the daemon's, or do something in the calling process.

use std::ffi::{c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use fermata_nvml::ask::{Call, Given};
use fermata_nvml::code::Code;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::users::{USERS, initialised};
use crate::{ask, call};

/// Words of the largest set of processors that is asked for.
const SET_WORDS: usize = 16;

fn caught(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

fn init() -> c_int {
    caught(|| {
        let call = Call {
            function: "nvmlDeviceGetCount_v2".to_owned(),
            given: vec![Given::Number(0)],
        };
        match ask::ask(call)?.code {
            Code::SUCCESS => {
                USERS.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            code => Err(code),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> c_int {
    init()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    init()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_int {
    init()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_int {
    let one_less = |users: u32| users.checked_sub(1);
    match USERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
        Ok(_) => Code::SUCCESS.0,
        Err(_) => Code::UNINITIALIZED.0,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    Code(code).text().as_ptr()
}

/// The processes that the library tells of are numbered as the program sees them, so the answer is here.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(
    process: c_uint,
    name: *mut c_char,
    length: c_uint,
) -> c_int {
    caught(|| {
        if !initialised() {
            return Err(Code::UNINITIALIZED);
        }
        if name.is_null() || length == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let line = std::fs::read(format!("/proc/{process}/cmdline"));
        let line = line.map_err(|_| Code::NOT_FOUND)?;
        let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let room = length as usize - 1;
        let program = &program[..program.len().min(room)];
        // SAFETY: not null, and by the caller's promise as long as said: one byte is left for the end.
        unsafe {
            std::ptr::copy_nonoverlapping(program.as_ptr(), name.cast(), program.len());
            name.add(program.len()).write(0);
        }
        Ok(())
    })
}

/// Keeps the calling thread on the processors that are near the device.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetCpuAffinity(device: usize) -> c_int {
    caught(|| {
        let mut words = [0u64; SET_WORDS];
        let set = words.as_mut_ptr() as usize;
        // SAFETY: the set is a live local of as many words as said.
        let code = unsafe {
            call::made(
                "nvmlDeviceGetCpuAffinity",
                [device, SET_WORDS, set, 0, 0, 0],
            )
        };
        if code != Code::SUCCESS {
            return Err(code);
        }
        let mut near = CpuSet::new();
        for cpu in (0..64 * SET_WORDS).filter(|cpu| words[cpu / 64] >> (cpu % 64) & 1 == 1) {
            near.set(cpu);
        }
        sched_setaffinity(None, &near).map_err(|_| Code::UNKNOWN)
    })
}

/// Lets the calling thread run on every processor.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceClearCpuAffinity(_device: usize) -> c_int {
    caught(|| {
        if !initialised() {
            return Err(Code::UNINITIALIZED);
        }
        let mut every = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| every.set(cpu));
        sched_setaffinity(None, &every).map_err(|_| Code::UNKNOWN)
    })
}
