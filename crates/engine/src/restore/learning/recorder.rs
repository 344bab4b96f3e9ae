//! Records what a restore learns for the next restore of the same image, in the image's [`Profile`].

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use fermata_abi::op::{Address, FunctionId};
use fermata_state::Session;
use parking_lot::Mutex;

use crate::access::{Doubt, Predictor};
use crate::profile::{Profile, Words};

#[derive(Debug, Default)]
struct Recorded {
    profile: Profile,
    used: Vec<Address>,
    seen: HashSet<Address>,
    /// Kernels with an open access set, launched while data was coming.
    suspects: BTreeSet<String>,
    /// All kernels launched meanwhile.
    launched: BTreeSet<String>,
    /// Those of which a launch was not instrumented.
    unchecked: BTreeSet<String>,
    /// Those whose mis-speculations were known when the restore began, so that what they need was present.
    known: BTreeSet<String>,
}

/// See the module. The gate reports what it sees; the thread that notices the end stores the profile.
#[derive(Debug)]
pub(in crate::restore) struct Recorder {
    image: PathBuf,
    recorded: Mutex<Recorded>,
}

impl Recorder {
    /// Continues the profile of the image in `image`.
    pub fn new(image: &Path, profile: Profile) -> Self {
        let recorded = Recorded {
            known: profile.mis_speculations.keys().cloned().collect(),
            profile,
            ..Recorded::default()
        };
        Self {
            image: image.to_owned(),
            recorded: Mutex::new(recorded),
        }
    }

    /// The program uses the blocks at these addresses.
    pub fn used(&self, blocks: impl Iterator<Item = Address>) {
        let mut recorded = self.recorded.lock();
        for at in blocks {
            if recorded.seen.insert(at) {
                recorded.used.push(at);
            }
        }
    }

    /// A kernel is launched; `complete` says whether its access set is. True if it is unpredictable, by an earlier
    /// restore.
    pub fn launched(&self, kernel: &str, complete: bool) -> bool {
        let mut recorded = self.recorded.lock();
        if !recorded.launched.contains(kernel) {
            recorded.launched.insert(kernel.to_owned());
        }
        // A kernel that has waited for all data cannot have touched absent data.
        let unpredictable = recorded.profile.unpredictable.iter().any(|it| it == kernel);
        let open = !complete || recorded.known.contains(kernel);
        if open && !unpredictable && !recorded.suspects.contains(kernel) {
            recorded.suspects.insert(kernel.to_owned());
        }
        unpredictable
    }

    /// A launch of this kernel is not instrumented.
    pub fn unchecked(&self, kernel: &str) {
        let mut recorded = self.recorded.lock();
        if !recorded.unchecked.contains(kernel) {
            recorded.unchecked.insert(kernel.to_owned());
        }
    }

    /// Has a predictor know what earlier restores have seen of these functions, of each once: `taught` are those it has been told of.
    pub fn teach(
        &self,
        (predictor, taught): (&mut Predictor, &mut HashSet<FunctionId>),
        session: &Session,
        functions: &[FunctionId],
    ) {
        for function in functions {
            if let Ok(record) = session.functions.get(*function)
                && taught.insert(*function)
            {
                for address in self.mis_speculations(&record.name) {
                    predictor.remember(*function, address);
                }
                for (offset, memory) in self.harmless(&record.name) {
                    predictor.dispel(Doubt {
                        function: *function,
                        offset,
                        memory,
                    });
                }
            }
        }
    }

    /// An address in each buffer that this kernel has touched outside its access set.
    pub fn mis_speculations(&self, kernel: &str) -> Vec<Address> {
        let recorded = self.recorded.lock();
        recorded
            .profile
            .mis_speculations
            .get(kernel)
            .cloned()
            .unwrap_or_default()
    }

    /// Whether mis-speculations of any kernel are known.
    pub fn any_mis_speculations(&self) -> bool {
        !self.recorded.lock().profile.mis_speculations.is_empty()
    }

    /// The program writes the blocks at these addresses.
    pub fn wrote(&self, blocks: &[Address]) {
        if self.recorded.lock().profile.add_written(blocks) {
            self.keep();
        }
    }

    /// What this kernel has left as it was.
    fn harmless(&self, kernel: &str) -> Words {
        let recorded = self.recorded.lock();
        let known = recorded.profile.harmless.get(kernel);
        known.cloned().unwrap_or_default()
    }

    /// Whether it is known of any kernel what it leaves as it was.
    pub fn knows_harmless(&self) -> bool {
        !self.recorded.lock().profile.harmless.is_empty()
    }

    /// Blocks that are known to be written, by their addresses.
    pub fn written(&self) -> BTreeSet<Address> {
        self.recorded
            .lock()
            .profile
            .written
            .iter()
            .copied()
            .collect()
    }

    /// An instance has run: these kernels have left what their words named as it was, and the blocks at these addresses have changed.
    pub fn examined(&self, harmless: BTreeMap<String, Words>, written: &[Address]) {
        let mut recorded = self.recorded.lock();
        let mut news = recorded.profile.add_written(written);
        for (kernel, words) in harmless {
            news |= recorded.profile.add_harmless(&kernel, words);
        }
        drop(recorded);
        if news {
            self.keep();
        }
    }

    /// A kernel was seen to touch this address outside its access set, and no harm was done. True if that was not known.
    pub fn seen(&self, kernel: &str, address: Address) -> bool {
        let news = self
            .recorded
            .lock()
            .profile
            .add_mis_speculation(kernel, address);
        if news {
            self.keep();
        }
        news
    }

    /// A kernel has touched absent data: one of those that were `caught`, with the address, or if there is none,
    /// any that may have done so. The profile is stored at once.
    pub fn mis_speculated(&self, caught: &[(String, Address)]) {
        let mut recorded = self.recorded.lock();
        let Recorded {
            profile,
            suspects,
            launched,
            unchecked,
            known,
            ..
        } = &mut *recorded;
        for (kernel, address) in caught {
            match known.contains(kernel) {
                // It has touched yet another buffer.
                true => profile.add_unpredictable([kernel.clone()]),
                false => drop(profile.add_mis_speculation(kernel, *address)),
            }
        }
        let kernels: BTreeSet<String> = match (caught.is_empty(), suspects.is_empty()) {
            (false, _) => suspects.intersection(unchecked).cloned().collect(),
            (true, true) => launched.clone(),
            (true, false) => suspects.clone(),
        };
        profile.add_unpredictable(kernels);
        drop(recorded);
        self.keep();
    }

    /// Stores the profile. Where the image cannot be written, the next restore knows as much as this one did.
    pub fn keep(&self) {
        let mut recorded = self.recorded.lock();
        let used = recorded.used.clone();
        recorded.profile.improve(&used);
        let stored = Profile::load(&self.image);
        // Another session of the image may have learnt something meanwhile.
        recorded.profile.join(stored.clone());
        if recorded.profile != stored {
            let _ = recorded.profile.store(&self.image);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_could_have_mis_speculated_are_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let recorder = Recorder::new(folder.path(), Profile::default());
        assert!(!recorder.launched("fill", true));
        assert!(!recorder.launched("gemm", false));
        recorder.used([7, 5, 7].map(Address::from_raw).into_iter());
        recorder.mis_speculated(&[]);
        let profile = Profile::load(folder.path());
        assert_eq!(profile.unpredictable, ["gemm"]);
        assert_eq!(profile.order, [7, 5].map(Address::from_raw));
        let again = Recorder::new(folder.path(), profile);
        assert!(again.launched("gemm", false) && !again.launched("fill", true));
        again.mis_speculated(&[]);
        // A kernel that has waited for all data is not suspected.
        assert_eq!(Profile::load(folder.path()).unpredictable, ["gemm", "fill"]);
    }

    #[test]
    fn a_kernel_that_is_caught_waits_for_what_it_touched_and_the_second_time_for_everything() {
        let folder = tempfile::tempdir().expect("a folder");
        let recorder = Recorder::new(folder.path(), Profile::default());
        for kernel in ["gemm", "sort", "spread"] {
            recorder.launched(kernel, kernel == "spread");
        }
        recorder.unchecked("sort");
        let caught = [("spread".to_owned(), Address::from_raw(0x7000))];
        recorder.mis_speculated(&caught);
        // A second thread that notices the fault reports the same.
        recorder.mis_speculated(&caught);
        let profile = Profile::load(folder.path());
        assert_eq!(
            profile.unpredictable,
            ["sort"],
            "it could have done so unseen"
        );
        let again = Recorder::new(folder.path(), profile);
        assert!(!again.launched("spread", true));
        assert_eq!(
            again.mis_speculations("spread"),
            [Address::from_raw(0x7000)]
        );
        let touched = [0x7000, 0x9000].map(Address::from_raw);
        assert!(again.seen("spread", touched[1]) && !again.seen("spread", touched[1]));
        assert_eq!(again.mis_speculations("spread"), touched);
        again.mis_speculated(&[("spread".to_owned(), Address::from_raw(0xb000))]);
        let last = Recorder::new(folder.path(), Profile::load(folder.path()));
        assert!(last.launched("spread", true));
    }

    #[test]
    fn without_a_suspect_all_are_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let recorder = Recorder::new(folder.path(), Profile::default());
        recorder.launched("a", true);
        recorder.launched("b", true);
        recorder.mis_speculated(&[]);
        assert_eq!(Profile::load(folder.path()).unpredictable, ["a", "b"]);
    }
}
