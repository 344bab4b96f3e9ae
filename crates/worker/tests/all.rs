//! All tests of worker processes, in one executable: what one waits for, another one uses, and they are linked once. A file
//! is a module: `cargo test -p fermata-worker --test all images::`.
#![allow(clippy::unwrap_used)]

mod answers;
mod behind;
mod broken_link;
mod cache;
mod capture;
mod common;
mod contexts;
mod costs;
mod deferred;
mod descriptors;
mod freed;
mod images;
mod lost;
mod operations;
mod places;
mod pointers;
mod pressure;
mod queued;
mod queues;
mod references;
mod session;
mod shared_events;
mod tier;
mod tier_turns;
mod trace;
mod unharmed;
mod variables;
