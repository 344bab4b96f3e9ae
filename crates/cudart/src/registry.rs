//! What compiled programs register at start-up: fat binaries, and the kernels and variables in them.
//!
//! ```text
//!  start-up code ── Binary ──┬── Function (by address of the host stub)   ── kernel handle, at first launch
//!                            └── Variable (by address of the host shadow) ── device address, at first use
//!                     └── library handle of the driver, loaded when one of its kernels or variables is used
//! ```
//! Registration calls no driver function. Libraries and kernels do not belong to a context, so that one
//! handle serves every device. Records are never freed: programs keep their addresses in statics.
use core::ffi::{CStr, c_char, c_void};
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering};

use fermata_abi::sys::driver::{CUfunction, CUkern_st, CUkernel, CUlib_st, CUlibrary};
use fermata_abi::sys::runtime::cudaErrorSymbolNotFound;
use parking_lot::{Mutex, RwLock};

use crate::driver::{self, Calls};
use crate::error::{Error, Result};

/// The structure that the compiler puts into `.nvFatBinSegment`; a fourth word follows.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const c_void,
}

const WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// A registered fat binary.
pub struct Binary {
    /// What the driver loads: the container that the wrapper points at.
    image: *const c_void,
    library: AtomicPtr<CUlib_st>,
    loading: Mutex<()>,
    managed: Mutex<Vec<&'static Managed>>,
}

// SAFETY: the image is constant data of the program; everything else is behind atomics and locks.
unsafe impl Send for Binary {}
// SAFETY: as above.
unsafe impl Sync for Binary {}

/// A registered kernel.
pub struct Function {
    binary: &'static Binary,
    stub: usize,
    name: &'static CStr,
    kernel: AtomicPtr<CUkern_st>,
}

/// A registered device variable.
pub struct Variable {
    binary: &'static Binary,
    name: &'static CStr,
}

/// A managed variable and the program's pointer to it.
pub struct Managed {
    name: &'static CStr,
    host_pointer: AtomicPtr<*mut c_void>,
}

/// What a handle given to the program is to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handle {
    /// A kernel of a library, good in every context.
    Kernel,
    /// A function of a module, or of a kernel in one context.
    Function,
    /// A function made from a registered kernel: its host stub.
    FunctionOf(usize),
}

#[derive(Default)]
struct Registry {
    functions: HashMap<usize, &'static Function>,
    variables: HashMap<usize, &'static Variable>,
    /// Handles given to the program, which it may use where a host stub is asked for.
    handles: HashMap<usize, Handle>,
}

static REGISTRY: RwLock<Option<Registry>> = RwLock::new(None);

/// Functions found lately, by their stubs' addresses: a launch looks here first and takes no lock. Filled
/// under the registry's lock, so that nothing is in it that has been removed.
static RECENT: [AtomicPtr<Function>; 64] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 64];

/// The place for a stub in [`RECENT`]; compilers put functions at multiples of 16 bytes.
fn recent(stub: usize) -> &'static AtomicPtr<Function> {
    &RECENT[(stub >> 4) % RECENT.len()]
}

/// Registers a fat binary.
///
/// # Safety
/// `image` is null, or points at a wrapper or an image that stays until it is unregistered.
pub unsafe fn add_binary(image: *const c_void) -> &'static Binary {
    // SAFETY: anything registered is at least as large as a wrapper.
    let image = match unsafe { image.cast::<Wrapper>().as_ref() } {
        Some(wrapper) if wrapper.magic == WRAPPER_MAGIC && wrapper.version > 0 => wrapper.data,
        _ => image,
    };
    Box::leak(Box::new(Binary {
        image,
        library: AtomicPtr::default(),
        loading: Mutex::new(()),
        managed: Mutex::new(Vec::new()),
    }))
}

/// Registers the kernel behind a host stub.
///
/// # Safety
/// `name` is a terminated string that stays.
pub unsafe fn add_function(binary: &'static Binary, stub: *const c_void, name: *const c_char) {
    if stub.is_null() || name.is_null() {
        return;
    }
    let function = Box::leak(Box::new(Function {
        binary,
        stub: stub.addr(),
        // SAFETY: terminated and staying, by the caller's promise.
        name: unsafe { CStr::from_ptr(name) },
        kernel: AtomicPtr::default(),
    }));
    let mut registry = REGISTRY.write();
    registry
        .get_or_insert_default()
        .functions
        .insert(stub.expose_provenance(), function);
    // Another one may have been registered for the stub before.
    recent(stub.addr()).store(core::ptr::null_mut(), Ordering::Release);
}

/// Registers the device variable behind a host shadow.
///
/// # Safety
/// `name` is a terminated string that stays.
pub unsafe fn add_variable(binary: &'static Binary, shadow: *const c_void, name: *const c_char) {
    if shadow.is_null() || name.is_null() {
        return;
    }
    // SAFETY: terminated and staying, by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let variable = Box::leak(Box::new(Variable { binary, name }));
    let mut registry = REGISTRY.write();
    registry
        .get_or_insert_default()
        .variables
        .insert(shadow.addr(), variable);
}

/// Registers a managed variable, whose address the program reads through `host_pointer`.
///
/// # Safety
/// `name` is a terminated string that stays, `host_pointer` a place that stays.
pub unsafe fn add_managed(
    binary: &'static Binary,
    host_pointer: *mut *mut c_void,
    name: *const c_char,
) {
    // SAFETY: the same promises.
    unsafe { add_variable(binary, host_pointer.cast(), name) };
    if host_pointer.is_null() || name.is_null() {
        return;
    }
    binary.managed.lock().push(Box::leak(Box::new(Managed {
        // SAFETY: terminated and staying, by the caller's promise.
        name: unsafe { CStr::from_ptr(name) },
        host_pointer: AtomicPtr::new(host_pointer),
    })));
}

/// Forgets a binary's kernels and variables, and unloads it if it was loaded.
pub fn remove_binary(binary: &'static Binary) {
    if let Some(registry) = REGISTRY.write().as_mut() {
        registry
            .functions
            .retain(|_, f| !core::ptr::eq(f.binary, binary));
        for place in &RECENT {
            place.store(core::ptr::null_mut(), Ordering::Release);
        }
        registry
            .variables
            .retain(|_, v| !core::ptr::eq(v.binary, binary));
    }
    let library = binary.library.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if library.is_null() {
        return;
    }
    if let Ok(calls) = driver::get() {
        // SAFETY: a handle that this driver gave and nobody unloaded. The program ends or drops the code:
        // there is no one to tell of a failure.
        let _ = unsafe { calls.cuLibraryUnload(library) };
    }
}

/// The kernel registered for a host stub.
///
/// # Errors
/// `cudaErrorInvalidDeviceFunction` if none is.
pub fn function(stub: *const c_void) -> Result<&'static Function> {
    let registry = REGISTRY.read();
    let functions = registry.as_ref().map(|r| &r.functions);
    let found = functions.and_then(|f| f.get(&stub.addr()).copied());
    found.ok_or(Error::INVALID_FUNCTION)
}

/// What the driver launches for what a program names: a host stub, or a handle given out before.
///
/// A kernel serves where a function is asked for in launches. What is not known here may be a kernel that
/// the program has from the driver API.
///
/// # Errors
/// `cudaErrorInvalidDeviceFunction` for null, or what loading says.
pub fn launchable(calls: &Calls, stub_or_handle: *const c_void) -> Result<CUfunction> {
    if stub_or_handle.is_null() {
        return Err(Error::INVALID_FUNCTION);
    }
    // SAFETY: null, or a record that is never freed.
    if let Some(function) = unsafe {
        recent(stub_or_handle.addr())
            .load(Ordering::Acquire)
            .as_ref()
    } && function.stub == stub_or_handle.addr()
    {
        return Ok(function.kernel(calls)?.cast());
    }
    match lookup(stub_or_handle) {
        Ok(Named::Stub(function)) => Ok(function.kernel(calls)?.cast()),
        Ok(Named::Handle(_)) | Err(_) => Ok(stub_or_handle.cast_mut().cast()),
    }
}

/// The driver's kernel for what a program names; functions of modules are none.
///
/// # Errors
/// `cudaErrorInvalidDeviceFunction` if it is no kernel, or what loading says.
pub fn kernel(calls: &Calls, stub_or_handle: *const c_void) -> Result<CUkernel> {
    match lookup(stub_or_handle)? {
        Named::Stub(function) => function.kernel(calls),
        Named::Handle(Handle::Kernel) => Ok(stub_or_handle.cast_mut().cast()),
        Named::Handle(Handle::FunctionOf(stub)) => {
            match lookup(core::ptr::without_provenance(stub))? {
                Named::Stub(function) => function.kernel(calls),
                Named::Handle(_) => Err(Error::INVALID_FUNCTION),
            }
        }
        Named::Handle(Handle::Function) => Err(Error::INVALID_FUNCTION),
    }
}

/// The driver's function, in the current context, for what a program names.
///
/// # Errors
/// `cudaErrorInvalidDeviceFunction` if it names none, or what loading says.
pub fn in_context(calls: &Calls, stub_or_handle: *const c_void) -> Result<CUfunction> {
    let (kernel, kind) = match lookup(stub_or_handle)? {
        Named::Stub(function) => (
            function.kernel(calls)?,
            Handle::FunctionOf(stub_or_handle.addr()),
        ),
        Named::Handle(Handle::Kernel) => (stub_or_handle.cast_mut().cast(), Handle::Function),
        Named::Handle(_) => return Ok(stub_or_handle.cast_mut().cast()),
    };
    let mut function = core::ptr::null_mut();
    // SAFETY: a live kernel and a place for the result.
    unsafe { calls.cuKernelGetFunction(&mut function, kernel) }?;
    remember(function.cast(), kind);
    Ok(function)
}

/// The host stub that a driver's kernel or function was made for, or the handle itself, which then
/// serves like one.
pub fn stub_of(handle: *mut c_void, kind: Handle) -> *mut c_void {
    let stub = {
        let registry = REGISTRY.read();
        registry
            .as_ref()
            .and_then(|registry| match registry.handles.get(&handle.addr()) {
                Some(Handle::FunctionOf(stub)) => Some(*stub),
                _ => {
                    let mut functions = registry.functions.iter();
                    let made =
                        functions.find(|(_, f)| f.kernel.load(Ordering::Acquire) == handle.cast());
                    made.map(|(stub, _)| *stub)
                }
            })
    };
    match stub {
        Some(stub) => core::ptr::with_exposed_provenance_mut(stub),
        None => {
            remember(handle, kind);
            handle
        }
    }
}

/// Remembers a handle that the program may use where a host stub is asked for.
pub fn remember(handle: *const c_void, kind: Handle) {
    REGISTRY
        .write()
        .get_or_insert_default()
        .handles
        .insert(handle.addr(), kind);
}

enum Named {
    Stub(&'static Function),
    Handle(Handle),
}

fn lookup(stub_or_handle: *const c_void) -> Result<Named> {
    let key = stub_or_handle.addr();
    let registry = REGISTRY.read();
    let registry = registry.as_ref().ok_or(Error::INVALID_FUNCTION)?;
    match registry.functions.get(&key) {
        Some(function) => {
            let found = core::ptr::from_ref::<Function>(function).cast_mut();
            recent(key).store(found, Ordering::Release);
            Ok(Named::Stub(function))
        }
        None => {
            let handle = registry.handles.get(&key).copied();
            handle.map(Named::Handle).ok_or(Error::INVALID_FUNCTION)
        }
    }
}

/// Address and size of the device variable behind a host shadow, in the current context.
///
/// # Errors
/// `cudaErrorInvalidSymbol` if there is none, or what loading says.
pub fn symbol(calls: &Calls, shadow: *const c_void) -> Result<(u64, usize)> {
    let variable = {
        let registry = REGISTRY.read();
        let variables = registry.as_ref().map(|r| &r.variables);
        let found = variables.and_then(|v| v.get(&shadow.addr()).copied());
        found.ok_or(Error::INVALID_SYMBOL)?
    };
    let library = variable.binary.library(calls)?;
    let (mut address, mut size) = (0, 0);
    let name = variable.name.as_ptr();
    // SAFETY: a live library, a terminated name, and places for the results.
    let found = unsafe { calls.cuLibraryGetGlobal(&mut address, &mut size, library, name) };
    let found = match found {
        // SAFETY: as above; managed variables are asked for by their own call.
        Err(Error(cudaErrorSymbolNotFound)) => unsafe {
            calls.cuLibraryGetManaged(&mut address, &mut size, library, name)
        },
        other => other,
    };
    found.map_err(|error| match error.0 {
        cudaErrorSymbolNotFound => Error::INVALID_SYMBOL,
        _ => error,
    })?;
    Ok((address, size))
}

impl Function {
    /// The driver's handle of this kernel; its library is loaded at the first call.
    ///
    /// # Errors
    /// `cudaErrorInvalidDeviceFunction` if the image lacks it, or what loading says.
    pub fn kernel(&self, calls: &Calls) -> Result<CUkernel> {
        let known = self.kernel.load(Ordering::Acquire);
        if !known.is_null() {
            return Ok(known);
        }
        let library = self.binary.library(calls)?;
        let mut kernel = core::ptr::null_mut();
        // SAFETY: a live library, a terminated name, and a place for the result.
        let found = unsafe { calls.cuLibraryGetKernel(&mut kernel, library, self.name.as_ptr()) };
        found.map_err(|error| match error.0 {
            cudaErrorSymbolNotFound => Error::INVALID_FUNCTION,
            _ => error,
        })?;
        self.kernel.store(kernel, Ordering::Release);
        Ok(kernel)
    }
}

impl Binary {
    /// The driver's handle of this binary, loaded at the first call.
    ///
    /// # Errors
    /// What the driver says of the image.
    pub fn library(&self, calls: &Calls) -> Result<CUlibrary> {
        let known = self.library.load(Ordering::Acquire);
        if !known.is_null() {
            return Ok(known);
        }
        let _only_one = self.loading.lock();
        let known = self.library.load(Ordering::Acquire);
        if !known.is_null() {
            return Ok(known);
        }
        let mut library = core::ptr::null_mut();
        // SAFETY: the image is the program's, no options, and a place for the result.
        unsafe {
            let (options, values) = (core::ptr::null_mut(), core::ptr::null_mut());
            let (more, more_values) = (core::ptr::null_mut(), core::ptr::null_mut());
            let image = self.image;
            calls.cuLibraryLoadData(
                &mut library,
                image,
                options,
                values,
                0,
                more,
                more_values,
                0,
            )
        }?;
        self.library.store(library, Ordering::Release);
        Ok(library)
    }

    /// Whether a managed variable is among what was registered.
    pub fn has_managed(&self) -> bool {
        !self.managed.lock().is_empty()
    }

    /// Loads the binary and gives the program the addresses of its managed variables.
    ///
    /// # Errors
    /// What the driver says of the image or a variable.
    pub fn place_managed(&self, calls: &Calls) -> Result {
        let managed: Vec<_> = self.managed.lock().clone();
        for variable in managed {
            let library = self.library(calls)?;
            let (mut address, mut size) = (0, 0);
            let name = variable.name.as_ptr();
            // SAFETY: a live library, a terminated name, and places for the results.
            unsafe { calls.cuLibraryGetManaged(&mut address, &mut size, library, name) }?;
            let address: *mut c_void = core::ptr::with_exposed_provenance_mut(address as usize);
            let place = variable.host_pointer.load(Ordering::Relaxed);
            // SAFETY: the place is the program's static pointer, given at registration.
            unsafe { place.write(address) };
            // The program names the variable by its address from now on.
            let shadow = place.addr();
            if let Some(registry) = REGISTRY.write().as_mut()
                && let Some(registered) = registry.variables.get(&shadow).copied()
            {
                registry.variables.insert(address.addr(), registered);
            }
        }
        Ok(())
    }
}
