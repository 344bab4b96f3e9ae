//! What module images contain, found out while the program runs.

mod examination;
mod names;
mod session;

pub(crate) use examination::Examinations;
pub use examination::Examining;
