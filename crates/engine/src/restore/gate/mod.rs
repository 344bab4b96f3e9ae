//! The gates of a restored session: what each operation waits for while data is absent.

pub(super) mod on_demand;
pub(super) mod relearning;
