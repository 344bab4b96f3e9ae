//! PTX: parser, syntax tree, printer, analyses; and the fat binary container it travels in.
//!
//! Text goes in, a tree comes out. Nothing here knows what an instruction does: opcode, modifiers
//! and operands are kept as written, so that text of a newer toolkit still parses. Input is hostile:
//! every failure is an error, never a panic, and depth and size are bounded.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod ast;
pub mod excerpt;
pub mod fatbin;
mod lexer;
pub mod link;
mod parser;
pub mod passes;
mod printer;

pub use lexer::words;
pub use parser::{ParseError, parse};
