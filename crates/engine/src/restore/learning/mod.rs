//! What a restore learns for the next one of the same image: the order of first use, and mis-speculations.

pub(super) mod checked_launches;
pub(super) mod recorder;
