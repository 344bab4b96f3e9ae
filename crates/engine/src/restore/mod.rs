//! From an image to a session that can run.
//!
//! ```text
//!  read and check ─► does this host suit? ─► objects, in the order they depend on each other ─► content
//! ```
//! Nothing is made before everything has been checked that can be.

mod check;
mod content;
mod objects;

use std::path::Path;
use std::time::Instant;

use fermata_store::Store;

use crate::{EngineError, Live, Progress, Site, Summary, files};

/// Rebuilds the session in `image`, whose content is in `store`, in a process that has served nobody.
///
/// # Errors
/// [`EngineError`]; the process is then good for nothing but to end.
pub fn load(
    live: Live,
    store: &Store,
    image: &Path,
    progress: Progress<'_>,
) -> Result<(Site, Summary), EngineError> {
    let start = Instant::now();
    let (session, table) = files::load(image)?;
    check::table(&session, &table)?;
    check::host(&session, &live.driver)?;
    let mut site = Site { session, live };
    objects::rebuild(&mut site)?;
    let chunks = content::fill(&mut site, store, &table, progress)?;
    let summary = Summary {
        chunks,
        seconds: start.elapsed().as_secs_f64(),
        ..Summary::of(&site.session)
    };
    Ok((site, summary))
}
