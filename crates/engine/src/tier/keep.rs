//! Keeps the tier up to date with its store: maps and registers new packs, and unmaps those that are gone.
//!
//! ```text
//!  refresh: list the packs ─► unmap windows of those that are gone ─► register those without one
//!              ▲                                                             │ one by one, for a while
//!              └───────────── the list is old, and there is more ◄───────────┘
//! ```
//! Other processes write, cut, rename and remove packs meanwhile. A pack that differs from the list is no failure;
//! the next list will have it right. After a failure the pack is tried again soon, at once when a window was
//! unmapped, and later each time it fails again.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;
use fermata_device::{PinnedPool, Window};
use fermata_store::{FileKey, PackFile, PackId, StoreError};

use super::{BASE, END, Entry, Tier, Trouble, WINDOWS};
use crate::pipeline::breathe;
use crate::{CHUNK, STAGING_BUFFERS};

/// Windows start at multiples of this.
const STEP: u64 = 2 << 20;
/// How many addresses are tried if the first is taken.
const ADDRESSES: u32 = 64;
/// A failure is tried again after this time, after twice that, and so on up to the second.
const PATIENCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];
/// The pause between two registrations, in which others can call the driver.
const PAUSE: Duration = Duration::from_millis(1);
/// After a registration the program gets the driver for this many times as long as the registration took.
const SHARE: u32 = 4;
/// A window stays if its file has become shorter by no more than one part in so many.
const CUT: u64 = 16;
/// How long a list of packs counts as current.
const FRESH: Duration = Duration::from_millis(250);

/// The result of adding a pack.
enum Added {
    Registered,
    /// It has a window, or holds nothing.
    Known,
    /// The limit leaves no room.
    NoRoom,
    /// It differs from the list now.
    Changed,
    /// What the system says.
    NotMapped(String),
}

impl Tier {
    /// Brings the windows up to date with the listed packs; true if there is more to do at once. Registering takes 30
    /// to 90 ms per GiB, and five times as long while a program runs. To be called on a thread of its own, whose
    /// current context it changes; it pauses while a checkpoint or restore is under way. [`Tier::status`] reports
    /// failures.
    pub fn refresh(&self, files: Result<Vec<PackFile>, StoreError>) -> bool {
        let begun = Instant::now();
        let files = match files {
            Ok(files) => files,
            Err(error) => {
                self.failed(format!("cannot list the packs: {error}"));
                return false;
            }
        };
        self.take_stock(&files);
        if self.waits() {
            return false;
        }
        let (mut full, mut trouble) = (false, None);
        for file in &files {
            if self.is_busy() {
                return false;
            }
            match self.add(file) {
                Ok(Added::Registered) if begun.elapsed() > FRESH => return true,
                Ok(Added::Registered | Added::Known | Added::Changed) => {}
                Ok(Added::NoRoom) => full = true,
                Ok(Added::NotMapped(why)) => trouble = Some(why),
                // Other packs would fail, too.
                Err(why) => {
                    self.failed(why);
                    return false;
                }
            }
        }
        match trouble {
            Some(why) => self.failed(why),
            None => {
                let mut state = self.state.lock();
                (state.full, state.trouble) = (full, None);
            }
        }
        false
    }

    /// Records the list, and unmaps windows whose packs are gone.
    fn take_stock(&self, files: &[PackFile]) {
        let given_up = self.give_back(files);
        let room = !given_up.is_empty();
        // Unregistering is slow, so it is done without the lock.
        self.give(given_up);
        let mut state = self.state.lock();
        state.listed = Some(files.iter().map(|it| (it.key, it.bytes)).collect());
        if let Some(trouble) = state.trouble.as_mut().filter(|_| room) {
            trouble.times = 0;
        }
    }

    /// Removes windows whose file is gone or much shorter, and updates the names of the others.
    fn give_back(&self, files: &[PackFile]) -> Vec<Entry> {
        let ready: HashMap<FileKey, PackId> = files
            .iter()
            .filter(|f| f.ready)
            .map(|f| (f.key, f.id))
            .collect();
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        for (key, entry) in &mut state.entries {
            entry.ready = ready.get(key).copied();
            // A window in use is removed the next time.
            if !serves(&entry.window) && Arc::strong_count(&entry.window) == 1 {
                gone.push(*key);
            }
        }
        gone.iter()
            .filter_map(|key| state.entries.remove(key))
            .collect()
    }

    /// Unregisters and unmaps windows.
    fn give(&self, entries: Vec<Entry>) {
        for entry in entries {
            self.in_turn(|| drop(entry));
        }
    }

    /// Maps and registers a file that has no window.
    ///
    /// # Errors
    /// What the driver says.
    fn add(&self, file: &PackFile) -> Result<Added, String> {
        if file.bytes == 0 || self.state.lock().entries.contains_key(&file.key) {
            return Ok(Added::Known);
        }
        let Some(room) = self.make_room(file) else {
            return Ok(Added::NoRoom);
        };
        // Without the lock, as in `take_stock`.
        self.give(room);
        let window = match self.map(file) {
            Ok(Some(window)) => Arc::new(window),
            Ok(None) => return Ok(Added::Changed),
            Err(error) => {
                let why = format!("cannot map `{}`: {error}", file.path.display());
                return Ok(Added::NotMapped(why));
            }
        };
        loop {
            let (more, took) = self.in_turn(|| {
                let begun = Instant::now();
                let more = whole(&window).then(|| window.register_next());
                (more, begun.elapsed())
            });
            match more {
                Some(Ok(true)) if self.served.load(Ordering::Relaxed) => {
                    breathe(PAUSE.max(took * SHARE));
                }
                Some(Ok(true)) => breathe(PAUSE),
                Some(Ok(false)) => break,
                Some(Err(error)) if whole(&window) => {
                    let path = file.path.display();
                    return Err(format!("cannot register `{path}` with the driver: {error}"));
                }
                None | Some(Err(_)) => return Ok(Added::Changed),
            }
        }
        self.make_staging();
        let mut state = self.state.lock();
        state.count += 1;
        let entry = Entry {
            window,
            ready: file.ready.then_some(file.id),
            age: state.count,
        };
        state.entries.insert(file.key, entry);
        Ok(Added::Registered)
    }

    /// Makes the staging buffers ahead, because touching and pinning them takes longer than a program should wait. If
    /// this fails, a save makes its own.
    fn make_staging(&self) {
        let bytes = STAGING_BUFFERS as u64 * CHUNK;
        let mut places = (BASE..WINDOWS).step_by(bytes as usize);
        while self.brings_staging
            && self.staging.get().is_none()
            && let Some(place) = places.next()
        {
            let pin = || PinnedPool::at(&self.driver, place, STAGING_BUFFERS, CHUNK as usize);
            match self.in_turn(pin) {
                // Only this thread sets it.
                Ok(pool) => drop(self.staging.set(pool)),
                // The driver has put something of its own there.
                Err(error) if error.code == cu::CUDA_ERROR_ALREADY_MAPPED => {}
                Err(_) => return,
            }
        }
    }

    /// Windows that must be unmapped before the file gets one; `None` if the limit leaves no room. Ready packs replace
    /// published ones, the oldest first.
    fn make_room(&self, file: &PackFile) -> Option<Vec<Entry>> {
        let mut state = self.state.lock();
        let used: u64 = state.entries.values().map(|e| e.window.len()).sum();
        let mut excess = (used + file.bytes).saturating_sub(self.limit);
        if excess == 0 {
            return Some(Vec::new());
        }
        let mut old: Vec<(u64, FileKey, u64)> = state
            .entries
            .iter()
            .filter(|(_, e)| file.ready && e.ready.is_none() && Arc::strong_count(&e.window) == 1)
            .map(|(key, e)| (e.age, *key, e.window.len()))
            .collect();
        old.sort_unstable();
        if old.iter().map(|(_, _, bytes)| bytes).sum::<u64>() < excess {
            return None;
        }
        let mut evicted = Vec::new();
        for (_, key, bytes) in old {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(bytes);
            evicted.extend(state.entries.remove(&key));
        }
        Some(evicted)
    }

    /// Maps a file; `None` if it is gone or another file has its name.
    fn map(&self, file: &PackFile) -> std::io::Result<Option<Window>> {
        for _ in 0..ADDRESSES {
            let opened = match OpenOptions::new().read(true).write(true).open(&file.path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                other => other?,
            };
            let stat = rustix::fs::fstat(&opened)?;
            if FileKey::of(&stat) != file.key || bytes(&stat) < file.bytes {
                return Ok(None);
            }
            let address = self.place(file.bytes);
            match Window::map(&self.driver, self.context, opened, address, file.bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                other => return other.map(Some),
            }
        }
        Err(std::io::ErrorKind::AddrInUse.into())
    }

    /// The next address to try for a window of so many bytes.
    fn place(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        let span = bytes.next_multiple_of(STEP);
        if state.next + span > END {
            state.next = WINDOWS;
        }
        let address = state.next;
        state.next += span;
        address
    }

    fn failed(&self, what: String) {
        let mut state = self.state.lock();
        let times = state.trouble.as_ref().map_or(0, |it| it.times) + 1;
        let at = Instant::now();
        state.trouble = Some(Trouble { what, at, times });
    }

    /// Whether the last failure is too recent to try again.
    fn waits(&self) -> bool {
        let state = self.state.lock();
        state.trouble.as_ref().is_some_and(|it| {
            let doubled = 2u32.saturating_pow(it.times.saturating_sub(1));
            let patience = PATIENCE[0].saturating_mul(doubled).min(PATIENCE[1]);
            it.times > 0 && it.at.elapsed() < patience
        })
    }
}

fn bytes(stat: &rustix::fs::Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Bytes of the window's file; `None` if it has no name any more.
fn named(window: &Window) -> Option<u64> {
    let stat = rustix::fs::fstat(window.file().as_fd()).ok()?;
    (stat.st_nlink > 0).then(|| bytes(&stat))
}

/// Whether the window's file has a name, and all that is mapped of it.
fn whole(window: &Window) -> bool {
    named(window).is_some_and(|bytes| bytes >= window.len())
}

/// Whether a window is worth keeping. A published pack ends behind its last chunk, a little before the end of the ready
/// file that it was. The pages behind its end stay registered, and so in memory, until the window is unmapped, because
/// registering all others again would take longer than copying their bytes.
fn serves(window: &Window) -> bool {
    named(window).is_some_and(|bytes| bytes >= window.len() - window.len() / CUT)
}
