//! Compiles a kernel and every function it can reach to machine code by Cranelift, at first use.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use cranelift_codegen::Context as CodegenContext;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Module as _, default_libcall_names};
use fermata_ptx::ast::{Function, Item, Module, Name, Statement};

use super::LoadError;
use super::descriptor;
use super::layout::{Layout, names, walk};
use super::runtime::mxcsr;
use super::runtime::signal::CodeRange;
use super::translate::{Unit, signature, translate};

/// A function as code refers to it; layout known to the translator.
#[repr(C)]
pub struct Descriptor {
    /// Address of its code; 0 until compiled.
    pub code: AtomicU64,
    /// Numbers of return parameters and parameters.
    pub shape: u64,
}

const _: () = assert!(size_of::<Descriptor>() as u64 == descriptor::SIZE);

/// One descriptor per item of the module; those of items that are no functions are never filled.
pub fn descriptors(module: &Module) -> Box<[Descriptor]> {
    let one = |item: &Item| Descriptor {
        code: AtomicU64::new(0),
        shape: match item {
            Item::Function(f) if !f.entry => descriptor::shape(f.returns.len(), f.params.len()),
            _ => u64::MAX,
        },
    };
    module.items.iter().map(one).collect()
}

/// Makes machine code and owns it.
pub struct Compiler {
    // Declared before `jit`, so that the ranges are forgotten before the memory goes.
    ranges: Vec<CodeRange>,
    jit: Option<JITModule>,
    scratch: FunctionBuilderContext,
    codegen: CodegenContext,
}

impl Compiler {
    /// A compiler for this machine.
    ///
    /// # Errors
    /// The processor lacks instructions that are relied on.
    pub fn new() -> Result<Self, String> {
        let mut flags = settings::builder();
        let set = |flags: &mut settings::Builder, name: &str, value: &str| {
            flags.set(name, value).map_err(|e| e.to_string())
        };
        set(&mut flags, "opt_level", "speed")?;
        // The text may be hostile: what the translator gets wrong must end as an error.
        set(&mut flags, "enable_verifier", "true")?;
        set(&mut flags, "unwind_info", "false")?;
        set(&mut flags, "is_pic", "false")?;
        if !(std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("avx2"))
        {
            return Err("this processor lacks FMA or AVX2".to_owned());
        }
        let isa = cranelift_native::builder()?
            .finish(settings::Flags::new(flags))
            .map_err(|e| e.to_string())?;
        let jit = JITModule::new(JITBuilder::with_isa(isa, default_libcall_names()));
        let codegen = jit.make_context();
        Ok(Self {
            ranges: Vec::new(),
            jit: Some(jit),
            scratch: FunctionBuilderContext::new(),
            codegen,
        })
    }

    /// Translates a function and discards the result.
    ///
    /// # Errors
    /// What cannot be translated.
    pub fn check(&mut self, unit: &Unit<'_>, function: &Function) -> Result<(), LoadError> {
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            self.codegen.clear();
            translate(unit, function, &mut self.codegen.func, &mut self.scratch)
        }));
        attempt.unwrap_or_else(|_| {
            self.scratch = FunctionBuilderContext::new();
            Err(LoadError::Unsupported {
                line: function.line,
                function: function.name.to_string(),
                instruction: "a combination of operands".to_owned(),
            })
        })
    }

    /// The properties of the target that the translator uses.
    pub fn target(&self) -> Option<cranelift_codegen::isa::TargetFrontendConfig> {
        self.jit.as_ref().map(|j| j.target_config())
    }

    /// Compiles all functions of `list` (item numbers) that have no code yet and fills their descriptors.
    ///
    /// # Errors
    /// The code generator's error, with the function's name.
    pub fn compile(
        &mut self,
        unit: &Unit<'_>,
        descriptors: &[Descriptor],
        list: &[usize],
    ) -> Result<(), String> {
        // Constants are computed here.
        let _defaults = mxcsr::Defaults::load();
        let attempt = catch_unwind(AssertUnwindSafe(|| self.generate(unit, descriptors, list)));
        attempt.unwrap_or_else(|_| {
            self.scratch = FunctionBuilderContext::new();
            Err("the code generator failed".to_owned())
        })
    }

    fn generate(
        &mut self,
        unit: &Unit<'_>,
        descriptors: &[Descriptor],
        list: &[usize],
    ) -> Result<(), String> {
        let jit = self.jit.as_mut().ok_or("no compiler")?;
        let mut done = Vec::new();
        for &index in list {
            let Some(Item::Function(function)) = unit.ast.items.get(index) else {
                continue;
            };
            if descriptors[index].code.load(Ordering::Acquire) != 0 {
                continue;
            }
            let fail =
                |e: &dyn std::fmt::Display| format!("cannot compile `{}`: {e}", function.name);
            self.codegen.clear();
            translate(unit, function, &mut self.codegen.func, &mut self.scratch)
                .map_err(|e| fail(&e))?;
            let id = jit
                .declare_anonymous_function(&signature(function))
                .map_err(|e| fail(&e))?;
            jit.define_function(id, &mut self.codegen)
                .map_err(|e| fail(&format!("{e:?}")))?;
            let bytes = self
                .codegen
                .compiled_code()
                .map_or(0, |c| c.code_info().total_size as usize);
            done.push((index, id, bytes));
        }
        self.codegen.clear();
        jit.finalize_definitions().map_err(|e| e.to_string())?;
        for (index, id, bytes) in done {
            let start = jit.get_finalized_function(id) as usize;
            self.ranges.push(CodeRange::new(start, bytes));
            descriptors[index]
                .code
                .store(start as u64, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.ranges.clear();
        if let Some(jit) = self.jit.take() {
            // SAFETY: the module that owns this compiler is gone, and launches borrow the module, so
            // no code of it runs any more.
            unsafe { jit.free_memory() };
        }
    }
}

/// Item numbers of everything that `kernel` may run: what it names, directly or through others, and,
/// if any of that calls through a pointer, every device function whose address may be taken.
pub fn closure(module: &Module, layout: &Layout, kernel: usize) -> Vec<usize> {
    let mut seen = HashSet::from([kernel]);
    let mut todo = vec![kernel];
    let mut indirect = false;
    while let Some(index) = todo.pop() {
        let Some(Item::Function(function)) = module.items.get(index) else {
            continue;
        };
        let mut reach = |name: &Name| {
            let name = layout.aliases.get(name).unwrap_or(name);
            if let Some(&callee) = layout.functions.get(name)
                && seen.insert(callee)
            {
                todo.push(callee);
            }
        };
        let mut through_pointer = false;
        walk(
            function.body.as_deref().unwrap_or_default(),
            &mut |s| match s {
                Statement::Instruction(i) => names(i, &mut reach),
                Statement::Prototype { .. } => through_pointer = true,
                Statement::Targets { calls: true, .. } => through_pointer = true,
                _ => {}
            },
        );
        if through_pointer && !indirect {
            indirect = true;
            for (name, &index) in &layout.functions {
                let takes = layout.address_taken.contains(name);
                if takes && seen.insert(index) {
                    todo.push(index);
                }
            }
        }
    }
    let mut list: Vec<usize> = seen.into_iter().collect();
    list.sort_unstable();
    list
}
