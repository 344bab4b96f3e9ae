//! Ways to make an image of a session. All give the same image for the same moment.

mod engines;
mod pieces;
pub mod stop;

pub(crate) use engines::Engines;
pub(crate) use pieces::{Piece, Source, pieces, variable_pieces};
