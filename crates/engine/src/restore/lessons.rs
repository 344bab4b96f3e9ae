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
    /// Those of which a launch did not check itself.
    unchecked: BTreeSet<String>,
    /// Those that were known to stray when the restore began, so that what they need was there.
    known: BTreeSet<String>,
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
            known: profile.strays.keys().cloned().collect(),
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
        // What waits for everything has not touched what was not there.
        let wary = learnt.profile.wary.iter().any(|it| it == kernel);
        let open = !complete || learnt.known.contains(kernel);
        if open && !wary && !learnt.suspects.contains(kernel) {
            learnt.suspects.insert(kernel.to_owned());
        }
        wary
    }

    /// A launch of this kernel does not check itself.
    pub fn unchecked(&self, kernel: &str) {
        let mut learnt = self.learnt.lock();
        if !learnt.unchecked.contains(kernel) {
            learnt.unchecked.insert(kernel.to_owned());
        }
    }

    /// An address in each buffer that this kernel was seen to stray to.
    pub fn strays(&self, kernel: &str) -> Vec<u64> {
        let learnt = self.learnt.lock();
        learnt
            .profile
            .strays
            .get(kernel)
            .cloned()
            .unwrap_or_default()
    }

    /// Whether any kernel was seen where it strays to.
    pub fn any_strays(&self) -> bool {
        !self.learnt.lock().profile.strays.is_empty()
    }

    /// A kernel was seen to stray to this address, and no harm was done. Whether that is news.
    pub fn seen(&self, kernel: &str, address: u64) -> bool {
        let news = self.learnt.lock().profile.stray(kernel, address);
        if news {
            self.keep();
        }
        news
    }

    /// A kernel has touched what was not there: one of those that were `caught`, with the address, or if there is none,
    /// any that may have done so. They are remembered, at once.
    pub fn strayed(&self, caught: &[(String, u64)]) {
        let mut learnt = self.learnt.lock();
        let Learnt {
            profile,
            suspects,
            launched,
            unchecked,
            known,
            ..
        } = &mut *learnt;
        for (kernel, address) in caught {
            match known.contains(kernel) {
                // It finds ever more.
                true => profile.beware([kernel.clone()]),
                false => drop(profile.stray(kernel, *address)),
            }
        }
        let kernels: BTreeSet<String> = match (caught.is_empty(), suspects.is_empty()) {
            (false, _) => suspects.intersection(unchecked).cloned().collect(),
            (true, true) => launched.clone(),
            (true, false) => suspects.clone(),
        };
        profile.beware(kernels);
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
        lessons.strayed(&[]);
        let profile = Profile::load(folder.path());
        assert_eq!(profile.wary, ["gemm"]);
        assert_eq!(profile.order, [7, 5]);
        let again = Lessons::new(folder.path(), profile);
        assert!(again.launched("gemm", false) && !again.launched("fill", true));
        again.strayed(&[]);
        // What waited for everything is not it.
        assert_eq!(Profile::load(folder.path()).wary, ["gemm", "fill"]);
    }

    #[test]
    fn a_kernel_that_is_caught_waits_for_what_it_touched_and_the_second_time_for_everything() {
        let folder = tempfile::tempdir().expect("a folder");
        let lessons = Lessons::new(folder.path(), Profile::default());
        for kernel in ["gemm", "sort", "spread"] {
            lessons.launched(kernel, kernel == "spread");
        }
        lessons.unchecked("sort");
        let caught = [("spread".to_owned(), 0x7000)];
        lessons.strayed(&caught);
        // Whoever notices it second says the same.
        lessons.strayed(&caught);
        let profile = Profile::load(folder.path());
        assert_eq!(profile.wary, ["sort"], "it could have done so unseen");
        let again = Lessons::new(folder.path(), profile);
        assert!(!again.launched("spread", true));
        assert_eq!(again.strays("spread"), [0x7000]);
        assert!(again.seen("spread", 0x9000) && !again.seen("spread", 0x9000));
        assert_eq!(again.strays("spread"), [0x7000, 0x9000]);
        again.strayed(&[("spread".to_owned(), 0xb000)]);
        let last = Lessons::new(folder.path(), Profile::load(folder.path()));
        assert!(last.launched("spread", true));
    }

    #[test]
    fn without_a_suspect_all_are_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let lessons = Lessons::new(folder.path(), Profile::default());
        lessons.launched("a", true);
        lessons.launched("b", true);
        lessons.strayed(&[]);
        assert_eq!(Profile::load(folder.path()).wary, ["a", "b"]);
    }
}
