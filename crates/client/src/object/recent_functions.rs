//! A per-thread cache of recently launched functions (see [`crate::object::recent`]).

use std::cell::RefCell;
use std::mem::{ManuallyDrop, replace};
use std::sync::Arc;

use fermata_abi::op::FunctionId;

use crate::object::context::Context;
use crate::object::module::Function;
use crate::object::recent::{Key, PLACES, key, nobody, place};
use crate::result::Result;

type Functions = [(Key<FunctionId>, Option<Arc<Function>>); PLACES];

const NO_FUNCTIONS: Functions = [const { (nobody(FunctionId::NULL), None) }; PLACES];

thread_local! {
    /// Without a destructor, so that it can be used until the thread has ended; see [`let_go`].
    static FUNCTIONS: ManuallyDrop<RefCell<Functions>> =
        const { ManuallyDrop::new(RefCell::new(NO_FUNCTIONS)) };
}

/// Empties the cache of a thread that ends.
pub fn let_go() {
    let known = FUNCTIONS.with(|table| {
        table
            .try_borrow_mut()
            .map(|mut it| replace(&mut *it, NO_FUNCTIONS))
    });
    drop(known);
}

/// Calls `act` with the function behind a handle, which `find` looks up if it is not in the thread's cache.
#[inline(always)]
pub fn with_function<T>(
    handle: FunctionId,
    context: &Arc<Context>,
    find: impl FnOnce() -> Result<Arc<Function>>,
    act: impl FnOnce(&Function) -> Result<T>,
) -> Result<T> {
    let key = key(handle, context.handle);
    FUNCTIONS.with(|table| {
        if let Ok(known) = table.try_borrow()
            && let (found, Some(function)) = &known[place(handle)]
            && *found == key
        {
            return act(function);
        }
        let function = find()?;
        // A signal handler that launches in the middle of a launch finds the table in use.
        if let Ok(mut known) = table.try_borrow_mut() {
            known[place(handle)] = (key, Some(function.clone()));
        }
        act(&function)
    })
}
