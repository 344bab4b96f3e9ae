//! Modules of a context, with their functions and variables.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use fermata_abi::op::{Address, FunctionId, FunctionInfo, ModuleId, Op, ReplyBody};
use fermata_abi::sys::driver::{
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN,
};
use parking_lot::Mutex;

use crate::handles;
use crate::link;
use crate::object::context::Context;
use crate::object::mirror::{Block, Kind, Mirror};
use crate::object::occupancy::Answers;
use crate::result::Result;

/// Attributes of a function that a program may set to any value that they can have.
const SETTABLE: [u32; 2] = [
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];

/// A module.
#[derive(Debug)]
pub struct Module {
    /// Its handle.
    pub handle: ModuleId,
    /// Where it is loaded.
    pub context: Arc<Context>,
    /// The names of its kernels, once they have been asked for.
    names: OnceLock<Vec<String>>,
    /// Whether it belongs to a library; it is then unloaded with the library.
    pub of_library: bool,
    /// Its functions that have been asked for, by name.
    pub functions: Mutex<HashMap<String, Arc<Function>>>,
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
    pub handle: FunctionId,
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
    /// The limits that launches are checked against.
    pub limits: Limits,
    /// The driver's answers about its occupancy.
    pub occupancy: Answers,
}

/// Limits of a function's launches, to be read without a lock. A value that the driver did not report is no limit.
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

impl Module {
    /// A module that the worker has loaded.
    pub fn new(handle: ModuleId, context: &Arc<Context>, of_library: bool) -> Self {
        Self {
            handle,
            context: context.home().clone(),
            names: OnceLock::new(),
            of_library,
            functions: Mutex::default(),
        }
    }

    /// The names of its kernels, as far as the driver reports them.
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

    /// A variable of the module.
    pub fn variable(&self, memory: &Mirror, name: &str) -> Result<Variable> {
        let op = Op::VariableGet {
            module: self.handle,
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
        if memory.find(address).is_none() {
            let kind = Kind::Variable(self.handle);
            memory.insert(Block::new(address, size, kind, &self.context));
        }
        Ok(Variable {
            address,
            size,
            managed,
        })
    }
}

impl Function {
    /// Asks the worker for the function of a name in a module.
    pub fn find(module: &Arc<Module>, name: &str) -> Result<Self> {
        let handle = handles::fresh();
        let info = function_info(handle, module.handle, name)?;
        let params_size = info
            .params
            .iter()
            .map(|(at, size)| at + size)
            .max()
            .unwrap_or(0) as usize;
        Ok(Self {
            handle,
            module: module.clone(),
            name: CString::new(name).map_err(|_| CUDA_ERROR_INVALID_VALUE)?,
            params: info.params,
            params_size,
            limits: Limits::new(&info.attributes),
            occupancy: Answers::default(),
            attributes: Mutex::new(info.attributes),
        })
    }

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

    /// Sets a `CUfunction_attribute`. An unchanged value is not sent, because libraries set the same value before every
    /// launch, and the worker would set it only after all launches that it has not issued yet.
    pub fn set_attribute(&self, attribute: i32, value: i32) -> Result {
        let at = usize::try_from(attribute).ok();
        // Locked until the driver has answered, so that after two threads' calls the value here is the driver's.
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

fn function_info(function: FunctionId, module: ModuleId, name: &str) -> Result<FunctionInfo> {
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
