//! Taking an image behind a running program.
//!
//! ```text
//!            program runs          program stands still            program runs, watched
//!  snapshot  prepare ────────────► begin: all copied on the device ► drained, hashed, written
//!  cow       prepare ────────────► begin: digests of all           ► copied; what is written, aside first
//!  recopy    prepare, ahead: all copied, again what was written    ► stop: digests, only what differs
//! ```
//! (PhoenixOS, sections 4.2 and 4.3.) The image of `snapshot` and `cow` is the session as `begin` found it,
//! that of `recopy` as the stop found it. Mis-speculations are found by content: `cow` knows
//! the digest of every piece at the consistent point and hashes every piece that it copies, and `recopy`
//! copies whatever has another digest in the stop than what it has copied ahead. A capture that was
//! overtaken by a mis-speculation gives no image: [`Outcome::Overtaken`].

mod aside;
mod begin;
mod checker;
mod conductor;
mod cost;
mod first_use;
mod map;
mod outcome;
mod pool;
mod purpose;
mod ready;
mod reference;
mod run;
mod shared;
mod stopped;
mod teach;
mod timeline;
mod tools;
mod validation;
mod watch;

pub use self::begin::{begin, begin_ahead};
pub use self::outcome::{Ahead, Image, Outcome};
pub use self::ready::{Prepared, Sketch, Wish, prepare, sketch};
pub use self::run::Capture;
