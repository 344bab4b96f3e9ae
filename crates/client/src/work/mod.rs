//! Code that exported functions of several groups share, above the session's objects.

pub mod boxes;
pub mod capture;
pub mod context_events;
pub mod green;
pub mod launch;
pub mod lower;
pub mod teardown;
