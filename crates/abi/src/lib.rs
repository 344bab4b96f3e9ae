//! CUDA driver types, the API table and the operations that travel from program to worker.
//!
//! This crate has no code that runs on a GPU and no I/O: it is facts, plain data, and the checked pointers ([`args`]) that
//! both of Fermata's driver libraries take from programs.
pub mod args;
pub mod handle;
pub mod narrow;
pub mod op;
pub mod references;
pub mod sys;
pub mod table;

/// The undocumented table of the driver that tells where multiprocessors lie, which both sides of the ring name.
pub const PLACES_TABLE: [u8; 16] = [
    0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca,
];
