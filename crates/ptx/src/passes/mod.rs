//! Rewriting of modules.

mod bind;
mod check;
mod error;
mod guard;
mod reach;
#[cfg(test)]
mod tests;

pub use bind::bind;
pub use check::Guard;
pub use error::PassError;
pub use guard::{TABLE_HEADER_BYTES, guard};
pub use reach::Made;
