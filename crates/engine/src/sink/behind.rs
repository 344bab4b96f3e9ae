//! The last part of a save: it needs no device, and runs while the program does.

use fermata_store::Totals;

use super::order::Chunks;
use super::work::Team;
use crate::EngineError;
use crate::tier::Quiet;

/// A closed sink. Dropped before [`Behind::finish`] it leaves nothing in the store.
pub(crate) struct Behind {
    team: Team,
    /// What is registered meanwhile would take time of the driver's, and so of a pause.
    _quiet: Option<Quiet>,
}

/// What has been saved.
pub(crate) struct Saved {
    /// The image's chunks.
    pub chunks: Chunks,
    /// What that took.
    pub totals: Totals,
}

impl Behind {
    pub(super) fn new(team: Team, quiet: Option<Quiet>) -> Self {
        Self {
            team,
            _quiet: quiet,
        }
    }

    /// Waits until every chunk is hashed and written, and publishes them. Blocks; any thread may call it.
    ///
    /// # Errors
    /// A write failed, or [`EngineError::Changed`]; the store then holds nothing new.
    pub fn finish(self) -> Result<Saved, EngineError> {
        let (writer, chunks) = self.team.end()?;
        // Chunks of pieces that were taken again since belong to no image.
        writer.keep_only(&chunks.values().map(|(_, id)| *id).collect());
        Ok(Saved {
            chunks,
            totals: writer.finish()?,
        })
    }
}
