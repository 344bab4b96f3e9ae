//! A checkpoint as it lies in one place, and as bytes between places.

pub(crate) mod found;
pub(crate) mod layout;
pub(crate) mod record;
pub(crate) mod site;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod transfer;
