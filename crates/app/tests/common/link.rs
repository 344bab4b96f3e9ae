//! The link between devices and the host, which softgpu opens as far as a test says: what needs it is told from what
//! does not by bytes, however fast or busy the machine is.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Until a test gives up on what must not need the link.
const PATIENCE: Duration = Duration::from_secs(300);
/// By how much, and how often, a link is opened further.
const STEP: u64 = 1 << 20;
const TURN: Duration = Duration::from_millis(25);

/// The setting of a process that has such a link.
pub const SETTING: &str = "FERMATA_SOFTGPU_HOLD";

/// This process's link, open at first.
pub struct Link {
    folder: PathBuf,
    generation: u64,
}

impl Link {
    pub fn of_process() -> Self {
        let folder = PathBuf::from(std::env::var_os(SETTING).unwrap());
        std::fs::create_dir_all(&folder).unwrap();
        Self {
            folder,
            generation: 0,
        }
    }

    /// Lets all pass that there is.
    pub fn open(&self) {
        let _ = std::fs::remove_file(self.folder.join("copies"));
    }

    fn say(&self, bytes: u64) {
        let new = self.folder.join("new");
        std::fs::write(&new, format!("{} {bytes}", self.generation)).unwrap();
        std::fs::rename(&new, self.folder.join("copies")).unwrap();
    }

    /// Does `work`, which needs no more than so many bytes of the link. No more pass until it is opened.
    pub fn only<T>(&mut self, bytes: u64, work: impl FnOnce() -> T) -> T {
        self.generation += 1;
        self.say(bytes);
        let (done, late) = (AtomicBool::new(false), AtomicBool::new(false));
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                let until = Instant::now() + PATIENCE;
                while !done.load(Ordering::Acquire) {
                    if Instant::now() > until {
                        late.store(true, Ordering::Release);
                        self.open();
                        break;
                    }
                    std::thread::sleep(TURN);
                }
            });
            let result = work();
            done.store(true, Ordering::Release);
            result
        });
        assert!(!late.into_inner(), "it needs more than {bytes} of the link");
        result
    }

    /// Does `work` while more and more is let pass; how much it had when it was done, at most.
    pub fn little_by_little<T>(&mut self, work: impl FnOnce() -> T) -> (T, u64) {
        self.generation += 1;
        self.say(0);
        let (done, passed) = (AtomicBool::new(false), AtomicU64::new(0));
        let all = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    std::thread::sleep(TURN);
                    self.say(passed.fetch_add(STEP, Ordering::AcqRel) + STEP);
                }
            });
            let result = work();
            let all = (result, passed.load(Ordering::Acquire));
            done.store(true, Ordering::Release);
            all
        });
        self.open();
        all
    }
}
