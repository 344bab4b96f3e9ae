//! How much of a restore is under way at once.

/// How many pieces are under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::restore) struct Limits {
    /// Adjacent pieces that are handed out and copied at once, so that the gaps between copies cost little.
    pub stride: usize,
    /// Pieces being copied at once.
    pub in_flight: usize,
    /// The most pieces under way that no operation waits for.
    pub ahead: usize,
    /// Pieces for which memory has been made, and which have not been handed out, from which on no memory is made that no operation
    /// waits for.
    pub made: usize,
}

impl Limits {
    /// For a restore while the program runs: a piece that an operation waits for comes after no more than these. Memory is made as it is
    /// needed, a gigabyte ahead, because a driver does one such thing at a time: the first blocks would be mapped after the last
    /// was made.
    pub const BEHIND: Self = Self {
        stride: 4,
        in_flight: 16,
        ahead: 24,
        made: 256,
    };
    /// For an eager restore, where no operation waits: enough to keep the device's link busy while another thread's call
    /// holds the driver, as registering memory does for milliseconds.
    pub const EAGER: Self = Self {
        stride: 4,
        in_flight: 128,
        ahead: 160,
        made: usize::MAX,
    };

    /// The limits of a restore while the program runs (`behind`) or an eager one. Without a registered tier pieces
    /// come one by one, because there are few buffers.
    pub fn of(behind: bool, in_tier: bool) -> Self {
        match (behind, in_tier) {
            (false, true) => Self::EAGER,
            (true, true) => Self::BEHIND,
            (_, false) => Self {
                stride: 1,
                ..Self::BEHIND
            },
        }
    }
}
