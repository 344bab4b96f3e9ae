//! Finds the device variables of a session: asks the driver for each name that the session's module images contain.

use std::collections::BTreeSet;

use fermata_abi::op::{Address, ContextId, ModuleId};

use crate::{EngineError, Site};

/// Finds and records all device variables of the session's modules. Each module is looked at once. Afterwards every image
/// is named by its hash.
///
/// # Errors
/// A module's context cannot be used; the examination of its image has failed or takes too long.
pub fn discover(site: &mut Site) -> Result<(), EngineError> {
    site.finish_images()?;
    let session = &site.session;
    let done = &mut site.live.discovered;
    done.retain(|module| session.modules.contains(*module));
    let all = session.modules.iter().map(|(handle, _)| handle);
    let modules: Vec<_> = all.filter(|module| !done.contains(module)).collect();
    for module in modules {
        discover_of(site, module)?;
        site.live.discovered.insert(module);
    }
    Ok(())
}

/// As [`discover`], of one module.
///
/// # Errors
/// Its context cannot be used; the examination of its image fails.
pub fn discover_of(site: &mut Site, module: ModuleId) -> Result<(), EngineError> {
    let known = site.session.modules.get(module)?;
    let (context, image) = (known.context, known.image);
    if site.live.discovered.contains(&module) {
        return Ok(());
    }
    let names = site.variable_names(&image)?;
    record(site, module, context, &names)
}

/// Records those of `names` that are variables of the module.
fn record(
    site: &mut Site,
    module: ModuleId,
    context: ContextId,
    names: &BTreeSet<String>,
) -> Result<(), EngineError> {
    let Some(handle) = site.live.modules.get(&module).copied() else {
        return Ok(());
    };
    let operation = format!("find the variables of module {module:#x}");
    site.live
        .enter(context)
        .map_err(EngineError::driver(operation))?;
    for name in names {
        if let Ok((address, size)) = site.live.driver.variable(handle, name) {
            site.session
                .add_variable(module, name, Address::from_raw(address), size, false)?;
        }
    }
    Ok(())
}
