//! What calls of several families have in common, over the objects of a session.

pub mod boxes;
pub mod capture;
pub mod launch;
pub mod lower;
pub mod teardown;
