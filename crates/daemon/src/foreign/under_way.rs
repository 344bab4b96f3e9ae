//! Which foreign programs are being checkpointed: of processes that one tree has in common with another, one checkpoint at a time.

use std::sync::Arc;

use fermata_control::worker::FailureKind;
use parking_lot::Mutex;

use crate::failure::{Hint as _, Result, fail};
use crate::proc;

/// The first processes of the trees that are being checkpointed.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnderWay(Arc<Mutex<Vec<u32>>>);

/// One of them, until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    root: u32,
    of: UnderWay,
}

impl UnderWay {
    /// Claims the tree below `root`.
    ///
    /// # Errors
    /// `Locked`: processes of it are being checkpointed.
    pub(super) fn claim(&self, root: u32) -> Result<Claim> {
        let mut roots = self.0.lock();
        let above = proc::ancestors(root);
        let overlaps = |it: &&u32| above.contains(it) || proc::ancestors(**it).contains(&root);
        if let Some(other) = roots.iter().find(overlaps) {
            let message = format!(
                "process {other} ({}) is being checkpointed",
                proc::name_of(*other)
            );
            return Err(fail(FailureKind::Locked, message).hint("try again when that has ended"));
        }
        roots.push(root);
        Ok(Claim {
            root,
            of: self.clone(),
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.0.lock().retain(|it| *it != self.root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::scene::sleeper;

    #[test]
    fn trees_that_overlap_are_checkpointed_one_after_the_other() {
        let mut children = [sleeper(), sleeper()];
        let [one, other] = [children[0].id(), children[1].id()];
        let own = std::process::id();
        let all = UnderWay::default();
        let refused = |root| all.claim(root).map(drop).map_err(|it| it.kind);
        let claim = all.claim(one).expect("free");
        assert_eq!(refused(one), Err(FailureKind::Locked), "the same");
        assert_eq!(refused(own), Err(FailureKind::Locked), "one above it");
        assert_eq!(refused(other), Ok(()), "one beside it");
        drop(claim);
        let claim = all.claim(own).expect("free");
        assert_eq!(refused(one), Err(FailureKind::Locked), "one below it");
        drop(claim);
        assert_eq!(refused(one), Ok(()));
        for child in &mut children {
            child.kill().expect("killed");
            child.wait().expect("waited");
        }
    }
}
