//! Programs in C that tests track.
// Each test uses a part of it.
#![allow(dead_code)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_hostmem::{Extent, PAGE};
use rustix::process::{Pid, Signal, kill_process};

/// Until a test gives up, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A program that runs, until this is dropped.
pub struct Program {
    pub child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Compiles and starts it; it says `ready`.
    pub fn start(dir: &Path, source: &str, arguments: &[&str]) -> Self {
        let (text, program) = (dir.join("p.c"), dir.join("p"));
        fs::write(&text, source).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w", "-pthread", "-o"])
            .arg(&program)
            .arg(&text);
        assert!(cc.status().expect("cc runs").success());
        let mut child = Command::new(&program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut program = Self { child, output };
        assert_eq!(program.line(), "ready");
        program
    }

    /// What it says next.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// Stops every thread.
    pub fn stop(&self) {
        stop(self.pid());
    }
}

/// Stops every thread of process `pid`.
pub fn stop(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::STOP).expect("signalled");
    let until = Instant::now() + LIMIT;
    let moving = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
        tasks.flatten().any(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            !stat
                .rsplit(')')
                .next()
                .is_some_and(|it| it.starts_with(" T"))
        })
    };
    while moving() {
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds a copy against the memory of process `pid`, which stands still.
pub fn check_equal(pid: u32, copy: &File, extents: &[Extent]) {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    for Extent { range, offset } in extents {
        let length = (range.end - range.start) as usize;
        let (mut there, mut here) = (vec![0; length], vec![0; length]);
        let read = memory.read_exact_at(&mut there, range.start);
        read.expect("its bytes");
        copy.read_exact_at(&mut here, *offset).expect("their copy");
        let differs = there.iter().zip(&here).position(|(a, b)| a != b);
        assert_eq!(
            differs.map(|at| range.start + at as u64),
            None,
            "in {range:x?}"
        );
    }
}

/// Pages with content of the process's own in its private mappings, as the kernel's older interface says.
pub fn own_pages(pid: u32) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).expect("its page map");
    let zero = {
        // The page that is read where nothing was written.
        let mut entry = [0; 8];
        let empty = rustix::param::page_size() * 4;
        // SAFETY: a new mapping of this process's own, which is only read.
        let at = unsafe {
            let flags = rustix::mm::MapFlags::PRIVATE;
            let mapped = rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                empty,
                rustix::mm::ProtFlags::READ,
                flags,
            );
            mapped.expect("mapped")
        };
        // SAFETY: mapped by the line above.
        assert_eq!(unsafe { at.cast::<u8>().read_volatile() }, 0);
        let own = File::open("/proc/self/pagemap").expect("own page map");
        own.read_exact_at(&mut entry, at as u64 / PAGE * 8)
            .expect("an entry");
        u64::from_le_bytes(entry) & ((1 << 55) - 1)
    };
    let mut pages = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (start, end) = fields
            .next()
            .and_then(|it| it.split_once('-'))
            .expect("a range");
        let kernel = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"];
        if !fields.next().is_some_and(|it| it.ends_with('p'))
            || kernel.iter().any(|it| line.ends_with(it))
        {
            continue;
        }
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        for address in (number(start)..number(end)).step_by(PAGE as usize) {
            let mut entry = [0; 8];
            pagemap
                .read_exact_at(&mut entry, address / PAGE * 8)
                .expect("an entry");
            let entry = u64::from_le_bytes(entry);
            let (present, swapped, file) = (entry >> 63 & 1, entry >> 62 & 1, entry >> 61 & 1);
            let is_zero = entry & ((1 << 55) - 1) == zero;
            if present + swapped > 0 && file == 0 && !is_zero {
                pages.push(address);
            }
        }
    }
    pages
}

/// Bytes of pages.
pub fn bytes_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|it| it.range.end - it.range.start).sum()
}
