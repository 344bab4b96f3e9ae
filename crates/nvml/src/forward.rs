//! Calls of others, made in the loaded NVML. With `library`, everything unsafe of this crate.

use std::cell::RefCell;
use std::ffi::{CString, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

use crate::NvmlError;
use crate::ask::{Call, Given, Outcome, room};
use crate::code::Code;
use crate::library::Library;
use crate::table::{self, Kind, MOST_PARAMETERS};

/// A function of the table. It gets a word for each register of a call; those beyond its own parameters it ignores.
type Entry = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;
type ByIndex = unsafe extern "C" fn(u32, *mut *mut c_void) -> c_int;

/// Bytes that a structure has room for beyond its own: an older function may be given the memory of a newer one.
const SPARE: usize = 128;

/// NVML, initialised, for calls of others.
pub struct Forward {
    library: Library,
    /// The devices' handles by their places, as far as they were asked for.
    handles: RefCell<Vec<*mut c_void>>,
}

/// The memory of one parameter.
struct Slot {
    kind: Kind,
    /// Bytes that are answered.
    room: usize,
    words: Vec<u64>,
    count: u32,
    name: CString,
}

impl Forward {
    /// Loads NVML from `path`.
    ///
    /// # Errors
    /// It is not there, or does not start.
    pub fn open(path: &Path) -> Result<Self, NvmlError> {
        Ok(Self {
            library: Library::open(path)?,
            handles: RefCell::default(),
        })
    }

    /// Makes `call`.
    pub fn answer(&self, call: &Call) -> Outcome {
        self.make(call).unwrap_or_else(Outcome::failed)
    }

    fn make(&self, call: &Call) -> Result<Outcome, Code> {
        let function = table::find(&call.function).ok_or(Code::FUNCTION_NOT_FOUND)?;
        let entry = self.library.find::<Entry>(function.name);
        let entry = entry.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        if call.given.len() != function.parameters.len() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let mut slots = Vec::with_capacity(call.given.len());
        for (kind, given) in function.parameters.iter().zip(&call.given) {
            slots.push(Slot::new(*kind, given)?);
        }
        let mut words = Vec::with_capacity(MOST_PARAMETERS);
        for (slot, given) in slots.iter_mut().zip(&call.given) {
            self.pass(slot, given, &mut words)?;
        }
        words.resize(MOST_PARAMETERS, 0);
        let &[a, b, c, d, e, f] = words.as_slice() else {
            return Err(Code::INVALID_ARGUMENT);
        };
        // SAFETY: the table says what this function's parameters are, by NVML's reference: each pointer among the words
        // is to memory in `slots` of at least the size that it says, which lives until after the call, and each handle is
        // NVML's own. Words beyond the parameters are in registers that the function does not read (the System V ABI).
        let code = Code(unsafe { entry(a, b, c, d, e, f) });
        let mut filled = Vec::with_capacity(slots.len());
        for slot in &slots {
            filled.push(self.filled(slot, code));
        }
        Ok(Outcome { code, filled })
    }

    /// Appends what the function gets for a parameter.
    fn pass(&self, slot: &mut Slot, given: &Given, words: &mut Vec<usize>) -> Result<(), Code> {
        let memory = slot.words.as_mut_ptr() as usize;
        match (slot.kind, given) {
            (Kind::Device, Given::Number(place)) => words.push(self.handle(*place)? as usize),
            (Kind::Number | Kind::Long, Given::Number(number)) => words.push(*number as usize),
            (Kind::Name, _) => words.push(slot.name.as_ptr() as usize),
            (Kind::Handle | Kind::Out(_) | Kind::Versioned(_), _) => words.push(memory),
            (Kind::Text, _) => words.extend([memory, slot.room]),
            (Kind::Words, _) => words.extend([slot.room / 8, memory]),
            (Kind::Values(size), _) => words.extend([slot.room / size as usize, memory]),
            (Kind::List(_) | Kind::Processes(_), _) => {
                let memory = if slot.count == 0 { 0 } else { memory };
                words.extend([&raw mut slot.count as usize, memory]);
            }
            (Kind::Device | Kind::Number | Kind::Long, Given::Bytes(_)) => {
                return Err(Code::INVALID_ARGUMENT);
            }
        }
        Ok(())
    }

    /// NVML's handle of the device at `place`.
    fn handle(&self, place: u64) -> Result<*mut c_void, Code> {
        let at = usize::try_from(place).map_err(|_| Code::INVALID_ARGUMENT)?;
        if let Some(handle) = self.handles.borrow().get(at).filter(|it| !it.is_null()) {
            return Ok(*handle);
        }
        let index = u32::try_from(place).map_err(|_| Code::INVALID_ARGUMENT)?;
        let ask = self
            .library
            .find::<ByIndex>("nvmlDeviceGetHandleByIndex_v2");
        let ask = ask.map_err(|_| Code::FUNCTION_NOT_FOUND)?;
        let mut handle = null_mut();
        // SAFETY: the pointer refers to a live local.
        let code = Code(unsafe { ask(index, &mut handle) });
        if code != Code::SUCCESS {
            return Err(code);
        }
        let mut handles = self.handles.borrow_mut();
        if handles.len() <= at {
            handles.resize(at + 1, null_mut());
        }
        handles[at] = handle;
        Ok(handle)
    }

    /// The place of the device whose handle NVML has given.
    fn place(&self, handle: *mut c_void) -> Option<u32> {
        let known = || self.handles.borrow().iter().position(|it| *it == handle);
        let place = known().or_else(|| {
            // NVML counts devices that this process may not use, and gives no handles of them.
            for place in 0..self.count() {
                let _ = self.handle(place.into());
            }
            known()
        });
        u32::try_from(place?).ok()
    }

    fn count(&self) -> u32 {
        type Count = unsafe extern "C" fn(*mut u32) -> c_int;
        let mut count = 0;
        if let Ok(ask) = self.library.find::<Count>("nvmlDeviceGetCount_v2") {
            // SAFETY: the pointer refers to a live local; without an answer there are none.
            unsafe { ask(&mut count) };
        }
        count
    }

    fn filled(&self, slot: &Slot, code: Code) -> Vec<u8> {
        let bytes = |most: usize| {
            let bytes = slot.words.iter().flat_map(|word| word.to_ne_bytes());
            bytes.take(most).collect::<Vec<u8>>()
        };
        match slot.kind {
            Kind::Device | Kind::Number | Kind::Long | Kind::Name => Vec::new(),
            Kind::Handle => {
                let handle = slot.words.first().copied().unwrap_or_default() as *mut c_void;
                let place = (code == Code::SUCCESS).then(|| self.place(handle));
                let place = place.flatten().map(u32::to_ne_bytes);
                place.map(Vec::from).unwrap_or_default()
            }
            Kind::List(size) | Kind::Processes(size) => {
                let held = (slot.count as usize * size as usize).min(slot.room);
                let held = if code == Code::SUCCESS { held } else { 0 };
                [&slot.count.to_ne_bytes()[..], &bytes(held)].concat()
            }
            _ => bytes(slot.room),
        }
    }
}

impl Slot {
    fn new(kind: Kind, given: &Given) -> Result<Self, Code> {
        let room = room(kind, given)?;
        let mut words = vec![0u64; (room + SPARE).div_ceil(8)];
        let mut name = CString::default();
        let mut count = 0;
        match (kind, given) {
            (Kind::Name, Given::Bytes(bytes)) => {
                name = CString::new(bytes.clone()).map_err(|_| Code::INVALID_ARGUMENT)?;
            }
            (Kind::List(size) | Kind::Processes(size), _) => {
                count = u32::try_from(room / size as usize).unwrap_or(0);
            }
            (_, Given::Bytes(bytes)) => {
                for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..bytes.len()].copy_from_slice(bytes);
                    *word = u64::from_ne_bytes(whole);
                }
            }
            _ => {}
        }
        Ok(Self {
            kind,
            room,
            words,
            count,
            name,
        })
    }
}
