//! Makes and loads the instrumented kernels of one module.

use std::collections::BTreeMap;

use fermata_abi::op::{FunctionId, ModuleId};
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, FunctionHandle, ModuleHandle};
use fermata_ptx::ast::Module;
use fermata_ptx::passes::{bind, guard};

use super::texts::Texts;
use super::{Instrumented, InstrumentedKernel, InstrumentedModule, NotInstrumented};
use crate::{Live, Site};

/// Kernels of a module by name; a program may have asked for one more than once.
type Names = BTreeMap<String, Vec<FunctionId>>;

fn each(names: &Names) -> impl Iterator<Item = (&str, FunctionId)> {
    names
        .iter()
        .flat_map(|(name, handles)| handles.iter().map(move |handle| (name.as_str(), *handle)))
}

/// The architecture whose text the driver has compiled, or from which its machine code was made.
fn version_of(live: &Live, function: FunctionHandle) -> Option<u32> {
    let attributes = live.driver.function_attributes(function);
    let version = attributes.get(cu::CU_FUNC_ATTRIBUTE_PTX_VERSION as usize)?;
    u32::try_from(*version).ok()
}

impl Instrumented {
    /// Instruments these kernels of a module, or notes why that is not possible.
    pub(super) fn make(
        &mut self,
        site: &mut Site,
        module: ModuleId,
        functions: &[FunctionId],
        texts: &mut Texts,
    ) -> Result<(), DriverError> {
        let Site { session, live } = site;
        let mut names = Names::new();
        for function in functions {
            if let Ok(record) = session.functions.get(*function) {
                names
                    .entry(record.name.clone())
                    .or_default()
                    .push(*function);
            }
        }
        let (Ok(record), Some(original)) = (
            session.modules.get(module),
            live.modules.get(&module).copied(),
        ) else {
            return Ok(());
        };
        let context = record.context;
        live.enter(context)?;
        let version = functions
            .iter()
            .find_map(|function| version_of(live, live.functions.get(function)?.handle));
        let text = texts.get(session.image(&record.image), record.image, version);
        let loaded = text.and_then(|text| self.load(live, original, &text, &names));
        let instrumented_module = match loaded {
            Ok(Some(instrumented_module)) => instrumented_module,
            Ok(None) => return Ok(()),
            Err(why) => {
                for (kernel, function) in each(&names) {
                    self.refuse(function, kernel, &why);
                }
                return Ok(());
            }
        };
        self.modules.push(InstrumentedModule {
            handle: instrumented_module,
            context,
            of: module,
        });
        for (kernel, function) in each(&names) {
            if self.without.contains_key(&function) {
                continue;
            }
            match find(live, instrumented_module, kernel, function) {
                Ok(instrumented) => {
                    self.instrumented.insert(function, instrumented);
                }
                Err(why) => self.refuse(function, kernel, &why),
            }
        }
        Ok(())
    }

    /// Instruments the text and loads it into the current context; `None` if no kernel is left.
    fn load(
        &mut self,
        live: &Live,
        original: ModuleHandle,
        text: &Module,
        names: &Names,
    ) -> Result<Option<ModuleHandle>, String> {
        let guarded = guard(text, self.what, &|name| names.contains_key(name));
        let guarded = guarded.map_err(|error| error.to_string())?;
        let address = |name: &str| {
            let found = live.driver.variable(original, name);
            found.ok().map(|(address, _)| address)
        };
        let bound = bind(guarded.module, &address);
        for (kernel, why) in guarded.refused.iter().chain(&bound.refused) {
            for function in names.get(&**kernel).into_iter().flatten() {
                self.refuse(*function, kernel, &why.to_string());
            }
        }
        let made: Vec<&str> = bound.kernels().map(|name| &**name).collect();
        for (kernel, function) in each(names) {
            if !made.contains(&kernel) && !self.without.contains_key(&function) {
                self.refuse(function, kernel, "it is not in its module's text");
            }
        }
        if made.is_empty() {
            return Ok(None);
        }
        let text = bound.module.to_string();
        let loaded = live.driver.load_module(text.as_bytes());
        let refused = |error| format!("the driver refuses the instrumented kernel: {error}");
        loaded.map(Some).map_err(refused)
    }

    fn refuse(&mut self, function: FunctionId, kernel: &str, why: &str) {
        let refused = NotInstrumented {
            function,
            kernel: kernel.to_owned(),
            why: why.to_owned(),
        };
        self.without.insert(function, refused);
    }
}

/// The instrumented kernel in its loaded module, compared with the original.
fn find(
    live: &Live,
    module: ModuleHandle,
    kernel: &str,
    function: FunctionId,
) -> Result<InstrumentedKernel, String> {
    let said = |error: DriverError| format!("the driver refuses the instrumented kernel: {error}");
    let original = live.functions.get(&function).ok_or("it is not loaded")?;
    let instrumented = live.driver.function(module, kernel).map_err(said)?;
    let expected = live.driver.function_params(original.handle).map_err(said)?;
    let params = live.driver.function_params(instrumented).map_err(said)?;
    let table = match params.split_last() {
        Some(((at, 8), rest)) if rest == expected => *at,
        _ => return Err("its parameters are others than its text says".to_owned()),
    };
    let attributes = live.driver.function_attributes(instrumented);
    let threads = attributes.get(cu::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as usize);
    let max_threads = threads.and_then(|n| u64::try_from(*n).ok());
    Ok(InstrumentedKernel {
        function: instrumented,
        kernel: kernel.to_owned(),
        context: original.context,
        table_at: table as usize,
        max_threads: max_threads.unwrap_or(u64::MAX),
        attributes: BTreeMap::new(),
    })
}
