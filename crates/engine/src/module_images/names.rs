//! Names in a module image, above all those of its device variables.
//!
//! The driver finds a variable by name but does not list them, so the names come from the image: PTX
//! declarations, or symbols of machine code. A name too many does no harm: the driver does not know it.
//! Reading an image takes long: that is done behind the program (`examination`).

use std::collections::BTreeSet;

use fermata_ptx::ast::{Item, Space};
use fermata_ptx::fatbin::{self, Entry, Kind};
use object::{Object, ObjectSymbol, SymbolKind};

use crate::text::FATBIN_MAGIC;

/// Calls `act` with the parts of an image that devices of architecture `sm` may run, unpacked, or with all where that is
/// not known. False if some could not be unpacked.
///
/// A driver takes machine code for exactly the device's architecture where there is some, unless its environment says
/// otherwise.
pub(crate) fn each_part(image: &[u8], sm: Option<u32>, mut act: impl FnMut(&[u8])) -> bool {
    if !image.starts_with(&FATBIN_MAGIC) {
        act(image);
        return true;
    }
    let Ok(entries) = fatbin::entries(image) else {
        return false;
    };
    let compiles = std::env::var_os("CUDA_FORCE_PTX_JIT").is_some_and(|it| it != "0");
    let runs = |entry: &&Entry<'_>| entry.kind == Kind::Elf && Some(entry.sm) == sm;
    let mut parts: Vec<_> = entries.iter().filter(runs).collect();
    if parts.is_empty() || compiles {
        parts = entries.iter().collect();
    }
    let mut readable = true;
    for part in parts {
        match part.contents() {
            Ok(contents) => act(&contents),
            Err(_) => readable = false,
        }
    }
    readable
}

/// Adds the names that may be device variables in `part`: PTX text or machine code. A name too many does no harm.
pub(crate) fn collect(part: &[u8], names: &mut BTreeSet<String>) {
    if part.starts_with(b"\x7fELF") {
        from_elf(part, names);
    } else if !part.starts_with(&FATBIN_MAGIC) {
        from_ptx(part, names);
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

    fn names(image: &[u8]) -> Vec<String> {
        let mut names = BTreeSet::new();
        each_part(image, None, |part| collect(part, &mut names));
        names.into_iter().collect()
    }

    #[test]
    fn variables_of_ptx_are_found_and_parameters_are_not() {
        let text = b".version 8.0\n.target sm_75\n.address_size 64\n\
            .visible .global .align 4 .u32 counter;\n.const .align 4 .f32 table[16];\n\
            .visible .entry k(.param .u64 p)\n{\n.shared .align 4 .b8 s[4];\nret;\n}\n\0";
        assert_eq!(names(text), ["counter", "table"]);
    }

    /// A fat binary of unpacked entries: kind, architecture, contents.
    fn fat(parts: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, sm, contents) in parts {
            let mut head = [0u8; 0x40];
            head[..2].copy_from_slice(&kind.to_le_bytes());
            head[4..8].copy_from_slice(&0x40u32.to_le_bytes());
            head[8..16].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            head[0x1c..0x20].copy_from_slice(&sm.to_le_bytes());
            body.extend(head);
            body.extend(*contents);
        }
        let mut image = FATBIN_MAGIC.to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend((body.len() as u64).to_le_bytes());
        image.extend(body);
        image
    }

    #[test]
    fn only_what_the_device_runs_is_looked_at_and_all_if_it_runs_none_of_it() {
        let image = fat(&[(2, 80, b"eighty"), (2, 90, b"ninety"), (1, 90, b"text")]);
        let seen = |sm| {
            let mut seen = Vec::new();
            assert!(each_part(&image, sm, |part| seen.push(part.to_vec())));
            seen
        };
        assert_eq!(seen(Some(90)), [b"ninety"]);
        assert_eq!(seen(Some(86)).len(), 3);
        assert_eq!(seen(None).len(), 3);
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
