//! `__managed__` variables: one copy in the module for kernels, and one in shared memory for the program.
//!
//! ```text
//!   program writes ─► shared copy ── before a launch, if changed ──► module's copy
//!   program reads  ◄─ shared copy ◄─ after a wait, if changed ────── module's copy ◄─ kernels
//! ```
//! Kernels refer to the module's copy by the address that the driver chose, so it cannot be moved into shared memory. The
//! copies are equal whenever the program launches or has waited, as CUDA promises on devices without concurrent managed
//! access. Memory from `cuMemAllocManaged` has one copy, in shared memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::{Address, ContextId, HostKind, ModuleId, StreamRef};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::object::copy::{End, linear};
use crate::object::graphs::Graphs;
use crate::object::host;
use crate::object::mirror::{Block, Kind, Mirror};
use crate::object::module::{self, Module};
use crate::object::stream::{Stream, Streams};
use crate::result::Result;

/// Whether the program has any such variable: launches and waits then update the copies.
static ANY: AtomicBool = AtomicBool::new(false);

/// All managed variables that the program has asked for.
#[derive(Debug, Default)]
pub struct Managed(Mutex<Vec<Variable>>);

#[derive(Debug)]
struct Variable {
    module: Arc<Module>,
    /// The module's copy.
    device: Address,
    /// The shared copy.
    shared: Address,
    size: u64,
    /// The content of both copies when they were last equal.
    agreed: Vec<u8>,
    /// The stream in which the module's copy is read, independent of other work.
    stream: Arc<Stream>,
}

impl Managed {
    /// The shared copy of a variable and its size.
    pub fn place(
        &self,
        (memory, streams): (&Mirror, &Streams),
        module: &Arc<Module>,
        found: &module::Variable,
    ) -> Result<(Address, u64)> {
        let (device, size) = (found.address, found.size);
        let mut variables = self.0.lock();
        let known = variables
            .iter()
            .find(|known| known.device == device && known.module.handle == module.handle);
        if let Some(known) = known {
            return Ok((known.shared, size));
        }
        let context = &module.context;
        let stream = streams.create(context, sys::CU_STREAM_NON_BLOCKING, 0)?;
        let shared = host::alloc(
            memory,
            context,
            size,
            HostKind::Managed,
            sys::CU_MEM_ATTACH_GLOBAL,
        )?;
        let agreed = vec![0; size as usize];
        let mut variable = Variable {
            module: module.clone(),
            device,
            shared,
            size,
            agreed,
            stream,
        };
        variable.fetch()?;
        variables.push(variable);
        ANY.store(true, Ordering::Release);
        Ok((shared, size))
    }

    /// Forgets the variables of a module that is being unloaded.
    pub fn forget(
        &self,
        memory: &Mirror,
        (streams, graphs): (&Streams, &Graphs),
        module: ModuleId,
    ) {
        if !ANY.load(Ordering::Acquire) {
            return;
        }
        self.0.lock().retain(|variable| {
            let goes = variable.module.handle == module;
            if goes {
                // Memory that cannot be freed now is freed with the session.
                let _ = host::free(memory, variable.shared, HostKind::Managed);
                let _ = streams.destroy(graphs, variable.stream.handle);
            }
            !goes
        });
    }

    /// Forgets the variables of a context that ends. The shared copies stay as ordinary memory, because the program may
    /// still read them.
    pub fn forget_context(&self, memory: &Mirror, context: ContextId) {
        self.0.lock().retain(|variable| {
            let goes = variable.module.context.handle == context;
            let shared = |block: &Block| block.kind == Kind::Host(HostKind::Managed);
            if goes && let Ok(block) = memory.remove(variable.shared, shared) {
                // A copy that the worker cannot unmap now is unmapped with the session.
                let _ = host::make_ordinary(block);
            }
            !goes
        });
    }

    /// To be called before work that may use the variables is issued: updates the modules' copies.
    #[inline(always)]
    pub fn before_work(&self, stream: StreamRef) -> Result {
        if ANY.load(Ordering::Acquire) {
            self.push_all(stream)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn push_all(&self, stream: StreamRef) -> Result {
        let mut variables = self.0.lock();
        let mut here = variables
            .iter_mut()
            .filter(|variable| variable.module.context.handle == stream.context);
        here.try_for_each(|variable| variable.push(stream))
    }

    /// To be called after the program has waited for work: updates the shared copies.
    #[inline]
    pub fn after_wait(&self) -> Result {
        if ANY.load(Ordering::Acquire) {
            self.fetch_all()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn fetch_all(&self) -> Result {
        self.0.lock().iter_mut().try_for_each(Variable::fetch)
    }
}

impl Variable {
    /// A copy of the shared copy, because the program may be writing it.
    fn shared(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        let from = std::ptr::with_exposed_provenance::<u8>(self.shared.raw() as usize);
        // SAFETY: the shared copy is `size` bytes of memory of ours, and lives as long as the variable.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Copies what the program has written to the module's copy.
    fn push(&mut self, stream: StreamRef) -> Result {
        let now = self.shared();
        if now == self.agreed {
            return Ok(());
        }
        let from = End::Private(now.as_ptr().cast_mut());
        linear(End::Address(self.device), from, self.size, stream, false)?;
        self.agreed = now;
        Ok(())
    }

    /// Copies what kernels have written to the shared copy.
    fn fetch(&mut self) -> Result {
        let mut now = vec![0; self.size as usize];
        let to = End::Private(now.as_mut_ptr());
        let (from, stream) = (End::Address(self.device), self.stream.reference());
        linear(to, from, self.size, stream, true)?;
        if now == self.agreed {
            return Ok(());
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.shared.raw() as usize);
        // SAFETY: as in `shared`.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
        self.agreed = now;
        Ok(())
    }
}
