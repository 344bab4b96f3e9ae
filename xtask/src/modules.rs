//! The modules of a crate as its sources name them: items, imports and the paths written in bodies.
//!
//! Files are split into tokens, not parsed: what stands in a macro's call counts like the rest, and what is
//! compiled for tests alone does not.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use crate::scan;

/// A module's place below the crate's root; the root's is empty.
pub type ModulePath = Vec<String>;

/// One name that a module takes from elsewhere.
pub struct Import {
    /// The path as it is written, without the name of a glob.
    pub path: Vec<String>,
    /// The name that it has in the module; `None` for a glob.
    pub name: Option<String>,
    /// Handed on to others (`pub use`), of whatever reach.
    pub is_public: bool,
}

/// What one module says.
#[derive(Default)]
pub struct Module {
    /// The file it stands in: an index of [`Crate::files`].
    pub file: usize,
    pub items: BTreeSet<String>,
    /// Types and traits with a `pub` of whatever reach.
    pub public_types: Vec<String>,
    pub imports: Vec<Import>,
    /// Paths of two segments or more, outside `use`.
    pub paths: Vec<Vec<String>>,
    /// Every word outside `use`.
    pub words: BTreeSet<String>,
}

/// The modules of one crate.
#[derive(Default)]
pub struct Crate {
    /// Files below the crate's folder of sources.
    pub files: Vec<PathBuf>,
    pub modules: BTreeMap<ModulePath, Module>,
}

impl Crate {
    /// Reads the sources of the crate whose sources are in `folder`.
    ///
    /// # Errors
    /// If a file cannot be read or split into tokens.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut it = Self::default();
        let paths = scan::rust_files(folder)?;
        let is_library = paths.contains(&folder.join("lib.rs"));
        for path in paths {
            let inside = path.strip_prefix(folder).unwrap_or(&path).to_path_buf();
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read `{}`", path.display()))?;
            it.add(inside, &text, is_library)
                .with_context(|| format!("cannot understand `{}`", path.display()))?;
        }
        Ok(it)
    }

    /// Of files given as names and texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut it = Self::default();
        for (name, text) in files {
            it.add(PathBuf::from(name), text, true).expect("Rust");
        }
        it
    }

    fn add(&mut self, file: PathBuf, text: &str, is_library: bool) -> Result<()> {
        let mut place: ModulePath = file
            .with_extension("")
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        let root = if is_library { "lib" } else { "main" };
        if place == [root] || place.last().is_some_and(|last| last == "mod") {
            place.pop();
        }
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow!("{error}"))?;
        let index = self.files.len();
        self.files.push(file);
        self.module(index, place, tokens);
        Ok(())
    }

    fn module(&mut self, file: usize, place: ModulePath, tokens: TokenStream) {
        let mut reader = Reader {
            module: Module {
                file,
                ..Module::default()
            },
            inner: Vec::new(),
        };
        reader.read(tokens, true);
        let inner = std::mem::take(&mut reader.inner);
        self.modules.insert(place.clone(), reader.module);
        for (name, body) in inner {
            let mut place = place.clone();
            place.push(name);
            self.module(file, place, body);
        }
    }
}

struct Reader {
    module: Module,
    /// Modules written out inside this one.
    inner: Vec<(String, TokenStream)>,
}

impl Reader {
    fn read(&mut self, tokens: TokenStream, is_top: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = self.one(&tokens, at, is_top);
        }
    }

    /// Reads what begins at `at`; the place behind it.
    fn one(&mut self, tokens: &[TokenTree], at: usize, is_top: bool) -> usize {
        match &tokens[at] {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let Some(group) = tokens.get(at + 1).and_then(bracketed) else {
                    return at + 1;
                };
                if is_for_tests(group) {
                    return behind_item(tokens, at + 2);
                }
                at + 2
            }
            TokenTree::Group(group) => {
                self.read(group.stream(), false);
                at + 1
            }
            TokenTree::Ident(ident) => self.word(&ident.to_string(), tokens, at, is_top),
            _ => at + 1,
        }
    }

    fn word(&mut self, word: &str, tokens: &[TokenTree], at: usize, is_top: bool) -> usize {
        if word == "use" {
            let end = (at..tokens.len())
                .find(|i| is_punct(&tokens[*i], ';'))
                .unwrap_or(tokens.len());
            self.tree(&tokens[at + 1..end], &[], is_public(tokens, at));
            return end + 1;
        }
        if is_top && let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
            let name = name.to_string();
            let body = tokens.get(at + 2).and_then(braced);
            match word {
                "mod" => {
                    if let Some(body) = body {
                        self.inner.push((name, body.stream()));
                        return at + 3;
                    }
                    return at + 2;
                }
                "struct" | "enum" | "union" | "trait" | "type" => {
                    if is_public(tokens, at) {
                        self.module.public_types.push(name.clone());
                    }
                    self.module.items.insert(name);
                    return at + 2;
                }
                "fn" | "const" | "static" => {
                    self.module.items.insert(name);
                }
                _ => {}
            }
        }
        if is_top
            && word == "macro_rules"
            && let Some(TokenTree::Ident(name)) = tokens.get(at + 2)
        {
            self.module.items.insert(name.to_string());
        }
        self.path(word, tokens, at)
    }

    fn path(&mut self, word: &str, tokens: &[TokenTree], at: usize) -> usize {
        self.module.words.insert(word.to_owned());
        let mut path = vec![word.to_owned()];
        let mut end = at + 1;
        while is_path_separator(tokens, end)
            && let Some(TokenTree::Ident(next)) = tokens.get(end + 2)
        {
            path.push(next.to_string());
            end += 3;
        }
        if path.len() > 1 {
            self.module.paths.push(path);
        }
        end
    }

    /// The names of one `use`, below `above`.
    fn tree(&mut self, tokens: &[TokenTree], above: &[String], is_public: bool) {
        let mut path = above.to_vec();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Ident(ident) if ident == "as" => {
                    let name = tokens.get(at + 1).map(ToString::to_string);
                    self.module.imports.push(Import {
                        path,
                        name,
                        is_public,
                    });
                    return;
                }
                TokenTree::Ident(ident) => path.push(ident.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == '*' => {
                    self.module.imports.push(Import {
                        path,
                        name: None,
                        is_public,
                    });
                    return;
                }
                TokenTree::Group(group) => {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in inside.split(|token| is_punct(token, ',')) {
                        self.tree(part, &path, is_public);
                    }
                    return;
                }
                _ => {}
            }
            at += 1;
        }
        if path.len() > above.len() {
            if path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let name = path.last().cloned();
            self.module.imports.push(Import {
                path,
                name,
                is_public,
            });
        }
    }
}

fn bracketed(token: &TokenTree) -> Option<&Group> {
    delimited(token, Delimiter::Bracket)
}

fn braced(token: &TokenTree) -> Option<&Group> {
    delimited(token, Delimiter::Brace)
}

fn delimited(token: &TokenTree, by: Delimiter) -> Option<&Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == by => Some(group),
        _ => None,
    }
}

fn is_punct(token: &TokenTree, what: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == what)
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    let joint = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ':' && p.spacing() == Spacing::Joint);
    tokens.get(at).is_some_and(joint) && tokens.get(at + 1).is_some_and(|t| is_punct(t, ':'))
}

/// Whether `pub`, of whatever reach, stands before the word at `at`.
fn is_public(tokens: &[TokenTree], at: usize) -> bool {
    let is_pub = |token: &TokenTree| matches!(token, TokenTree::Ident(ident) if ident == "pub");
    let reach = |token: &TokenTree| delimited(token, Delimiter::Parenthesis).is_some();
    match at.checked_sub(1).map(|before| &tokens[before]) {
        Some(TokenTree::Ident(ident)) if ident == "unsafe" => is_public(tokens, at - 1),
        Some(token) if reach(token) => at >= 2 && is_pub(&tokens[at - 2]),
        Some(token) => is_pub(token),
        None => false,
    }
}

/// Whether an attribute compiles its item for tests alone.
fn is_for_tests(attribute: &Group) -> bool {
    let mut words = attribute.stream().into_iter();
    let is_cfg = matches!(words.next(), Some(TokenTree::Ident(word)) if word == "cfg");
    let condition = words.next().map(|it| it.to_string()).unwrap_or_default();
    is_cfg && condition.contains("test") && !condition.contains("not")
}

/// The place behind the item that begins at `at`.
fn behind_item(tokens: &[TokenTree], at: usize) -> usize {
    let is_end = |token: &TokenTree| is_punct(token, ';') || braced(token).is_some();
    (at..tokens.len())
        .find(|i| is_end(&tokens[*i]))
        .map_or(tokens.len(), |end| end + 1)
}
