//! Rewriting of modules.

mod guard;

pub use guard::{Guard, GuardError, TABLE_HEADER_BYTES, guard};
