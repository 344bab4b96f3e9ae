//! All tests of the application library in one executable: while one waits for a disk or a link another runs. The tests of one file:
//! `cargo test -p fermata-app --test all replicas::`.
#![allow(clippy::unwrap_used)]

mod common;
mod device;
mod erasure;
mod full;
mod kept;
mod large;
mod objects;
mod ranks;
mod replicas;
mod rooms;
mod session;
mod together;
