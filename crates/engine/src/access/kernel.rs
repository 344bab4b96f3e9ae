//! What a kernel can touch, as far as its function tells: which words of its parameter block may be pointers, and which
//! module variables it uses.

use std::collections::BTreeMap;

use fermata_abi::op::Address;
use fermata_ptx::analysis::{ParamSlot, Roots, Summary};

use super::signature::{self, Kind};
use super::tables::Through;

/// Eight bytes of a parameter block that may hold an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    /// Offset in the block, bytes.
    pub offset: usize,
    /// Memory there may be read.
    pub read: bool,
    /// Memory there may be written.
    pub write: bool,
}

/// A variable of the kernel's module that it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Symbol {
    /// Its name in the module.
    pub name: String,
    /// Its address, once that is known.
    pub address: Option<Address>,
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Candidates in the parameter block.
    pub words: Vec<Word>,
    /// Variables.
    pub symbols: Vec<Symbol>,
    /// Whether the kernel touches nothing but words and symbols.
    pub complete: bool,
    /// Whether the text says that the kernel follows pointers which it finds in memory.
    pub follows_pointers: bool,
    /// What it may do with memory that it reaches through pointers which it finds in memory.
    pub through: Through,
    /// Whether the text says that it writes through such pointers.
    pub writes_through_pointers: bool,
    /// Whether there is a text.
    pub has_text: bool,
}

/// Offset and size of each parameter.
pub(super) type Layout = [(u32, u32)];

/// Words by offset, with read and write.
type Words = BTreeMap<usize, (bool, bool)>;

impl Plan {
    /// The plan by a kernel's text. `exact` if the running code was made from that text.
    pub fn from_text(summary: &Summary, name: &str, layout: &Layout, exact: bool) -> Self {
        let mut words = Words::new();
        slots(&mut words, &summary.reads, layout, (true, false));
        slots(&mut words, &summary.writes, layout, (false, true));
        if summary.writes.loaded {
            // Pointers that a kernel loads mostly lead to buffers that are among its parameters, too.
            slots(&mut words, &summary.reads, layout, (true, true));
        }
        if summary.opaque {
            every_word(&mut words, layout, name);
        }
        let mut symbols: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
        for name in &summary.reads.symbols {
            symbols.entry(name).or_default().0 = true;
        }
        for name in &summary.writes.symbols {
            symbols.entry(name).or_default().1 = true;
        }
        let symbols = symbols.into_iter().map(|(name, (read, write))| Symbol {
            name: name.to_owned(),
            address: None,
            read,
            write,
        });
        let found = !summary.opaque && !summary.reads.loaded && !summary.writes.loaded;
        Self {
            words: flat(words),
            symbols: symbols.collect(),
            complete: exact && found,
            follows_pointers: summary.reads.loaded || summary.writes.loaded,
            through: Through {
                read: summary.opaque || summary.reads.loaded,
                write: summary.opaque || summary.writes.loaded,
            },
            writes_through_pointers: summary.writes.loaded,
            has_text: true,
        }
    }

    /// The plan by a kernel's parameters and name, as in PhoenixOS, section 4.1.
    pub fn from_arguments(name: &str, layout: &Layout) -> Self {
        let mut words = Words::new();
        every_word(&mut words, layout, name);
        Self {
            words: flat(words),
            through: Through {
                read: true,
                write: true,
            },
            ..Self::default()
        }
    }
}

fn flat(words: Words) -> Vec<Word> {
    let word = |(offset, (read, write))| Word {
        offset,
        read,
        write,
    };
    words.into_iter().map(word).collect()
}

fn mark(words: &mut Words, offset: usize, (read, write): (bool, bool)) {
    let word = words.entry(offset).or_default();
    *word = (word.0 || read, word.1 || write);
}

fn slots(words: &mut Words, roots: &Roots, layout: &Layout, how: (bool, bool)) {
    for ParamSlot { param, offset } in &roots.params {
        let Some((start, size)) = layout.get(*param).copied() else {
            continue;
        };
        match offset {
            Some(offset) => {
                let at = start as usize + *offset as usize;
                mark(words, at, how);
                // The upper half of a pointer that is loaded in two parts.
                mark(words, at & !7, how);
            }
            None => every_step(words, start, size, how),
        }
    }
}

fn every_step(words: &mut Words, start: u32, size: u32, how: (bool, bool)) {
    let (start, end) = (start as usize, start as usize + size as usize);
    for at in (start.next_multiple_of(8)..end).step_by(8) {
        if at + 8 <= end {
            mark(words, at, how);
        }
    }
}

fn every_word(words: &mut Words, layout: &Layout, name: &str) {
    let kinds = signature::kinds(name).filter(|kinds| kinds.len() == layout.len());
    for (index, (start, size)) in layout.iter().enumerate() {
        let how = match kinds.as_ref().map(|kinds| kinds[index]) {
            Some(Kind::ReadOnly) => (true, false),
            Some(Kind::Number) => continue,
            Some(Kind::Any) | None => (true, true),
        };
        every_step(words, *start, *size, how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(offset: usize, read: bool, write: bool) -> Word {
        Word {
            offset,
            read,
            write,
        }
    }

    #[test]
    fn without_text_every_step_of_a_structure_is_a_candidate() {
        // void f(Pair, float const*, int) with a structure of 24 bytes
        let plan = Plan::from_arguments("_Z1f4PairPKfi", &[(0, 24), (24, 8), (32, 4)]);
        let any = |offset| word(offset, true, true);
        assert_eq!(plan.words, [any(0), any(8), any(16), word(24, true, false)]);
        assert!(!plan.complete);
    }

    #[test]
    fn a_name_that_does_not_fit_the_layout_is_ignored() {
        let plan = Plan::from_arguments("_Z1fPKf", &[(0, 8), (8, 8)]);
        assert!(plan.words.iter().all(|word| word.read && word.write));
    }

    #[test]
    fn text_names_single_words_of_a_structure() {
        let mut summary = Summary::default();
        let slot = |offset| ParamSlot { param: 1, offset };
        summary.reads.params.insert(slot(Some(8)));
        summary.writes.params.insert(slot(Some(16)));
        let plan = Plan::from_text(&summary, "k", &[(0, 8), (8, 24)], true);
        assert_eq!(plan.words, [word(16, true, false), word(24, false, true)]);
        assert!(plan.complete && plan.through.is_nothing());
        summary.writes.loaded = true;
        let plan = Plan::from_text(&summary, "k", &[(0, 8), (8, 24)], true);
        assert_eq!(plan.words, [word(16, true, true), word(24, false, true)]);
        assert!(!plan.complete && plan.through.write && !plan.through.read);
    }
}
