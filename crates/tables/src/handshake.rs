//! The handshake: a runtime asks the driver to sign what both of them know, and compares.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 1 | u32 version, u64 seconds since 1970, `u64 answer[2]` | signs |
//!
//! The signature is an HMAC with MD2 (RFC 2104, RFC 1319) over:
//!
//! | bytes | content |
//! | --- | --- |
//! | 4 | driver version |
//! | 4 | the argument `version` |
//! | 4 | process id |
//! | 4 | low half of `pthread_self()` |
//! | 8, 8, 8 | addresses of the runtime's table, of this table, of the function in slot 1 |
//! | 8 | the argument `seconds` |
//! | 28 for each device | UUID, and its PCI domain, bus and device as 32-bit numbers |

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;
use hmac::{Hmac, KeyInit, Mac};
use md2::Md2;

use crate::driver::{Driver, Identity, call, put};
use crate::runtime;
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2,
];

struct Handshake;

impl Named for Handshake {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::new::<Handshake>(3).with(1, sign as *const c_void);

const KEY: [u8; 16] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// All that is signed but for the devices.
struct Facts {
    driver_version: i32,
    version: u32,
    process: u32,
    thread: u32,
    runtime_table: usize,
    own_table: usize,
    function: usize,
    seconds: u64,
}

extern "C" fn sign(version: u32, seconds: u64, answer: *mut [u64; 2]) -> sys::CUresult {
    // SAFETY: the runtime passes room for both words, or null.
    call(|driver| unsafe { put(answer, signature(driver, version, seconds)) })
}

fn signature(driver: &dyn Driver, version: u32, seconds: u64) -> [u64; 2] {
    // Versions that the oldest runtimes use have a constant for an answer.
    match version % 10 {
        0 => return [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        1 => return [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        _ => {}
    }
    let facts = Facts {
        driver_version: driver.version(),
        version,
        process: std::process::id(),
        // SAFETY: the function has no conditions.
        thread: unsafe { libc::pthread_self() } as u32,
        runtime_table: runtime::TABLE.address().addr(),
        own_table: TABLE.address().addr(),
        function: TABLE.slot(1).addr(),
        seconds,
    };
    hmac(&facts, &driver.devices())
}

fn hmac(facts: &Facts, devices: &[Identity]) -> [u64; 2] {
    let Ok(mut mac) = Hmac::<Md2>::new_from_slice(&KEY) else {
        // An HMAC takes a key of any length.
        return [0; 2];
    };
    mac.update(&facts.driver_version.to_le_bytes());
    for word in [facts.version, facts.process, facts.thread] {
        mac.update(&word.to_le_bytes());
    }
    for address in [facts.runtime_table, facts.own_table, facts.function] {
        mac.update(&(address as u64).to_le_bytes());
    }
    mac.update(&facts.seconds.to_le_bytes());
    for device in devices {
        mac.update(&device.uuid);
        for number in device.pci {
            mac.update(&number.to_le_bytes());
        }
    }
    let digest = mac.finalize().into_bytes();
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| digest[at + n]));
    [word(0), word(8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer was computed by a program of its own from RFC 1319 and RFC 2104.
    #[test]
    fn the_signature_is_an_hmac_over_all_facts_and_devices() {
        let facts = Facts {
            driver_version: 13000,
            version: 13000 + 2,
            process: 4711,
            thread: 0xf6a1_2740,
            runtime_table: 0x7f00_0000_1000,
            own_table: 0x7f00_0000_2000,
            function: 0x7f00_0000_3000,
            seconds: 1_790_000_000,
        };
        let device = Identity {
            uuid: std::array::from_fn(|n| n as u8),
            pci: [0, 0x1b, 0],
        };
        assert_eq!(
            hmac(&facts, &[]),
            [0x820f_3208_c982_492d, 0x91c3_1792_5926_9451]
        );
        assert_eq!(
            hmac(&facts, &[device]),
            [0x836b_44f3_634f_0747, 0xfdf7_6f50_076c_9915]
        );
    }
}
