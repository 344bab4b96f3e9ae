//! Finds out what module images contain, while the program runs.

mod examination;
mod names;
mod session;

pub(crate) use examination::Examinations;
pub use examination::Examining;
