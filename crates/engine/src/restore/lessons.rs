//! What a restore learns for the next one of the same image, kept in its [`Profile`].

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::profile::Profile;

#[derive(Debug, Default)]
struct Learnt {
    profile: Profile,
    used: Vec<u64>,
    seen: HashSet<u64>,
    /// Kernels that may touch more than was named, launched while data was coming.
    suspects: BTreeSet<String>,
    /// All kernels launched meanwhile.
    launched: BTreeSet<String>,
}

/// See the module. The gate tells what it sees, whoever notices the end writes it down.
#[derive(Debug)]
pub(super) struct Lessons {
    image: PathBuf,
    learnt: Mutex<Learnt>,
}

impl Lessons {
    /// Continues the profile of the image in `image`.
    pub fn new(image: &Path, profile: Profile) -> Self {
        let learnt = Learnt {
            profile,
            ..Learnt::default()
        };
        Self {
            image: image.to_owned(),
            learnt: Mutex::new(learnt),
        }
    }

    /// The program uses the blocks at these addresses.
    pub fn used(&self, blocks: impl Iterator<Item = u64>) {
        let mut learnt = self.learnt.lock();
        for at in blocks {
            if learnt.seen.insert(at) {
                learnt.used.push(at);
            }
        }
    }

    /// A kernel is launched, about which is known what it touches, or not (`complete`). True if it has
    /// strayed in an earlier restore.
    pub fn launched(&self, kernel: &str, complete: bool) -> bool {
        let mut learnt = self.learnt.lock();
        if !learnt.launched.contains(kernel) {
            learnt.launched.insert(kernel.to_owned());
        }
        if !complete && !learnt.suspects.contains(kernel) {
            learnt.suspects.insert(kernel.to_owned());
        }
        learnt.profile.wary.iter().any(|it| it == kernel)
    }

    /// A kernel has touched what was not there: those that may have done so are remembered, at once.
    pub fn strayed(&self) {
        let mut learnt = self.learnt.lock();
        let kernels = match learnt.suspects.is_empty() {
            true => learnt.launched.clone(),
            false => learnt.suspects.clone(),
        };
        learnt.profile.beware(kernels);
        drop(learnt);
        self.keep();
    }

    /// Writes everything down. An image that cannot be written is restored next time as it was this time.
    pub fn keep(&self) {
        let mut learnt = self.learnt.lock();
        let used = learnt.used.clone();
        learnt.profile.improve(&used);
        if learnt.profile != Profile::load(&self.image) {
            let _ = learnt.profile.store(&self.image);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_could_have_strayed_are_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let lessons = Lessons::new(folder.path(), Profile::default());
        assert!(!lessons.launched("fill", true));
        assert!(!lessons.launched("gemm", false));
        lessons.used([7, 5, 7].into_iter());
        lessons.strayed();
        let profile = Profile::load(folder.path());
        assert_eq!(profile.wary, ["gemm"]);
        assert_eq!(profile.order, [7, 5]);
        let again = Lessons::new(folder.path(), profile);
        assert!(again.launched("gemm", false) && !again.launched("fill", true));
        again.strayed();
        assert_eq!(Profile::load(folder.path()).wary, ["gemm"]);
    }

    #[test]
    fn without_a_suspect_all_are_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let lessons = Lessons::new(folder.path(), Profile::default());
        lessons.launched("a", true);
        lessons.launched("b", true);
        lessons.strayed();
        assert_eq!(Profile::load(folder.path()).wary, ["a", "b"]);
    }
}
