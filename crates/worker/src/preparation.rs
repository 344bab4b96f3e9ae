//! The thread that makes ready beside: staging buffers, and the registered memory tier, kept up to date.
//!
//! It is started before the driver makes anything for a program and has all it needs by then, in every
//! worker, tier or not: where the kernel puts later mappings must not depend on it (see `layout`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fermata_device::{ContextHandle, Driver};
use fermata_engine::{SpareStaging, Tier};
use fermata_store::{Store, copied_packs};

/// How often the store is looked at.
const TURN: Duration = Duration::from_millis(250);

/// The thread's end in the worker; it ends with the worker's process.
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
        // It may not have been made yet.
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
                // A save that needs buffers that are not there makes some.
                let _ = staging.make(&driver, context);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
