//! Contexts: the table of all, the current one of each thread, and the reference counts of primary ones.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use fermata_abi::op::{ContextId, GreenId, Op, SmResource, StreamId, StreamRef};
use fermata_abi::sys::driver::{
    CU_CTX_FLAGS_MASK, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT,
    CUDA_ERROR_UNKNOWN, CUcontext, CUdevice,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::handles::{self, Table};
use crate::link;
use crate::link::fault;
use crate::object::devices::Devices;
use crate::result::Result;
use crate::thread::{exit, gate};

/// A context.
#[derive(Debug)]
pub struct Context {
    /// Its handle; of a green context, that of its primary context, with which it shares all but streams.
    pub handle: ContextId,
    /// What makes it a green context.
    pub green: Option<Green>,
    /// Ordinal of its device among the visible ones.
    pub device: CUdevice,
    /// Whether it is the device's primary context.
    pub primary: bool,
    /// `CUctx_flags`.
    pub flags: AtomicU32,
    alive: AtomicBool,
    /// `cuCtxGetId`: another one each time a primary context is made.
    id: AtomicU64,
    /// Holders by `cuCtxAttach`.
    attached: AtomicU32,
    /// A stream in which the events are waited for that all later work of the context waits for.
    gate: Mutex<Option<StreamRef>>,
}

/// What makes a context a green one.
#[derive(Debug)]
pub struct Green {
    /// Its name as a context, which the worker knows.
    pub name: ContextId,
    /// Its name as a green context.
    pub handle: GreenId,
    /// The primary context of its device.
    pub home: Arc<Context>,
    /// Its multiprocessors.
    pub resource: SmResource,
    /// Its default stream.
    pub default: StreamId,
}

/// All contexts.
#[derive(Debug, Default)]
pub struct Contexts {
    table: Table<ContextId, Context>,
    primaries: Mutex<Vec<Primary>>,
    /// Notified when a primary context has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Primary {
    context: Option<Arc<Context>>,
    holders: u32,
    flags: u32,
    /// The thread that is ending it.
    ending: Option<i32>,
    /// How often a thread has begun to wait for that.
    #[cfg(test)]
    waits: u32,
}

/// While this lives, a primary context is being ended, and other threads that retain it wait.
pub struct Ending<'c> {
    contexts: &'c Contexts,
    device: usize,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.contexts.primaries.lock()[self.device].ending = None;
        self.contexts.ended.notify_all();
    }
}

thread_local! {
    /// Without a destructor, so that destructors of the program can use it; see `ending`.
    static STACK: ManuallyDrop<RefCell<Vec<Arc<Context>>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Calls `act` with the context that is current to the thread.
#[inline(always)]
pub fn with_current<T>(act: impl FnOnce(&Arc<Context>) -> Result<T>) -> Result<T> {
    STACK.with(|stack| {
        let stack = stack.try_borrow().map_err(|_| CUDA_ERROR_UNKNOWN)?;
        let context = stack.last().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        context.check()?;
        act(context)
    })
}

/// Changes the thread's stack. Fails in a signal handler that has interrupted a call which uses it.
fn change<T>(act: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> Result<T> {
    STACK.with(|stack| {
        let mut stack = stack.try_borrow_mut().map_err(|_| CUDA_ERROR_UNKNOWN)?;
        let done = act(&mut stack);
        fault::set_current(stack.last().map(|context| context.handle));
        Ok(done)
    })
}

/// The context that is current to the thread.
pub fn current() -> Result<Arc<Context>> {
    with_current(|context| Ok(context.clone()))
}

/// As [`current`], but `None` if there is none.
pub fn current_or_none() -> Option<Arc<Context>> {
    STACK.with(|stack| stack.try_borrow().ok()?.last().cloned())
}

/// The current context as the API names it, null if there is none.
#[inline]
pub fn current_pointer() -> CUcontext {
    STACK.with(|stack| {
        let stack = stack.try_borrow().ok();
        let context = stack.as_ref().and_then(|stack| stack.last());
        context.map_or(std::ptr::null_mut(), |context| context.pointer())
    })
}

/// Pushes `context` onto the thread's stack, which makes it current.
pub fn push(context: Arc<Context>) -> Result {
    change(|stack| stack.push(context))
}

/// Pops the current context off the thread's stack.
pub fn pop() -> Result<Arc<Context>> {
    change(Vec::pop)?.ok_or(CUDA_ERROR_INVALID_CONTEXT)
}

/// Replaces the current context; `None` only pops it.
pub fn set_current(context: Option<Arc<Context>>) -> Result {
    change(|stack| {
        stack.pop();
        stack.extend(context);
    })
}

/// Empties the stack of a thread that ends.
pub fn let_go() {
    let stack = change(std::mem::take);
    drop(stack);
}

impl Context {
    fn new(
        handle: ContextId,
        device: CUdevice,
        primary: bool,
        flags: u32,
        alive: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            handle,
            green: None,
            device,
            primary,
            flags: AtomicU32::new(flags),
            alive: AtomicBool::new(alive),
            id: AtomicU64::new(handle.raw()),
            attached: AtomicU32::new(0),
            gate: Mutex::default(),
        })
    }

    /// Its handle as the API's type.
    pub fn pointer(&self) -> CUcontext {
        handles::to_pointer(self.name())
    }

    /// What it goes by where a green context is told from its primary one: in the API, and as the context of a kernel in a
    /// graph.
    pub fn name(&self) -> ContextId {
        self.green.as_ref().map_or(self.handle, |green| green.name)
    }

    /// The context that objects are in which are made while this one is current.
    pub fn home(self: &Arc<Self>) -> &Arc<Self> {
        self.green.as_ref().map_or(self, |green| &green.home)
    }

    /// The stream in which all later work of the context waits for events; `make` makes it for the first event.
    pub fn gate(&self, make: impl FnOnce() -> Result<StreamRef>) -> Result<StreamRef> {
        let mut gate = self.gate.lock();
        match *gate {
            Some(gate) => Ok(gate),
            None => Ok(*gate.insert(make()?)),
        }
    }

    /// The streams that a new stream of the context waits for.
    pub fn gates(&self) -> impl Iterator<Item = StreamRef> {
        let home = self.green.as_ref().and_then(|it| *it.home.gate.lock());
        let own = *self.gate.lock();
        home.into_iter().chain(own)
    }

    /// A context without a worker.
    #[cfg(test)]
    pub fn for_test() -> Arc<Self> {
        Self::new(handles::fresh(), 0, false, 0, true)
    }

    /// Adds a holder, see [`Contexts::detach`].
    pub fn attach(&self) {
        self.attached.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether it has not been destroyed.
    #[inline]
    pub fn check(&self) -> Result {
        if self.alive.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(CUDA_ERROR_CONTEXT_IS_DESTROYED)
        }
    }
}

impl Contexts {
    /// The living context behind a handle; a null handle is the current one.
    pub fn get(&self, context: CUcontext) -> Result<Arc<Context>> {
        if context.is_null() {
            return current();
        }
        self.table
            .get(handles::of(context), CUDA_ERROR_INVALID_CONTEXT)
    }

    /// As [`Self::get`], or a primary context that is not active: it can be current, and is of use once it is.
    pub fn get_any(&self, context: CUcontext) -> Result<Arc<Context>> {
        self.get(context).or_else(|error| {
            let primaries = self.primaries.lock();
            let mut primaries = primaries.iter().filter_map(|it| it.context.as_ref());
            let found = primaries.find(|it| it.pointer() == context);
            found.cloned().ok_or(error)
        })
    }

    /// The number of a context, which no other one has. Of a primary context that is not active there is none.
    pub fn id(&self, context: CUcontext) -> Result<u64> {
        let context = self.get_any(context)?;
        context.check()?;
        Ok(context.id.load(Ordering::Relaxed))
    }

    /// A new context, which becomes current.
    pub fn create(&self, devices: &Devices, device: CUdevice, flags: u32) -> Result<Arc<Context>> {
        let context = self.make(devices, handles::fresh(), device, flags, false)?;
        push(context.clone())?;
        Ok(context)
    }

    /// Takes a context that is to be destroyed off the thread's stack. Refuses primary contexts.
    pub fn take_created(&self, context: CUcontext) -> Result<Arc<Context>> {
        let context = self
            .table
            .get(handles::of(context), CUDA_ERROR_INVALID_CONTEXT)?;
        if context.primary || context.green.is_some() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        change(|stack| {
            if stack.last().is_some_and(|top| top.handle == context.handle) {
                stack.pop();
            }
        })?;
        Ok(context)
    }

    /// Removes a holder that `cuCtxAttach` added. Returns whether no such holder was left, so that the context has to end.
    pub fn detach(&self, context: CUcontext) -> Result<bool> {
        let own = current()?;
        if own.pointer() != context {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let less = |holders: u32| holders.checked_sub(1);
        let order = Ordering::AcqRel;
        Ok(own
            .attached
            .fetch_update(order, Ordering::Acquire, less)
            .is_err())
    }

    /// Adds a holder of the primary context, which is created if needed.
    pub fn retain(&self, devices: &Devices, device: CUdevice) -> Result<Arc<Context>> {
        let mut primaries = self.lock_settled(devices, device)?;
        let primary = &mut primaries[device as usize];
        let context = match &primary.context {
            Some(context) if context.check().is_ok() => context.clone(),
            old => {
                let handle = old.as_ref().map_or_else(handles::fresh, |old| old.handle);
                let made = self.make(devices, handle, device, primary.flags, true)?;
                exit::notice();
                // A thread that had the old one current has the new one now, as with the driver.
                old.as_ref().map_or(made, |old| self.revive(old))
            }
        };
        primary.context = Some(context.clone());
        primary.holders += 1;
        Ok(context)
    }

    /// The primary context, which is not created by this: it may be one that has ended, or has not begun yet.
    pub fn primary(&self, devices: &Devices, device: CUdevice) -> Result<Arc<Context>> {
        let mut primaries = self.lock_settled(devices, device)?;
        let primary = &mut primaries[device as usize];
        let flags = primary.flags;
        let inactive = || Context::new(handles::fresh(), device, true, flags, false);
        let context = primary.context.get_or_insert_with(inactive);
        Ok(context.clone())
    }

    /// Removes a holder of the primary context. Returns the context if that was the last, so that it has to end, see
    /// [`Contexts::begin_end`].
    pub fn release(&self, devices: &Devices, device: CUdevice) -> Result<Option<Arc<Context>>> {
        let mut primaries = self.lock(devices);
        devices.get(device)?;
        let primary = &mut primaries[device as usize];
        if primary.holders == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        primary.holders -= 1;
        let is_last = primary.holders == 0;
        Ok(primary.context.clone().filter(|_| is_last))
    }

    /// The primary context, if it is active, which has to end even if it is still retained.
    pub fn reset(&self, devices: &Devices, device: CUdevice) -> Result<Option<Arc<Context>>> {
        let mut primaries = self.lock_settled(devices, device)?;
        let primary = &mut primaries[device as usize];
        primary.holders = 0;
        let context = primary.context.clone();
        Ok(context.filter(|context| context.check().is_ok()))
    }

    /// Whether a primary context is retained.
    pub fn is_held(&self, context: &Context) -> bool {
        let primaries = self.primaries.lock();
        let primary = usize::try_from(context.device).map(|it| primaries.get(it));
        primary.is_ok_and(|it| it.is_some_and(|it| it.holders > 0))
    }

    /// Begins the end of a primary context: its handle is no longer valid, and threads that retain it wait until the end is
    /// complete. `None` if it has ended already, or has been retained again meanwhile and is not ended `anyway`.
    pub fn begin_end(&self, context: &Context, anyway: bool) -> Option<Ending<'_>> {
        let device = usize::try_from(context.device).ok()?;
        let mut primaries = self.primaries.lock();
        let primary = primaries.get_mut(device)?;
        if context.check().is_err() || (primary.holders > 0 && !anyway) {
            return None;
        }
        primary.ending = Some(gate::gettid());
        self.forget(context);
        let contexts = self;
        Some(Ending { contexts, device })
    }

    /// Flags of a primary context and whether it is active.
    pub fn primary_state(&self, devices: &Devices, device: CUdevice) -> Result<(u32, bool)> {
        devices.get(device)?;
        let primaries = self.lock(devices);
        let primary = &primaries[device as usize];
        let active = primary
            .context
            .as_ref()
            .is_some_and(|context| context.check().is_ok());
        Ok((primary.flags, active))
    }

    /// Flags for the primary context.
    pub fn set_primary_flags(&self, devices: &Devices, device: CUdevice, flags: u32) -> Result {
        devices.get(device)?;
        if flags & !CU_CTX_FLAGS_MASK != 0 {
            return Err(fermata_abi::sys::driver::CUDA_ERROR_INVALID_VALUE);
        }
        let mut primaries = self.lock(devices);
        let primary = &mut primaries[device as usize];
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }

    fn lock(&self, devices: &Devices) -> MutexGuard<'_, Vec<Primary>> {
        let mut primaries = self.primaries.lock();
        primaries.resize_with(devices.count(), Primary::default);
        primaries
    }

    /// As `lock`, when no other thread is ending the primary context of the device.
    fn lock_settled(
        &self,
        devices: &Devices,
        device: CUdevice,
    ) -> Result<MutexGuard<'_, Vec<Primary>>> {
        let mut primaries = self.lock(devices);
        devices.get(device)?;
        let other = |thread| thread != gate::gettid();
        while primaries[device as usize].ending.is_some_and(other) {
            #[cfg(test)]
            {
                primaries[device as usize].waits += 1;
            }
            self.ended.wait(&mut primaries);
        }
        Ok(primaries)
    }

    /// Makes a primary context that was reset active again.
    fn revive(&self, old: &Arc<Context>) -> Arc<Context> {
        let id: ContextId = handles::fresh();
        old.id.store(id.raw(), Ordering::Relaxed);
        old.alive.store(true, Ordering::Release);
        self.table.insert(old.handle, old.clone());
        old.clone()
    }

    fn make(
        &self,
        devices: &Devices,
        handle: ContextId,
        device: CUdevice,
        flags: u32,
        primary: bool,
    ) -> Result<Arc<Context>> {
        let index = devices.get(device)?.index;
        let op = Op::ContextCreate {
            context: handle,
            device: index,
            flags,
            primary,
        };
        link::ask(&op, link::nothing)?;
        // A thread may have used the previous context of this handle after its end.
        fault::forget(handle);
        let context = Context::new(handle, device, primary, flags, true);
        self.table.insert(handle, context.clone());
        Ok(context)
    }

    /// Adds a green context.
    pub fn add_green(&self, green: Green) -> Arc<Context> {
        let home = green.home.clone();
        let flags = AtomicU32::new(home.flags.load(Ordering::Relaxed));
        let context = Arc::new(Context {
            handle: home.handle,
            device: home.device,
            primary: false,
            flags,
            alive: AtomicBool::new(true),
            id: AtomicU64::new(green.name.raw()),
            attached: AtomicU32::new(0),
            gate: Mutex::default(),
            green: Some(green),
        });
        self.table.insert(context.name(), context.clone());
        context
    }

    /// Removes a context that has ended from the table.
    pub fn forget(&self, context: &Context) {
        context.alive.store(false, Ordering::Release);
        *context.gate.lock() = None;
        let _ = self
            .table
            .remove(context.name(), CUDA_ERROR_INVALID_CONTEXT);
    }
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::DeviceInfo;

    use super::*;

    fn devices() -> Devices {
        Devices::new(vec![DeviceInfo {
            name: String::new(),
            uuid: [0; 16],
            memory: 0,
            bus_id: String::new(),
            attributes: vec![],
            peers: vec![],
            driver_version: 13000,
        }])
    }

    /// The primary context of a device, with one holder.
    fn held(contexts: &Contexts, devices: &Devices) -> Arc<Context> {
        let context = Context::for_test();
        let mut primaries = contexts.lock(devices);
        primaries[0].context = Some(context.clone());
        primaries[0].holders = 1;
        context
    }

    #[test]
    fn a_primary_context_that_is_retained_before_its_end_begins_stays() {
        let (contexts, devices) = (Contexts::default(), devices());
        let context = held(&contexts, &devices);
        let last = contexts.release(&devices, 0).expect("it is held");
        assert!(last.is_some() && !contexts.is_held(&context));
        let again = contexts.retain(&devices, 0).expect("it lives");
        assert!(Arc::ptr_eq(&again, &context));
        assert!(contexts.is_held(&context));
        assert!(contexts.begin_end(&context, false).is_none());
        assert_eq!(again.check(), Ok(()));
        // A reset ends it even so.
        assert!(contexts.begin_end(&context, true).is_some());
        assert_eq!(again.check(), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED));
        assert!(contexts.begin_end(&context, true).is_none());
    }

    #[test]
    fn threads_that_retain_a_primary_context_wait_for_its_end() {
        let (contexts, devices) = (Contexts::default(), devices());
        let context = held(&contexts, &devices);
        contexts.release(&devices, 0).expect("it is held");
        let ending = contexts.begin_end(&context, false).expect("no holder");
        // The thread that ends it does not wait for itself. Without a worker no context can be made.
        assert!(contexts.retain(&devices, 0).is_err());
        std::thread::scope(|scope| {
            let retained = scope.spawn(|| {
                let retained = contexts.retain(&devices, 0);
                let still_ending = contexts.primaries.lock()[0].ending.is_some();
                (retained.is_err(), still_ending)
            });
            // It has released the lock only to wait, or to return too early.
            let waits = || contexts.primaries.lock()[0].waits;
            while waits() == 0 && !retained.is_finished() {
                std::thread::yield_now();
            }
            drop(ending);
            assert_eq!(retained.join().expect("an answer"), (true, false));
        });
    }
}
