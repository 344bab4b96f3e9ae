//! The program in the kernel that hands out the flags of mappings.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};

use super::btf::Btf;
use super::sys;
use super::text::{self, Marked};

/// The kernel's type information.
const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// How often the answers are held against the kernel's file: other threads may change mappings meanwhile.
const ATTEMPTS: u32 = 5;
/// Bytes that the program writes for each mapping.
const RECORD: usize = 24;
/// Bytes that are read at once: more than the kernel hands out, so that they are whole records.
const AT_ONCE: usize = 4096 * RECORD;

/// Registers: the argument of the program and of calls, and those that calls leave alone.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R6: u8 = 6;
const R7: u8 = 7;
const STACK: u8 = 10;
/// Operations on words of 8 bytes.
const LOAD: u8 = 0x79;
const STORE: u8 = 0x7b;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const UNLESS_ZERO: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `bpf_seq_write`.
const WRITE: i32 = 127;

const fn op(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    code as u64
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset as u16 as u64) << 16
        | (number as u32 as u64) << 32
}

/// A kernel's way to hand out flags of mappings.
#[derive(Debug)]
pub struct Flags(OwnedFd);

impl Flags {
    /// Loads the program, and holds what it says of this process against `smaps`.
    ///
    /// # Errors
    /// The kernel is too old, does not permit it, or has other flags than are known here.
    pub fn load() -> io::Result<Self> {
        let flags = Self::unchecked()?;
        flags.check()?;
        Ok(flags)
    }

    /// Loads the program only.
    pub fn unchecked() -> io::Result<Self> {
        let bytes = fs::read(TYPES)?;
        let unknown = || io::Error::from(io::ErrorKind::Unsupported);
        let btf = Btf::read(&bytes).ok_or_else(unknown)?;
        let offset = |of, member| {
            let place = btf.member(of, member).ok_or_else(unknown)?;
            i16::try_from(place).map_err(|_| unknown())
        };
        let function = btf.function("bpf_iter_task_vma").ok_or_else(unknown)?;
        let mut program = vec![
            op(LOAD, R6, R1, offset("bpf_iter__task_vma", "vma")?, 0),
            op(UNLESS_ZERO, R6, 0, 2, 0),
            // There is no further mapping.
            op(SET, R0, 0, 0, 0),
            op(EXIT, 0, 0, 0, 0),
            op(LOAD, R7, R1, offset("bpf_iter__task_vma", "meta")?, 0),
            op(LOAD, R1, R7, offset("bpf_iter_meta", "seq")?, 0),
        ];
        for (index, member) in ["vm_start", "vm_end", "vm_flags"].into_iter().enumerate() {
            let place = 8 * index as i16 - RECORD as i16;
            program.push(op(LOAD, R2, R6, offset("vm_area_struct", member)?, 0));
            program.push(op(STORE, STACK, R2, place, 0));
        }
        program.extend([
            op(MOVE, R2, STACK, 0, 0),
            op(ADD, R2, 0, 0, -(RECORD as i32)),
            op(SET, R3, 0, 0, RECORD as i32),
            op(CALL, 0, 0, 0, WRITE),
            op(SET, R0, 0, 0, 0),
            op(EXIT, 0, 0, 0, 0),
        ]);
        sys::load(&program, function).map(Self)
    }

    /// The mappings of process `pid`, ascending; without the one of the kernel's that all processes have.
    pub fn of(&self, pid: u32) -> io::Result<Vec<Marked>> {
        let mut file = File::from(sys::iterate(self.0.as_fd(), pid)?);
        let mut marked: Vec<Marked> = Vec::new();
        let mut buffer = vec![0; AT_ONCE];
        loop {
            let length = file.read(&mut buffer)?;
            let word = |at: usize| {
                let bytes = buffer[at..at + 8].try_into();
                u64::from_le_bytes(bytes.expect("eight bytes"))
            };
            for at in (0..length).step_by(RECORD) {
                let one = Marked {
                    range: word(at)..word(at + 8),
                    flags: word(at + 16),
                };
                // Behind the end, the kernel begins again with some of the last ones.
                if marked
                    .last()
                    .is_some_and(|it| one.range.start < it.range.end)
                {
                    return Ok(marked);
                }
                marked.push(one);
            }
            if length == 0 {
                return Ok(marked);
            }
        }
    }

    /// Refuses a kernel whose flags have other bits.
    fn check(&self) -> io::Result<()> {
        let pages = sys::advised()?;
        let mut checked = self.agrees();
        for _ in 1..ATTEMPTS {
            if matches!(checked, Ok(true)) {
                break;
            }
            checked = self.agrees();
        }
        drop(pages);
        match checked? {
            true => Ok(()),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Whether each mapping of this process has the known flags that `smaps` has.
    fn agrees(&self) -> io::Result<bool> {
        let pid = std::process::id();
        let marked = self.of(pid)?;
        let smaps = fs::read(format!("/proc/{pid}/smaps"))?;
        let (mut all, mut at) = (marked.iter(), None);
        for line in smaps.split(|byte| *byte == b'\n') {
            if let Some(names) = line.strip_prefix(b"VmFlags:") {
                let Some(own) = at.take() else { continue };
                let names = String::from_utf8_lossy(names);
                let next: Option<&Marked> = all.next();
                let agrees = next.is_some_and(|it| {
                    it.range == own && text::in_letters(it.flags) == Some(text::known(&names))
                });
                if !agrees {
                    return Ok(false);
                }
            } else if !line.ends_with(b"[vsyscall]")
                && let Some(range) = text::range(line)
            {
                at = Some(range);
            }
        }
        Ok(all.next().is_none())
    }
}
