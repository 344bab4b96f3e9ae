//! All modules, libraries, functions and kernels.
//!
//! A library is a module image; it is loaded as a module into a context when it is first used there. A kernel is a name in
//! a library; in each context it becomes a function of that module.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use fermata_abi::op::{ContextId, FunctionId, HeldImageId, KernelId, LibraryId, ModuleId};
use fermata_abi::sys::driver::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use parking_lot::{Mutex, RwLock};

use crate::handles::{self, HandleMap, Table};
use crate::link::source::{INLINE, Order};
use crate::notice;
use crate::object::context::{Context, with_current};
use crate::object::module::{Function, Module};
use crate::object::recent;
use crate::object::recent_functions;
use crate::result::Result;

/// All objects that come from module images.
#[derive(Debug, Default)]
pub struct Modules {
    /// Modules by handle.
    pub modules: Table<ModuleId, Module>,
    /// Functions by handle.
    pub functions: Table<FunctionId, Function>,
    /// Libraries by handle.
    pub libraries: Table<LibraryId, Library>,
    /// Kernels by handle.
    pub kernels: Table<KernelId, Kernel>,
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// Its handle.
    pub handle: LibraryId,
    image: Kept,
    modules: Mutex<HandleMap<ContextId, Arc<Module>>>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

/// Where a library's image is kept.
#[derive(Debug)]
enum Kept {
    /// Here, because it is small.
    Here(Vec<u8>),
    /// In the worker, under this handle.
    There(HeldImageId),
}

impl Library {
    /// The handle under which the worker holds its image, if it does.
    pub fn held(&self) -> Option<HeldImageId> {
        match self.image {
            Kept::Here(_) => None,
            Kept::There(image) => Some(image),
        }
    }
}

/// A kernel of a library.
#[derive(Debug)]
pub struct Kernel {
    /// Its handle.
    pub handle: KernelId,
    /// The library.
    pub library: Arc<Library>,
    /// Its name.
    pub name: CString,
    functions: RwLock<HandleMap<ContextId, Arc<Function>>>,
    attributes: Mutex<HashMap<i32, i32>>,
}

impl Modules {
    /// Loads an image into a context. `log` gets the compiler's log, if there is one.
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
        let module = Arc::new(Module::new(handle, context, of_library));
        self.modules.insert(handle, module.clone());
        Ok(module)
    }

    /// Removes a module with its functions from the tables.
    pub fn take(&self, handle: ModuleId) -> Result<Arc<Module>> {
        let module = self.modules.remove(handle, CUDA_ERROR_INVALID_HANDLE)?;
        self.functions
            .remove_if(|function| function.module.handle == handle);
        // Each function keeps its module, so a module that kept its functions would never be freed.
        module.functions.lock().clear();
        recent::forget_all();
        Ok(module)
    }

    /// The function of a name in a module.
    pub fn function(&self, module: &Arc<Module>, name: &str) -> Result<Arc<Function>> {
        if let Some(function) = module.functions.lock().get(name) {
            return Ok(function.clone());
        }
        let function = Arc::new(Function::find(module, name)?);
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
        handle: FunctionId,
        act: impl FnOnce(&Arc<Context>, &Function) -> Result<T>,
    ) -> Result<T> {
        with_current(|context| {
            let found = |function: &Function| act(context, function);
            recent_functions::with_function(
                handle,
                context,
                || self.launchable(handle, context),
                found,
            )
        })
    }

    /// The function behind a `CUfunction` or a `CUkernel` in a context.
    pub fn launchable(&self, handle: FunctionId, context: &Arc<Context>) -> Result<Arc<Function>> {
        match self.functions.get(handle, CUDA_ERROR_INVALID_HANDLE) {
            Ok(function) => Ok(function),
            Err(missing) => {
                let kernel = self.kernels.get(handle.as_kernel(), missing)?;
                self.kernel_function(&kernel, context)
            }
        }
    }

    /// Makes a library of an image, which is kept: here if it is small, else in the worker. `log` gets the reason for which the
    /// worker refuses it.
    pub fn library(&self, image: &[u8], log: impl FnOnce(&str)) -> Result<Arc<Library>> {
        let handle = handles::fresh();
        let image = if image.len() <= INLINE {
            Kept::Here(image.to_vec())
        } else {
            let held = handles::fresh();
            Order::Hold(held).give(image, log)?;
            Kept::There(held)
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

    /// Removes a library with its kernels from the tables. Returns its modules, which are still loaded.
    pub fn take_library(&self, handle: LibraryId) -> Result<(Arc<Library>, Vec<Arc<Module>>)> {
        let library = self.libraries.remove(handle, CUDA_ERROR_INVALID_HANDLE)?;
        self.kernels
            .remove_if(|kernel| kernel.library.handle == handle);
        // Each kernel keeps its library, as functions keep their module.
        library.kernels.lock().clear();
        recent::forget_all();
        let modules = library.modules.lock().drain().map(|(_, it)| it).collect();
        Ok((library, modules))
    }

    /// The module of a library in a context, which is loaded if needed.
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

    /// The kernel of a name in a library; the name is checked if there is a context.
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
        // Locked until the handle is in the table, because another thread that finds the kernel may launch it at once.
        let mut known = library.kernels.lock();
        let kernel = known.entry(name.to_owned()).or_insert(kernel).clone();
        self.kernels.insert(kernel.handle, kernel.clone());
        Ok(kernel)
    }

    /// The handle of the kernel that a function belongs to, 0 if it belongs to none.
    pub fn kernel_of(&self, function: FunctionId) -> KernelId {
        let has = |kernel: &Kernel| {
            let functions = kernel.functions.read();
            functions.values().any(|known| known.handle == function)
        };
        self.kernels
            .find(has)
            .map_or(KernelId::NULL, |kernel| kernel.handle)
    }

    /// The function of a kernel in a context.
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
        // Locked meanwhile, so that an attribute that another thread sets now reaches this function.
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

    /// Sets an attribute of a kernel in all contexts, later ones as well.
    pub fn set_kernel_attribute(&self, kernel: &Kernel, attribute: i32, value: i32) -> Result {
        let mut attributes = kernel.attributes.lock();
        attributes.insert(attribute, value);
        for function in kernel.functions.read().values() {
            function.set_attribute(attribute, value)?;
        }
        Ok(())
    }

    /// Forgets the modules and functions of a context that has ended.
    pub fn forget(&self, context: ContextId) {
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

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Weak};

    use super::*;
    use crate::object::module::Limits;
    use crate::object::occupancy::Answers;

    /// A module with one function, as if both had been loaded.
    fn loaded(modules: &Modules) -> (Weak<Module>, ModuleId, FunctionId) {
        let module = Arc::new(Module::new(handles::fresh(), &Context::for_test(), false));
        let limits = Limits {
            threads: 1,
            registers: 0,
            shared: 0.into(),
        };
        let function = Arc::new(Function {
            handle: handles::fresh(),
            module: module.clone(),
            name: CString::default(),
            params: Vec::new(),
            params_size: 0,
            attributes: Mutex::default(),
            limits,
            occupancy: Answers::default(),
        });
        modules.modules.insert(module.handle, module.clone());
        modules.functions.insert(function.handle, function.clone());
        let (weak, handle) = (Arc::downgrade(&module), function.handle);
        module.functions.lock().insert("f".to_owned(), function);
        (weak, module.handle, handle)
    }

    #[test]
    fn a_module_is_freed_when_it_has_been_unloaded() {
        let modules = Modules::default();
        let (module, handle, function) = loaded(&modules);
        modules.take(handle).expect("it is loaded");
        assert!(module.upgrade().is_none());
        let gone = modules.functions.get(function, CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(gone.err(), Some(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(modules.take(handle).err(), Some(CUDA_ERROR_INVALID_HANDLE));
    }

    #[test]
    fn a_library_is_freed_when_it_has_been_unloaded() {
        let modules = Modules::default();
        let library = modules.library(&[], |_| ()).expect("a library");
        let kernel = modules
            .kernel(&library, "k", None)
            .expect("a kernel")
            .handle;
        let (weak, handle) = (Arc::downgrade(&library), library.handle);
        drop(library);
        modules.take_library(handle).expect("it is loaded");
        assert!(weak.upgrade().is_none());
        let gone = modules.kernels.get(kernel, CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(gone.err(), Some(CUDA_ERROR_INVALID_HANDLE));
    }

    /// A thread makes kernels, and another, at work at the same time, finds each where the next user would.
    #[test]
    fn a_kernel_is_known_by_its_handle_as_soon_as_another_thread_finds_it() {
        const KERNELS: usize = 20_000;
        let modules = Modules::default();
        let library = modules.library(&[], |_| ()).expect("a library");
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
