//! Reads the types of a kernel's parameters from its mangled name.
//!
//! ```text
//!  _Z5scalePKfPfi ─► scale(float const*, float*, int) ─► [read only, any, number]
//! ```
//! A structure's type is only a name, so any of its bytes may be a pointer.

/// What a parameter of a kernel can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A pointer to `const`.
    ReadOnly,
    /// A number that cannot hold an address.
    Number,
    /// Anything else: a pointer, a structure, a wide integer.
    Any,
}

/// Types too small for an address, as a demangler writes them.
const NUMBERS: [&str; 13] = [
    "bool",
    "char",
    "signed char",
    "unsigned char",
    "short",
    "unsigned short",
    "int",
    "unsigned int",
    "float",
    "double",
    "wchar_t",
    "char16_t",
    "char32_t",
];

/// The kinds of a kernel's parameters; `None` if its name is not mangled or says no types.
pub(super) fn kinds(name: &str) -> Option<Vec<Kind>> {
    if !name.starts_with("_Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name.as_bytes()).ok()?;
    let text = symbol.demangle().ok()?;
    let list = parameters(&text)?;
    if list.trim().is_empty() || list.trim() == "void" {
        return Some(Vec::new());
    }
    Some(split(list).into_iter().map(kind).collect())
}

fn kind(ty: &str) -> Kind {
    let ty = ty.trim().trim_end_matches("const").trim_end();
    let pointee = ty.strip_suffix("__restrict__").unwrap_or(ty).trim_end();
    if let Some(pointee) = pointee.strip_suffix('*').or(pointee.strip_suffix('&')) {
        let pointee = pointee.trim_end();
        let plain = !pointee.ends_with(['*', '&', ')']);
        return if plain && pointee.ends_with(" const") {
            Kind::ReadOnly
        } else {
            Kind::Any
        };
    }
    if NUMBERS.contains(&ty) {
        Kind::Number
    } else {
        Kind::Any
    }
}

/// What stands between the last parentheses at the outermost level.
fn parameters(text: &str) -> Option<&str> {
    let end = text.rfind(')')?;
    let mut depth = 0usize;
    for (at, byte) in text.as_bytes()[..=end].iter().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => {
                depth -= 1;
                if depth == 0 {
                    return text.get(at + 1..end);
                }
            }
            _ => {}
        }
    }
    None
}

/// The parts between commas that stand in no brackets.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0i32, 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' | b'<' | b'[' | b'{' => depth += 1,
            b')' | b'>' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::Kind::{Any, Number, ReadOnly};
    use super::*;

    #[test]
    fn constness_comes_from_the_name() {
        assert_eq!(kinds("_Z5scalePKfPfi"), Some(vec![ReadOnly, Any, Number]));
    }

    #[test]
    fn templates_and_restrict_are_read() {
        // void f<float>(float const* __restrict__, std::pair<int, float*>, unsigned long)
        let found = kinds("_Z1fIfEvPKT_St4pairIiPS0_Em");
        assert_eq!(found, Some(vec![ReadOnly, Any, Any]));
    }

    #[test]
    fn what_counts_is_the_buffer_that_is_pointed_to() {
        // g(float const**), h(float* const*)
        assert_eq!(kinds("_Z1gPPKf"), Some(vec![Any]));
        assert_eq!(kinds("_Z1hPKPf"), Some(vec![ReadOnly]));
    }

    #[test]
    fn plain_names_say_nothing() {
        assert_eq!(kinds("scale"), None);
        assert_eq!(kinds("_Z"), None);
        assert_eq!(kinds("_Z4idlev"), Some(Vec::new()));
    }
}
