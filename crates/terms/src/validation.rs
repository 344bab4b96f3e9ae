//! Which mis-speculations were found, and how.

use serde::{Deserialize, Serialize};

use crate::choice::choice;

/// Mis-speculations that are named; the rest are counted.
const NAMED: usize = 16;

choice! {
    /// What finds mis-speculations while memory is copied beside the running program (PhoenixOS, section 4.1).
    Validate {
        #[default]
        Content = "content": "Digests of the stop are compared with those of what was copied",
        Ptx = "ptx": "Kernels check their own stores, which slows them down and names them; `cow` then needs no digests",
        Both = "both": "Both",
        Off = "off": "Nothing: the image may be wrong. For comparison only",
    }
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
}

/// How an image was validated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validation {
    /// By what.
    pub by: Validate,
    /// Why that is not what was asked for, or why it did not suffice; may be empty.
    pub note: String,
    /// Launches that ran instrumented.
    pub checked: u64,
    /// Launches of kernels and graphs that could not, although they should have.
    pub unchecked: u64,
    /// Launches that have mis-speculated, as far as they can be told apart.
    pub violations: u64,
    /// The first of them.
    pub misses: Vec<Miss>,
}

impl Validation {
    /// Counts a mis-speculation, and names it if it is among the first.
    pub fn add(&mut self, miss: Miss) {
        self.violations += 1;
        if self.misses.len() < NAMED {
            self.misses.push(miss);
        }
    }

    /// Whether the image was to be validated by instrumented kernels alone, and they have found it wrong or were not
    /// used for all launches.
    pub fn fails(&self) -> bool {
        self.by == Validate::Ptx && (self.violations > 0 || self.unchecked > 0)
    }

    /// The same when a stop has compared everything.
    pub fn compared(mut self) -> Self {
        if !self.by.by_content() {
            self.by = Validate::Content;
        }
        self
    }
}

/// A mis-speculation: an access outside the predicted access set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miss {
    /// The kernel's name.
    pub kernel: String,
    /// The first such access of a launch: where.
    pub address: u64,
    /// The first such access of a launch: how many bytes.
    pub bytes: u64,
    /// Number of the buffer there; 0 if it is none of the image's.
    pub buffer: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choice;

    #[test]
    fn instrumented_kernels_alone_suffice_only_if_every_launch_was_checked_and_none_was_outside() {
        let validation = |by, unchecked, violations| Validation {
            by,
            unchecked,
            violations,
            ..Validation::default()
        };
        assert!(!validation(Validate::Ptx, 0, 0).fails());
        assert!(validation(Validate::Ptx, 1, 0).fails() && validation(Validate::Ptx, 0, 1).fails());
        assert!(!validation(Validate::Both, 1, 1).fails());
    }

    #[test]
    fn a_word_is_the_same_in_messages_and_on_the_command_line() {
        for (value, word, _) in Validate::ALL {
            assert_eq!(serde_json::to_value(value).expect("encoded"), *word);
            assert_eq!((value.name(), Validate::named(word)), (*word, Some(*value)));
        }
        assert_eq!(Validate::named("neither"), None);
    }
}
