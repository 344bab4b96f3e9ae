//! Removes the folders of sessions.

use std::path::Path;
use std::time::Duration;

use crate::failure::Result;
use crate::folder_removal::remove_all;
use crate::session::output;

/// How long the last writer into the folder of a session that has ended may take.
const LAST_WRITES: Duration = Duration::from_secs(30);

/// Removes the folder of a session or one in it, if it is there.
///
/// # Errors
/// The system refuses.
pub fn remove_folder(dir: &Path) -> Result<()> {
    output::displace(dir);
    // A helper of the session may still be writing its last lines.
    remove_all(dir, LAST_WRITES)
}
