//! Libraries: images loaded once for all contexts; each context gets its module when it first needs it.

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::context::{self, Context};
use crate::driver::Driver;
use crate::error::{INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND, Result};
use crate::exec::{self, KernelInfo};
use crate::function::Attributes;
use crate::handle::{self, Table, Tag};
use crate::jit::JitOptions;
use crate::module::{self, Function, Module, Variable};
use crate::primary::Primary;

/// A library.
pub struct Library {
    /// Its handle.
    pub handle: u64,
    ptx: String,
    /// Its kernels, in the image's order.
    pub kernels: Vec<Arc<Kernel>>,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    /// The module compiled at load, until a context uses it.
    spare: Option<exec::UnlinkedModule>,
    /// Modules by context id.
    modules: HashMap<u64, Arc<Module>>,
    /// Managed variables, which the modules have in common; placed with the first module.
    managed: Vec<Variable>,
    /// The primary context that was retained to place them. It stays retained without the library: its end would take
    /// along what the program has in the device's pools.
    retained: Option<Arc<Context>>,
}

/// A kernel of a library.
#[derive(Debug)]
pub struct Kernel {
    /// Its handle.
    pub handle: u64,
    /// Its library's handle.
    pub library: u64,
    /// What is known about it.
    pub info: KernelInfo,
    /// Its name as C shows it.
    pub c_name: CString,
    /// Settings by device.
    attributes: Mutex<HashMap<i32, Arc<Mutex<Attributes>>>>,
}

impl Loaded {
    /// The primary context of device 0, which the library holds.
    fn retained(&mut self, driver: &Driver) -> Result<Arc<Context>> {
        // A reset has released what it ended.
        if let Some(context) = self.retained.as_ref().filter(|it| !it.is_gone()) {
            return Ok(Arc::clone(context));
        }
        let context = Primary::retain(driver, driver.device(0)?)?;
        Ok(Arc::clone(self.retained.insert(context)))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("handle", &self.handle)
            .field("kernels", &self.kernels)
            .finish()
    }
}

impl Driver {
    /// Loaded libraries.
    pub fn libraries(&self) -> &'static Table<Library> {
        static ALL: LazyLock<Table<Library>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Driver {
    /// Kernels of libraries.
    pub fn kernels(&self) -> &'static Table<Kernel> {
        static ALL: LazyLock<Table<Kernel>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Library {
    /// Compiles PTX and makes it known as a library.
    ///
    /// # Errors
    /// The PTX cannot be executed.
    pub fn load(driver: &Driver, ptx: String, jit: &JitOptions) -> Result<Arc<Self>> {
        let code = module::compile(&ptx, jit)?;
        let library = handle::fresh(Tag::Library);
        let kernels = code.kernels().iter().map(|info| {
            let kernel = Arc::new(Kernel {
                handle: handle::fresh(Tag::Kernel),
                library,
                c_name: CString::new(info.name.clone()).unwrap_or_default(),
                info: info.clone(),
                attributes: Mutex::default(),
            });
            driver.kernels().insert(kernel.handle, Arc::clone(&kernel));
            kernel
        });
        let kernels = kernels.collect();
        let loaded = Mutex::new(Loaded {
            spare: Some(code),
            ..Loaded::default()
        });
        let library = Arc::new(Self {
            handle: library,
            ptx,
            kernels,
            loaded,
        });
        driver
            .libraries()
            .insert(library.handle, Arc::clone(&library));
        Ok(library)
    }

    /// Its module in a context.
    ///
    /// # Errors
    /// The module cannot be loaded there.
    pub fn module(&self, driver: &Driver, context: &Arc<Context>) -> Result<Arc<Module>> {
        self.module_of(driver, context, &mut self.loaded.lock())
    }

    fn module_of(
        &self,
        driver: &Driver,
        context: &Arc<Context>,
        loaded: &mut Loaded,
    ) -> Result<Arc<Module>> {
        if let Some(module) = loaded.modules.get(&context.id) {
            return Ok(Arc::clone(module));
        }
        let jit = JitOptions::default();
        let code = match loaded.spare.take() {
            Some(code) => code,
            None => module::compile(&self.ptx, &jit)?,
        };
        let attributes = |name: &str| match self.kernels.iter().find(|k| k.info.name == name) {
            Some(kernel) => kernel.attributes(context.device.ordinal),
            None => Attributes::shared(),
        };
        let managed = Some(&mut loaded.managed);
        let module = Module::load(driver, context, code, &jit, &attributes, managed)?;
        loaded.modules.insert(context.id, Arc::clone(&module));
        Ok(module)
    }

    /// The managed variable with this name. Without a current context, the library retains the primary context of
    /// device 0 to place it: runtimes ask for such variables before they make a context.
    ///
    /// # Errors
    /// There is none, or the module cannot be loaded.
    pub fn managed(&self, driver: &Driver, name: &str) -> Result<Variable> {
        let current = match context::current() {
            Err(INVALID_CONTEXT) => None,
            found => Some(found?),
        };
        let mut loaded = self.loaded.lock();
        if loaded.managed.is_empty() {
            let context = match current {
                Some(context) => context,
                None => loaded.retained(driver)?,
            };
            self.module_of(driver, &context, &mut loaded)?;
        }
        let found = loaded.managed.iter().find(|it| it.name == name);
        found.cloned().ok_or(NOT_FOUND)
    }

    /// Whether a module is what it is in some context.
    pub fn has(&self, module: &Arc<Module>) -> bool {
        let loaded = self.loaded.lock();
        loaded.modules.values().any(|it| Arc::ptr_eq(it, module))
    }

    /// The kernel with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn kernel(&self, name: &str) -> Result<Arc<Kernel>> {
        self.kernels
            .iter()
            .find(|kernel| kernel.info.name == name)
            .cloned()
            .ok_or(NOT_FOUND)
    }

    /// Removes what belongs to a context that is ending.
    pub fn forget_context(&self, id: u64) {
        self.loaded.lock().modules.remove(&id);
    }

    /// Throws the library away, in all contexts.
    pub fn unload(&self, driver: &Driver) {
        driver.libraries().remove(self.handle);
        for kernel in &self.kernels {
            driver.kernels().remove(kernel.handle);
        }
        let loaded = std::mem::take(&mut *self.loaded.lock());
        for module in loaded.modules.into_values() {
            module.unload(driver);
        }
        module::release(driver, &loaded.managed);
    }
}

impl Kernel {
    /// Its settings on a device.
    pub fn attributes(&self, device: i32) -> Arc<Mutex<Attributes>> {
        Arc::clone(self.attributes.lock().entry(device).or_default())
    }

    /// Its function in a context.
    ///
    /// # Errors
    /// The library's module cannot be loaded there.
    pub fn function(&self, driver: &Driver, context: &Arc<Context>) -> Result<Arc<Function>> {
        let library = driver.libraries().get(self.library).ok_or(INVALID_HANDLE)?;
        library.module(driver, context)?.function(&self.info.name)
    }
}
