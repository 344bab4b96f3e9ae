//! The driver library a program sees: it forwards every call to the worker.
//!
//! ```text
//!   program ─► api ─► entry (gate, panic guard) ─► context, module, stream, copy, launch ... ─► link ─► ring
//!                                                          │
//!   daemon ◄─► agent ─► quiesce, detach, reattach ─────────┘
//! ```
//! The library has no driver state: handles are numbers made here, device addresses belong to the worker.
//! It does nothing before `cuInit`, prints nothing, and has no thread but its agent (and one that runs
//! host callbacks, if the program uses them).
mod agent;
mod alloc;
mod api;
mod args;
mod array;
mod begin;
mod boxes;
mod callback;
mod capture;
mod context;
mod copy;
mod devices;
mod ending;
mod entry;
mod event;
mod exact;
mod fault;
mod fork;
mod gate;
mod graphs;
mod handles;
mod hello;
mod host;
mod image;
mod launch;
mod link;
mod lower;
mod managed;
mod mapped;
mod mask;
mod mipmap;
mod mirror;
mod module;
mod modules;
mod notice;
mod occupancy;
mod physical;
mod pool;
mod quiesce;
mod quiet;
mod recent;
mod recent_functions;
mod reference;
mod restart;
mod result;
mod session;
mod shared;
mod signal;
mod source;
mod stream;
mod tables;
mod tally;
mod teardown;
mod texture;
mod threads;
mod wake;
