//! Sends commands to the helper thread of another process, and reads its answers.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::SystemTime;

use fermata_abi::sys::driver as cu;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::helper::{Command, NAME, signal, value};
use super::page::{ANSWERS, ANSWERS_AT, MAGIC, PAIRS, PAIRS_AT, PLACE, STATE_AT, VERSION};
use crate::error::{CuError, INVALID_VALUE, OPERATING_SYSTEM, Result};

/// Between two looks at the answer.
const TURN_NANOSECONDS: i64 = 200_000;
/// `CU_PROCESS_STATE_FAILED`, the last one.
const LAST_STATE: u32 = cu::CU_PROCESS_STATE_FAILED;

/// A process other than this one that has this driver.
#[derive(Debug)]
pub struct Other {
    pid: u32,
    memory: File,
    /// Readable once it has ended.
    life: OwnedFd,
}

impl Other {
    /// The process `pid`.
    ///
    /// # Errors
    /// There is no such process, it does not use this driver, or this process may not touch it.
    pub fn find(pid: i32) -> Result<Self> {
        let pid = u32::try_from(pid).map_err(|_| INVALID_VALUE)?;
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map_err(|e| match e.kind() {
                io::ErrorKind::PermissionDenied => CuError(cu::CUDA_ERROR_NOT_PERMITTED),
                _ => INVALID_VALUE,
            })?;
        let number = Pid::from_raw(pid.cast_signed()).ok_or(INVALID_VALUE)?;
        let life = pidfd_open(number, PidfdFlags::empty()).map_err(|_| INVALID_VALUE)?;
        let other = Self { pid, memory, life };
        let found = (other.word(0)?, other.half(8)?);
        match found == (MAGIC, VERSION) {
            true => Ok(other),
            false => Err(INVALID_VALUE),
        }
    }

    /// How it stands.
    ///
    /// # Errors
    /// It has ended.
    pub fn state(&self) -> Result<cu::CUprocessState> {
        let state = self.half(STATE_AT)?;
        match state <= LAST_STATE {
            true => Ok(state),
            false => Err(OPERATING_SYSTEM),
        }
    }

    /// The number of its helper thread.
    ///
    /// # Errors
    /// It has ended.
    pub fn thread(&self) -> Result<u32> {
        let folder = format!("/proc/{}/task", self.pid);
        let entries = fs::read_dir(folder).map_err(|_| INVALID_VALUE)?;
        let its = |path: std::path::PathBuf| {
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let number = path.file_name()?.to_str()?.parse().ok()?;
            (name.trim_end() == NAME).then_some(number)
        };
        let mut numbers = entries.flatten().filter_map(|it| its(it.path()));
        numbers.next().ok_or(OPERATING_SYSTEM)
    }

    /// Leaves pairs of UUIDs for [`Command::Restore`].
    ///
    /// # Errors
    /// They are too many, or it has ended.
    pub fn leave(&self, pairs: &[cu::CUcheckpointGpuPair]) -> Result {
        if pairs.len() > PAIRS {
            return Err(INVALID_VALUE);
        }
        let bytes = |uuid: &cu::CUuuid| uuid.bytes.map(|byte| byte as u8);
        let all = pairs.iter();
        let all: Vec<u8> = all
            .flat_map(|it| [bytes(&it.oldUuid), bytes(&it.newUuid)])
            .flatten()
            .collect();
        let written = self.memory.write_all_at(&all, PLACE + PAIRS_AT);
        written.map_err(|_| OPERATING_SYSTEM)
    }

    /// Has it do `command`, and waits for the answer as long as it lives.
    ///
    /// # Errors
    /// What it answers, or it has ended.
    pub fn ask(&self, command: Command, argument: u32) -> Result {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |it| it.subsec_nanos());
        let number = (now ^ std::process::id() << 12) & 0xff_ffff;
        let slot = PLACE + ANSWERS_AT + 8 * (u64::from(number) % ANSWERS as u64);
        let cleared = self.memory.write_all_at(&[0; 8], slot);
        cleared.map_err(|_| OPERATING_SYSTEM)?;
        self.send(value(command, number, argument))?;
        loop {
            let answer = self.read(slot)?;
            if answer != 0 && answer >> 32 == u64::from(number) {
                return match (answer as u32).wrapping_sub(1) {
                    cu::CUDA_SUCCESS => Ok(()),
                    code => Err(CuError(code)),
                };
            }
            self.wait_a_moment()?;
        }
    }

    /// Waits for its end, until it is time to look at its memory again: nothing tells of a write to that.
    fn wait_a_moment(&self) -> Result {
        let turn = Timespec {
            tv_sec: 0,
            tv_nsec: TURN_NANOSECONDS,
        };
        match poll(&mut [PollFd::new(&self.life, PollFlags::IN)], Some(&turn)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            // It has ended.
            Ok(_) | Err(_) => Err(OPERATING_SYSTEM),
        }
    }

    fn send(&self, value: u64) -> Result {
        /// `siginfo_t` of a signal with a value.
        #[repr(C)]
        struct Info {
            signal: i32,
            errno: i32,
            code: i32,
            _fill: i32,
            pid: i32,
            user: u32,
            value: u64,
            _rest: [u64; 12],
        }
        let info = Info {
            signal: signal(),
            errno: 0,
            code: libc::SI_QUEUE,
            _fill: 0,
            pid: std::process::id() as i32,
            user: rustix::process::getuid().as_raw(),
            value,
            _rest: [0; 12],
        };
        const { assert!(size_of::<Info>() == size_of::<libc::siginfo_t>()) };
        let thread = self.thread()?;
        let at: *const Info = &info;
        // SAFETY: it reads a live `siginfo_t`; numbers that are none are errors.
        let sent =
            unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, self.pid, thread, signal(), at) };
        if sent == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().kind() {
            io::ErrorKind::PermissionDenied => Err(CuError(cu::CUDA_ERROR_NOT_PERMITTED)),
            _ => Err(OPERATING_SYSTEM),
        }
    }

    fn word(&self, offset: u64) -> Result<u64> {
        self.read(PLACE + offset)
    }

    fn half(&self, offset: u64) -> Result<u32> {
        let mut bytes = [0; 4];
        let read = self.memory.read_exact_at(&mut bytes, PLACE + offset);
        read.map_err(|_| INVALID_VALUE)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn read(&self, place: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        let read = self.memory.read_exact_at(&mut bytes, place);
        read.map_err(|_| INVALID_VALUE)?;
        Ok(u64::from_le_bytes(bytes))
    }
}
