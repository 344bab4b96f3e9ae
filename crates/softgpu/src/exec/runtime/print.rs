//! Device `printf` and `assert`.
//!
//! What the format and its arguments point to is the kernel's memory: it is copied by a system call
//! that reports bad addresses, never read directly.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::context::{DeviceThread, Stop};

/// Longest text that one conversion or one `%s` yields.
const LONGEST: usize = 64 << 10;

/// Copies `buffer.len()` bytes; how many could be read.
fn copy(address: u64, buffer: &mut [u8]) -> usize {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: buffer.len(),
    };
    // SAFETY: the local range is the buffer; a bad remote range is an error, not a fault.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(got).unwrap_or(0)
}

/// Text up to a zero byte.
fn text(address: u64) -> Result<Vec<u8>, Stop> {
    let mut out = Vec::new();
    while out.len() < LONGEST {
        let at = address.wrapping_add(out.len() as u64);
        let mut piece = [0u8; 256];
        // Up to the end of a page at most: the next one may not be mapped.
        let room = (256 - at % 256) as usize;
        if copy(at, &mut piece[..room]) != room {
            return Err(Stop::Address(at));
        }
        match piece[..room].iter().position(|&b| b == 0) {
            Some(end) => {
                out.extend(&piece[..end]);
                return Ok(out);
            }
            None => out.extend(&piece[..room]),
        }
    }
    Ok(out)
}

/// The packed arguments of a call.
struct Arguments(u64);

impl Arguments {
    fn next(&mut self, bytes: u64) -> Result<u64, Stop> {
        let at = self.0.next_multiple_of(bytes);
        let mut buffer = [0u8; 8];
        if copy(at, &mut buffer[..bytes as usize]) != bytes as usize {
            return Err(Stop::Address(at));
        }
        self.0 = at + bytes;
        Ok(u64::from_le_bytes(buffer))
    }
}

/// One conversion of a format: flags, width and precision as C writes them, and its letter.
struct Conversion {
    spec: Vec<u8>,
    long: bool,
    letter: u8,
    length: usize,
}

/// Parses what follows `%`; `*` takes an argument.
fn conversion(format: &[u8], arguments: &mut Arguments) -> Result<Option<Conversion>, Stop> {
    let mut spec = vec![b'%'];
    let mut at = 0;
    let mut long = false;
    while let Some(&byte) = format.get(at) {
        at += 1;
        match byte {
            b'-' | b'+' | b' ' | b'#' | b'0'..=b'9' | b'.' => spec.push(byte),
            b'*' => spec.extend((arguments.next(4)? as u32 as i32).to_string().bytes()),
            b'l' | b'j' | b'z' | b't' | b'L' => long = true,
            b'h' => {}
            _ => {
                return Ok(Some(Conversion {
                    spec,
                    long,
                    letter: byte,
                    length: at,
                }));
            }
        }
        if spec.len() > 64 {
            return Ok(None);
        }
    }
    Ok(None)
}

/// What C's `snprintf` makes of one value.
fn with_c(spec: &[u8], length: &str, letter: u8, value: Value) -> Vec<u8> {
    let mut text = spec.to_vec();
    text.extend(length.bytes());
    text.push(letter);
    let Ok(format) = CString::new(text) else {
        return Vec::new();
    };
    let mut buffer = vec![0u8; 512];
    loop {
        let (pointer, size) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the format has exactly one conversion, for a value of the type that is passed.
        let n = unsafe {
            match value {
                Value::Word(v) => libc::snprintf(pointer, size, format.as_ptr(), v),
                Value::Double(v) => libc::snprintf(pointer, size, format.as_ptr(), v),
            }
        };
        let n = usize::try_from(n).unwrap_or(0).min(LONGEST);
        if n < size {
            buffer.truncate(n);
            return buffer;
        }
        buffer.resize(n + 1, 0);
    }
}

enum Value {
    Word(u64),
    Double(f64),
}

fn string(spec: &[u8], bytes: Vec<u8>) -> Vec<u8> {
    // `snprintf` with the text itself, cut at its first zero byte.
    let (Ok(format), Ok(text)) = (CString::new([spec, b"s"].concat()), CString::new(bytes)) else {
        return Vec::new();
    };
    let mut buffer = vec![0u8; text.as_bytes().len() + 512];
    // SAFETY: one `%s` conversion and one terminated text.
    let n = unsafe {
        libc::snprintf(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            format.as_ptr(),
            text.as_ptr(),
        )
    };
    buffer.truncate(usize::try_from(n).unwrap_or(0).min(buffer.len() - 1));
    buffer
}

fn format(format: u64, arguments: u64) -> Result<(Vec<u8>, u32), Stop> {
    let format = text(format)?;
    let mut arguments = Arguments(arguments);
    let (mut out, mut count, mut at) = (Vec::new(), 0, 0);
    while at < format.len() {
        let byte = format[at];
        at += 1;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let Some(c) = conversion(&format[at..], &mut arguments)? else {
            out.push(b'%');
            continue;
        };
        at += c.length;
        count += 1;
        match c.letter {
            b'%' => {
                out.push(b'%');
                count -= 1;
            }
            b'd' | b'i' => {
                let v = if c.long {
                    arguments.next(8)?
                } else {
                    arguments.next(4)? as u32 as i32 as i64 as u64
                };
                out.extend(with_c(&c.spec, "ll", c.letter, Value::Word(v)));
            }
            b'u' | b'o' | b'x' | b'X' => {
                let v = arguments.next(if c.long { 8 } else { 4 })?;
                out.extend(with_c(&c.spec, "ll", c.letter, Value::Word(v)));
            }
            b'c' => {
                let v = arguments.next(4)?;
                out.extend(with_c(&c.spec, "", b'c', Value::Word(v)));
            }
            b'p' => {
                let v = arguments.next(8)?;
                out.extend(with_c(&c.spec, "", b'p', Value::Word(v)));
            }
            b's' => {
                let address = arguments.next(8)?;
                let bytes = if address == 0 {
                    b"(null)".to_vec()
                } else {
                    text(address)?
                };
                out.extend(string(&c.spec, bytes));
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let v = f64::from_bits(arguments.next(8)?);
                out.extend(with_c(&c.spec, "", c.letter, Value::Double(v)));
            }
            other => {
                out.extend(&c.spec);
                out.push(other);
            }
        }
        if out.len() > 16 * LONGEST {
            break;
        }
    }
    Ok((out, count))
}

/// Runs `work`, which may panic, and turns what it says into the end of the launch.
fn contained<T>(
    context: *mut DeviceThread,
    work: impl FnOnce(&DeviceThread) -> Result<T, Stop>,
) -> T {
    // SAFETY: called by compiled code with its own context.
    let context = unsafe { &*context };
    let result = catch_unwind(AssertUnwindSafe(|| work(context)));
    match result.unwrap_or_else(|_| Err(Stop::Illegal("printing failed".to_owned()))) {
        Ok(value) => value,
        Err(why) => context.stop(why),
    }
}

fn emit(context: &DeviceThread, bytes: &[u8]) {
    // SAFETY: the block is valid while its compiled code runs, and `grid` is only read.
    unsafe { (*context.block.typed()).grid() }.host.print(bytes);
}

/// `vprintf(format, arguments)`; how many arguments it printed.
pub extern "C" fn vprintf(context: *mut DeviceThread, template: u64, arguments: u64) -> u64 {
    contained(context, |context| {
        let (bytes, count) = format(template, arguments)?;
        emit(context, &bytes);
        Ok(u64::from(count))
    })
}

/// `cudaGraphSetConditional(handle, value)`.
pub extern "C" fn set_condition(context: *mut DeviceThread, handle: u64, value: u64) {
    contained(context, |context| {
        // SAFETY: as in `emit`.
        let host = &unsafe { (*context.block.typed()).grid() }.host;
        match host.set_condition(handle, value as u32) {
            true => Ok(()),
            false => Err(Stop::Illegal(format!(
                "there is no condition {handle:#x} that this kernel may set"
            ))),
        }
    });
}

/// `__assertfail(message, file, line, function, character size)`; does not return.
pub extern "C" fn assertfail(
    context: *mut DeviceThread,
    message: u64,
    file: u64,
    line: u64,
    function: u64,
) {
    contained(context, |context| {
        let [message, file, function] = [message, file, function].map(|a| {
            if a == 0 {
                String::new()
            } else {
                String::from_utf8_lossy(&text(a).unwrap_or_default()).into_owned()
            }
        });
        let ([bx, by, bz], [tx, ty, tz], line) = (context.ctaid, context.tid, line as u32);
        let line = format!(
            "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{message}` failed.\n"
        );
        // SAFETY: as in `emit`.
        unsafe { (*context.block.typed()).grid() }
            .host
            .complain(line.as_bytes());
        Err::<(), _>(Stop::Assert)
    });
}
