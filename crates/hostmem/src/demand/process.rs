//! A restored process whose memory is not all there.
//!
//! | the kernel says | of one page | of more pages |
//! | --- | --- | --- |
//! | `Done` | it is there | so many are there |
//! | `Present` | it was there | the first was there |
//! | `NotMapped` | twice: it is not to be had any more | half as many, for a mapping ends between |
//! | `Changing`, `NoMemory` | later | later |
//! | `Gone` | the process has ended | the process has ended |
//!
//! `NotMapped` counts only the second time: a mapping may have been moved between the kernel's two checks, and then it says
//! `Changing` until the event has been read.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::learnt::Learnt;
use super::missing::Run;
use super::process_pages::{Content, ProcessPages};
use super::sys::{self, Answer, Message};
use crate::PAGE;
use crate::error::{Error, Result};

/// Bytes around a page fault that are brought with it.
const AROUND: u64 = 64 << 10;
/// Bytes that are brought at once when nothing is waited for.
const AHEAD: u64 = 512 << 10;
/// The same while page faults come, which wait until it is done, and for children that the program makes, most of which end soon.
const AHEAD_SHORT: u64 = 64 << 10;
/// Bytes that a disk is asked for when nothing is waited for: what is brought next, and what comes behind it.
const ASKED_AHEAD: u64 = 8 << 20;
/// So long after a page fault the next one is likely.
const FAULTS_COME: Duration = Duration::from_millis(2);
/// Bytes of the buffer that all take.
pub const BUFFER: usize = AHEAD as usize;
/// So many page faults of a process are remembered, the first ones.
const REMEMBERED: usize = 4096;
/// How long the kernel may have no memory.
const STARVED: Duration = Duration::from_secs(120);

/// What has come of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Something was done, or there was nothing to do.
    Done,
    /// It is to be tried again.
    Later,
    /// The process has ended.
    Gone,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its number in the image, or that of the process that has made it.
    pid: u32,
    uffd: OwnedFd,
    pages: ProcessPages,
    /// Pages that threads wait for, and could not get yet.
    waited: Vec<u64>,
    /// What was moved away from: the kernel will say that it is unmapped, when something else may be there already.
    vacated: Vec<Range<u64>>,
    /// Where the pages are that are brought next.
    next: u64,
    /// Where those end that were brought for a page fault.
    behind: u64,
    forked: bool,
    /// Page faults that were reported.
    faults: u64,
    /// Pages that threads have waited for, and that were in the image, in this order.
    missed: Vec<u64>,
    /// When a thread last had to wait for a page.
    fault: Option<Instant>,
    starved: Option<Instant>,
}

impl Process {
    /// The process that CRIU knows as `pid`, which has been made.
    pub fn new(pages: ProcessPages, pid: u32, uffd: OwnedFd) -> Self {
        Self {
            pid,
            uffd,
            pages,
            waited: Vec::new(),
            vacated: Vec::new(),
            next: 0,
            behind: 0,
            forked: false,
            faults: 0,
            missed: Vec::new(),
            fault: None,
            starved: None,
        }
    }

    /// Adds what its threads have waited for.
    pub fn tell(&self, learnt: &mut Learnt) {
        learnt.add(self.pid, &self.missed);
    }

    /// Its descriptor.
    pub fn uffd(&self) -> &OwnedFd {
        &self.uffd
    }

    /// Page faults that were reported since the last call.
    pub fn take_faults(&mut self) -> u64 {
        std::mem::take(&mut self.faults)
    }

    /// Whether a process has made it that was restored.
    pub fn is_forked(&self) -> bool {
        self.forked
    }

    /// Whether nothing is missing, nor waited for.
    pub fn is_complete(&self) -> bool {
        self.pages.missing.is_empty() && self.waited.is_empty()
    }

    /// Whether threads wait for pages that could not be brought yet.
    pub fn is_waited_for(&self) -> bool {
        !self.waited.is_empty()
    }

    /// Takes what the kernel reports; children that the process has made are added to `made`.
    ///
    /// # Errors
    /// `Pages`.
    pub fn heed(&mut self, buffer: &mut [u8], made: &mut Vec<Self>) -> Result<Outcome> {
        let events = sys::read(&self.uffd).map_err(Error::pages("be told the events", self.pid))?;
        for event in events {
            match event {
                Message::Fault(address) => {
                    self.waited.push(address & !(PAGE - 1));
                    self.faults += 1;
                    self.fault = Some(Instant::now());
                }
                Message::Fork(uffd) => made.push(self.child(uffd)),
                Message::Remap { from, to } => {
                    self.pages.missing.relocate(from.clone(), to);
                    self.vacated.push(from);
                }
                Message::Remove(range) => self.pages.missing.remove(range),
                Message::Unmap(range) => match self.vacated.iter().position(|it| *it == range) {
                    Some(at) => drop(self.vacated.swap_remove(at)),
                    None => self.pages.missing.remove(range),
                },
            }
        }
        self.answer(buffer)
    }

    /// Answers page faults.
    ///
    /// # Errors
    /// `Pages`.
    pub fn answer(&mut self, buffer: &mut [u8]) -> Result<Outcome> {
        let mut all = Outcome::Done;
        for page in std::mem::take(&mut self.waited) {
            match self.bring(page, buffer)? {
                Outcome::Done => {}
                Outcome::Later => {
                    self.waited.push(page);
                    all = Outcome::Later;
                }
                Outcome::Gone => return Ok(Outcome::Gone),
            }
        }
        Ok(all)
    }

    /// Whether further page faults are likely to come soon.
    pub fn has_faults(&self) -> bool {
        self.fault.is_some_and(|it| it.elapsed() < FAULTS_COME)
    }

    /// Brings some pages that are not waited for: few if page faults, of this process or another one, are likely to come.
    ///
    /// # Errors
    /// `Pages`.
    pub fn fill(&mut self, faults_come: bool, buffer: &mut [u8]) -> Result<Outcome> {
        let most = match self.forked || faults_come {
            true => AHEAD_SHORT,
            false => AHEAD,
        };
        while let Some(range) = self.pages.first.front() {
            match self.pages.missing.within(range, AHEAD_SHORT) {
                Some(run) => return self.put(run, buffer),
                None => drop(self.pages.first.pop_front()),
            }
        }
        // None of what has been read is missing any more.
        self.pages.forget();
        let Some(run) = self.pages.missing.next(self.next, most) else {
            return Ok(Outcome::Done);
        };
        self.next = run.range.end;
        let asked = match most {
            AHEAD => ASKED_AHEAD,
            // The disk is left to those who wait for pages.
            few => few,
        };
        self.pages.ask_around(run.offset, asked);
        self.put(run, buffer)
    }

    /// Whether there is something left for [`ProcessPages::read_ahead`].
    pub fn is_unread(&self) -> bool {
        self.pages.is_unread()
    }

    /// Where its pages are.
    pub fn pages(&mut self) -> &mut ProcessPages {
        &mut self.pages
    }

    /// Whether there are pages to be brought by [`Self::begin`].
    pub fn has_first(&self) -> bool {
        !self.pages.first.is_empty()
    }

    /// Brings some pages that come first while CRIU still restores the process. `Later`: their mapping is not there yet, or they have
    /// not been read.
    ///
    /// # Errors
    /// `Pages`.
    pub fn begin(&mut self, buffer: &mut [u8]) -> Result<Outcome> {
        let Some(range) = self.pages.first.pop_front() else {
            return Ok(Outcome::Done);
        };
        let Some(run) = self.pages.missing.within(&range, AHEAD_SHORT) else {
            return Ok(Outcome::Done);
        };
        if !self.pages.is_ready(&run) {
            self.pages.first.push_back(range);
            return Ok(Outcome::Later);
        }
        let content = self.read(&run, buffer)?;
        let answer = sys::copy(&self.uffd, run.range.start, &content);
        match answer.map_err(Error::pages("have the kernel take pages", self.pid))? {
            Answer::Done(done) => {
                self.pages
                    .missing
                    .remove(run.range.start..run.range.start + done);
                // What of it is left, if anything.
                self.pages.first.push_front(range);
                Ok(Outcome::Done)
            }
            // Others may be there. Whatever it is, it comes again when the process runs.
            _ => {
                self.pages.first.push_back(range);
                Ok(Outcome::Later)
            }
        }
    }

    fn read<'a>(&self, run: &Run, buffer: &'a mut [u8]) -> Result<Content<'a>> {
        let read = self.pages.read(run, buffer);
        read.map_err(Error::pages("read the image's pages", self.pid))
    }

    fn child(&self, uffd: OwnedFd) -> Self {
        Self {
            pid: self.pid,
            uffd,
            pages: self.pages.of_child(),
            waited: Vec::new(),
            vacated: Vec::new(),
            next: 0,
            behind: 0,
            forked: true,
            faults: 0,
            missed: Vec::new(),
            fault: None,
            starved: None,
        }
    }

    /// Brings the page at `page` for a thread that waits for it.
    fn bring(&mut self, page: u64, buffer: &mut [u8]) -> Result<Outcome> {
        if !self.pages.missing.contains(page) {
            return self.zero(page);
        }
        let again = self.missed.last() == Some(&page);
        if !self.forked && !again && self.missed.len() < REMEMBERED {
            self.missed.push(page);
        }
        // A thread that goes on where the last one has got pages goes through all of it.
        let follows = page == self.behind;
        while self.pages.missing.contains(page) {
            let run = match follows {
                true => self.pages.missing.within(&(page..page + AHEAD), AHEAD),
                false => self.pages.missing.around(page, AROUND),
            };
            let Some(run) = run else { break };
            let (end, offset, bytes) = (run.range.end, run.offset, run.range.end - run.range.start);
            self.next = end;
            match self.put(run, buffer)? {
                Outcome::Done => self.behind = end,
                other => return Ok(other),
            }
            // Who waits for the page has it, and does not wait for this.
            let further = if follows { bytes + AHEAD } else { AROUND };
            self.pages.ask_around(offset, further);
        }
        Ok(Outcome::Done)
    }

    /// Has the kernel take the pages of `run`, or the first of them: at least one is not missing any more.
    fn put(&mut self, run: Run, buffer: &mut [u8]) -> Result<Outcome> {
        let start = run.range.start;
        let content = self.read(&run, buffer)?;
        let mut bytes = content.len() as u64;
        let mut refused = false;
        loop {
            let answer = sys::copy(&self.uffd, start, &content[..bytes as usize]);
            match self.noted(answer)? {
                Answer::Done(done) => self.pages.missing.remove(start..start + done),
                Answer::NotMapped if bytes > PAGE => {
                    bytes = (bytes / 2).next_multiple_of(PAGE);
                    continue;
                }
                Answer::NotMapped if !refused => {
                    refused = true;
                    continue;
                }
                Answer::Present | Answer::NotMapped => {
                    self.pages.missing.remove(start..start + PAGE);
                    self.wake(start)?;
                }
                Answer::Changing | Answer::NoMemory => return Ok(Outcome::Later),
                Answer::Gone => return Ok(Outcome::Gone),
            }
            return Ok(Outcome::Done);
        }
    }

    /// Has the kernel make an empty page where none is missing: a page that was discarded, or never written.
    fn zero(&mut self, page: u64) -> Result<Outcome> {
        let mut refused = false;
        loop {
            let answer = sys::zero(&self.uffd, page);
            match self.noted(answer)? {
                Answer::Done(_) => {}
                Answer::NotMapped if !refused => {
                    refused = true;
                    continue;
                }
                Answer::Present | Answer::NotMapped => self.wake(page)?,
                Answer::Changing | Answer::NoMemory => return Ok(Outcome::Later),
                Answer::Gone => return Ok(Outcome::Gone),
            }
            return Ok(Outcome::Done);
        }
    }

    /// An answer other than `Changing` says that every event has been read, and is over.
    fn noted(&mut self, answer: io::Result<Answer>) -> Result<Answer> {
        let answer = answer.map_err(Error::pages("have the kernel take pages", self.pid))?;
        match answer {
            Answer::Changing => {}
            Answer::NoMemory => {
                let since = *self.starved.get_or_insert_with(Instant::now);
                if since.elapsed() > STARVED {
                    let none = io::Error::from_raw_os_error(libc::ENOMEM);
                    return Err(Error::pages("have the kernel take pages", self.pid)(none));
                }
            }
            _ => {
                self.vacated.clear();
                self.starved = None;
            }
        }
        Ok(answer)
    }

    fn wake(&self, page: u64) -> Result<()> {
        let woken = sys::wake(&self.uffd, &(page..page + PAGE));
        woken.map_err(Error::pages("wake threads", self.pid))
    }
}
