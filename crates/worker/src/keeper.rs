//! The thread that keeps the registered memory tier up to date.
//!
//! It is started before the driver makes anything for a program and has all it needs by then, in every
//! worker, tier or not: where the kernel puts later mappings must not depend on it (see `layout`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fermata_engine::Tier;
use fermata_store::Store;

/// How often the store is looked at.
const TURN: Duration = Duration::from_millis(250);

/// The thread's end in the worker; it ends with the worker's process.
pub(crate) struct Keeper {
    orders: Sender<(Arc<Tier>, PathBuf)>,
}

impl Keeper {
    /// Starts the thread, which waits.
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> std::io::Result<Self> {
        let (orders, inbox) = channel();
        let (ready, is_ready) = channel();
        std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || {
                // Its share of the heap is made now.
                let _ = ready.send(Box::new([0u8; 64]));
                keep(&inbox);
            })?;
        // It cannot end before it has said so.
        let _ = is_ready.recv();
        Ok(Self { orders })
    }

    /// Keeps `tier` up to date with the store in `store`, from now on.
    pub fn keep(&self, tier: Arc<Tier>, store: PathBuf) {
        // The thread lives as long as this end.
        let _ = self.orders.send((tier, store));
    }
}

fn keep(inbox: &Receiver<(Arc<Tier>, PathBuf)>) {
    let Ok((mut tier, mut folder)) = inbox.recv() else {
        return;
    };
    let mut store = None;
    loop {
        // It may not have been made yet.
        if store.is_none() {
            store = Store::open(&folder, false).ok();
        }
        if let Some(store) = &store {
            tier.refresh(store);
        }
        match inbox.recv_timeout(TURN) {
            Ok(order) => {
                (tier, folder) = order;
                store = None;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
