//! Long texts by kernel: to know one kernel of a module with hundreds, the others need not be read.
//!
//! ```text
//!  text ─► directives, variables, functions ──┐
//!          kernel `a`                         ├─► excerpt for `b`, a text of its own
//!          kernel `b` ────────────────────────┘
//!          kernel `c`
//! ```
//! The text is looked through once, for braces and the names of kernels; only excerpts are parsed. Compilers of libraries write texts of
//! tens of megabytes, of which a program uses a few kernels.

use std::collections::HashMap;
use std::ops::Range;

/// Directives that end with their line.
const LINES: [&str; 5] = [".version", ".target", ".address_size", ".file", ".loc"];

/// A text whose kernels are known by name.
#[derive(Debug)]
pub struct Excerpts {
    text: String,
    kernels: HashMap<String, Range<usize>>,
    /// What belongs to every kernel.
    common: Vec<Range<usize>>,
}

/// What a part of a text is.
enum Part {
    Kernel(String),
    Common,
}

impl Excerpts {
    /// Looks through a text; none if its braces, comments or strings do not end, so that nothing can be taken out of it.
    pub fn of(text: String) -> Option<Self> {
        let (mut kernels, mut common) = (HashMap::new(), Vec::new());
        let mut scanner = Scanner {
            text: &text,
            bytes: text.as_bytes(),
            at: 0,
        };
        while let Some((range, part)) = scanner.part()? {
            match part {
                // A name that comes twice is first declared, then defined.
                Part::Kernel(name) => drop(kernels.insert(name, range)),
                Part::Common => common.push(range),
            }
        }
        Some(Self {
            text,
            kernels,
            common,
        })
    }

    /// Bytes of the whole text.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// A text of this kernel and what it may refer to, in their order; none if there is no kernel of this name.
    pub fn excerpt(&self, kernel: &str) -> Option<String> {
        let own = self.kernels.get(kernel)?;
        let before = self.common.partition_point(|it| it.start < own.start);
        let (before, after) = self.common.split_at(before);
        let parts = before.iter().chain([own]).chain(after);
        let mut excerpt = String::with_capacity(parts.clone().map(|it| it.len() + 1).sum());
        for part in parts {
            excerpt.push_str(&self.text[part.clone()]);
            // A directive ends with its line.
            excerpt.push('\n');
        }
        Some(excerpt)
    }
}

/// Where a text is being looked through. Everything it stops at is ASCII, so that parts are whole characters.
struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    /// The next part at the top; the outer `None` where something does not end.
    #[allow(clippy::option_option, reason = "a failure, the end, and a part")]
    fn part(&mut self) -> Option<Option<(Range<usize>, Part)>> {
        self.skip_blank()?;
        let start = self.at;
        if start == self.bytes.len() {
            return Some(None);
        }
        let rest = &self.text[start..];
        if LINES.iter().any(|it| rest.starts_with(it)) {
            let line = rest.find('\n').unwrap_or(rest.len());
            self.at = start + line;
            return Some(Some((start..self.at, Part::Common)));
        }
        let (mut kernel, mut body) = (None, false);
        loop {
            self.skip_blank()?;
            match self.bytes.get(self.at) {
                None => return Some(Some((start..self.at, Part::Common))),
                Some(b';') => {
                    self.at += 1;
                    break;
                }
                Some(b'{') => {
                    self.skip_braces()?;
                    if body {
                        break;
                    }
                }
                Some(b'"') => self.skip_string()?,
                Some(b'.') => {
                    let word = self.word();
                    body |= matches!(word, ".entry" | ".func" | ".section");
                    if word == ".entry" {
                        self.skip_blank()?;
                        kernel = Some(self.word().to_owned());
                    }
                }
                Some(_) => self.at += 1,
            }
        }
        let part = kernel.map_or(Part::Common, Part::Kernel);
        Some(Some((start..self.at, part)))
    }

    /// What stands here up to the end of a name, with a dot before it or without; at least one byte.
    fn word(&mut self) -> &str {
        let start = self.at;
        let rest = self.bytes[start..].iter();
        let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_$%".contains(byte);
        let dot = usize::from(self.bytes.get(start) == Some(&b'.'));
        self.at += dot + rest.skip(dot).take_while(is_name).count();
        &self.text[start..self.at]
    }

    /// Past blanks and comments.
    fn skip_blank(&mut self) -> Option<()> {
        loop {
            match self.bytes[self.at..] {
                [b' ' | b'\t' | b'\r' | b'\n' | 0x0c | 0, ..] => self.at += 1,
                [b'/', b'/', ..] => {
                    let rest = &self.bytes[self.at..];
                    let line = rest.iter().position(|it| *it == b'\n');
                    self.at += line.unwrap_or(rest.len());
                }
                [b'/', b'*', ..] => self.at += 4 + self.text[self.at + 2..].find("*/")?,
                _ => return Some(()),
            }
        }
    }

    /// Past a string, which begins here.
    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.bytes.get(self.at)? {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                _ => self.at += 1,
            }
        }
    }

    /// Past the brace that closes the one here.
    fn skip_braces(&mut self) -> Option<()> {
        let mut open = 0u32;
        loop {
            match self.bytes.get(self.at)? {
                b'{' => open += 1,
                b'}' if open == 1 => {
                    self.at += 1;
                    return Some(());
                }
                b'}' => open -= 1,
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'/' => {
                    let before = self.at;
                    self.skip_blank()?;
                    if self.at != before {
                        continue;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Analysis;
    use crate::ast::{Item, Module};
    use crate::parse;

    const TEXT: &str = "//\n// { generated .entry none {\n.version 8.0\n.target sm_75, debug\n.address_size 64\n\
        .extern .func (.param .b32 r) vprintf (.param .b64 a);\n\
        .visible .global .align 4 .b8 table[4] = {1, 2, 3, 4};\n\
        .entry later(.param .u64 p);\n\
        /* } */ .weak .func helper() { ret; }\n\
        // .globl\tfirst\n\
        .visible .entry first(\n.param .u64 p\n)\n.maxntid 128, 1, 1\n{\n.reg .b32 %r<2>;\n{ // }\nret;\n}\n}\n\
        .const .align 4 .f32 half = 0f3F000000;\n\
        .visible .entry later(.param .u64 p)\n{\n.loc 1 2 3\nret; /* { */\n}\n\
        .section .debug_str { .b8 1 }\n.file 1 \"a{b.cu\"\n";

    fn names(text: &str) -> Vec<String> {
        let module = parse(text).expect("a text");
        let name = |item: &Item| match item {
            Item::Function(function) => Some(function.name.to_string()),
            Item::Variable(variable) => Some(variable.name.to_string()),
            Item::Alias { .. } => None,
        };
        module.items.iter().filter_map(name).collect()
    }

    #[test]
    fn an_excerpt_has_one_kernel_and_everything_else() {
        let excerpts = Excerpts::of(TEXT.to_owned()).expect("parts");
        let of = |kernel| excerpts.excerpt(kernel).map(|it| names(&it));
        let common = ["vprintf", "table", "helper"];
        let first = [&common[..], &["first", "half"]].concat();
        assert_eq!(of("first").expect("a kernel"), first);
        let later = [&common[..], &["half", "later"]].concat();
        assert_eq!(of("later").expect("a kernel"), later);
        assert_eq!(of("helper"), None);
        assert_eq!(of("none"), None);
    }

    #[test]
    fn an_excerpt_says_of_its_kernel_what_the_text_says() {
        let excerpts = Excerpts::of(TEXT.to_owned()).expect("parts");
        let whole = parse(TEXT).expect("a text");
        for kernel in ["first", "later"] {
            let excerpt = excerpts.excerpt(kernel).expect("a kernel");
            let part = parse(&excerpt).expect("a text");
            let of = |module: &Module| {
                Analysis::of(module)
                    .kernel(kernel)
                    .map(|it| format!("{it:?}"))
            };
            assert!(of(&part).is_some() && of(&part) == of(&whole), "{kernel}");
            assert_eq!(
                (part.version, &part.targets),
                (whole.version, &whole.targets)
            );
        }
    }

    #[test]
    fn what_does_not_end_has_no_parts() {
        for text in [
            ".entry k() { ret;",
            "/* ",
            ".file 1 x\n.global .b8 a = \"",
            ".entry k() { \"}",
        ] {
            assert!(Excerpts::of(text.to_owned()).is_none(), "{text}");
        }
        assert!(Excerpts::of(String::new()).is_some());
    }
}
