//! Errors of operations: how each becomes a `CUresult`, and which are reported with a later answer.
//!
//! An operation without an answer cannot report its error. The error is kept for its context until a synchronising
//! operation is answered. An error that kills the context is kept for ever.

use std::collections::BTreeMap;

use fermata_abi::op::{ContextId, EventId, FunctionId, ModuleId, Op, StreamRef, ends_context};
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, MemoryError, ModuleRefused};
use fermata_engine::HandleMap;
use fermata_state::{Deferred, Session, StateError};
use fermata_wire::WireError;

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpError {
    pub code: cu::CUresult,
    pub text: String,
}

impl OpError {
    pub fn new(code: cu::CUresult, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(cu::CUDA_ERROR_INVALID_VALUE, text)
    }
}

impl From<DriverError> for OpError {
    fn from(error: DriverError) -> Self {
        Self::new(error.code, error.to_string())
    }
}

impl From<MemoryError> for OpError {
    fn from(error: MemoryError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<StateError> for OpError {
    fn from(error: StateError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<ModuleRefused> for OpError {
    fn from(refused: ModuleRefused) -> Self {
        let text = if refused.log.is_empty() {
            refused.error.to_string()
        } else {
            refused.log
        };
        Self::new(refused.error.code, text)
    }
}

impl From<WireError> for OpError {
    fn from(error: WireError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<postcard::Error> for OpError {
    fn from(error: postcard::Error) -> Self {
        Self::invalid(format!("a graph that cannot be decoded: {error}"))
    }
}

/// Errors that have not been reported to the program yet, by context.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    waiting: HandleMap<ContextId, OpError>,
    fatal: HandleMap<ContextId, OpError>,
    /// The fatal errors of destroyed contexts, by device: the driver makes no new context on it in this process.
    spent: BTreeMap<u32, OpError>,
}

impl Faults {
    /// Records the error of an operation without an answer. True if this error has just killed the context.
    pub fn defer(&mut self, context: ContextId, error: OpError) -> bool {
        let new = self.observe(context, &error);
        self.waiting.entry(context).or_insert(error);
        new
    }

    /// Records an error if it kills the context. True if this error has just killed it.
    pub fn observe(&mut self, context: ContextId, error: &OpError) -> bool {
        let new = ends_context(error.code) && !self.fatal.contains_key(&context);
        if new {
            self.fatal.insert(context, error.clone());
        }
        new
    }

    /// The error that has killed the context.
    pub fn fatal(&self, context: ContextId) -> Option<&OpError> {
        self.fatal.get(&context)
    }

    /// Any error that has killed a context, existing or destroyed.
    pub fn any_fatal(&self) -> Option<&OpError> {
        self.fatal.values().chain(self.spent.values()).next()
    }

    /// The error that killed a context of this device which has been destroyed since.
    pub fn spent(&self, device: u32) -> Option<&OpError> {
        self.spent.get(&device)
    }

    /// The error that a synchronising operation on this context has to report.
    pub fn take(&mut self, context: ContextId) -> Option<OpError> {
        if self.waiting.is_empty() && self.fatal.is_empty() {
            return None;
        }
        self.fatal
            .get(&context)
            .cloned()
            .or_else(|| self.waiting.remove(&context))
    }

    /// Errors that the program must still be told after a restore. A dead context is never restored.
    pub fn deferred(&self) -> Vec<Deferred> {
        let mut deferred: Vec<Deferred> = self
            .waiting
            .iter()
            .map(|(context, error)| Deferred {
                context: *context,
                code: error.code,
                text: error.text.clone(),
            })
            .collect();
        deferred.sort_by_key(|it| it.context);
        deferred
    }

    /// The inverse of [`Faults::deferred`].
    pub fn restored(deferred: &[Deferred]) -> Self {
        let mut faults = Self::default();
        for Deferred {
            context,
            code,
            text,
        } in deferred
        {
            faults.defer(*context, OpError::new(*code, text.clone()));
        }
        faults
    }

    /// The context is gone from its device, with its errors.
    pub fn forget(&mut self, context: ContextId, device: u32) {
        self.waiting.remove(&context);
        if let Some(error) = self.fatal.remove(&context) {
            self.spent.entry(device).or_insert(error);
        }
    }
}

/// The context an operation acts on.
pub(crate) fn context_of(op: &Op<'_>, session: &Session) -> Option<ContextId> {
    let of_module = |module: &ModuleId| session.modules.get(*module).ok().map(|it| it.context);
    let of_function = |function: &FunctionId| {
        let module = session.functions.get(*function).ok()?.module;
        of_module(&module)
    };
    let of_event = |event: &EventId| session.events.get(*event).ok().map(|it| it.context);
    op.context().or_else(|| match op {
        Op::ModuleUnload { module }
        | Op::ModuleFunctions { module }
        | Op::VariableGet { module, .. }
        | Op::FunctionGet { module, .. } => of_module(module),
        Op::FunctionSetAttribute { function, .. } | Op::Occupancy { function, .. } => {
            of_function(function)
        }
        Op::MemFree { address } => session.allocations.get(*address).ok().map(|it| it.context),
        Op::StreamDestroy { stream } => session.streams.get(*stream).ok().map(|it| it.context),
        Op::GreenStream { green, .. } | Op::GreenDestroy { green } => {
            let green = session.greens.contexts.get(*green);
            green.ok().map(|it| it.context)
        }
        Op::EventDestroy { event }
        | Op::EventSync { event }
        | Op::EventQuery { event }
        | Op::EventElapsed { start: event, .. } => of_event(event),
        Op::GraphUpdate { exec, .. }
        | Op::GraphSetKernels { exec, .. }
        | Op::GraphDestroy { exec } => session.executables.get(*exec).ok().map(|it| it.context),
        _ => None,
    })
}

/// The stream that an operation issues work to, or destroys.
pub(crate) fn stream_changed(op: &Op<'_>, session: &Session) -> Option<StreamRef> {
    match op {
        Op::Copy { stream, .. }
        | Op::Copy3d { stream, .. }
        | Op::Fill { stream, .. }
        | Op::StreamWait { stream, .. }
        | Op::EventRecord { stream, .. }
        | Op::HostCall { stream, .. }
        | Op::WriteValue { stream, .. }
        | Op::WaitValue { stream, .. }
        | Op::Launch { stream, .. }
        | Op::GraphLaunch { stream, .. } => Some(*stream),
        Op::StreamDestroy { stream } => {
            let context = session.streams.get(*stream).ok()?.context;
            Some(StreamRef {
                context,
                stream: *stream,
            })
        }
        _ => None,
    }
}

/// Whether the answer to an operation reports errors of earlier operations. Operations that create something do not:
/// the program would not learn that the object exists.
pub(crate) fn reports(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::ContextSync { .. }
            | Op::StreamSync { .. }
            | Op::StreamQuery { .. }
            | Op::EventSync { .. }
            | Op::EventQuery { .. }
            | Op::Copy { .. }
            | Op::Copy3d { .. }
            | Op::Fill { .. }
            | Op::MemFree { .. }
            | Op::HostUnmap { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_once_and_a_fatal_one_for_ever() {
        let mut faults = Faults::default();
        faults.defer(ContextId::from_raw(1), OpError::invalid("x"));
        faults.defer(
            ContextId::from_raw(1),
            OpError::new(cu::CUDA_ERROR_INVALID_HANDLE, "y"),
        );
        assert_eq!(faults.take(ContextId::from_raw(2)), None);
        assert_eq!(
            faults.take(ContextId::from_raw(1)).map(|it| it.code),
            Some(cu::CUDA_ERROR_INVALID_VALUE)
        );
        assert_eq!(faults.take(ContextId::from_raw(1)), None);
        faults.defer(
            ContextId::from_raw(1),
            OpError::new(cu::CUDA_ERROR_ILLEGAL_ADDRESS, "z"),
        );
        for _ in 0..3 {
            assert_eq!(
                faults.take(ContextId::from_raw(1)).map(|it| it.code),
                Some(cu::CUDA_ERROR_ILLEGAL_ADDRESS)
            );
        }
        assert!(faults.spent(7).is_none() && faults.any_fatal().is_some());
        faults.forget(ContextId::from_raw(1), 7);
        assert_eq!(faults.take(ContextId::from_raw(1)), None);
        assert!(faults.spent(7).is_some() && faults.any_fatal().is_some());
    }
}
