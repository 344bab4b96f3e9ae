//! The descriptor by which code refers to a function: address of the compiled code (0 if not compiled), and its shape.

/// Bytes per descriptor.
pub const SIZE: u64 = 16;

/// The second word: numbers of return parameters and parameters.
pub fn shape(returns: usize, params: usize) -> u64 {
    (returns as u64) << 32 | params as u64
}

/// A variable that no PTX can name, in place of the functions whose address may be taken.
pub const FUNCTIONS: &str = "%functions";
