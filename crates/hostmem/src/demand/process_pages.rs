//! The pages of a process: where they are, which are still missing, and the content of those that it needs first, which is read while CRIU
//! makes the process.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use super::ahead::{Ahead, Part};
use super::content::{PageBytes, PageFiles};
use super::learnt::Learnt;
use super::missing::{Missing, Run};
use crate::error::{Error, Result};
use crate::image;
use crate::working_set::{self, WINDOW};

/// What is asked for at once around pages that are needed: the program is likely to need what lies there.
const BLOCK: u64 = 1 << 20;

/// The pages of a process.
#[derive(Debug)]
pub struct ProcessPages {
    content: Arc<dyn PageBytes>,
    pub(super) missing: Missing,
    /// What is to be brought before anything that is not waited for, in that order.
    pub(super) first: VecDeque<Range<u64>>,
    /// What of that is to be read.
    unread: VecDeque<Range<u64>>,
    /// What of the content has been read, and how many bytes that was.
    ahead: Ahead,
    bytes_ahead: u64,
    /// Blocks of the content that have been asked for.
    asked: BTreeSet<u64>,
}

impl ProcessPages {
    /// Those of the process that CRIU knows as `pid`, from its files in `dir`, the bytes of its pages in `files`, and what earlier restores have
    /// learnt.
    ///
    /// # Errors
    /// `Pages`: the image is not as CRIU writes it.
    pub fn new(dir: &Path, files: &dyn PageFiles, learnt: &Learnt, pid: u32) -> Result<Self> {
        let read = image::on_demand(dir, pid).and_then(|(number, pages)| {
            let content = files.open(number)?;
            Ok((content, pages))
        });
        let (content, pages) = read.map_err(Error::pages("read the image", pid))?;
        let learnt = learnt.of(pid).iter().map(|it| *it..it + WINDOW);
        let first: VecDeque<_> = learnt.chain(working_set::read(dir, pid)).collect();
        Ok(Self {
            content,
            missing: Missing::new(&pages),
            unread: first.clone(),
            first,
            ahead: Ahead::default(),
            bytes_ahead: 0,
            asked: BTreeSet::new(),
        })
    }

    /// Those of a child that the process makes now.
    pub fn of_child(&self) -> Self {
        Self {
            content: Arc::clone(&self.content),
            missing: self.missing.of_child(),
            first: VecDeque::new(),
            unread: VecDeque::new(),
            ahead: Ahead::default(),
            bytes_ahead: 0,
            asked: BTreeSet::new(),
        }
    }

    /// Whether there is something left for [`Self::read_ahead`].
    pub fn is_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// How many bytes [`Self::read_ahead`] has read.
    pub fn bytes_ahead(&self) -> u64 {
        self.bytes_ahead
    }

    /// Has a disk begin to bring the content of all windows that come first.
    pub fn ask_first(&self) {
        for run in self
            .unread
            .iter()
            .flat_map(|it| self.missing.all_within(it))
        {
            self.content
                .will_need(run.offset, run.range.end - run.range.start);
        }
    }

    /// Has a disk begin to bring so many bytes of the content from `offset` on, and what lies around them, unless it was told before.
    pub fn ask_around(&mut self, offset: u64, bytes: u64) {
        for block in offset / BLOCK..(offset + bytes).div_ceil(BLOCK) {
            if self.asked.insert(block) {
                self.content.will_need(block * BLOCK, BLOCK);
            }
        }
    }

    /// Reads the content of the next window that comes first; returns how many bytes that was.
    ///
    /// # Errors
    /// It cannot be read, or is not what it was: whoever brings it will be told so again.
    pub fn read_ahead(&mut self) -> io::Result<u64> {
        let Some(window) = self.unread.pop_front() else {
            return Ok(0);
        };
        let mut all = 0;
        for run in self.missing.all_within(&window) {
            let bytes = run.range.end - run.range.start;
            if self.ahead.get(run.offset, bytes as usize).is_some() {
                continue;
            }
            let mut content = vec![0; bytes as usize];
            self.content.read_at(&mut content, run.offset)?;
            self.ahead.insert(run.offset, content);
            all += bytes;
        }
        self.bytes_ahead += all;
        Ok(all)
    }

    /// Forgets what was read ahead: all of it is there.
    pub fn forget(&mut self) {
        self.unread.clear();
        self.ahead = Ahead::default();
    }

    /// Whether nothing has to be waited for when `run` is read: it was, or it will not be before it is brought.
    pub fn is_ready(&self, run: &Run) -> bool {
        let bytes = (run.range.end - run.range.start) as usize;
        !self.is_unread() || self.ahead.get(run.offset, bytes).is_some()
    }

    /// The content of `run`, which is in `buffer` unless it had been read before.
    ///
    /// # Errors
    /// It cannot be read, or is not what it was.
    pub fn read<'a>(&self, run: &Run, buffer: &'a mut [u8]) -> io::Result<Content<'a>> {
        let bytes = (run.range.end - run.range.start) as usize;
        if let Some(part) = self.ahead.get(run.offset, bytes) {
            return Ok(Content::Ahead(part));
        }
        let content = &mut buffer[..bytes];
        self.content.read_at(content, run.offset)?;
        Ok(Content::Now(content))
    }
}

/// The content of some pages.
#[derive(Debug)]
pub enum Content<'a> {
    /// It had been read before.
    Ahead(Part),
    /// It is in the buffer.
    Now(&'a [u8]),
}

impl Deref for Content<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Ahead(part) => part,
            Self::Now(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::image::OnDemand;

    /// Notes what is asked of it.
    #[derive(Debug, Default)]
    struct Asked(Mutex<Vec<(u64, u64)>>);

    impl PageBytes for Asked {
        fn read_at(&self, bytes: &mut [u8], _: u64) -> io::Result<()> {
            bytes.fill(1);
            Ok(())
        }

        fn will_need(&self, offset: u64, bytes: u64) {
            self.0.lock().expect("sound").push((offset, bytes));
        }
    }

    #[test]
    fn a_disk_is_asked_for_what_comes_first_and_once_for_what_lies_around_the_rest() {
        let asked = Arc::new(Asked::default());
        let (near, far) = (16 * WINDOW..17 * WINDOW, 99 * WINDOW..100 * WINDOW);
        let mapped = |range: Range<u64>, offset| OnDemand {
            range,
            offset,
            wiped: false,
        };
        // Half of the first window is missing.
        let missing = Missing::new(&[
            mapped(near.start..near.start + WINDOW / 2, 0),
            mapped(far.clone(), WINDOW / 2),
        ]);
        let first = VecDeque::from([far, near]);
        let mut pages = ProcessPages {
            content: asked.clone(),
            missing,
            unread: first.clone(),
            first,
            ahead: Ahead::default(),
            bytes_ahead: 0,
            asked: BTreeSet::new(),
        };
        let told = || std::mem::take(&mut *asked.0.lock().expect("sound"));
        pages.ask_first();
        assert_eq!(told(), [(WINDOW / 2, WINDOW), (0, WINDOW / 2)]);
        pages.ask_around(3 * BLOCK - 1, 2);
        pages.ask_around(3 * BLOCK, BLOCK);
        pages.ask_around(2 * BLOCK, 3 * BLOCK);
        assert_eq!(told(), [2, 3, 4].map(|it| (it * BLOCK, BLOCK)));
    }
}
