//! A call of the program: its parameters taken apart by the table, and what comes back put where they point.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fermata_nvml::ask::{Call, Given, MOST_ELEMENTS, Outcome, structure_size};
use fermata_nvml::code::Code;
use fermata_nvml::table::{self, Kind, MOST_PARAMETERS};

use crate::{known, users};

/// What device handles point to: the handle of device n is the address of word n. They stay right in forked children
/// and after a restore, and nothing but their place is in them.
static DEVICES: [u64; 256] = [0; 256];

/// The registers of a call.
pub type Words = [usize; MOST_PARAMETERS];

/// Makes the call of function `name`; nothing unwinds out of it.
///
/// # Safety
/// `words` are as the function's kinds in the table demand; pointers among them are null or as NVML's reference says.
pub unsafe fn made(name: &str, words: Words) -> Code {
    let body = || {
        if !users::initialised() {
            return Err(Code::UNINITIALIZED);
        }
        // SAFETY: by the caller's promise.
        unsafe { make(name, words) }
    };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code) | Err(code)) => code,
        Err(_) => Code::UNKNOWN,
    }
}

/// # Safety
/// As [`made`].
unsafe fn make(name: &str, words: Words) -> Result<Code, Code> {
    let function = table::find(name).ok_or(Code::FUNCTION_NOT_FOUND)?;
    let mut given = Vec::with_capacity(function.parameters.len());
    let mut at = 0;
    for kind in function.parameters {
        // SAFETY: the words at `at` are this parameter's.
        given.push(unsafe { take(*kind, &words[at..])? });
        at += kind.width();
    }
    let outcome = known::ask(Call {
        function: name.to_owned(),
        given,
    })?;
    // SAFETY: as above.
    unsafe { put(function.parameters, &words, &outcome)? };
    Ok(outcome.code)
}

/// What the caller gives of a parameter.
///
/// # Safety
/// As [`made`]; `words` begins with the parameter's.
unsafe fn take(kind: Kind, words: &[usize]) -> Result<Given, Code> {
    let (first, second) = (words[0], words.get(1).copied().unwrap_or(0));
    let whole = |pointer: usize| match pointer {
        0 => Err(Code::INVALID_ARGUMENT),
        _ => Ok(Given::Number(0)),
    };
    match kind {
        Kind::Device => Ok(Given::Number(place(first)? as u64)),
        // The upper half of the register is anything.
        Kind::Number => Ok(Given::Number(u64::from(first as u32))),
        Kind::Long => Ok(Given::Number(first as u64)),
        Kind::Handle | Kind::Out(_) => whole(first),
        Kind::Name => {
            if first == 0 {
                return Err(Code::INVALID_ARGUMENT);
            }
            // SAFETY: not null, so a string by the caller's promise.
            let text = unsafe { CStr::from_ptr(first as *const c_char) };
            Ok(Given::Bytes(text.to_bytes().to_vec()))
        }
        Kind::Versioned(most) => {
            if first == 0 {
                return Err(Code::INVALID_ARGUMENT);
            }
            // SAFETY: not null, so a structure that begins with its version.
            let version = unsafe { (first as *const u32).read_unaligned() };
            let size = structure_size(version, most)?;
            // SAFETY: the caller says that the structure has this size.
            Ok(Given::Bytes(unsafe { read(first, size) }))
        }
        Kind::Text => whole(first).map(|_| Given::Number(u64::from(second as u32))),
        Kind::Words => whole(second).map(|_| Given::Number(u64::from(first as u32))),
        Kind::List(_) | Kind::Processes(_) => {
            if first == 0 {
                return Err(Code::INVALID_ARGUMENT);
            }
            // SAFETY: not null, so the caller's count.
            let count = unsafe { (first as *const u32).read_unaligned() };
            let count = if second == 0 { 0 } else { count };
            Ok(Given::Number(u64::from(count.min(MOST_ELEMENTS))))
        }
        Kind::Values(size) => {
            let count = first as u32;
            if second == 0 || !(1..=MOST_ELEMENTS).contains(&count) {
                return Err(Code::INVALID_ARGUMENT);
            }
            // SAFETY: not null, so that many elements.
            Ok(Given::Bytes(unsafe {
                read(second, (count * size) as usize)
            }))
        }
    }
}

/// Puts what the call has filled into the caller's memory.
///
/// # Safety
/// As [`made`].
unsafe fn put(kinds: &[Kind], words: &Words, outcome: &Outcome) -> Result<(), Code> {
    // Where there is too little room, it is said how much there must be; other failures fill nothing.
    let short = outcome.code == Code::INSUFFICIENT_SIZE;
    if outcome.code != Code::SUCCESS && !short {
        return Ok(());
    }
    if outcome.filled.len() != kinds.len() {
        return if short { Ok(()) } else { Err(Code::UNKNOWN) };
    }
    let mut at = 0;
    for (kind, filled) in kinds.iter().zip(&outcome.filled) {
        let (first, second) = (words[at], words.get(at + 1).copied().unwrap_or(0));
        at += kind.width();
        let (to, room) = match *kind {
            Kind::Device | Kind::Number | Kind::Long | Kind::Name => continue,
            Kind::List(size) | Kind::Processes(size) => {
                let (count, elements) = filled.split_first_chunk().ok_or(Code::UNKNOWN)?;
                // SAFETY: checked not to be null when it was read.
                let before = unsafe { (first as *const u32).read_unaligned() };
                let room = (before.min(MOST_ELEMENTS) * size) as usize;
                if elements.len() > room || (second == 0 && !elements.is_empty()) {
                    return Err(Code::UNKNOWN);
                }
                // SAFETY: as above; the elements fit, by the count that the caller has given.
                unsafe {
                    (first as *mut u32).write_unaligned(u32::from_ne_bytes(*count));
                    write(second, elements);
                }
                continue;
            }
            _ if short => continue,
            Kind::Handle => {
                let index = filled.first_chunk().ok_or(Code::UNKNOWN)?;
                let index = u32::from_ne_bytes(*index) as usize;
                let handle = DEVICES.get(index).ok_or(Code::NOT_FOUND)?;
                // SAFETY: checked not to be null, so room for a handle.
                unsafe { (first as *mut usize).write_unaligned(&raw const *handle as usize) };
                continue;
            }
            Kind::Out(size) => (first, size as usize),
            Kind::Versioned(most) => {
                // SAFETY: checked when it was read.
                let version = unsafe { (first as *const u32).read_unaligned() };
                (first, structure_size(version, most)?)
            }
            Kind::Text => (first, second as u32 as usize),
            Kind::Words => (second, 8 * (first as u32 as usize)),
            Kind::Values(size) => (second, first as u32 as usize * size as usize),
        };
        if filled.len() > room {
            return Err(Code::UNKNOWN);
        }
        // SAFETY: not null, and what is written fits what the caller has said to have room for.
        unsafe { write(to, filled) };
    }
    Ok(())
}

/// The device whose handle this is.
fn place(handle: usize) -> Result<usize, Code> {
    let offset = handle.wrapping_sub(DEVICES.as_ptr() as usize);
    let word = size_of::<u64>();
    let is = offset.is_multiple_of(word) && offset / word < DEVICES.len();
    is.then_some(offset / word).ok_or(Code::INVALID_ARGUMENT)
}

/// # Safety
/// There are so many bytes at the address. They need not have been written: they are copied as they are.
unsafe fn read(from: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    // SAFETY: by the caller's promise; the copy is this function's own.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, copy.as_mut_ptr(), bytes) };
    copy
}

/// # Safety
/// There is room for the bytes at the address; it may be null if there are none.
unsafe fn write(to: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: by the caller's promise; the bytes are this library's own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }
}
