//! Ends workers of the pool on threads of their own, because a driver needs seconds to release its contexts.

use std::sync::Arc;

use crate::worker::Worker;

/// Ends workers, in the background.
pub(super) fn end_beside(workers: Vec<Arc<Worker>>) {
    if workers.is_empty() {
        return;
    }
    let end = move || workers.iter().for_each(|it| it.end());
    let named = std::thread::Builder::new().name("pool-end".into());
    if named.spawn(end.clone()).is_err() {
        end();
    }
}
