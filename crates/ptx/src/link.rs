//! Several modules to one, as a linker does it.
//!
//! | a name's linkage | in the result |
//! | --- | --- |
//! | visible | once; two definitions are an error |
//! | weak, common | the visible definition, else the first |
//! | extern, and functions without a body | gone where some module defines the name, else once |
//! | none | kept; renamed where another module has the name too |

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::ast::{Item, Linkage, Module, Name};
use crate::lexer::{Spanned, Token, tokens};

/// Why modules do not fit together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LinkError {
    /// There is nothing to link.
    #[error("no PTX was given to link")]
    Empty,
    /// Two modules define a visible name.
    #[error("`{0}` is defined by two of the linked modules")]
    Twice(String),
    /// Addresses of different sizes.
    #[error("modules with addresses of {0} and of {1} bits cannot be linked")]
    AddressSize(u32, u32),
}

/// The text of one module that holds all of `modules`.
///
/// # Errors
/// They contradict one another.
pub fn link(modules: &[Module]) -> Result<String, LinkError> {
    let first = modules.first().ok_or(LinkError::Empty)?;
    if let Some(other) = modules
        .iter()
        .find(|m| m.address_size != first.address_size)
    {
        return Err(LinkError::AddressSize(
            first.address_size,
            other.address_size,
        ));
    }
    let owners = owners(modules)?;
    let newest = modules.iter().max_by_key(|m| target(m)).unwrap_or(first);
    let version = modules.iter().map(|m| m.version).max();
    let mut out = Module {
        version: version.unwrap_or(first.version),
        targets: newest.targets.clone(),
        address_size: first.address_size,
        items: Vec::new(),
    }
    .to_string();
    let mut declared = HashSet::new();
    for (index, module) in modules.iter().enumerate() {
        let mut text = String::new();
        for item in &module.items {
            if stays(item, index, &owners, &mut declared) {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{item}");
            }
        }
        let renamed = clashes(modules, index);
        out.push_str(&rename(&text, &renamed));
    }
    Ok(out)
}

fn name(item: &Item) -> &Name {
    match item {
        Item::Variable(v) => &v.name,
        Item::Function(f) => &f.name,
        Item::Alias { alias, .. } => alias,
    }
}

/// The linkage of a definition; none for what only declares.
fn definition(item: &Item) -> Option<Linkage> {
    match item {
        Item::Variable(v) if v.linkage == Linkage::Extern => None,
        Item::Variable(v) => Some(v.linkage),
        Item::Function(f) => f.body.as_ref().map(|_| f.linkage),
        Item::Alias { .. } => Some(Linkage::Visible),
    }
}

/// By name, the module whose definition others see, and whether it yields to a visible one.
fn owners(modules: &[Module]) -> Result<HashMap<Name, (usize, bool)>, LinkError> {
    let mut owners: HashMap<Name, (usize, bool)> = HashMap::new();
    for (index, module) in modules.iter().enumerate() {
        for item in &module.items {
            let yields = match definition(item) {
                Some(Linkage::Visible) => false,
                Some(Linkage::Weak | Linkage::Common) => true,
                _ => continue,
            };
            match owners.get(name(item)) {
                Some((_, false)) if !yields => {
                    return Err(LinkError::Twice(name(item).to_string()));
                }
                Some(_) if yields => {}
                _ => {
                    owners.insert(name(item).clone(), (index, yields));
                }
            }
        }
    }
    Ok(owners)
}

/// Whether an item of module `index` is in the result.
fn stays(
    item: &Item,
    index: usize,
    owners: &HashMap<Name, (usize, bool)>,
    declared: &mut HashSet<Name>,
) -> bool {
    let owner = owners.get(name(item)).map(|(owner, _)| *owner);
    match definition(item) {
        Some(Linkage::Visible | Linkage::Weak | Linkage::Common) => owner == Some(index),
        Some(Linkage::Local | Linkage::Extern) => true,
        // A function that is declared before its own module defines it.
        None if matches!(item, Item::Function(f) if f.linkage != Linkage::Extern) => true,
        None => owner.is_none() && declared.insert(name(item).clone()),
    }
}

/// Names that only module `index` sees and that another module has too, and new ones for them.
fn clashes(modules: &[Module], index: usize) -> HashMap<Name, String> {
    let local = |item: &&Item| definition(item) == Some(Linkage::Local);
    let others: HashSet<&Name> = modules
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != index)
        .flat_map(|(_, module)| module.items.iter().map(name))
        .collect();
    let own = modules[index].items.iter().filter(local).map(name);
    own.filter(|name| others.contains(name))
        .map(|name| {
            let mut fresh = format!("{name}$link{index}");
            while others.contains(&Name::from(fresh.as_str())) {
                fresh.push('_');
            }
            (name.clone(), fresh)
        })
        .collect()
}

/// Renames symbols in a text. Names of a smaller scope that are the same are renamed too, which changes nothing.
fn rename(text: &str, names: &HashMap<Name, String>) -> String {
    if names.is_empty() {
        return text.to_owned();
    }
    let tokens = tokens(text);
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (
        at,
        Spanned {
            token, start, end, ..
        },
    ) in tokens.iter().enumerate()
    {
        let Token::Word(word) = token else { continue };
        let Some(fresh) = names.get(*word) else {
            continue;
        };
        // A word before a dotted one is an opcode.
        if matches!(tokens.get(at + 1), Some(next) if matches!(next.token, Token::Dot(_)) && next.start == *end)
        {
            continue;
        }
        out.push_str(&text[copied..*start as usize]);
        out.push_str(fresh);
        copied = *end as usize;
    }
    out.push_str(&text[copied..]);
    out
}

/// The number in the first `sm_XX` of a module.
fn target(module: &Module) -> u32 {
    let number = |name: &Name| -> Option<u32> {
        let digits = name.strip_prefix("sm_")?;
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        digits[..end].parse().ok()
    };
    module.targets.iter().find_map(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn linked(texts: &[&str]) -> Result<Module, LinkError> {
        let modules: Vec<Module> = texts
            .iter()
            .map(|text| {
                parse(&format!(
                    ".version 8.0\n.target sm_80\n.address_size 64\n{text}"
                ))
                .unwrap()
            })
            .collect();
        link(&modules).map(|text| parse(&text).unwrap())
    }

    fn names(module: &Module) -> Vec<&str> {
        module.items.iter().map(|item| &**name(item)).collect()
    }

    #[test]
    fn a_declaration_gives_way_to_the_definition_of_another_module() {
        let module = linked(&[
            ".extern .func f ();\n.extern .global .u32 v;\n.visible .entry k() { call f; ret; }",
            ".visible .func f () { ret; }\n.visible .global .u32 v;",
        ]);
        assert_eq!(names(&module.unwrap()), ["k", "f", "v"]);
        let module = linked(&[".extern .func f ();", ".extern .func f ();"]);
        assert_eq!(names(&module.unwrap()), ["f"]);
    }

    #[test]
    fn of_weak_definitions_one_stays_and_of_visible_ones_none_may_clash() {
        let weak = ".weak .func f () { ret; }";
        assert_eq!(names(&linked(&[weak, weak]).unwrap()), ["f"]);
        let visible = ".visible .func f () { ret; }";
        assert_eq!(names(&linked(&[weak, visible]).unwrap()), ["f"]);
        let twice = linked(&[visible, visible]);
        assert_eq!(twice, Err(LinkError::Twice("f".to_owned())));
        assert_eq!(linked(&[]), Err(LinkError::Empty));
    }

    #[test]
    fn what_only_its_own_module_sees_keeps_to_itself() {
        let one = ".global .u32 add = 1;\n.func f () { .reg .b32 %r<2>; ld.global.u32 %r0, [add]; add.u32 %r0, %r0, 1; ret; }";
        let module = linked(&[one, one]).unwrap();
        let found = names(&module);
        assert_eq!(found, ["add$link0", "f$link0", "add$link1", "f$link1"]);
        let Item::Function(f) = &module.items[3] else {
            panic!("no function");
        };
        let body = format!("{f}");
        assert!(
            body.contains("[add$link1]") && body.contains("add.u32"),
            "{body}"
        );
    }
}
