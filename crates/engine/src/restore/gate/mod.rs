//! The gates of a restored session: they hold each operation until the data in its access set is present.

pub(super) mod on_demand;
pub(super) mod relearning;
