//! The right to work on a session, which one checkpoint, pause or resume has at a time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_control::worker::FailureKind;
use parking_lot::MutexGuard;

use crate::failure::{Hint, Result, fail};
use crate::session::Session;

/// How often an image is tried of a session whose processes come and go.
pub(crate) const ATTEMPTS: u32 = 10;
/// How long the worker of a program that makes its first CUDA call may take.
const ATTACH_TIME: Duration = Duration::from_secs(60);

/// The right to work on a session, held while it is checkpointed or paused.
pub(crate) struct Turn<'s> {
    session: &'s Session,
    _busy: MutexGuard<'s, ()>,
}

impl<'s> Turn<'s> {
    /// A checkpoint under way is told at once; a session that is still starting is waited for.
    ///
    /// # Errors
    /// `Locked`.
    pub(crate) fn take(session: &'s Session) -> Result<Self> {
        let end = Instant::now() + ATTACH_TIME;
        let busy = loop {
            if let Some(busy) = session.busy.try_lock_for(Duration::from_millis(20)) {
                break busy;
            }
            let what = match session.checkpointing.load(Ordering::Acquire) {
                true => "is being checkpointed, paused or resumed",
                false if Instant::now() >= end => "is still starting",
                false => continue,
            };
            let message = format!("session `{}` {what}", session.name);
            return Err(fail(FailureKind::Locked, message).hint("try again when that has ended"));
        };
        session.checkpointing.store(true, Ordering::Release);
        Ok(Self {
            session,
            _busy: busy,
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.session.checkpoint_is_over();
    }
}
