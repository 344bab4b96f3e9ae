//! Modules, libraries, functions and kernels.
//!
//! A library is an image; the module it becomes in a context is loaded when something of it is first
//! used there. A kernel is a library and a name; it becomes a function per context in the same way.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use fermata_abi::op::{Address, FunctionInfo, Handle, Op, ReplyBody};
use fermata_abi::sys::driver::{
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED,
    CUDA_ERROR_UNKNOWN,
};
use parking_lot::{Mutex, RwLock};

use crate::context::{Context, with_current};
use crate::entry::Result;
use crate::handles::{self, Table};
use crate::link;
use crate::mirror::{Block, Kind};
use crate::notice;
use crate::occupancy::Answers;
use crate::recent;
use crate::session::Session;
use crate::source::{INLINE, Order};

/// Attributes of a function that a program may set to any value that they can have.
const SETTABLE: [u32; 2] = [
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];

/// Everything that comes from images.
#[derive(Debug, Default)]
pub struct Modules {
    /// Modules by handle.
    pub modules: Table<Module>,
    /// Functions by handle.
    pub functions: Table<Function>,
    /// Libraries by handle.
    pub libraries: Table<Library>,
    /// Kernels by handle.
    pub kernels: Table<Kernel>,
}

/// A module.
#[derive(Debug)]
pub struct Module {
    /// Its handle.
    pub handle: Handle,
    /// Where it is loaded.
    pub context: Arc<Context>,
    /// Its kernels, when somebody has asked.
    names: OnceLock<Vec<String>>,
    /// Whether it is what a library is in this context; then it goes with the library.
    of_library: bool,
    functions: Mutex<HashMap<String, Arc<Function>>>,
}

/// A variable of a module.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Where the driver has put it.
    pub address: Address,
    /// Bytes.
    pub size: u64,
    /// Whether it is managed memory.
    pub managed: bool,
}

/// A function.
#[derive(Debug)]
pub struct Function {
    /// Its handle.
    pub handle: Handle,
    /// The module it is in.
    pub module: Arc<Module>,
    /// Its name.
    pub name: CString,
    /// Offset and size of each parameter.
    pub params: Vec<(u32, u32)>,
    /// Bytes of the parameter block.
    pub params_size: usize,
    /// `CUfunction_attribute` values.
    pub attributes: Mutex<Vec<i32>>,
    /// Those that launches are checked against.
    pub limits: Limits,
    /// What the driver has said about its blocks.
    pub occupancy: Answers,
}

/// What a launch of a function may have, to be read without a lock. What the driver did not tell limits
/// nothing.
#[derive(Debug)]
pub struct Limits {
    /// Threads of a block.
    pub threads: u32,
    /// Registers that a thread takes.
    pub registers: u32,
    /// Bytes of dynamic shared memory; the program may raise it.
    pub shared: AtomicU32,
}

impl Limits {
    fn new(attributes: &[i32]) -> Self {
        let known = |id: u32| {
            let value = attributes.get(id as usize).copied();
            value.and_then(|value| u32::try_from(value).ok())
        };
        Self {
            threads: known(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK).unwrap_or(1024),
            registers: known(CU_FUNC_ATTRIBUTE_NUM_REGS).unwrap_or(0),
            shared: known(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
                .unwrap_or(u32::MAX)
                .into(),
        }
    }
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// Its handle.
    pub handle: Handle,
    image: Kept,
    modules: Mutex<HashMap<Handle, Arc<Module>>>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

/// A library's image.
#[derive(Debug)]
enum Kept {
    /// Small: its bytes.
    Here(Vec<u8>),
    /// By the worker, under this handle.
    There(Handle),
}

/// A kernel of a library.
#[derive(Debug)]
pub struct Kernel {
    /// Its handle.
    pub handle: Handle,
    /// The library.
    pub library: Arc<Library>,
    /// Its name.
    pub name: CString,
    functions: RwLock<HashMap<Handle, Arc<Function>>>,
    attributes: Mutex<HashMap<i32, i32>>,
}

impl Modules {
    /// Loads an image into a context. `log` gets the compiler's words, if there are any.
    pub fn load(
        &self,
        context: &Arc<Context>,
        image: &[u8],
        log: impl FnOnce(&str),
    ) -> Result<Arc<Module>> {
        self.load_for(false, context, log, |order, log| order.give(image, log))
    }

    fn load_for(
        &self,
        of_library: bool,
        context: &Arc<Context>,
        log: impl FnOnce(&str),
        give: impl FnOnce(Order, &mut dyn FnMut(&str)) -> Result,
    ) -> Result<Arc<Module>> {
        let handle = handles::fresh();
        let order = Order::Load {
            module: handle,
            context: context.handle,
        };
        let mut said = String::new();
        let loaded = give(order, &mut |text| text.clone_into(&mut said));
        log(&said);
        if loaded.is_err() && !said.is_empty() {
            notice::write(&format!("a module could not be loaded: {said}"));
        }
        loaded?;
        let (names, functions) = (OnceLock::new(), Mutex::default());
        let module = Arc::new(Module {
            handle,
            context: context.clone(),
            names,
            of_library,
            functions,
        });
        self.modules.insert(handle, module.clone());
        Ok(module)
    }

    /// Unloads a module that the program has loaded, not one of a library.
    pub fn unload_own(&self, session: &Session, handle: Handle) -> Result {
        let module = self.modules.get(handle, CUDA_ERROR_INVALID_HANDLE)?;
        if module.of_library {
            return Err(CUDA_ERROR_NOT_PERMITTED);
        }
        self.unload(session, handle)
    }

    fn unload(&self, session: &Session, handle: Handle) -> Result {
        let module = self.modules.remove(handle, CUDA_ERROR_INVALID_HANDLE)?;
        session.managed.forget(session, handle);
        session.references.forget(|module| module.handle == handle);
        self.functions
            .remove_if(|function| function.module.handle == handle);
        recent::forget_all();
        session
            .memory
            .remove_if(|block| block.kind == Kind::Variable && block.id == handle);
        link::ask(
            &Op::ModuleUnload {
                module: module.handle,
            },
            link::nothing,
        )
    }

    /// The function of a name in a module.
    pub fn function(&self, module: &Arc<Module>, name: &str) -> Result<Arc<Function>> {
        if let Some(function) = module.functions.lock().get(name) {
            return Ok(function.clone());
        }
        let handle = handles::fresh();
        let info = function_info(handle, module.handle, name)?;
        let params_size = info
            .params
            .iter()
            .map(|(at, size)| at + size)
            .max()
            .unwrap_or(0) as usize;
        let function = Arc::new(Function {
            handle,
            module: module.clone(),
            name: CString::new(name).map_err(|_| CUDA_ERROR_INVALID_VALUE)?,
            params: info.params,
            params_size,
            limits: Limits::new(&info.attributes),
            occupancy: Answers::default(),
            attributes: Mutex::new(info.attributes),
        });
        let mut known = module.functions.lock();
        let function = known.entry(name.to_owned()).or_insert(function).clone();
        self.functions.insert(function.handle, function.clone());
        Ok(function)
    }

    /// Calls `act` with the current context and, in it, the function behind a `CUfunction`, which may also
    /// be a `CUkernel`.
    #[inline(always)]
    pub fn with_launchable<T>(
        &self,
        handle: Handle,
        act: impl FnOnce(&Arc<Context>, &Function) -> Result<T>,
    ) -> Result<T> {
        with_current(|context| {
            let found = |function: &Function| act(context, function);
            recent::with_function(handle, context, || self.launchable(handle, context), found)
        })
    }

    /// The function behind a `CUfunction` or a `CUkernel` in a context.
    pub fn launchable(&self, handle: Handle, context: &Arc<Context>) -> Result<Arc<Function>> {
        match self.functions.get(handle, CUDA_ERROR_INVALID_HANDLE) {
            Ok(function) => Ok(function),
            Err(missing) => self.kernel_function(&*self.kernels.get(handle, missing)?, context),
        }
    }

    /// A library of an image, which is kept: here if it is small, else by the worker.
    pub fn library(&self, image: &[u8]) -> Result<Arc<Library>> {
        let handle = handles::fresh();
        let image = if image.len() <= INLINE {
            Kept::Here(image.to_vec())
        } else {
            Order::Hold(handle).give(image, |_| ())?;
            Kept::There(handle)
        };
        let (modules, kernels) = (Mutex::default(), Mutex::default());
        let library = Arc::new(Library {
            handle,
            image,
            modules,
            kernels,
        });
        self.libraries.insert(handle, library.clone());
        Ok(library)
    }

    /// Unloads a library from every context.
    pub fn unload_library(&self, session: &Session, handle: Handle) -> Result {
        let library = self.libraries.remove(handle, CUDA_ERROR_INVALID_HANDLE)?;
        self.kernels
            .remove_if(|kernel| kernel.library.handle == handle);
        recent::forget_all();
        let modules: Vec<_> = library
            .modules
            .lock()
            .drain()
            .map(|(_, module)| module)
            .collect();
        // An error of earlier work must not keep what the program has no name for any more.
        let unload = |module: Arc<Module>| self.unload(session, module.handle);
        let unloaded = modules.into_iter().map(unload).fold(Ok(()), Result::and);
        if let Kept::There(image) = library.image {
            link::post(&Op::ImageRelease { image })?;
        }
        unloaded
    }

    /// The module that a library is in a context.
    pub fn library_module(
        &self,
        library: &Library,
        context: &Arc<Context>,
        log: impl FnOnce(&str),
    ) -> Result<Arc<Module>> {
        let mut modules = library.modules.lock();
        if let Some(module) = modules.get(&context.handle) {
            return Ok(module.clone());
        }
        let module = self.load_for(true, context, log, |order, log| match &library.image {
            Kept::Here(image) => order.give(image, log),
            Kept::There(image) => order.give_held(*image, log),
        })?;
        modules.insert(context.handle, module.clone());
        Ok(module)
    }

    /// The kernel of a name in a library; the name is checked if a context is at hand.
    pub fn kernel(
        &self,
        library: &Arc<Library>,
        name: &str,
        context: Option<&Arc<Context>>,
    ) -> Result<Arc<Kernel>> {
        if let Some(kernel) = library.kernels.lock().get(name) {
            return Ok(kernel.clone());
        }
        if let Some(context) = context {
            let module = self.library_module(library, context, |_| ())?;
            self.function(&module, name)?;
        }
        let kernel = Arc::new(Kernel {
            handle: handles::fresh(),
            library: library.clone(),
            name: CString::new(name).map_err(|_| CUDA_ERROR_INVALID_VALUE)?,
            functions: RwLock::default(),
            attributes: Mutex::default(),
        });
        // Held until its handle is known, for another thread that finds it there launches it at once.
        let mut known = library.kernels.lock();
        let kernel = known.entry(name.to_owned()).or_insert(kernel).clone();
        self.kernels.insert(kernel.handle, kernel.clone());
        Ok(kernel)
    }

    /// The handle of the kernel of a library that a function is of, 0 if it is of none.
    pub fn kernel_of(&self, function: Handle) -> Handle {
        let has = |kernel: &Kernel| {
            let functions = kernel.functions.read();
            functions.values().any(|known| known.handle == function)
        };
        self.kernels.find(has).map_or(0, |kernel| kernel.handle)
    }

    /// The function that a kernel is in a context.
    pub fn kernel_function(
        &self,
        kernel: &Kernel,
        context: &Arc<Context>,
    ) -> Result<Arc<Function>> {
        if let Some(function) = kernel.functions.read().get(&context.handle) {
            return Ok(function.clone());
        }
        let module = self.library_module(&kernel.library, context, |_| ())?;
        let name = kernel.name.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let function = self.function(&module, name)?;
        // Held meanwhile, so that a thread that sets one finds the function, or this finds what was set.
        let attributes = kernel.attributes.lock();
        for (&attribute, &value) in &*attributes {
            function.set_attribute(attribute, value)?;
        }
        kernel
            .functions
            .write()
            .insert(context.handle, function.clone());
        Ok(function)
    }

    /// Sets an attribute of a kernel, in contexts to come as well.
    pub fn set_kernel_attribute(&self, kernel: &Kernel, attribute: i32, value: i32) -> Result {
        let mut attributes = kernel.attributes.lock();
        attributes.insert(attribute, value);
        for function in kernel.functions.read().values() {
            function.set_attribute(attribute, value)?;
        }
        Ok(())
    }

    /// A variable of a module.
    pub fn variable(&self, session: &Session, module: &Module, name: &str) -> Result<Variable> {
        let op = Op::VariableGet {
            module: module.handle,
            name,
        };
        let (address, size, managed) = link::ask(&op, |body| match body {
            ReplyBody::Variable {
                address,
                size,
                managed,
            } => Ok((address, size, managed)),
            _ => Err(CUDA_ERROR_UNKNOWN),
        })?;
        if session.memory.find(address).is_none() {
            let block = Block::new(address, size, Kind::Variable, &module.context);
            session.memory.insert(Block {
                id: module.handle,
                ..block
            });
        }
        Ok(Variable {
            address,
            size,
            managed,
        })
    }

    /// Forgets what was loaded into a context that is gone.
    pub fn forget(&self, context: Handle) {
        let modules = self
            .modules
            .remove_if(|module| module.context.handle == context);
        for module in &modules {
            module.functions.lock().clear();
        }
        self.functions
            .remove_if(|function| function.module.context.handle == context);
        for library in self.libraries.all() {
            library.modules.lock().remove(&context);
        }
        for kernel in self.kernels.all() {
            kernel.functions.write().remove(&context);
        }
        recent::forget_all();
    }
}

impl Function {
    /// A `CUfunction_attribute`.
    pub fn attribute(&self, id: i32) -> Result<i32> {
        let attributes = self.attributes.lock();
        let value = usize::try_from(id)
            .ok()
            .and_then(|id| attributes.get(id).copied());
        value
            .filter(|value| *value != i32::MIN)
            .ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Sets a `CUfunction_attribute`. What it is already is not sent: libraries set the same before every launch, and
    /// the worker would carry it out behind all launches that it has not issued yet.
    pub fn set_attribute(&self, attribute: i32, value: i32) -> Result {
        let at = usize::try_from(attribute).ok();
        // Held until it is known what the driver has made of it, so that two threads leave what the driver has.
        let mut attributes = self.attributes.lock();
        let mut known = at.and_then(|at| attributes.get_mut(at));
        if SETTABLE.contains(&(attribute as u32)) && known.as_deref() == Some(&value) {
            return Ok(());
        }
        let op = Op::FunctionSetAttribute {
            function: self.handle,
            attribute,
            value,
        };
        link::ask(&op, link::nothing)?;
        self.occupancy.forget();
        if attribute as u32 == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
            self.limits.shared.store(value as u32, Ordering::Relaxed);
        }
        if let Some(known) = &mut known {
            **known = value;
        }
        Ok(())
    }
}

impl Module {
    /// The names of its kernels, as far as the driver tells.
    pub fn names(&self) -> Result<&[String]> {
        if let Some(names) = self.names.get() {
            return Ok(names);
        }
        let op = Op::ModuleFunctions {
            module: self.handle,
        };
        let names = link::ask_long(
            &op,
            |_| (),
            |body| match body {
                ReplyBody::Module(info) => Ok(info.functions),
                _ => Err(CUDA_ERROR_UNKNOWN),
            },
        )?;
        Ok(self.names.get_or_init(|| names))
    }
}

impl Library {
    /// The module that it is in a context, for the names of its kernels.
    pub fn module(&self, session: &Session, context: &Arc<Context>) -> Result<Arc<Module>> {
        session.modules.library_module(self, context, |_| ())
    }
}

fn function_info(function: Handle, module: Handle, name: &str) -> Result<FunctionInfo> {
    link::ask(
        &Op::FunctionGet {
            function,
            module,
            name,
        },
        |body| match body {
            ReplyBody::Function(info)
                if info
                    .params
                    .iter()
                    .all(|(at, size)| at.checked_add(*size).is_some_and(|end| end <= 1 << 16)) =>
            {
                Ok(info)
            }
            _ => Err(CUDA_ERROR_UNKNOWN),
        },
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// A thread makes kernels, and another, at work at the same time, finds each where the next user would.
    #[test]
    fn a_kernel_is_known_by_its_handle_as_soon_as_another_thread_finds_it() {
        const KERNELS: usize = 20_000;
        let modules = Modules::default();
        let library = modules.library(&[]).expect("a library");
        let meets = Barrier::new(2);
        let make = || {
            for number in 0..KERNELS {
                meets.wait();
                let made = modules.kernel(&library, &number.to_string(), None);
                made.expect("a kernel");
            }
        };
        let find = || {
            let mut unknown = 0;
            for name in (0..KERNELS).map(|it| it.to_string()) {
                meets.wait();
                let kernel = loop {
                    if let Some(kernel) = library.kernels.lock().get(&name) {
                        break kernel.handle;
                    }
                    std::thread::yield_now();
                };
                let known = modules.kernels.get(kernel, CUDA_ERROR_INVALID_HANDLE);
                unknown += usize::from(known.is_err());
            }
            unknown
        };
        let unknown = std::thread::scope(|scope| {
            scope.spawn(make);
            scope.spawn(find).join().expect("a count")
        });
        assert_eq!(unknown, 0);
    }
}
