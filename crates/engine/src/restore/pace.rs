//! What has to be there before a restored program runs.

use super::loading::prefetch_order::PrefetchOrder;

/// How an image is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// All data is there when the load ends.
    Eager,
    /// Data comes while the program runs, as far as that is possible, in this order.
    Behind(PrefetchOrder),
    /// The same, by address, for a program that cannot be rolled back: all memory is made when the load ends, and
    /// kernels wait for all data.
    Certain,
    /// As [`Self::Certain`], but a kernel whose access set is complete waits for that only.
    Foreseen,
}
