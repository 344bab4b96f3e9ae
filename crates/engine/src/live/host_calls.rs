//! Host callbacks of graphs: the functions that host nodes call.

use std::sync::Arc;

use fermata_device::HostFn;
use parking_lot::Mutex;

use super::handles::HandleMap;

/// Runs a host callback of the program by its id, and returns when it has run. Called on threads of the driver.
pub type HostCaller = Arc<dyn Fn(u64) + Send + Sync>;

/// The functions that host nodes call, by the callback's id. They live as long as the process, because a graph may run at
/// any time. There is one per callback, however often graphs with it are made or updated.
#[derive(Default)]
pub(crate) struct HostCalls(Mutex<HandleMap<u64, &'static HostFn>>);

impl HostCalls {
    pub(super) fn of(&self, caller: &HostCaller, id: u64) -> &'static HostFn {
        let mut calls = self.0.lock();
        let make = || -> &'static HostFn {
            let caller = Arc::clone(caller);
            let call: HostFn = Box::new(move || caller(id));
            Box::leak(Box::new(call))
        };
        calls.entry(id).or_insert_with(make)
    }
}
