//! Recovering: the newest sound checkpoint of all ranks, and its data back in the program's memory.

pub(crate) mod restore;
pub(crate) mod search;
