//! How a checkpoint copies, how it is validated and what it costs, and how a restore brings data: the words that engine,
//! worker, daemon and command share, each defined once.
//!
//! | file | what |
//! | --- | --- |
//! | `choice` | what a user chooses by a word |
//! | `capture` | how device memory is copied, and what that costs the program |
//! | `validation` | which mis-speculations were found, and how |
//! | `load` | when the data of an image is there |
//!
//! Messages carry these types as they are. What an image's manifest stores has types of its own in `store`, so that a
//! change here changes no format.
#![forbid(unsafe_code)]

mod capture;
mod choice;
mod load;
mod validation;

pub use capture::{Mode, Stall, Step, Then, Timeline, Way};
pub use choice::Choice;
pub use load::{LoadCheck, Pace, PrefetchOrder};
pub use validation::{Miss, Validate, Validation};
