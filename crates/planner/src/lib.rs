//! Checkpoint intervals, waste, collaborative schedules and their simulation.
