//! Loads a module: from PTX text to kernels that can be launched.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata_ptx::ast::{self, Item};
use parking_lot::Mutex;

use super::compile::{Compiler, Descriptor, closure, descriptors};
use super::descriptor::{self, FUNCTIONS};
use super::layout::Layout;
use super::runtime::context::{DeviceThread, Stop};
use super::runtime::grid::{Child, EntryPoint, Grid, RESERVED_SHARED, Residents};
use super::runtime::{pool, window};
use super::translate::Unit;
use super::{Fault, GlobalVar, KernelInfo, Launch, LoadError, WINDOW_BASE};

/// A module that has been read and checked, its variables not yet placed.
pub struct UnlinkedModule {
    ast: ast::Module,
    layout: Layout,
    compiler: Compiler,
}

impl UnlinkedModule {
    /// Reads PTX text and checks every function of it. A kernel that may reach something that this software GPU does
    /// not execute is there, but refused.
    ///
    /// # Errors
    /// Text that is not PTX, names that are not defined, and module variables that are not possible here.
    pub fn load(ptx: &str) -> Result<Self, LoadError> {
        let ast = fermata_ptx::parse(ptx).map_err(|e| LoadError::Syntax {
            line: e.line,
            message: e.message,
        })?;
        let refuse = |what: String| LoadError::Unsupported {
            line: 1,
            function: String::new(),
            instruction: format!("`{what}`"),
        };
        if ast.address_size != 64 {
            return Err(refuse(format!(".address_size {}", ast.address_size)));
        }
        let mut layout = Layout::new(&ast)?;
        let mut compiler = Compiler::new().map_err(refuse)?;
        let target = compiler
            .target()
            .ok_or_else(|| refuse("this machine".to_owned()))?;
        let known = |name: &str| {
            let known = layout.variable_sizes.contains_key(name)
                || layout.externs.iter().any(|n| &**n == name);
            known.then_some(WINDOW_BASE)
        };
        let unit = Unit {
            ast: &ast,
            layout: &layout,
            address: &known,
            descriptors: WINDOW_BASE,
            functions: WINDOW_BASE,
            target,
        };
        let mut refused: HashMap<usize, Arc<str>> = HashMap::new();
        for (index, item) in ast.items.iter().enumerate() {
            if let Item::Function(function) = item
                && function.body.is_some()
            {
                match compiler.check(&unit, function) {
                    Ok(()) => {}
                    Err(why @ LoadError::Unsupported { .. }) => {
                        refused.insert(index, Arc::from(why.to_string()));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if !refused.is_empty() {
            refuse_kernels(&ast, &mut layout, &refused);
        }
        Ok(Self {
            ast,
            layout,
            compiler,
        })
    }

    /// The kernels, in the order of the text.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.layout.kernels
    }

    /// The variables that need a place, in the order of the text.
    pub fn variables(&self) -> &[GlobalVar] {
        &self.layout.variables
    }

    /// Names declared `.extern`: [`UnlinkedModule::link`] asks for them too.
    pub fn externs(&self) -> impl Iterator<Item = &str> {
        self.layout.externs.iter().map(|n| &**n)
    }

    /// Fixes the addresses of the module's variables and of those it declares `.extern`.
    ///
    /// # Errors
    /// [`LoadError::Undefined`] for a variable that `place` does not know.
    pub fn link(self, place: &dyn Fn(&str) -> Option<u64>) -> Result<LinkedModule, LoadError> {
        let names = self.layout.variables.iter().map(|v| v.name.as_str());
        let mut addresses = HashMap::new();
        for name in names.chain(self.layout.externs.iter().map(|n| &**n)) {
            let address = place(name).ok_or_else(|| LoadError::Undefined {
                name: name.to_owned(),
            })?;
            addresses.insert(name.to_owned(), address);
        }
        let kernels = self
            .layout
            .kernels
            .iter()
            .enumerate()
            .map(|(i, k)| (k.name.clone(), (i, OnceLock::new())))
            .collect();
        Ok(LinkedModule {
            descriptors: descriptors(&self.ast),
            kernels,
            compiler: Mutex::new(self.compiler),
            ast: self.ast,
            layout: self.layout,
            addresses,
        })
    }
}

/// Refuses the kernels that may reach one of the `refused` functions, by item number.
fn refuse_kernels(ast: &ast::Module, layout: &mut Layout, refused: &HashMap<usize, Arc<str>>) {
    let reason = |name: &str| {
        let index = *layout.functions.get(name)?;
        let own = refused.get(&index);
        let reached = || {
            closure(ast, layout, index)
                .iter()
                .find_map(|i| refused.get(i))
        };
        own.or_else(reached).cloned()
    };
    let reasons: Vec<_> = layout.kernels.iter().map(|k| reason(&k.name)).collect();
    for (kernel, reason) in layout.kernels.iter_mut().zip(reasons) {
        kernel.refused = reason;
    }
}

/// The result of compiling a kernel, once it has been tried.
type Compiled = OnceLock<Result<EntryPoint, Arc<str>>>;

/// A module whose kernels can be launched, from any number of threads at once.
pub struct LinkedModule {
    ast: ast::Module,
    layout: Layout,
    addresses: HashMap<String, u64>,
    descriptors: Box<[Descriptor]>,
    /// Index in the layout, and how compiling went.
    kernels: HashMap<String, (usize, Compiled)>,
    compiler: Mutex<Compiler>,
}

impl LinkedModule {
    /// What stands for the address of a device function or kernel in memory.
    pub fn function_address(&self, name: &str) -> Option<u64> {
        let name = self.layout.aliases.get(name).map_or(name, |n| &**n);
        let index = *self.layout.functions.get(name)?;
        Some(self.functions() + index as u64 * descriptor::SIZE)
    }

    /// What kernels see as the address of the first descriptor.
    fn functions(&self) -> u64 {
        let own = || self.descriptors.as_ptr() as u64;
        self.addresses.get(FUNCTIONS).copied().unwrap_or_else(own)
    }

    /// The kernels, in the order of the text.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.layout.kernels
    }

    fn entry(&self, name: &str) -> Result<(&KernelInfo, EntryPoint), String> {
        let (index, compiled) = self.kernels.get(name).ok_or("no such kernel")?;
        if let Some(why) = &self.layout.kernels[*index].refused {
            return Err(why.to_string());
        }
        let entry = compiled.get_or_init(|| self.compile(name).map_err(Arc::from));
        match entry {
            Ok(entry) => Ok((&self.layout.kernels[*index], *entry)),
            Err(why) => Err(why.to_string()),
        }
    }

    fn compile(&self, name: &str) -> Result<EntryPoint, String> {
        let index = *self.layout.functions.get(name).ok_or("no such kernel")?;
        let mut compiler = self.compiler.lock();
        let unit = Unit {
            ast: &self.ast,
            layout: &self.layout,
            address: &|name| self.addresses.get(name).copied(),
            descriptors: self.descriptors.as_ptr() as u64,
            functions: self.functions(),
            target: compiler.target().ok_or("no compiler")?,
        };
        compiler.compile(
            &unit,
            &self.descriptors,
            &closure(&self.ast, &self.layout, index),
        )?;
        let code = self.descriptors[index].code.load(Ordering::Acquire) as usize;
        // SAFETY: the code was compiled with the signature of a kernel, which is `EntryPoint`'s, and lives
        // as long as the compiler in `self`.
        Ok(unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut DeviceThread)>(code) })
    }

    /// Runs the whole grid, and what its threads launch, and returns when all has ended. The first launch of a kernel
    /// compiles it.
    ///
    /// # Errors
    /// The fault that stopped it; memory is left as it was at that moment.
    pub fn launch(&self, kernel: &str, launch: &Launch<'_>) -> Result<(), Fault> {
        let mut waiting = in_reverse(self.launch_grid(kernel, launch)?);
        while let Some(child) = waiting.pop() {
            let unknown = || Fault::Illegal {
                kernel: kernel.to_owned(),
                what: "a launch by a kernel of what is no kernel".to_owned(),
            };
            let info = self.kernel_at(child.function).ok_or_else(unknown)?;
            let nested = Launch {
                grid: child.grid,
                block: child.block,
                dynamic_shared: child.shared,
                params: &child.params,
                cooperative: None,
                host: launch.host.clone(),
                ..*launch
            };
            let launched = self.launch_grid(&info.name, &nested)?;
            waiting.extend(in_reverse(launched));
        }
        Ok(())
    }

    /// The kernel whose address this is.
    fn kernel_at(&self, address: u64) -> Option<&KernelInfo> {
        let distance = address.checked_sub(self.functions())?;
        let index = usize::try_from(distance / descriptor::SIZE).ok()?;
        let Item::Function(function) = self.ast.items.get(index)? else {
            return None;
        };
        let (number, _) = self.kernels.get(&*function.name)?;
        distance
            .is_multiple_of(descriptor::SIZE)
            .then(|| &self.layout.kernels[*number])
    }

    /// Runs one grid; what its threads have launched.
    fn launch_grid(&self, kernel: &str, launch: &Launch<'_>) -> Result<Vec<Child>, Fault> {
        let fault = |stop| name_fault(kernel, launch, stop);
        let (info, entry) = self
            .entry(kernel)
            .map_err(|what| fault(Stop::Illegal(what)))?;
        let threads: u64 = launch.block.iter().map(|&n| u64::from(n)).product();
        let blocks = launch
            .grid
            .iter()
            .try_fold(1u64, |n, &d| n.checked_mul(u64::from(d)));
        let static_shared = info.static_shared.next_multiple_of(16);
        let shared = u64::from(static_shared) + u64::from(launch.dynamic_shared);
        let bad = !(1..=1024).contains(&threads)
            || blocks.is_none_or(|n| n == 0)
            || shared + RESERVED_SHARED > window::SHARED
            || launch.params.len() < info.param_bytes
            || info.param_bytes > window::PARAMS;
        if bad {
            return Err(fault(Stop::Illegal(
                "launched with impossible dimensions or parameters".to_owned(),
            )));
        }
        let parameters = |address| Some(self.kernel_at(address)?.param_bytes);
        let grid = Grid {
            entry,
            grid: launch.grid,
            block: launch.block,
            params: launch.params,
            static_shared,
            dynamic_shared: launch.dynamic_shared,
            multiprocessors: launch.multiprocessors,
            processors: launch.processors,
            grid_id: launch.grid_id,
            deadline: (launch.limit_seconds > 0)
                .then(|| Instant::now() + Duration::from_secs(launch.limit_seconds)),
            residents: Residents::new(launch.resident, launch.block_wait),
            workspace: launch.cooperative.unwrap_or(0),
            stop: launch.stop,
            host: launch.host.clone(),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            fault: Mutex::new(None),
            parameters: &parameters,
            launched: Mutex::new(Vec::new()),
        };
        pool::run(&grid, launch.cooperative.is_some());
        match grid.fault.into_inner() {
            None => Ok(grid.launched.into_inner()),
            Some(stop) => Err(fault(stop)),
        }
    }
}

/// Launches of one grid with the first at the end; those that wait for all others come before it.
fn in_reverse(launched: Vec<Child>) -> Vec<Child> {
    let (mut order, mut others): (Vec<_>, Vec<_>) = launched.into_iter().partition(|c| c.tail);
    order.reverse();
    others.reverse();
    order.extend(others);
    order
}

fn name_fault(kernel: &str, launch: &Launch<'_>, stop: Stop) -> Fault {
    let kernel = kernel.to_owned();
    match stop {
        Stop::Address(address) => Fault::IllegalAddress { kernel, address },
        Stop::Misaligned(address) => Fault::Misaligned { kernel, address },
        Stop::Trap => Fault::Trap { kernel },
        Stop::Assert => Fault::Assert { kernel },
        Stop::Illegal(what) => Fault::Illegal { kernel, what },
        Stop::Timeout => Fault::Timeout {
            kernel,
            seconds: launch.limit_seconds,
        },
        Stop::Stopped => Fault::Stopped { kernel },
        Stop::Deadlock => Fault::Deadlock { kernel },
        Stop::Unbegun(running) => Fault::Unbegun {
            kernel,
            running,
            seconds: launch.block_wait,
        },
    }
}
