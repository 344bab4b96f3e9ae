//! The worker's preparation thread: makes staging buffers, and keeps the registered memory tier up to date.
//!
//! Every worker starts it, with or without a tier, before the driver makes anything for a program, and waits until it has
//! all its memory: where the kernel puts later mappings must not depend on it (see `layout`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fermata_device::{ContextHandle, Driver};
use fermata_engine::{SpareStaging, Tier};
use fermata_store::{Store, copied_packs};

/// How often the store is looked at.
const TURN: Duration = Duration::from_millis(250);

/// The worker's handle of the thread, which lives as long as the process.
pub(crate) struct Keeper {
    orders: Sender<Order>,
}

/// Where packs are that a tier keeps registered.
#[derive(Default)]
pub(crate) struct Folders {
    /// A store in memory.
    pub store: Option<PathBuf>,
    /// Copies of packs of other stores.
    pub copies: Option<PathBuf>,
}

enum Order {
    Keep(Arc<Tier>, Folders),
    Pin(SpareStaging, Arc<Driver>, ContextHandle),
}

impl Keeper {
    /// Starts the thread, which waits for orders.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start() -> std::io::Result<Self> {
        let (orders, inbox) = channel();
        let (ready, is_ready) = channel();
        std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || {
                // Makes the allocator set up this thread's arena now.
                let _ = ready.send(Box::new([0u8; 64]));
                keep(&inbox);
            })?;
        // The thread does not end before it has sent this.
        let _ = is_ready.recv();
        Ok(Self { orders })
    }

    /// Keeps `tier` up to date with what is in `folders`, from now on.
    pub fn keep(&self, tier: Arc<Tier>, folders: Folders) {
        // The thread lives as long as this end.
        let _ = self.orders.send(Order::Keep(tier, folders));
    }

    /// Makes `staging` in `context`.
    pub fn pin(&self, staging: SpareStaging, driver: Arc<Driver>, context: ContextHandle) {
        // As above.
        let _ = self.orders.send(Order::Pin(staging, driver, context));
    }
}

/// A tier, the folders of its packs, and the store once it is there.
struct Kept {
    tier: Arc<Tier>,
    folders: Folders,
    store: Option<Store>,
}

impl Kept {
    /// Whether there is more to do at once.
    fn refresh(&mut self) -> bool {
        // The store's folder may not exist yet.
        if let (None, Some(folder)) = (&self.store, &self.folders.store) {
            self.store = Store::open(folder, false).ok();
        }
        let store = self.store.as_ref();
        let mut files = store.map_or_else(|| Ok(Vec::new()), Store::pack_files);
        if let (Ok(files), Some(folder)) = (&mut files, &self.folders.copies) {
            files.extend(copied_packs(folder));
        }
        self.tier.refresh(files)
    }
}

fn keep(inbox: &Receiver<Order>) {
    let mut kept: Option<Kept> = None;
    loop {
        let order = match &mut kept {
            Some(kept) => {
                let more = kept.refresh();
                inbox.recv_timeout(if more { Duration::ZERO } else { TURN })
            }
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match order {
            Ok(Order::Keep(tier, folders)) => {
                kept = Some(Kept {
                    tier,
                    folders,
                    store: None,
                });
            }
            Ok(Order::Pin(staging, driver, context)) => {
                // If this fails, a save makes the buffers that it needs.
                let _ = staging.make(&driver, context);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
