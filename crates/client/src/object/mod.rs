//! The program's CUDA objects: a table for each kind, and the [`session`] that holds all tables. No table uses the session.

pub mod array;
pub mod context;
pub mod copy;
pub mod devices;
pub mod event;
pub mod graph_memory;
pub mod exchange;
pub mod graphs;
pub mod host;
pub mod managed;
pub mod mipmap;
pub mod mirror;
pub mod module;
pub mod modules;
pub mod occupancy;
pub mod physical;
pub mod pool;
pub mod recent;
pub mod recent_functions;
pub mod reference;
pub mod session;
pub mod shared;
pub mod shared_mapping;
pub mod stream;
pub mod texture;
pub mod user_objects;
