//! Finds the names of device variables in a module image.
//!
//! The driver finds a variable by name but does not list variables, so the names come from the image: PTX
//! declarations, or symbols of machine code. A name too many does no harm, because the driver does not know it; so all
//! words of a text that cannot be parsed are names.
//! Reading an image takes long, so that is done in the background (`examination`).
//!
//! Tables of functions are left out, such as those through which NCCL's kernels call the work of a collective. The
//! driver chooses the addresses of a module's code and fills these tables when it loads the module; their content
//! before a restore would point elsewhere.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use fermata_ptx::ast::{Item, Space};
use fermata_ptx::fatbin::{self, Entry, FatbinError, Kind};
use object::read::{File, SymbolSection};
use object::{
    Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, Symbol, SymbolKind,
};

use crate::text::{FATBIN_MAGIC, compiles};

/// A part of an image.
pub(crate) struct Part<'a> {
    /// What the container says it is; machine code or text if the image is no container.
    kind: Kind,
    /// Whether devices of the architecture may run it.
    runs: bool,
    contents: Result<Cow<'a, [u8]>, FatbinError>,
}

impl Part<'_> {
    /// Its bytes, if it could be unpacked.
    pub(crate) fn contents(&self) -> Option<&[u8]> {
        self.contents.as_deref().ok()
    }

    /// Adds the names that may be device variables.
    ///
    /// # Errors
    /// Devices may run the part, and its variables cannot be found: why.
    pub(crate) fn collect(&self, names: &mut BTreeSet<String>) -> Result<(), String> {
        let found = match &self.contents {
            Ok(contents) if self.kind == Kind::Elf && !contents.starts_with(ELF) => {
                Err("its machine code is packed in an unknown way".to_owned())
            }
            Ok(contents) => collect(contents, names),
            Err(error) => Err(error.to_string()),
        };
        found.or_else(|why| if self.runs { Err(why) } else { Ok(()) })
    }
}

/// Calls `act` with the unpacked parts of an image that devices of architecture `sm` may run, or with all parts if
/// `sm` is not known. False if some could not be unpacked.
pub(crate) fn each_part(image: &[u8], sm: Option<u32>, mut act: impl FnMut(&[u8])) -> bool {
    let mut readable = true;
    for_each(image, sm, |part| match part.contents() {
        Some(contents) => act(contents),
        None => readable = false,
    });
    readable
}

/// As [`each_part`], with the parts that cannot be unpacked. A container that cannot be read is one of them.
///
/// A driver takes machine code for exactly the device's architecture where there is some, unless its environment says
/// otherwise.
pub(crate) fn for_each(image: &[u8], sm: Option<u32>, mut act: impl FnMut(&Part<'_>)) {
    let whole = |contents| Part {
        kind: Kind::Other(0),
        runs: true,
        contents,
    };
    if !image.starts_with(&FATBIN_MAGIC) {
        return act(&whole(Ok(Cow::Borrowed(image))));
    }
    let entries = match fatbin::entries(image) {
        Ok(entries) => entries,
        Err(error) => return act(&whole(Err(error))),
    };
    let exact = |entry: &&Entry<'_>| entry.kind == Kind::Elf && Some(entry.sm) == sm;
    let mut parts: Vec<_> = entries.iter().filter(exact).collect();
    if parts.is_empty() || compiles() {
        parts = entries.iter().collect();
    }
    for part in parts {
        act(&Part {
            kind: part.kind,
            runs: runs(part, sm),
            contents: part.contents(),
        });
    }
}

/// Whether devices of architecture `sm` run an entry: text for them or older ones, and code for older ones of their
/// generation.
fn runs(entry: &Entry<'_>, sm: Option<u32>) -> bool {
    let not_newer = |sm: u32| entry.sm <= sm;
    match entry.kind {
        Kind::Ptx => sm.is_none_or(not_newer),
        Kind::Elf => sm.is_none_or(|sm| not_newer(sm) && entry.sm / 10 == sm / 10),
        Kind::Other(_) => false,
    }
}

/// First bytes of machine code.
const ELF: &[u8] = b"\x7fELF";

/// Adds the names that may be device variables in `part`: PTX text or machine code. A name too many does no harm.
fn collect(part: &[u8], names: &mut BTreeSet<String>) -> Result<(), String> {
    if part.starts_with(ELF) {
        return from_elf(part, names);
    }
    if !part.starts_with(&FATBIN_MAGIC) {
        from_ptx(part, names);
    }
    Ok(())
}

fn from_elf(image: &[u8], names: &mut BTreeSet<String>) -> Result<(), String> {
    let unread = |error| format!("its machine code cannot be read: {error}");
    let file = File::parse(image).map_err(unread)?;
    let data = |it: &Symbol<'_, '_>| it.kind() == SymbolKind::Data && it.size() > 0;
    let mut code = HashMap::new();
    for symbol in file.symbols().filter(data) {
        let Ok(name) = symbol.name() else { continue };
        if !is_function_table(&file, &symbol, &mut code) {
            names.insert(name.to_owned());
        }
    }
    Ok(())
}

/// Bytes of an address.
const WORD: usize = 8;

/// From this number of functions on, a word of zeros behind them counts as the end of a table; behind fewer functions it
/// may be a counter in a structure.
const LONG: usize = 16;
/// What names of tables of virtual functions begin with, which no program writes; words of zeros are among them.
const VIRTUAL: &str = "_ZTV";

/// Whether a variable holds addresses of functions and nothing that a program could have changed. `code`: for each
/// section that has been read, the offsets that get such addresses.
fn is_function_table(
    file: &File<'_>,
    symbol: &Symbol<'_, '_>,
    code: &mut HashMap<SectionIndex, BTreeSet<u64>>,
) -> bool {
    let SymbolSection::Section(index) = symbol.section() else {
        return false;
    };
    let Ok(section) = file.section_by_index(index) else {
        return false;
    };
    let code = code.entry(index).or_insert_with(|| {
        let of_function = |target| match target {
            RelocationTarget::Symbol(index) => {
                let named = file.symbol_by_index(index);
                named.is_ok_and(|it| it.kind() == SymbolKind::Text)
            }
            _ => false,
        };
        let all = section.relocations();
        let of_functions = all.filter(|(_, it)| of_function(it.target()));
        of_functions.map(|(at, _)| at).collect()
    });
    let start = symbol.address().saturating_sub(section.address());
    if code
        .range(start..start.saturating_add(symbol.size()))
        .next()
        .is_none()
    {
        return false;
    }
    let content = usize::try_from(start)
        .ok()
        .zip(usize::try_from(symbol.size()).ok());
    let content = content.zip(section.data().ok());
    let content = content.and_then(|((start, len), data)| data.get(start..start.checked_add(len)?));
    let words: Vec<_> = (start..)
        .step_by(WORD)
        .zip(content.unwrap_or_default().chunks(WORD))
        .collect();
    let is_virtual = symbol.name().is_ok_and(|it| it.starts_with(VIRTUAL));
    let ends = |nth: usize| nth + 1 == words.len() && nth >= LONG;
    let fits = |(nth, (at, word)): (usize, &(u64, &[u8]))| {
        let zeros = word.iter().all(|byte| *byte == 0);
        code.contains(at) || zeros && (is_virtual || ends(nth))
    };
    !words.is_empty() && words.iter().enumerate().all(fits)
}

/// If the text cannot be parsed, each of its words may be a name.
fn from_ptx(image: &[u8], names: &mut BTreeSet<String>) {
    let end = image
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(image.len());
    let text = String::from_utf8_lossy(&image[..end]);
    if !text.contains(".version") {
        return;
    }
    let Ok(module) = fermata_ptx::parse(&text) else {
        names.extend(fermata_ptx::words(&text).map(str::to_owned));
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
    use crate::text::scene;

    fn names(image: &[u8]) -> Vec<String> {
        let mut names = BTreeSet::new();
        for_each(image, None, |part| {
            let _ = part.collect(&mut names);
        });
        names.into_iter().collect()
    }

    #[test]
    fn variables_of_ptx_are_found_and_parameters_are_not() {
        let text = b".version 8.0\n.target sm_75\n.address_size 64\n\
            .visible .global .align 4 .u32 counter;\n.const .align 4 .f32 table[16];\n\
            .visible .entry k(.param .u64 p)\n{\n.shared .align 4 .b8 s[4];\nret;\n}\n\0";
        assert_eq!(names(text), ["counter", "table"]);
    }

    #[test]
    fn words_of_a_text_that_cannot_be_parsed_are_names() {
        let text =
            b".version 8.0\n.target sm_75\n// \xff\n.visible .global .align 4 .u32 counter;\n\
            .visible .entry k() {\n$%& some.thing [new;\nret;\n}\n.global .u32 after;\0";
        let found = names(text);
        for name in ["counter", "after"] {
            assert!(found.iter().any(|it| it == name), "{name} in {found:?}");
        }
        // A comment in another encoding is no obstacle.
        let text = b".version 8.0\n// \xff\n.global .u32 counter;";
        assert_eq!(names(text), ["counter"]);
    }

    #[test]
    fn code_that_the_device_may_run_and_that_cannot_be_read_is_an_error() {
        let fails = |image: &[u8], sm| {
            let mut failed = false;
            for_each(image, sm, |part| {
                failed |= part.collect(&mut BTreeSet::new()).is_err();
            });
            failed
        };
        let text = b".version 8.0\n.target sm_75\n";
        let broken = fat(&[(2, 86, b"\x7fELF"), (1, 75, text)]);
        let packed = fat(&[(2, 86, b"packed"), (1, 75, text)]);
        for image in [&broken, &packed] {
            assert!(fails(image, Some(86)) && fails(image, Some(89)) && fails(image, None));
            // Other devices compile the text.
            assert!(!fails(image, Some(90)) && !fails(image, Some(80)));
        }
        assert!(fails(b"\x7fELF", Some(90)) && fails(&FATBIN_MAGIC, Some(90)));
        assert!(!fails(&fat(&[(8, 90, b"other")]), Some(90)));
    }

    /// A fat binary of unpacked entries: kind, architecture, contents.
    fn fat(parts: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let parts = parts
            .iter()
            .map(|(kind, sm, contents)| (*kind, *sm, 0, *contents));
        scene::fat(parts)
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

    /// Name, type, flags, content, link, info, size of an entry.
    type Section<'c> = (u32, u32, u64, &'c [u8], u32, u32, u64);

    /// Machine code as nvcc leaves it: three functions at 0, and variables in `.nv.global.init`: `data`, and (name, offset, bytes)
    /// of each. `code` says where which of the functions' addresses belong.
    fn cubin(data: &[u8], code: &[(u64, u64)], variables: &[(&str, u64, u64)]) -> Vec<u8> {
        const FUNCTIONS: u64 = 3;
        let mut strings = b"\0f\0.nv.global.init\0.text\0".to_vec();
        let word = |it: u64| it.to_le_bytes();
        let mut symbols = vec![0; 24];
        let mut symbol = |name: usize, info: u8, section: u16, at: u64, size: u64| {
            symbols.extend((name as u32).to_le_bytes());
            symbols.extend([info, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend([word(at), word(size)].concat());
        };
        for _ in 0..FUNCTIONS {
            symbol(1, 0x12, 2, 0, 16);
        }
        for (name, at, size) in variables {
            symbol(strings.len(), 0x11, 1, *at, *size);
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        let relocations: Vec<u8> = code
            .iter()
            .flat_map(|(at, function)| {
                [word(*at), word((function + 1) << 32 | 2), word(0)].concat()
            })
            .collect();
        let text = [0; 16];
        let sections: [Section<'_>; 6] = [
            (0, 0, 0, &[], 0, 0, 0),
            (3, 1, 3, data, 0, 0, 0),
            (19, 1, 6, &text, 0, 0, 0),
            (3, 4, 0x40, &relocations, 4, 1, 24),
            (3, 2, 0, &symbols, 5, 1, 24),
            (3, 3, 0, &strings, 0, 0, 0),
        ];
        let mut image = b"\x7fELF\x02\x01\x01".to_vec();
        image.resize(64, 0);
        let mut headers = Vec::new();
        for (name, kind, flags, content, link, info, entry) in sections {
            let (at, len) = (image.len() as u64, content.len() as u64);
            headers.extend([name, kind].map(u32::to_le_bytes).concat());
            headers.extend([flags, 0, at, len].map(word).concat());
            headers.extend([link, info].map(u32::to_le_bytes).concat());
            headers.extend([8, entry].map(word).concat());
            image.extend(content);
            image.resize(image.len().next_multiple_of(8), 0);
        }
        let table = image.len() as u64;
        image.extend(headers);
        // Relocatable, CUDA, version; the table of sections; sizes and counts.
        image[16..24].copy_from_slice(&[1, 0, 190, 0, 1, 0, 0, 0]);
        image[40..48].copy_from_slice(&word(table));
        image[52..64].copy_from_slice(&[64, 0, 0, 0, 0, 0, 64, 0, 6, 0, 5, 0]);
        image
    }

    #[test]
    fn tables_of_functions_are_no_content_and_what_holds_more_is() {
        let mut data = [0; 280];
        data[136] = 7;
        data[152] = 9;
        // A long table of 16 functions and its end at 0; functions in other places behind.
        let long = (0..16).map(|nth| (8 * nth, nth % 3));
        let code: Vec<_> = long
            .chain([(144, 1), (176, 0), (200, 1), (208, 2), (224, 0), (232, 1)])
            .collect();
        let variables = [
            ("table", 0, 136),
            ("counter", 136, 8),
            // A function beside a number.
            ("mixed", 144, 16),
            // Two words of zeros, and a function.
            ("_ZTV5Shape", 160, 24),
            ("zeros", 184, 16),
            // Functions, and a counter behind them that begins at zero.
            ("counted", 200, 24),
            ("pair", 224, 16),
        ];
        let image = cubin(&data, &code, &variables);
        assert_eq!(names(&image), ["counted", "counter", "mixed", "zeros"]);
        // Without the places of addresses each is a variable as any other.
        assert_eq!(names(&cubin(&data, &[], &variables)).len(), variables.len());
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
