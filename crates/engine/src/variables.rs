//! Names in a module image, above all those of its device variables.
//!
//! The driver finds a variable by name but does not list them, so the names come from the image: PTX
//! declarations, or symbols of machine code. A name too many does no harm: the driver does not know it.
//! Reading an image takes long, and every stop asks, so what was found is kept.

use std::collections::{BTreeSet, HashMap, HashSet};

use fermata_abi::op::Handle;
use fermata_ptx::ast::{Item, Space};
use fermata_ptx::fatbin;
use fermata_state::ImageId;
use memchr::memmem;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::text::FATBIN_MAGIC;
use crate::{EngineError, Site};

/// Names that may be device variables in `image`: PTX text, machine code or a fat binary.
pub fn names(image: &[u8]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    collect(image, &mut names);
    names
}

/// What [`discover`] has found out about a session.
#[derive(Debug, Default)]
pub(crate) struct Discovered {
    names: HashMap<ImageId, BTreeSet<String>>,
    /// Modules whose variables are all recorded; they never change, and handles are never given twice.
    modules: HashSet<Handle>,
}

/// Finds all device variables of the session's modules and records them. A module is looked at once.
///
/// # Errors
/// A module's context cannot be used.
pub fn discover(site: &mut Site) -> Result<(), EngineError> {
    let mut known = std::mem::take(&mut site.live.discovered);
    let discovered = discover_with(site, &mut known);
    site.live.discovered = known;
    discovered
}

fn discover_with(site: &mut Site, known: &mut Discovered) -> Result<(), EngineError> {
    let session = &site.session;
    let Discovered {
        names: read,
        modules: done,
    } = known;
    done.retain(|module| session.modules.contains(*module));
    read.retain(|image, _| session.image(image).is_some());
    let modules: Vec<_> = session
        .modules
        .iter()
        .filter(|(handle, _)| !done.contains(handle))
        .map(|(handle, it)| (handle, it.context, it.image))
        .collect();
    for (module, context, image) in modules {
        let names = read
            .entry(image)
            .or_insert_with(|| site.session.image(&image).map(names).unwrap_or_default());
        record(site, module, context, names)?;
        done.insert(module);
    }
    Ok(())
}

/// As [`discover`], of one module.
///
/// # Errors
/// Its context cannot be used.
pub fn discover_of(site: &mut Site, module: Handle) -> Result<(), EngineError> {
    let known = site.session.modules.get(module)?;
    let (context, image) = (known.context, known.image);
    if site.live.discovered.modules.contains(&module) {
        return Ok(());
    }
    let mut read = std::mem::take(&mut site.live.discovered.names);
    let names = read
        .entry(image)
        .or_insert_with(|| site.session.image(&image).map(names).unwrap_or_default());
    let recorded = record(site, module, context, names);
    // A program may load and unload images for weeks without a checkpoint.
    read.retain(|image, _| site.session.image(image).is_some());
    site.live.discovered.names = read;
    recorded
}

/// Records those of `names` that are variables of the module.
fn record(
    site: &mut Site,
    module: Handle,
    context: Handle,
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
                .add_variable(module, name, address, size, false)?;
        }
    }
    Ok(())
}

/// Whether a name occurs in `image`, packed parts included; a part that cannot be unpacked counts as yes.
pub fn mentions(image: &[u8], name: &[u8]) -> bool {
    let finder = memmem::Finder::new(name);
    let occurs = |bytes: &[u8]| finder.find(bytes).is_some();
    if !image.starts_with(&FATBIN_MAGIC) {
        return occurs(image);
    }
    let Ok(entries) = fatbin::entries(image) else {
        return true;
    };
    entries
        .iter()
        .any(|entry| entry.contents().map_or(true, |contents| occurs(&contents)))
}

fn collect(image: &[u8], names: &mut BTreeSet<String>) {
    if image.starts_with(&FATBIN_MAGIC) {
        for entry in fatbin::entries(image).unwrap_or_default() {
            if let Ok(contents) = entry.contents() {
                collect(&contents, names);
            }
        }
    } else if image.starts_with(b"\x7fELF") {
        from_elf(image, names);
    } else {
        from_ptx(image, names);
    }
}

fn from_elf(image: &[u8], names: &mut BTreeSet<String>) {
    let Ok(file) = object::File::parse(image) else {
        return;
    };
    for symbol in file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.size() > 0)
    {
        if let Ok(name) = symbol.name() {
            names.insert(name.to_owned());
        }
    }
}

fn from_ptx(image: &[u8], names: &mut BTreeSet<String>) {
    let end = image
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(image.len());
    let Ok(text) = std::str::from_utf8(&image[..end]) else {
        return;
    };
    let Ok(module) = fermata_ptx::parse(text) else {
        return;
    };
    for item in &module.items {
        if let Item::Variable(variable) = item
            && matches!(variable.space, Space::Global | Space::Const)
        {
            names.insert(variable.name.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_ptx_are_found_and_parameters_are_not() {
        let text = b".version 8.0\n.target sm_75\n.address_size 64\n\
            .visible .global .align 4 .u32 counter;\n.const .align 4 .f32 table[16];\n\
            .visible .entry k(.param .u64 p)\n{\n.shared .align 4 .b8 s[4];\nret;\n}\n\0";
        let found: Vec<String> = names(text).into_iter().collect();
        assert_eq!(found, ["counter", "table"]);
    }

    #[test]
    fn names_are_found_in_text() {
        assert!(mentions(b".extern .func vprintf", b"vprintf"));
        assert!(!mentions(b".extern .func vprint", b"vprintf"));
        assert!(mentions(&FATBIN_MAGIC, b"vprintf"));
    }

    #[test]
    fn rubbish_has_no_variables() {
        for image in [
            &b""[..],
            b"\x7fELF",
            &FATBIN_MAGIC,
            b"\xff\xfe",
            &[0x50; 300],
        ] {
            assert!(names(image).is_empty());
        }
    }
}
