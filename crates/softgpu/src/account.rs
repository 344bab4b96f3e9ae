//! Counts the memory of a device that several processes take together, if they are set to share it: in a file per device.
//!
//! ```text
//!  DEVICE-0: │ process │ its start │ bytes │  24 bytes for each process, in native order; process 0: a free place
//! ```
//! The file is locked for each change. The entry of a process that has ended is not counted; the next process takes it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

/// Bytes of a process's place.
const PLACE: usize = 24;
/// The most processes.
const PLACES: usize = 256;

/// The account of one device in this process.
#[derive(Debug)]
pub struct Account {
    file: File,
    /// This process's place, once it has one. Held while the file is locked: the lock tells no threads apart.
    own: Mutex<Option<usize>>,
    process: Place,
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    process: u64,
    start: u64,
    bytes: u64,
}

impl Account {
    /// The account of device `ordinal` in `folder`, which is made.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(folder: &Path, ordinal: i32) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(folder.join(format!("device-{ordinal}")))?;
        let process = u64::from(std::process::id());
        let start = start_of(process).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self {
            file,
            own: Mutex::default(),
            process: Place {
                process,
                start,
                bytes: 0,
            },
        })
    }

    /// Notes what this process takes, as `used` says while no other thread does this, if all processes together take at
    /// most `limit` then.
    ///
    /// # Errors
    /// They would take more, or the file cannot be used.
    pub fn set(&self, used: impl Fn() -> u64, limit: u64) -> io::Result<()> {
        let mut own = self.own.lock();
        let bytes = used();
        let places = self.locked(|| {
            let places = self.read()?;
            let others = self.others(&places);
            if others.saturating_add(bytes) > limit {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let free = || places.iter().position(|it| !it.lives());
            let at = own.or_else(free).unwrap_or(places.len());
            if at >= PLACES {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let place = Place {
                bytes,
                ..self.process
            };
            self.file
                .write_all_at(&place.encode(), (at * PLACE) as u64)?;
            Ok(at)
        });
        *own = Some(places?);
        Ok(())
    }

    /// What other processes take.
    pub fn taken_by_others(&self) -> u64 {
        let _own = self.own.lock();
        let taken = self.locked(|| Ok(self.others(&self.read()?)));
        taken.unwrap_or(0)
    }

    fn others(&self, places: &[Place]) -> u64 {
        let others = places
            .iter()
            .filter(|it| it.process != self.process.process && it.lives());
        others.map(|it| it.bytes).sum()
    }

    fn locked<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let result = act();
        // It ends with the file at the latest.
        let _ = flock(&self.file, FlockOperation::Unlock);
        result
    }

    fn read(&self) -> io::Result<Vec<Place>> {
        let mut bytes = vec![0; PLACE * PLACES];
        let length = self.file.read_at(&mut bytes, 0)?;
        let places = bytes.get(..length).unwrap_or_default().chunks_exact(PLACE);
        Ok(places.map(Place::decode).collect())
    }
}

impl Place {
    fn lives(&self) -> bool {
        self.process != 0 && start_of(self.process) == Some(self.start)
    }

    fn encode(&self) -> Vec<u8> {
        let words = [self.process, self.start, self.bytes];
        words.map(u64::to_ne_bytes).concat()
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let found = bytes.get(8 * at..).and_then(|it| it.first_chunk());
            found.map_or(0, |it| u64::from_ne_bytes(*it))
        };
        Self {
            process: word(0),
            start: word(1),
            bytes: word(2),
        }
    }
}

/// When a process has begun, in clock ticks; none if it has ended.
fn start_of(process: u64) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_share_a_device_have_its_memory_together() {
        let folder = tempfile::tempdir().unwrap();
        let account = Account::open(folder.path(), 0).unwrap();
        account.set(|| 60, 100).unwrap();
        account.set(|| 100, 100).unwrap();
        account.set(|| 101, 100).unwrap_err();
        // Another process, which lives as long as this one's parent.
        let parent = u64::from(std::os::unix::process::parent_id());
        let other = Place {
            process: parent,
            start: start_of(parent).unwrap(),
            bytes: 30,
        };
        account
            .file
            .write_all_at(&other.encode(), PLACE as u64)
            .unwrap();
        assert_eq!(account.taken_by_others(), 30);
        account.set(|| 71, 100).unwrap_err();
        account.set(|| 70, 100).unwrap();
        // One that has ended counts nothing.
        let ended = Place { start: 1, ..other };
        account
            .file
            .write_all_at(&ended.encode(), PLACE as u64)
            .unwrap();
        assert_eq!(account.taken_by_others(), 0);
        account.set(|| 100, 100).unwrap();
    }
}
