//! A variable and the memory it is in.

use crate::gpu::Place;
use crate::variable::Variable;

/// A variable and where it is.
pub(crate) struct Target {
    pub(crate) variable: Variable,
    pub(crate) place: Place,
}

impl Target {
    /// Its blocks: offset and length.
    pub(crate) fn blocks(&self, block: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let bytes = self.variable.memory.bytes();
        (0..bytes.div_ceil(block)).map(move |i| (i * block, block.min(bytes - i * block)))
    }
}
