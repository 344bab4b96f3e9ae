//! Work of the software GPU that stands still while a test looks at it; see softgpu's setting `HOLD`. The tests of
//! other crates use this file too.
#![allow(dead_code, clippy::expect_used)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The setting.
pub const SETTING: &str = "FERMATA_SOFTGPU_HOLD";
/// Copies between device and host.
pub const COPIES: &str = "copies";
/// Loads of modules.
pub const MODULES: &str = "modules";
/// Host memory that becomes known to the driver.
pub const REGISTERS: &str = "registers";

/// What may go on, told in a folder: all, until something is held and once it is released or the folder gone.
pub struct Hold<F> {
    folder: F,
    generation: AtomicU64,
}

impl<F: AsRef<Path>> Hold<F> {
    /// In this folder, which the setting of the held process names.
    pub fn at(folder: F) -> Self {
        Self {
            folder,
            generation: AtomicU64::new(0),
        }
    }

    /// The setting and its value.
    pub fn variable(&self) -> (&str, &str) {
        let path = self.folder.as_ref().to_str();
        (SETTING, path.expect("a path in UTF-8"))
    }

    /// From now on only so many bytes of this work begin.
    pub fn only(&self, work: &str, bytes: u64) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.up_to(work, bytes);
    }

    /// The same, of work of at least `least` bytes at once.
    pub fn only_from(&self, work: &str, bytes: u64, least: u64) {
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.say(work, &format!("{generation} {bytes} {least}"));
    }

    /// So many bytes altogether, since [`Self::only`].
    pub fn up_to(&self, work: &str, bytes: u64) {
        let generation = self.generation.load(Ordering::SeqCst);
        self.say(work, &format!("{generation} {bytes}"));
    }

    fn say(&self, work: &str, text: &str) {
        let folder = self.folder.as_ref();
        let new = folder.join(format!("{work}.new"));
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, folder.join(work)).expect("renamed");
    }

    /// All of it goes on.
    pub fn release(&self, work: &str) {
        std::fs::remove_file(self.folder.as_ref().join(work)).expect("it was held");
    }
}
