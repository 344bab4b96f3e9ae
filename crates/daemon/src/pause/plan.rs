//! Chooses the place for the data of a session that is about to be paused, and checks the space there.

use std::path::Path;

use fermata_control::user::{PausedData, Text};
use fermata_control::worker::{FailureKind, Totals};
use fermata_store::image::unix_now;
use fermata_store::{FreeSpace, is_memory};

use crate::checkpoint::newest;
use crate::daemon::Daemon;
use crate::failure::{Hint, OrFail, Result, fail};
use crate::pause::data::Entry;
use crate::session::{Session, token};

/// The folder for shared memory.
const MEMORY: &str = "/dev/shm";
/// Names of entries outside the store of images begin with this.
const PREFIX: &str = "fermata-paused";
/// Space for everything but chunks.
const MARGIN: u64 = 16 << 20;

impl Entry {
    /// An entry for `session` in folder `to`, or in host memory. Its folder is not made yet.
    ///
    /// # Errors
    /// `User`: the folder cannot be one.
    pub fn plan(daemon: &Daemon, session: &Session, to: Option<&Text>) -> Result<Self> {
        let unique = token().or_fail(FailureKind::Internal, || "cannot make a name".into())?;
        let unique = format!("{}-{}", session.name, &unique[..12]);
        let folder = match to {
            Some(folder) => {
                let folder = folder.to_path();
                if !folder.is_absolute() || !folder.is_dir() {
                    let message = format!("`{}` is not a folder", folder.display());
                    return Err(fail(FailureKind::User, message)
                        .hint("make it, and give it as an absolute path"));
                }
                folder.join(format!("{PREFIX}-{unique}"))
            }
            None if is_memory(&daemon.paths.images) => daemon.store()?.paused_dir().join(unique),
            None => {
                let user = rustix::process::geteuid().as_raw();
                Path::new(MEMORY).join(format!("{PREFIX}-{user}-{unique}"))
            }
        };
        let data = PausedData {
            in_memory: is_memory(&folder),
            folder,
            device_bytes: 0,
            host_bytes: 0,
            written_bytes: 0,
            since: unix_now(),
        };
        Ok(Self {
            data,
            complete: false,
            parts: Vec::new(),
            totals: Totals::default(),
            devices: Vec::new(),
        })
    }

    /// Refuses if `bytes` do not fit there. If the session has an image in the store in which the entry lies, most of them may be there
    /// already: if the space is used up nevertheless, the pause fails.
    ///
    /// # Errors
    /// `User`, with the numbers.
    pub fn check_room(&self, daemon: &Daemon, session: &Session, bytes: u64) -> Result<()> {
        let folder = &self.data.folder;
        let store = daemon.paths.store();
        let with_images = folder.starts_with(&store);
        let ready = daemon.tier.as_ref().map_or(0, |tier| tier.ready_bytes());
        let ready = if with_images { ready } else { 0 };
        let needed = (bytes + MARGIN).saturating_sub(ready);
        let free = FreeSpace::of(folder).map_or(u64::MAX, |it| it.bytes);
        if needed <= free || with_images && has_image(daemon, session) {
            return Ok(());
        }
        let what = match self.data.in_memory {
            true => "of host memory",
            false => "of disk",
        };
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let message = format!(
            "session `{}` cannot be paused: its data needs up to {} MiB {what} for `{}`, where {} MiB are left",
            session.name,
            mib(needed),
            folder.display(),
            mib(free)
        );
        Err(fail(FailureKind::User, message)
            .hint("free some, or name a folder with more room: `fermata pause --to FOLDER`"))
    }
}

/// Whether the session was restored from an image in the daemon's folder of images, or has one there.
fn has_image(daemon: &Daemon, session: &Session) -> bool {
    let images = &daemon.paths.images;
    let of_restore = session.image.as_ref();
    of_restore.is_some_and(|it| it.starts_with(images) && it.exists())
        || newest(&[images], session).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::scene;
    use crate::proc::ProcessId;

    #[test]
    fn an_entry_is_made_once_and_removed_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let to: Text = folder.path().into();
        let entry = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        assert!(!entry.data.folder.exists() && entry.data.folder.starts_with(folder.path()));
        entry.remove().expect("nothing is there");
        let made = entry.make(2).expect("made");
        assert_eq!(made.parts.len(), 2);
        entry.make(2).expect_err("it is there");
        let unwritten = entry.clone().complete(&made, &[], Default::default());
        assert!(unwritten.expect("no part, nothing missing").complete);
        let process = ProcessId::of(std::process::id()).expect("it runs");
        let missing = entry
            .clone()
            .complete(&made, &[(process, true)], Default::default());
        missing.expect_err("its part is empty");
        let other = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        assert_ne!(other.data.folder, entry.data.folder);
        entry.remove().expect("removed");
        assert!(!entry.data.folder.exists());
        session.ended(None);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let to: Text = folder.path().into();
        let entry = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        entry.check_room(&daemon, &session, 1).expect("it fits");
        let refused = entry.check_room(&daemon, &session, 1 << 60);
        assert!(refused.expect_err("too much").hint.contains("--to"));
        let relative = Entry::plan(&daemon, &session, Some(&"somewhere".into()));
        relative.expect_err("not absolute");
        session.ended(None);
    }
}
