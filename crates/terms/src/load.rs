//! The pace of a load: whether a program waits for the data of its image, or runs before the data has been read.

use serde::{Deserialize, Serialize};

use crate::choice::choice;

/// What has to be there before a restored program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// All data.
    Eager,
    /// What cannot come on demand; the rest comes while it runs, in this order, and what an operation needs comes first.
    Behind(PrefetchOrder),
    /// The same, by address, for a program that cannot be rolled back: all memory is made when the load ends, and kernels
    /// wait for all data.
    Certain,
    /// As [`Self::Certain`], but a kernel whose access set is complete waits for that only.
    Foreseen,
}

choice! {
    /// The order in which blocks come that no operation waits for (gCROP, figure 11).
    PrefetchOrder {
        #[default]
        Profile = "profile": "As earlier restores have used them, then by address",
        Default = "default": "By address",
        Worst = "worst": "The profile backwards: the worst there is, to compare with",
    }
}

choice! {
    /// What names the kernels that mis-speculate while data is absent.
    LoadCheck {
        #[default]
        Off = "off": "They are caught, and not named",
        Ptx = "ptx": "By their PTX, until all data is there",
    }
}
