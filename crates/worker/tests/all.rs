//! All tests of worker processes in one executable: it is linked once, and while one test waits another runs. The tests of one
//! file: `cargo test -p fermata-worker --test all images::`.
#![allow(clippy::unwrap_used)]

mod answers;
mod arrays;
mod behind;
mod broken_link;
mod cache;
mod capture;
mod common;
mod common_memory;
mod conditional;
mod contexts;
mod costs;
mod deferred;
mod descriptors;
mod first_use;
mod freed;
mod graph_batches;
mod greens;
mod images;
mod lost;
mod operations;
mod places;
mod pointers;
mod pressure;
mod queued;
mod queued_graphs;
mod queues;
mod references;
mod session;
mod shared_events;
mod tier;
mod tier_turns;
mod trace;
mod unharmed;
mod variables;
