//! The restore of a session that an earlier daemon has restored, for its rollback.

use std::path::Path;
use std::sync::Arc;

use fermata_control::user::{Restore, Text};
use fermata_control::worker::LoadCheck;

use super::source::Source;
use crate::daemon::Daemon;
use crate::failure::Result;
use crate::session::Session;

impl Source {
    /// The source of a session that an earlier daemon has restored.
    ///
    /// # Errors
    /// The image is gone or damaged, or this host lacks something.
    pub(crate) fn of_session(
        daemon: &Arc<Daemon>,
        session: &Session,
        image: &Path,
    ) -> Result<Self> {
        let mut source = Self::open(daemon, &request(session, image), None)?;
        source.found = true;
        Ok(source)
    }
}

/// The request that restores the session once more, as it was restored before.
fn request(session: &Session, image: &Path) -> Restore {
    Restore {
        image: Text::from(image.as_os_str()),
        name: Some(session.name.clone()),
        device: session.device,
        copies: 1,
        eager: true,
        order: Default::default(),
        check: LoadCheck::Off,
        ignore_changed_files: true,
        ignore_places: true,
        // The image was trusted when the session was restored.
        trust_owner: true,
        own_network: session.own_network,
        leased: false,
        priority: Some(session.priority),
        // The driver of a foreign program finds the GPUs.
        gpus: session.gpus.clone().filter(|_| !session.foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::scene;
    use crate::session::Plan;

    #[test]
    fn a_rollback_after_a_restart_keeps_the_gpus_that_the_user_named() {
        let folder = tempfile::tempdir().expect("a folder");
        for (foreign, gpus) in [(false, Some("1,0")), (true, None)] {
            let plan = Plan {
                gpus: Some("1,0".to_owned()),
                foreign,
                ..scene::plan("x".to_owned(), folder.path().join("x"))
            };
            let session = Session::new(plan).expect("made");
            let request = request(&session, Path::new("/images/x"));
            assert_eq!(request.gpus.as_deref(), gpus);
        }
    }
}
