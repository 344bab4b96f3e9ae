//! The ranks of a job: how they talk, who keeps whose copy, and that all make the same calls.

pub mod comm;
pub(crate) mod ring;
pub(crate) mod roll;
