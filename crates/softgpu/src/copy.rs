//! Copies: checks a program's arguments and moves the bytes.

use std::time::{Duration, Instant};

use fermata_graph::{Copy, CopyEnd, Place};

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Result};
use crate::exec::{WINDOW_BASE, WINDOW_END};
use crate::hold::HeldWork;
use crate::memory::{Kind, Protection, Range, Side};

/// Device number of host memory.
const HOST: i32 = -1;
/// Pageable bytes up to this are set aside when an asynchronous copy is submitted.
const STAGED: u64 = 1 << 20;

/// Shortest copy that the setting for wrong bits is about.
const FLIPPED: u64 = 64 << 10;

/// A copy whose ends are known.
#[derive(Debug)]
pub struct Plan {
    copy: Copy,
    src: Side,
    dst: Side,
    /// Bytes per second of the link it goes over; 0 is unlimited.
    rate: u64,
    /// It goes from a device to host memory.
    to_host: bool,
    /// A test may hold it up.
    held: bool,
    /// The source's bytes, when they were set aside.
    staged: Option<Vec<u8>>,
    /// An end is host memory, so that a synchronous copy waits.
    pub touches_host: bool,
    /// An end is host memory that the driver does not know.
    pub pageable: Pageable,
}

/// Which ends of a copy are pageable host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pageable {
    /// The source is.
    pub src: bool,
    /// The destination is.
    pub dst: bool,
}

/// One end with everything found out about it.
struct Found {
    side: Side,
    device: i32,
    pageable: bool,
}

impl Plan {
    /// Checks a copy and finds out what its ends are.
    ///
    /// # Errors
    /// Pitches too small, boxes outside of arrays, or memory that is unknown or not accessible.
    pub fn new(driver: &Driver, mut copy: Copy) -> Result<Self> {
        for end in [&mut copy.src, &mut copy.dst] {
            resolve_array(driver, end, copy.width_bytes, copy.height, copy.depth)?;
        }
        if !copy.is_well_formed() {
            return Err(INVALID_VALUE);
        }
        let src = find(driver, &copy, &copy.src, Protection::Read)?;
        let dst = find(driver, &copy, &copy.dst, Protection::ReadWrite)?;
        let settings = &driver.devices[0].settings;
        let rate = match (src.device, dst.device) {
            (a, b) if a == b => 0,
            (HOST, _) | (_, HOST) => settings.host_link,
            _ => settings.peer_link,
        };
        let over_the_link = (src.device == HOST) != (dst.device == HOST);
        Ok(Self {
            copy,
            src: src.side,
            dst: dst.side,
            rate,
            held: over_the_link && driver.hold.is_set(),
            to_host: dst.device == HOST && src.device != HOST,
            staged: None,
            touches_host: src.device == HOST || dst.device == HOST,
            pageable: Pageable {
                src: src.pageable,
                dst: dst.pageable,
            },
        })
    }

    /// Sets the bytes of a small pageable source aside, so that the program may change them.
    /// False when that was not done.
    pub fn stage(&mut self, driver: &Driver) -> Result<bool> {
        let len = self.copy.width_bytes;
        if !self.copy.is_linear() || len > STAGED {
            return Ok(false);
        }
        let mut bytes = vec![0u8; len as usize];
        let to = Side {
            address: bytes.as_mut_ptr().expose_provenance() as u64,
            checked: false,
        };
        driver.memory.copy(to, self.src, len)?;
        self.staged = Some(bytes);
        Ok(true)
    }

    /// Whether it takes the time of a link, which the program's threads are not to spend.
    pub fn is_slowed(&self) -> bool {
        self.rate > 0 || self.held
    }

    /// Moves the bytes, no faster than the link allows.
    ///
    /// # Errors
    /// Memory has gone away meanwhile, or this is the copy that a setting makes fail.
    pub fn run(&self, driver: &Driver, device: &Device) -> Result {
        device.count_copy()?;
        let copy = &self.copy;
        if self.held {
            let bytes = copy.bytes().unwrap_or(0);
            driver.hold.pass(HeldWork::Copies, bytes);
        }
        let begun = Instant::now();
        if let Some(bytes) = &self.staged {
            driver.memory.write_side(self.dst, bytes)?;
        } else if copy.is_linear() {
            driver.memory.copy(self.dst, self.src, copy.width_bytes)?;
        } else {
            for slice in 0..copy.depth {
                for row in 0..copy.height {
                    let from = start(self.src, &copy.src, row, slice)?;
                    let to = start(self.dst, &copy.dst, row, slice)?;
                    driver.memory.copy(to, from, copy.width_bytes)?;
                }
            }
        }
        if self.to_host && copy.width_bytes >= FLIPPED && device.flips_copy() {
            self.flip(driver)?;
        }
        if self.rate > 0 {
            let bytes = copy.bytes().unwrap_or(0) as f64;
            let due = Duration::from_secs_f64(bytes / self.rate as f64);
            // The time that a bus of this rate takes: what is simulated here is the delay itself.
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        Ok(())
    }
}

impl Plan {
    /// Makes one bit of what has arrived wrong.
    fn flip(&self, driver: &Driver) -> Result {
        let mut byte = [0u8];
        let own = Side {
            address: byte.as_mut_ptr().expose_provenance() as u64,
            checked: false,
        };
        let at = self.dst.add(self.copy.width_bytes / 2);
        driver.memory.copy(own, at, 1)?;
        byte[0] ^= 0x10;
        driver.memory.write_side(at, &byte)
    }
}

/// Where a row begins. For linear copies `Side` points to the first byte already.
fn start(side: Side, end: &CopyEnd, row: u64, slice: u64) -> Result<Side> {
    let first = end.offset(0, 0).ok_or(INVALID_VALUE)?;
    let offset = end.offset(row, slice).ok_or(INVALID_VALUE)?;
    Ok(side.add(offset - first))
}

/// Turns an array's handle into the address, pitch and height of its bytes.
fn resolve_array(
    driver: &Driver,
    end: &mut CopyEnd,
    width: u64,
    height: u64,
    depth: u64,
) -> Result {
    if end.place != Place::Array {
        return Ok(());
    }
    let array = driver.arrays().get(end.address).ok_or(INVALID_HANDLE)?;
    let within =
        |first: u64, len: u64, all: u64| first.checked_add(len).is_some_and(|end| end <= all);
    if !within(end.x_bytes, width, array.width_bytes)
        || !within(end.y, height, array.height)
        || !within(end.z, depth, array.depth)
    {
        return Err(INVALID_VALUE);
    }
    end.place = Place::Device;
    (end.address, end.pitch, end.height) = (array.base, array.pitch, array.height);
    Ok(())
}

fn find(driver: &Driver, copy: &Copy, end: &CopyEnd, needed: Protection) -> Result<Found> {
    if copy.bytes() == Some(0) {
        let side = Side {
            address: end.address,
            checked: false,
        };
        return Ok(Found {
            side,
            device: HOST,
            pageable: false,
        });
    }
    let (first, past) = copy.span(end).ok_or(INVALID_VALUE)?;
    let address = end.address.checked_add(first).ok_or(INVALID_VALUE)?;
    let len = past - first;
    let range = driver.memory.find(address);
    if let Some(range) = &range
        && driver.memory.covers(address, len, needed)
    {
        let side = Side {
            address,
            checked: true,
        };
        return Ok(Found {
            side,
            device: device_of(range),
            pageable: false,
        });
    }
    let in_window = (WINDOW_BASE..WINDOW_END).contains(&address);
    if end.place == Place::Device || in_window || address < 4096 {
        return Err(INVALID_VALUE);
    }
    Ok(Found {
        side: Side {
            address,
            checked: false,
        },
        device: HOST,
        pageable: range.is_none(),
    })
}

fn device_of(range: &Range) -> i32 {
    match range.kind {
        Kind::Host { .. } | Kind::Registered { .. } => HOST,
        _ => range.device,
    }
}
