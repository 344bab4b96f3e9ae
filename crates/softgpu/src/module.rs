//! Modules: code and variables of one image in one context.

use std::ffi::CString;
use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::driver::Driver;
use crate::error::{CuError, INVALID_HANDLE, NOT_FOUND, Result};
use crate::exec::{self, GlobalVar, LoadError};
use crate::function::Attributes;
use crate::handle::{self, Table, Tag};
use crate::jit::JitOptions;
use crate::log;
use crate::memory::Kind;
use crate::objects::Context;
pub use crate::objects::{Function, Module, Variable};

/// Reads PTX; tells the program's message buffers what is wrong with it, and which kernels cannot be launched.
///
/// # Errors
/// `CUDA_ERROR_INVALID_PTX` where it cannot be executed.
pub fn compile(ptx: &str, jit: &JitOptions) -> Result<exec::UnlinkedModule> {
    let module = exec::UnlinkedModule::load(ptx).map_err(|error| refuse(&error, jit))?;
    let refused = module
        .kernels()
        .iter()
        .filter_map(|k| Some(format!("`{}`: {}", k.name, k.refused.as_ref()?)));
    let messages: Vec<String> = refused.collect();
    if !messages.is_empty() {
        let text = messages.join("\n");
        jit.inform(&text);
        log::note(text);
    }
    Ok(module)
}

fn refuse(error: &LoadError, jit: &JitOptions) -> CuError {
    let message = error.to_string();
    jit.report(&message);
    log::tell(message);
    CuError(cu::CUDA_ERROR_INVALID_PTX)
}

impl Driver {
    /// Loaded modules.
    pub fn modules(&self) -> &'static Table<Module> {
        static ALL: LazyLock<Table<Module>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Driver {
    /// Functions of modules.
    pub fn functions(&self) -> &'static Table<Function> {
        static ALL: LazyLock<Table<Function>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Module {
    /// Places a module's variables, links its code and makes it known. `attributes` gives the settings of
    /// each function, by name. `managed` is where a library keeps the managed variables that its modules have in
    /// common; it is filled by the first of them.
    ///
    /// # Errors
    /// Not enough memory, or a symbol that is not defined.
    pub fn load(
        driver: &Driver,
        context: &Arc<Context>,
        module: exec::UnlinkedModule,
        jit: &JitOptions,
        attributes: &dyn Fn(&str) -> Arc<Mutex<Attributes>>,
        managed: Option<&mut Vec<Variable>>,
    ) -> Result<Arc<Self>> {
        let declared = module.variables().to_vec();
        let variables = place(driver, context, &declared, managed.as_deref())?;
        let known = |variable: &Variable| {
            let mut shared = managed.iter().flat_map(|it| it.iter());
            shared.any(|it| it.address == variable.address)
        };
        let both = declared.iter().zip(&variables);
        let fresh: Vec<_> = both.filter(|(_, variable)| !known(variable)).collect();
        let address_of = |name: &str| variables.iter().find(|v| v.name == name).map(|v| v.address);
        let linked = module
            .link(&address_of)
            .map_err(|error| refuse(&error, jit))
            .and_then(|code| {
                let address = |name: &str| address_of(name).or_else(|| code.function_address(name));
                initialise(driver, &fresh, &address, jit)?;
                Ok(code)
            });
        let code = match linked {
            Ok(code) => code,
            Err(error) => {
                release(driver, fresh.into_iter().map(|(_, variable)| variable));
                return Err(error);
            }
        };
        if let Some(managed) = managed {
            let shared = variables.iter().filter(|variable| variable.shared);
            *managed = shared.cloned().collect();
        }
        let kernels = code.kernels().to_vec();
        let module = Arc::new(Self {
            handle: handle::fresh(Tag::Module),
            context: Arc::clone(context),
            code,
            variables,
            functions: Mutex::default(),
        });
        let functions = kernels.into_iter().map(|info| {
            let function = Arc::new(Function {
                handle: handle::fresh(Tag::Function),
                module: Arc::clone(&module),
                c_name: CString::new(info.name.clone()).unwrap_or_default(),
                attributes: attributes(&info.name),
                info,
            });
            driver
                .functions()
                .insert(function.handle, Arc::clone(&function));
            function
        });
        *module.functions.lock() = functions.collect();
        driver.modules().insert(module.handle, Arc::clone(&module));
        Ok(module)
    }

    /// Its functions, in the image's order.
    pub fn functions(&self) -> Vec<Arc<Function>> {
        self.functions.lock().clone()
    }

    /// The function with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn function(&self, name: &str) -> Result<Arc<Function>> {
        self.functions
            .lock()
            .iter()
            .find(|f| f.info.name == name)
            .cloned()
            .ok_or(NOT_FOUND)
    }

    /// The variable with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn variable(&self, name: &str) -> Result<&Variable> {
        self.variables
            .iter()
            .find(|variable| variable.name == name && variable.reference.is_none())
            .ok_or(NOT_FOUND)
    }

    /// The address of the texture reference, or surface reference, with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn reference(&self, name: &str, surface: bool) -> Result<u64> {
        let wanted = match surface {
            true => exec::Referent::Surface,
            false => exec::Referent::Texture,
        };
        let is = |it: &&Variable| it.name == name && it.reference == Some(wanted);
        let found = self.variables.iter().find(is);
        found.map(|it| it.address).ok_or(NOT_FOUND)
    }

    /// Drops the functions. They hold their module: without this, neither would ever be freed.
    pub fn forget_functions(&self) -> Vec<Arc<Function>> {
        std::mem::take(&mut *self.functions.lock())
    }

    /// Waits for the context's work and frees the module.
    pub fn unload(&self, driver: &Driver) {
        let _ = self.context.synchronize();
        driver.modules().remove(self.handle);
        driver.references().forget(self.handle);
        for function in self.forget_functions() {
            driver.functions().remove(function.handle);
        }
        let own = self.variables.iter().filter(|variable| !variable.shared);
        release(driver, own);
    }
}

impl Function {
    /// The function behind a handle, which may also be that of a library's kernel: then it is the
    /// kernel's function in the current context.
    ///
    /// # Errors
    /// There is none, or its module cannot be loaded.
    pub fn resolve(driver: &Driver, handle: u64) -> Result<Arc<Self>> {
        if let Some(function) = driver.functions().get(handle) {
            return Ok(function);
        }
        let kernel = driver.kernels().get(handle).ok_or(INVALID_HANDLE)?;
        kernel.function(driver, &crate::context::current()?)
    }
}

/// Finds memory for variables. Those in `shared`, of a library, have theirs already.
fn place(
    driver: &Driver,
    context: &Context,
    declared: &[GlobalVar],
    shared: Option<&Vec<Variable>>,
) -> Result<Vec<Variable>> {
    let known = |variable: &GlobalVar| shared?.iter().find(|it| it.name == variable.name);
    let mut variables: Vec<Variable> = Vec::with_capacity(declared.len());
    for variable in declared {
        if let Some(known) = known(variable) {
            variables.push(known.clone());
            continue;
        }
        let is_shared = variable.managed && shared.is_some();
        let address = find_memory(driver, context, variable, is_shared).inspect_err(|_| {
            let fresh = |it: &&Variable| {
                shared.is_none_or(|all| all.iter().all(|known| known.address != it.address))
            };
            release(driver, variables.iter().filter(fresh));
        })?;
        variables.push(Variable {
            name: variable.name.clone(),
            address,
            size: variable.size as u64,
            managed: variable.managed,
            shared: is_shared,
            reference: variable.reference,
        });
    }
    Ok(variables)
}

/// Finds memory for a variable, which does not end with the context if it is shared.
fn find_memory(
    driver: &Driver,
    context: &Context,
    variable: &GlobalVar,
    shared: bool,
) -> Result<u64> {
    let size = variable.size.max(1) as u64;
    let owner = if shared { 0 } else { context.handle };
    if !variable.managed {
        return driver
            .memory
            .allocate(&context.device, owner, size, Kind::Device);
    }
    let kind = Kind::Managed {
        attach: cu::CU_MEM_ATTACH_GLOBAL,
    };
    driver
        .memory
        .allocate_host(context.device.ordinal, owner, size, kind)
}

/// Gives variables their first values.
fn initialise(
    driver: &Driver,
    variables: &[(&GlobalVar, &Variable)],
    address: &dyn Fn(&str) -> Option<u64>,
    jit: &JitOptions,
) -> Result {
    for (declaration, variable) in variables {
        let mut bytes = declaration.init.clone();
        bytes.resize(declaration.size, 0);
        for relocation in &declaration.relocations {
            let undefined = LoadError::Undefined {
                name: relocation.symbol.clone(),
            };
            let target = address(&relocation.symbol).ok_or_else(|| refuse(&undefined, jit))?;
            let value = target.wrapping_add_signed(relocation.addend).to_le_bytes();
            let place = relocation.offset..relocation.offset + relocation.size.min(8);
            let word = bytes
                .get_mut(place)
                .ok_or_else(|| refuse(&undefined, jit))?;
            let len = word.len();
            word.copy_from_slice(&value[..len]);
        }
        driver.memory.write(variable.address, &bytes)?;
    }
    Ok(())
}

/// Frees variables.
pub fn release<'v>(driver: &Driver, variables: impl IntoIterator<Item = &'v Variable>) {
    for variable in variables {
        // A variable of a context that is being destroyed may be gone already.
        let _ = driver.memory.free(variable.address, |_| true);
    }
}
