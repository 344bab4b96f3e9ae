//! Executes the work of streams.
//!
//! In a context that has met a fault, work is skipped, but marks are passed and callbacks run, so that no thread waits
//! for ever.

use std::ffi::c_void;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fermata_abi::sys::driver as cu;
use fermata_graph::{ConditionalKind, HostCall, MemOp, MemOpKind, MemsetNode, NodeKind};

use crate::copy::Plan;
use crate::driver::{self, Driver};
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, Result};
use crate::event::Event;
use crate::exec::texture::Texture;
use crate::exec::{Fault, Host, Launch, Reach};
use crate::graph::{Condition, HeldObjects};
use crate::launch;
use crate::log;
use crate::memory::{Kind, Protection, Range};
use crate::objects::Context;
pub use crate::objects::{Branches, Callback, KernelWork, Work};
use crate::settings::MULTIPROCESSORS;

/// The interval at which a wait for a value in memory checks it.
const POLL: Duration = Duration::from_micros(20);

/// Bytes of the barrier of a cooperative launch, which begins with its size.
const BARRIER: u64 = 64;

impl Work {
    /// The user objects that it keeps, whose functions are called when it has ended.
    pub fn held(&self) -> Option<Arc<HeldObjects>> {
        match self {
            Self::Graph(run) => Some(Arc::clone(&run.users)),
            _ => None,
        }
    }

    /// Checks what a node asks for and makes it ready to run in `context`.
    ///
    /// # Errors
    /// What it names does not exist, is not accessible or does not fit.
    pub fn build(driver: &Driver, context: &Arc<Context>, kind: &NodeKind) -> Result<Self> {
        Ok(match kind {
            NodeKind::Kernel(node) => Self::Kernel(launch::check(driver, context, node)?),
            NodeKind::Memcpy(copy) => Self::Copy(Plan::new(driver, *copy)?),
            NodeKind::Memset(memset) => Self::Memset(check_memset(driver, *memset)?),
            NodeKind::Host(call) if call.function == 0 => return Err(INVALID_VALUE),
            NodeKind::Host(call) => Self::Host(*call),
            // Memory of a graph stays for its next launch.
            NodeKind::Empty | NodeKind::MemAlloc(_) | NodeKind::MemFree(_) => Self::Nothing,
            NodeKind::EventRecord(event) => Self::Record(event_of(driver, event.raw())?.begin()),
            NodeKind::EventWait(event) => event_of(driver, event.raw())?
                .mark()
                .map_or(Self::Nothing, Self::Wait),
            NodeKind::BatchMemOp(ops) => Self::MemOps(check_mem_ops(driver, ops)?),
            NodeKind::ChildGraph(_) | NodeKind::Conditional(_) => return Err(INVALID_VALUE),
        })
    }

    /// Checks what a node asks for, without making anything ready.
    ///
    /// # Errors
    /// As [`Work::build`].
    pub fn check(driver: &Driver, context: &Arc<Context>, kind: &NodeKind) -> Result {
        match kind {
            NodeKind::EventRecord(event) | NodeKind::EventWait(event) => {
                event_of(driver, event.raw()).map(drop)
            }
            kind => Self::build(driver, context, kind).map(drop),
        }
    }

    /// Executes it.
    ///
    /// # Errors
    /// The fault it met; the context is dead then.
    pub fn run(&self, context: &Arc<Context>) -> Result {
        let driver = driver::running()?;
        let state = context.check();
        match self {
            Self::Record(mark) => {
                mark.pass();
                Ok(())
            }
            Self::Callback(callback) => {
                let code = state.map_or_else(|error| error.0, |()| cu::CUDA_SUCCESS);
                let stream = std::ptr::without_provenance_mut(callback.stream as usize);
                let data = std::ptr::with_exposed_provenance_mut(callback.user_data as usize);
                // SAFETY: the program gave this function and argument to be called with the stream.
                driver::in_callback(|| unsafe { (callback.function)(stream, code, data) });
                Ok(())
            }
            Self::Free { address, id } => {
                // Its context or pool may have taken it along already.
                let freed = |range: &Range| range.retired && range.id == *id;
                let _ = driver.memory.free(*address, freed);
                Ok(())
            }
            Self::Unmap(whole) => whole.unmap(),
            // What comes after a fault is dropped; the fault itself is remembered by the context.
            _ if state.is_err() => Ok(()),
            Self::Kernel(kernel) => kernel.run(),
            Self::Copy(plan) => plan.run(driver, &context.device),
            Self::Memset(memset) => fill(driver, memset),
            Self::Host(call) => {
                call_host(*call);
                Ok(())
            }
            Self::Wait(mark) => {
                mark.wait();
                Ok(())
            }
            Self::MemOps(ops) => ops
                .iter()
                .try_for_each(|op| run_mem_op(driver, context, op)),
            Self::Graph(run) => run.execute(context),
            Self::Conditional(branches) => branches.run(context),
            Self::Nothing => Ok(()),
        }
    }
}

fn event_of(driver: &Driver, handle: u64) -> Result<Arc<Event>> {
    driver.events().get(handle).ok_or(INVALID_HANDLE)
}

fn check_memset(driver: &Driver, memset: MemsetNode) -> Result<MemsetNode> {
    let size = u64::from(memset.element_size);
    let row = memset.width.checked_mul(size).ok_or(INVALID_VALUE)?;
    let aligned = memset.dst.is_multiple_of(size.max(1))
        && (memset.height <= 1 || memset.pitch.is_multiple_of(size.max(1)) && memset.pitch >= row);
    if !matches!(size, 1 | 2 | 4) || !aligned {
        return Err(INVALID_VALUE);
    }
    if row == 0 || memset.height == 0 {
        return Ok(memset);
    }
    let rows = memset
        .pitch
        .checked_mul(memset.height - 1)
        .ok_or(INVALID_VALUE)?;
    let len = rows.checked_add(row).ok_or(INVALID_VALUE)?;
    if !driver.memory.covers(memset.dst, len, Protection::ReadWrite) {
        return Err(INVALID_VALUE);
    }
    Ok(memset)
}

fn check_mem_ops(driver: &Driver, ops: &[MemOp]) -> Result<Vec<MemOp>> {
    for op in ops {
        let (size, needed) = match (op.kind, op.wide) {
            (MemOpKind::Barrier, _) => continue,
            (MemOpKind::Wait, wide) => (if wide { 8 } else { 4 }, Protection::Read),
            (MemOpKind::Write, wide) => (if wide { 8 } else { 4 }, Protection::ReadWrite),
        };
        if !op.address.is_multiple_of(size) || !driver.memory.covers(op.address, size, needed) {
            return Err(INVALID_VALUE);
        }
    }
    Ok(ops.to_vec())
}

/// Calls a host function of the program.
fn call_host(call: HostCall) {
    let function = std::ptr::with_exposed_provenance::<c_void>(call.function as usize);
    let data = std::ptr::with_exposed_provenance_mut(call.user_data as usize);
    // SAFETY: the program gave this address as a `CUhostFn`; null was refused when it was submitted.
    let function: unsafe extern "C" fn(*mut c_void) = unsafe { std::mem::transmute(function) };
    // SAFETY: the program gave this argument for this function.
    driver::in_callback(|| unsafe { function(data) });
}

fn fill(driver: &Driver, memset: &MemsetNode) -> Result {
    for row in 0..memset.height {
        let at = memset.dst + row * memset.pitch;
        driver
            .memory
            .fill(at, memset.value, memset.element_size, memset.width)?;
    }
    Ok(())
}

fn run_mem_op(driver: &Driver, context: &Context, op: &MemOp) -> Result {
    match op.kind {
        MemOpKind::Barrier => Ok(()),
        MemOpKind::Write => driver.memory.store(op.address, op.wide, op.value),
        MemOpKind::Wait => {
            while !wait_is_over(op, driver.memory.load(op.address, op.wide)?) {
                if context.check().is_err() {
                    return Ok(());
                }
                // Polled: kernels, copies and other processes write the word as memory, without a notification.
                std::thread::sleep(POLL);
            }
            Ok(())
        }
    }
}

/// Whether the word's value ends the wait.
fn wait_is_over(op: &MemOp, found: u64) -> bool {
    let mask = if op.wide {
        u64::MAX
    } else {
        u64::from(u32::MAX)
    };
    let value = op.value & mask;
    match op.flags & 3 {
        cu::CU_STREAM_WAIT_VALUE_EQ => found == value,
        cu::CU_STREAM_WAIT_VALUE_AND => found & value != 0,
        cu::CU_STREAM_WAIT_VALUE_NOR => !(found | value) & mask != 0,
        // Greater or equal, cyclically.
        _ if op.wide => found.wrapping_sub(value) as i64 >= 0,
        _ => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
    }
}

impl Branches {
    /// Runs the body that the condition chooses; that of a loop as long as it does.
    fn run(&self, context: &Arc<Context>) -> Result {
        while let Some(index) = self.kind.chosen(self.condition.value(), self.bodies.len()) {
            for step in self.bodies.get(index).into_iter().flatten() {
                step.run(context)?;
            }
            context.check()?;
            if self.kind != ConditionalKind::While || context.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }
}

impl KernelWork {
    /// Runs the kernel in its own context: a graph may hold kernels of several.
    fn run(&self) -> Result {
        let context = &self.function.module.context;
        context.check()?;
        if !self.cooperative {
            return self.run_with(context, None);
        }
        let memory = &driver::running()?.memory;
        let barrier = memory.allocate(&context.device, context.handle, BARRIER, Kind::Device)?;
        let result = memory
            .write(barrier, &[0; BARRIER as usize])
            .and_then(|()| self.run_with(context, Some(barrier)));
        // A context that is being destroyed may have taken it along.
        let _ = memory.free(barrier, |_| true);
        result
    }

    fn run_with(&self, context: &Arc<Context>, cooperative: Option<u64>) -> Result {
        let grid_id = context.device.count_launch()?;
        let launch = Launch {
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.shared_bytes,
            params: &self.params,
            multiprocessors: MULTIPROCESSORS,
            processors: self.processors,
            grid_id,
            limit_seconds: context.device.settings.kernel_limit,
            resident: self.resident,
            cooperative,
            block_wait: context.device.settings.block_wait,
            stop: &context.stop,
            host: Arc::new(Surroundings(Arc::clone(context))),
        };
        let module = &self.function.module;
        module
            .code
            .launch(&self.function.info.name, &launch)
            .map_err(|fault| {
                if !context.stop.load(Ordering::Relaxed) {
                    // A GPU gives only a code. The user must know the reason where a GPU would not fail.
                    match fault {
                        Fault::Illegal { .. }
                        | Fault::Timeout { .. }
                        | Fault::Unbegun { .. }
                        | Fault::Deadlock { .. } => {
                            log::tell(fault.to_string());
                        }
                        _ => log::note(fault.to_string()),
                    }
                }
                CuError(code(&fault))
            })
    }
}

/// The result code of a fault.
fn code(fault: &Fault) -> cu::CUresult {
    match fault {
        Fault::IllegalAddress { .. } => cu::CUDA_ERROR_ILLEGAL_ADDRESS,
        Fault::Misaligned { .. } => cu::CUDA_ERROR_MISALIGNED_ADDRESS,
        Fault::Trap { .. } | Fault::Stopped { .. } => cu::CUDA_ERROR_LAUNCH_FAILED,
        Fault::Assert { .. } => cu::CUDA_ERROR_ASSERT,
        Fault::Illegal { .. } => cu::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        Fault::Timeout { .. } | Fault::Unbegun { .. } | Fault::Deadlock { .. } => {
            cu::CUDA_ERROR_LAUNCH_TIMEOUT
        }
    }
}

/// What a kernel meets outside of its code.
struct Surroundings(Arc<Context>);

impl Host for Surroundings {
    fn reach(&self, address: u64) -> Option<Reach> {
        driver::running().ok()?.memory.registered(address)
    }

    fn texture(&self, handle: u64, level: u32) -> Option<Texture> {
        let driver = driver::running().ok()?;
        if let Some(view) = driver.views().get(handle) {
            return view.levels.get(level as usize).cloned();
        }
        driver.references().texture(handle, level)
    }

    fn set_condition(&self, handle: u64, value: u32) -> bool {
        let found = Condition::resolve(handle).filter(|it| it.context == self.0.handle);
        found.map(|it| it.set(value)).is_some()
    }

    fn print(&self, bytes: &[u8]) {
        self.0.print(bytes);
    }

    fn complain(&self, line: &[u8]) {
        // Nobody can be told that nobody listens.
        let _ = std::io::stderr().write_all(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_compare_as_asked() {
        let op = |flags, value, wide| MemOp {
            kind: MemOpKind::Wait,
            address: 0,
            value,
            flags,
            wide,
        };
        assert!(wait_is_over(&op(cu::CU_STREAM_WAIT_VALUE_GEQ, 5, false), 5));
        assert!(!wait_is_over(
            &op(cu::CU_STREAM_WAIT_VALUE_GEQ, 6, false),
            5
        ));
        // Cyclic: a counter that has wrapped is ahead of one that has not yet.
        assert!(wait_is_over(
            &op(cu::CU_STREAM_WAIT_VALUE_GEQ, u64::from(u32::MAX), false),
            0
        ));
        assert!(!wait_is_over(
            &op(cu::CU_STREAM_WAIT_VALUE_EQ, 1 << 32, true),
            0
        ));
        assert!(wait_is_over(&op(cu::CU_STREAM_WAIT_VALUE_AND, 6, false), 4));
        assert!(!wait_is_over(
            &op(cu::CU_STREAM_WAIT_VALUE_NOR, 0, false),
            u64::from(u32::MAX)
        ));
    }
}
