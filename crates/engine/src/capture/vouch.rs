//! How an image that is copied while the program runs is validated, and which mis-speculations were found.

use fermata_abi::op::{Address, Handle};

use super::way::Way;

/// Violations that are named; the rest are counted.
const NAMED: usize = 16;

/// What finds mis-speculations (PhoenixOS, section 4.1, for instrumented kernels).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Validate {
    /// Digests taken in the stop against those of what was copied.
    #[default]
    Content,
    /// Kernels that check their own stores.
    Ptx,
    /// Both: content decides, kernels are named.
    Both,
    /// Nothing: the image may be wrong. For comparison.
    Off,
}

impl Validate {
    /// Whether digests of the stop are compared.
    pub fn by_content(self) -> bool {
        matches!(self, Self::Content | Self::Both)
    }

    /// Whether kernels run instrumented.
    pub fn by_instrumenting(self) -> bool {
        matches!(self, Self::Ptx | Self::Both)
    }

    /// What it comes to with a way, and why it is another then: what is copied while the program stands still
    /// needs no validation, and what was copied ahead is always compared.
    pub(super) fn with(self, way: Way, without: &str) -> (Self, String) {
        match (self, way) {
            (Self::Content, _) | (Self::Both, Way::Cow | Way::Recopy) => (self, String::new()),
            (_, Way::Snapshot) => {
                let why = "a snapshot is copied while the program stands still";
                (Self::Content, why.to_owned())
            }
            (Self::Ptx, Way::Recopy) => {
                let why = "what was copied ahead is compared in the stop in any case";
                (Self::Both, why.to_owned())
            }
            (Self::Off, Way::Recopy) => {
                let why = "what was copied ahead is compared in the stop in any case";
                (Self::Content, why.to_owned())
            }
            (Self::Ptx, Way::Cow) if !without.is_empty() => (Self::Content, without.to_owned()),
            (Self::Ptx | Self::Off, Way::Cow) => (self, String::new()),
        }
    }
}

/// A mis-speculation: a store outside the access set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// The kernel's name.
    pub kernel: String,
    /// The first such store of a launch: where.
    pub address: Address,
    /// The first such store of a launch: how many bytes.
    pub bytes: u64,
    /// The buffer there; 0 if there is none that the image needs.
    pub buffer: u64,
}

/// How a capture was validated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vouched {
    /// By what.
    pub by: Validate,
    /// Why that is not what was asked for; may be empty.
    pub note: String,
    /// Launches that ran instrumented.
    pub checked: u64,
    /// Launches of kernels and graphs that could not, although instrumented kernels were wanted.
    pub unchecked: u64,
    /// Launches that have mis-speculated, as far as they can be told apart.
    pub violations: u64,
    /// The first of them.
    pub misses: Vec<Miss>,
}

impl Vouched {
    pub(super) fn miss(&mut self, miss: Miss) {
        self.violations += 1;
        if self.misses.len() < NAMED {
            self.misses.push(miss);
        }
    }

    /// Whether instrumented kernels alone were to vouch for the image and cannot.
    pub(super) fn fails(&self) -> bool {
        self.by == Validate::Ptx && (self.violations > 0 || self.unchecked > 0)
    }

    /// The same when a stop has compared everything.
    pub(super) fn compared(mut self) -> Self {
        if !self.by.by_content() {
            self.by = Validate::Content;
        }
        self
    }
}

/// Kernels that have run meanwhile: those of which more was possible than could be foreseen, if there are
/// any, else all.
pub(super) fn suspects(launched: impl IntoIterator<Item = (Handle, bool)> + Clone) -> Vec<Handle> {
    let of = |wanted: bool| -> Vec<Handle> {
        let launched = launched.clone().into_iter();
        let found = launched.filter(|(_, complete)| !(wanted && *complete));
        found.map(|(function, _)| function).collect()
    };
    Some(of(true))
        .filter(|open| !open.is_empty())
        .unwrap_or_else(|| of(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_kernels_are_suspected_before_others() {
        assert_eq!(suspects([(1, true), (2, false), (3, true)]), [2]);
        assert_eq!(suspects([(1, true), (3, true)]), [1, 3]);
        assert!(suspects([]).is_empty());
    }

    #[test]
    fn nothing_is_vouched_for_by_less_than_was_asked_for_without_a_word() {
        for asked in [
            Validate::Content,
            Validate::Ptx,
            Validate::Both,
            Validate::Off,
        ] {
            for way in [Way::Snapshot, Way::Cow, Way::Recopy] {
                for without in ["", "kernel `k` cannot be instrumented"] {
                    let (by, why) = asked.with(way, without);
                    assert_eq!(by != asked, !why.is_empty(), "{asked:?} {way:?}");
                    assert!(by != Validate::Off || asked == Validate::Off && way == Way::Cow);
                }
            }
        }
        assert_eq!(Validate::Ptx.with(Way::Cow, "x").0, Validate::Content);
    }

    #[test]
    fn instrumented_kernels_alone_vouch_only_if_every_launch_was_checked_and_none_was_outside() {
        let vouched = |by, unchecked, violations| Vouched {
            by,
            unchecked,
            violations,
            ..Vouched::default()
        };
        assert!(!vouched(Validate::Ptx, 0, 0).fails());
        assert!(vouched(Validate::Ptx, 1, 0).fails() && vouched(Validate::Ptx, 0, 1).fails());
        assert!(!vouched(Validate::Both, 1, 1).fails());
    }
}
