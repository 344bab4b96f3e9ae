//! The calls on sessions. Each checks its pointers, takes the session's lock and calls the library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use fermata_app::{AppError, Comm, Config, ElementType, Level, Memory, Session, Snapshot, Solo};
use parking_lot::Mutex;

use crate::comm::{Bridge, Table};
use crate::error::{Failure, guard, misuse};
use crate::info::Info;

/// `fermata`.
pub struct Handle(Mutex<Session>);

type Result<T> = std::result::Result<T, AppError>;
type Error = *mut *mut Failure;

/// Longest wait that can be asked for, in seconds.
const LONGEST: f64 = 1e9;

/// # Safety
/// `session` is null or a session that is not being finalized.
unsafe fn with<T>(
    session: *mut Handle,
    op: &'static str,
    call: impl FnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    // SAFETY: the caller passes null or a session.
    let handle = unsafe { session.as_ref() }.ok_or_else(|| misuse(op, "the session is null"))?;
    call(&mut handle.0.lock())
}

/// # Safety
/// `text` is null or ends with NUL.
unsafe fn string<'a>(text: *const c_char, op: &'static str) -> Result<&'a str> {
    if text.is_null() {
        return Err(misuse(op, "the text is null"));
    }
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| misuse(op, "the text is not UTF-8"))
}

/// # Safety
/// `comm` is null or a table as the header describes it, `session` can be written.
unsafe fn begin(
    config: Result<Config>,
    comm: *const Table,
    session: *mut *mut Handle,
) -> Result<()> {
    if session.is_null() {
        return Err(misuse("begin a session", "there is nowhere to put it"));
    }
    let comm: Box<dyn Comm> = match comm.is_null() {
        true => Box::new(Solo),
        // SAFETY: the caller vouches for the table.
        false => Box::new(unsafe { Bridge::new(comm)? }),
    };
    let made = Box::new(Handle(Mutex::new(Session::begin(config, comm)?)));
    // SAFETY: checked above; the caller says that it can be written.
    unsafe { session.write(Box::into_raw(made)) };
    Ok(())
}

/// Begins a session with a configuration file.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_init(
    path: *const c_char,
    comm: *const Table,
    session: *mut *mut Handle,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            let path = string(path, "begin a session");
            let config = path.and_then(|path| Config::read(Path::new(path)));
            begin(config, comm, session)
        })
    }
}

/// Begins a session with a configuration.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_init_text(
    text: *const c_char,
    comm: *const Table,
    session: *mut *mut Handle,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            let text = string(text, "begin a session");
            let config = text.and_then(|text| Config::parse(text, "text"));
            begin(config, comm, session)
        })
    }
}

/// Protects a variable.
///
/// # Safety
/// Pointers are as the header says; the memory is the caller's to keep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_protect(
    session: *mut Handle,
    id: u32,
    address: *mut c_void,
    count: usize,
    element: u32,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            with(session, "protect a variable", |s| {
                let element = ElementType(element);
                let bytes = element.total(fermata_app::VariableId(id), count as u64)?;
                s.protect(id, Memory::new(address, bytes), element)
            })
        })
    }
}

/// Ends a protection.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_unprotect(session: *mut Handle, id: u32, error: Error) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe { guard(error, || with(session, "unprotect", |s| s.unprotect(id))) }
}

/// Makes a checkpoint.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_checkpoint(
    session: *mut Handle,
    id: i64,
    level: c_int,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            with(session, "make a checkpoint", |s| {
                s.checkpoint(id, Level::from_number(i64::from(level))?)
            })
        })
    }
}

/// A checkpoint if it is time.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_snapshot(
    session: *mut Handle,
    kind: *mut c_int,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            let done = with(session, "make a snapshot", Session::snapshot)?;
            if !kind.is_null() {
                kind.write(match done {
                    Snapshot::Nothing => 0,
                    Snapshot::Checkpoint(_) => 1,
                    Snapshot::Recovered(_) => 2,
                });
            }
            Ok(())
        })
    }
}

/// Fills all variables from the checkpoint of a number.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_load(session: *mut Handle, id: i64, error: Error) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe { guard(error, || with(session, "load a checkpoint", |s| s.load(id))) }
}

/// Begins to read the checkpoint of a number.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_prefetch(session: *mut Handle, id: i64, error: Error) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            with(session, "read a checkpoint ahead", |s| s.prefetch(id))
        })
    }
}

/// Fills all variables.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_recover(
    session: *mut Handle,
    id: *mut i64,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            let done = with(session, "recover", Session::recover)?;
            if !id.is_null() {
                id.write(done);
            }
            Ok(())
        })
    }
}

/// Fills one variable.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_recover_variable(
    session: *mut Handle,
    variable: u32,
    id: *mut i64,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            let done = with(session, "recover", |s| s.recover_variable(variable))?;
            if !id.is_null() {
                id.write(done);
            }
            Ok(())
        })
    }
}

/// Bytes a variable has in the checkpoint.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_stored_bytes(
    session: *mut Handle,
    id: u32,
    bytes: *mut u64,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            let stored = with(session, "look up a variable", |s| {
                let stored = s.stored_bytes(id);
                stored.ok_or_else(|| AppError::Nothing {
                    folder: s.config().local.first().cloned().unwrap_or_default(),
                    why: format!(" with a variable {id}"),
                })
            })?;
            if !bytes.is_null() {
                bytes.write(stored);
            }
            Ok(())
        })
    }
}

/// Waits for what is being written.
///
/// # Safety
/// Pointers are as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_wait(session: *mut Handle, seconds: f64, error: Error) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            if seconds.is_nan() || seconds < 0.0 {
                return Err(misuse("wait", "the time is negative or not a number"));
            }
            let limit = Duration::from_secs_f64(seconds.min(LONGEST));
            with(session, "wait", |s| s.wait(limit))
        })
    }
}

/// Where the session stands.
///
/// # Safety
/// Pointers are as the header says; `info` has as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_get_info(
    session: *mut Handle,
    info: *mut Info,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules.
    unsafe {
        guard(error, || {
            const OP: &str = "tell where the session stands";
            if info.is_null() {
                return Err(misuse(OP, "there is nowhere to put it"));
            }
            let room = Info::room(info);
            if room < size_of::<usize>() {
                return Err(misuse(OP, "size_of_this is not sizeof(fermata_info)"));
            }
            let status = with(session, OP, |s| Ok(s.status()))?;
            let full = Info::of(&status, room);
            // A caller of an older release knows fewer fields.
            let bytes = room.min(size_of::<Info>());
            let (from, to) = ((&raw const full).cast::<u8>(), info.cast::<u8>());
            std::ptr::copy_nonoverlapping(from, to, bytes);
            Ok(())
        })
    }
}

/// Ends a session.
///
/// # Safety
/// Pointers are as the header says; nobody uses the session any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_finalize(
    session: *mut Handle,
    remove: c_int,
    error: Error,
) -> c_int {
    // SAFETY: the caller keeps the header's rules; the session was made by `begin` and is given back once.
    unsafe {
        guard(error, || {
            if session.is_null() {
                return Err(misuse("end a session", "the session is null"));
            }
            let session = Box::from_raw(session);
            session.0.into_inner().finalize(remove != 0)
        })
    }
}
