//! Lets a test hold copies or kernels, so that they are under way for as long as the test needs, however fast or busy the
//! machine is.
//!
//! The setting `HOLD` names a folder. While a file with the name of a kind of work is there, as much of that kind
//! may begin as the file says, in bytes; what is more waits until the file says more or is gone.
//!
//! ```text
//!  HOLD/copies     bytes between device and host
//!  HOLD/modules    bytes of images that are loaded
//!  HOLD/registers  bytes of host memory that are registered
//!
//!  file: "GENERATION BYTES [LEAST]", renamed into place; the count begins anew with each generation
//! ```
//! A file `HOLD/lost` has the device lost that is used next; it is taken away by that, so that the device is there again for the
//! next process.
//!
//! Less than LEAST bytes at once, or [`LEAST`] if the file does not say, are neither counted nor held: a test asks for
//! words while it holds the rest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

/// Work of fewer bytes is not held, if a file does not name another limit.
pub const LEAST: u64 = 16 << 10;
/// How often the file is looked at.
const TURN: Duration = Duration::from_millis(1);

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldWork {
    /// A copy between device and host.
    Copies,
    /// The load of a module or library.
    Modules,
    /// Host memory that becomes known to the driver.
    Registers,
}

impl HeldWork {
    fn file(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Modules => "modules",
            Self::Registers => "registers",
        }
    }
}

/// Whether a device that is used now is lost: `folder` is that of [`Hold`].
pub fn loses_device(folder: Option<&Path>) -> bool {
    folder.is_some_and(|it| std::fs::remove_file(it.join("lost")).is_ok())
}

/// What a file says.
struct Said {
    generation: u64,
    /// Bytes that may begin.
    allowed: u64,
    /// Bytes at once that are counted.
    least: u64,
}

/// The work of each kind that has begun: the file's generation, and bytes.
#[derive(Debug, Default)]
pub struct Hold {
    folder: Option<PathBuf>,
    begun: Mutex<[(u64, u64); 3]>,
}

impl Hold {
    /// Held by the files in `folder`, if any.
    pub fn by(folder: Option<PathBuf>) -> Self {
        Self {
            folder,
            begun: Mutex::default(),
        }
    }

    /// Whether anything may ever be held.
    pub fn is_set(&self) -> bool {
        self.folder.is_some()
    }

    /// Returns when so many bytes of this kind may begin.
    pub fn pass(&self, work: HeldWork, bytes: u64) {
        let mut place = None;
        while let Some(said) = self.said(work).filter(|said| bytes >= said.least) {
            let end = match place {
                Some((known, end)) if known == said.generation => end,
                _ => self.enter(work, said.generation, bytes),
            };
            if end <= said.allowed {
                return;
            }
            place = Some((said.generation, end));
            // Polled: only a test sets this, which replaces the file whenever it likes.
            std::thread::sleep(TURN);
        }
    }

    /// What the file says; `None` without one. A file that cannot be read holds all.
    fn said(&self, work: HeldWork) -> Option<Said> {
        let text = std::fs::read_to_string(self.folder.as_ref()?.join(work.file())).ok()?;
        let mut numbers = text.split_whitespace().map(str::parse);
        let (generation, allowed) = match (numbers.next(), numbers.next()) {
            (Some(Ok(generation)), Some(Ok(allowed))) => (generation, allowed),
            _ => (0, 0),
        };
        let least = numbers.next().and_then(Result::ok).unwrap_or(LEAST);
        Some(Said {
            generation,
            allowed,
            least,
        })
    }

    /// Counts bytes of a generation; how many there are with them.
    fn enter(&self, work: HeldWork, generation: u64, bytes: u64) -> u64 {
        let mut begun = self.begun.lock();
        let count = &mut begun[work as usize];
        if count.0 != generation {
            *count = (generation, 0);
        }
        count.1 = count.1.saturating_add(bytes);
        count.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_passes_as_the_file_says() {
        let folder = std::env::temp_dir().join(format!("fermata-hold-{}", std::process::id()));
        // One that was killed may have had this number.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let say = |text: &str| {
            std::fs::write(folder.join("new"), text).unwrap();
            std::fs::rename(folder.join("new"), folder.join("copies")).unwrap();
        };
        let hold = Hold::by(Some(folder.clone()));
        hold.pass(HeldWork::Copies, u64::MAX);
        say("1 40000");
        hold.pass(HeldWork::Copies, 20_000);
        hold.pass(HeldWork::Copies, 20_000);
        hold.pass(HeldWork::Copies, LEAST - 1);
        hold.pass(HeldWork::Modules, u64::MAX);
        say("2 0 50000");
        hold.pass(HeldWork::Copies, 40_000);
        say("1 40000");
        std::thread::scope(|scope| {
            let late = scope.spawn(|| hold.pass(HeldWork::Copies, 20_000));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!late.is_finished());
            say("1 60000");
            late.join().unwrap();
            let last = scope.spawn(|| hold.pass(HeldWork::Copies, 20_000));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!last.is_finished());
            say("3 20000");
            last.join().unwrap();
        });
        let gone = std::fs::remove_dir_all(&folder);
        hold.pass(HeldWork::Copies, u64::MAX);
        gone.unwrap();
    }
}
