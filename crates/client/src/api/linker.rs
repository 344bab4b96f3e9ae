//! Exported functions for linking at run time. A linker only collects its inputs here; the worker's driver links them
//! when the program asks for the image. So a checkpoint has no linker state to save.

use core::ffi::{c_char, c_uint, c_void};
use std::collections::HashMap;
use std::sync::Arc;

use fermata_abi::op::{Blob, LinkInput, LinkJob, LinkerId, Op, ReplyBody};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use super::module::read_image;
use crate::args::{In, Name, Out};
use crate::frame::entry::driver_api;
use crate::handles::{self, of, to_pointer};
use crate::link;
use crate::object::context::current;
use crate::object::session::session;
use crate::result::Result;

/// An input of a linker.
struct Input {
    kind: sys::CUjitInputType,
    name: String,
    bytes: Vec<u8>,
    options: Vec<(u32, u64)>,
}

/// A log buffer of the program.
#[derive(Clone, Copy)]
struct Log {
    /// Address of the buffer.
    buffer: usize,
    /// Its bytes, terminating NUL included.
    size: usize,
}

/// A linker: its inputs so far.
#[derive(Default)]
struct Linker {
    options: Vec<(u32, u64)>,
    inputs: Vec<Input>,
    logs: Vec<Log>,
    /// The linked image: the program may read it until it destroys the linker.
    image: Option<Arc<Vec<u8>>>,
}

static LINKERS: Mutex<Option<HashMap<LinkerId, Linker>>> = Mutex::new(None);

driver_api! {
    fn cuLinkCreate(
        count: c_uint,
        options: Out<sys::CUjit_option>,
        values: Out<*mut c_void>,
        state: Out<sys::CUlinkState>,
    ) {
        create(count, options, values, state)
    }

    fn cuLinkCreate_v2(
        count: c_uint,
        options: Out<sys::CUjit_option>,
        values: Out<*mut c_void>,
        state: Out<sys::CUlinkState>,
    ) {
        create(count, options, values, state)
    }

    fn cuLinkAddData(
        state: sys::CUlinkState,
        kind: sys::CUjitInputType,
        data: In<c_void>,
        size: usize,
        name: Name,
        count: c_uint,
        options: Out<sys::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        add_data(state, (kind, data, size, name), (count, options, values))
    }

    fn cuLinkAddData_v2(
        state: sys::CUlinkState,
        kind: sys::CUjitInputType,
        data: In<c_void>,
        size: usize,
        name: Name,
        count: c_uint,
        options: Out<sys::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        add_data(state, (kind, data, size, name), (count, options, values))
    }

    fn cuLinkAddFile(
        state: sys::CUlinkState,
        kind: sys::CUjitInputType,
        path: Name,
        count: c_uint,
        options: Out<sys::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        add_file(state, (kind, path), (count, options, values))
    }

    fn cuLinkAddFile_v2(
        state: sys::CUlinkState,
        kind: sys::CUjitInputType,
        path: Name,
        count: c_uint,
        options: Out<sys::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        add_file(state, (kind, path), (count, options, values))
    }

    fn cuLinkComplete(state: sys::CUlinkState, image: Out<*mut c_void>, size: Out<usize>) {
        session()?;
        let linked = complete(of(state))?;
        image.set(linked.as_ptr().cast_mut().cast())?;
        size.set_if_wanted(linked.len());
        Ok(())
    }

    fn cuLinkDestroy(state: sys::CUlinkState) {
        session()?;
        let mut linkers = LINKERS.lock();
        let gone = linkers.get_or_insert_default().remove(&of(state));
        gone.map(drop).ok_or(sys::CUDA_ERROR_INVALID_HANDLE)
    }
}

/// Options as the API passes them: number, list of options, list of values.
type Options = (c_uint, Out<sys::CUjit_option>, Out<*mut c_void>);

/// Options with plain values, and logs; buffers that options name are the program's.
fn read((count, options, values): Options, logs: &mut Vec<Log>) -> Result<Vec<(u32, u64)>> {
    let (options, values) = (options.list(count as usize)?, values.list(count as usize)?);
    let mut plain = Vec::new();
    let (mut buffers, mut sizes) = ([0; 2], [0; 2]);
    for (option, value) in options.into_iter().zip(values) {
        let value = value.addr();
        match option {
            sys::CU_JIT_INFO_LOG_BUFFER => buffers[0] = value,
            sys::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => sizes[0] = value,
            sys::CU_JIT_ERROR_LOG_BUFFER => buffers[1] = value,
            sys::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => sizes[1] = value,
            // An answer that would be written into the list of values.
            sys::CU_JIT_WALL_TIME => {}
            sys::CU_JIT_GLOBAL_SYMBOL_NAMES
            | sys::CU_JIT_GLOBAL_SYMBOL_ADDRESSES
            | sys::CU_JIT_GLOBAL_SYMBOL_COUNT
            | sys::CU_JIT_REFERENCED_KERNEL_NAMES
            | sys::CU_JIT_REFERENCED_KERNEL_COUNT
            | sys::CU_JIT_REFERENCED_VARIABLE_NAMES
            | sys::CU_JIT_REFERENCED_VARIABLE_COUNT => return Err(sys::CUDA_ERROR_NOT_SUPPORTED),
            option => plain.push((option, value as u64)),
        }
    }
    for (buffer, size) in buffers.into_iter().zip(sizes) {
        if buffer != 0 && size != 0 {
            logs.push(Log { buffer, size });
            say(&[Log { buffer, size }], "");
        }
    }
    Ok(plain)
}

/// Writes `words` into the program's log buffers, truncated to their sizes.
fn say(logs: &[Log], words: &str) {
    for log in logs {
        let buffer = std::ptr::with_exposed_provenance_mut(log.buffer);
        // SAFETY: the program has promised so much room until it destroys the linker.
        let buffer: Out<c_char> = unsafe { Out::from_raw(buffer) };
        // Not null, and a NUL has room.
        let _ = buffer.set_text_in(words, log.size);
    }
}

fn create(
    count: c_uint,
    options: Out<sys::CUjit_option>,
    values: Out<*mut c_void>,
    state: Out<sys::CUlinkState>,
) -> Result {
    session()?;
    current()?;
    let mut linker = Linker::default();
    linker.options = read((count, options, values), &mut linker.logs)?;
    let handle = handles::fresh();
    state.set(to_pointer(handle))?;
    LINKERS
        .lock()
        .get_or_insert_default()
        .insert(handle, linker);
    Ok(())
}

fn add_data(
    state: sys::CUlinkState,
    (kind, data, size, name): (sys::CUjitInputType, In<c_void>, usize, Name),
    options: Options,
) -> Result {
    let name = if name.is_null() { "" } else { name.text()? };
    add(state, kind, data.cast::<u8>().list(size)?, name, options)
}

fn add_file(
    state: sys::CUlinkState,
    (kind, path): (sys::CUjitInputType, Name),
    options: Options,
) -> Result {
    let path = path.text()?;
    add(state, kind, read_image(path)?, path, options)
}

fn add(
    state: sys::CUlinkState,
    kind: sys::CUjitInputType,
    bytes: Vec<u8>,
    name: &str,
    options: Options,
) -> Result {
    session()?;
    if bytes.is_empty() || kind >= sys::CU_JIT_NUM_INPUT_TYPES {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let options = read(options, &mut Vec::new())?;
    let mut linkers = LINKERS.lock();
    let linker = linkers.get_or_insert_default().get_mut(&of(state));
    let linker = linker.ok_or(sys::CUDA_ERROR_INVALID_HANDLE)?;
    if linker.image.is_some() {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    linker.inputs.push(Input {
        kind,
        name: name.to_owned(),
        bytes,
        options,
    });
    Ok(())
}

fn complete(state: LinkerId) -> Result<Arc<Vec<u8>>> {
    let context = current()?.handle;
    let (job, logs) = {
        let mut linkers = LINKERS.lock();
        let linker = linkers.get_or_insert_default().get(&state);
        let linker = linker.ok_or(sys::CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(image) = &linker.image {
            return Ok(image.clone());
        }
        let inputs = linker.inputs.iter().map(|it| LinkInput {
            kind: it.kind,
            name: &it.name,
            bytes: &it.bytes,
            options: it.options.clone(),
        });
        let job = LinkJob {
            options: linker.options.clone(),
            inputs: inputs.collect(),
        };
        let job = postcard::to_stdvec(&job).map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
        (job, linker.logs.clone())
    };
    let (range, room) = link::stage_with_all_room(job.len() as u64)?;
    // SAFETY: the range is as long as the inputs, and ours until it is dropped.
    unsafe { std::ptr::copy_nonoverlapping(job.as_ptr(), range.address(), job.len()) };
    let job = Blob::Staged {
        offset: range.offset(),
        len: range.len(),
    };
    let image = link::ask_in(
        &room,
        &Op::Link { context, job },
        |words| say(&logs, words),
        |body| match body {
            ReplyBody::Bytes(bytes) => Ok(Arc::new(bytes.to_vec())),
            _ => Err(sys::CUDA_ERROR_UNKNOWN),
        },
    )?;
    let mut linkers = LINKERS.lock();
    let linker = linkers.get_or_insert_default().get_mut(&state);
    let linker = linker.ok_or(sys::CUDA_ERROR_INVALID_HANDLE)?;
    Ok(linker.image.get_or_insert(image).clone())
}
