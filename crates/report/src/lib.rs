//! What Fermata measures and plans, as text: tables, plots, pages and traces.
//!
//! | module | draws |
//! | --- | --- |
//! | `page`, `trace_events` | how an image was taken or a session restored, from its `story` |
//! | `breakdown` | what the time of a checkpoint or restore went into |
//! | `heat_map`, `predictions` | which memory a program's operations touched, and what was predicted |
//! | `figures` | the evaluation of the planner |
//! | `svg`, `table`, `units` | what the others are made of |
//!
//! Every function makes text from records; none reads or writes a file, and none prints.
#![forbid(unsafe_code)]

pub mod breakdown;
pub mod figures;
pub mod heat_map;
pub mod page;
pub mod predictions;
pub mod story;
pub mod svg;
pub mod table;
pub mod trace_events;
pub mod units;
