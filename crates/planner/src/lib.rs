//! Checkpoint intervals, waste, collaborative schedules and their simulation.
//!
//! Pure functions over plain numbers: no I/O, no clock, no randomness beyond a seed that the caller
//! gives. Sizes are bytes, rates bytes per second, times seconds.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod greedy;
pub mod interval;
pub mod min_time;
pub mod model;
pub mod optimum;
pub mod simulate;
pub mod topology;
pub mod trace;

pub use model::{Destination, Problem, ProblemError, Schedule, Topology, Transfer};
