//! The parts that all protocols use, and `stop`. All protocols give the same image of the same moment.

mod engines;
mod pieces;
pub mod stop;

pub(crate) use engines::Engines;
pub(crate) use pieces::{Piece, Source, pieces, variable_pieces};
