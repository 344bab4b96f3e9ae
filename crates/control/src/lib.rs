//! Versioned control messages over Unix sockets, and their client.
//!
//! Conversations, each a stream of frames (little-endian `u32` length, then JSON; descriptors
//! travel with the frame that announces them):
//!
//! ```text
//!  fermata (CLI) ── user ──► fermatad ── worker ──► fermata-worker
//!                               ▲ ▲────────── common ────── its restores
//!                               └────── agent ───── the library in the program
//! ```
//! A peer's bytes are hostile: lengths are bounded, unknown fields ignored, unknown messages refused.
#![deny(unsafe_code)]

pub mod agent;
pub mod common;
mod credentials;
mod error;
pub mod foreign;
mod frame;
pub mod letter;
mod memory;
mod paths;
mod pause;
pub mod printed;
pub mod privileges;
pub mod program;
pub mod settings;
mod spare;
pub mod text;
pub mod trace;
mod trust;
pub mod user;
pub mod wait;
pub mod worker;

pub use error::ControlError;
pub use fermata_terms::Choice;
pub use frame::{Connection, MAX_FDS, MAX_FRAME};
pub use paths::Paths;
pub use trust::{TrustError, check_socket, private_folder};

/// Version of all conversations; the first message of each side carries it.
pub const PROTOCOL: u32 = 2;
