//! Finds the exports that a shim crate implements, in its sources as they stand.
//!
//! A function counts when it has a body and either carries `no_mangle` or `export_name`, or stands inside
//! a macro call (the crates' export macros). Crates need not compile for this to work.
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

/// Names of generated files, which say nothing about what is implemented.
const GENERATED: [&str; 4] = [
    "unsupported.rs",
    "per_thread.rs",
    "proc_table.rs",
    "narrow.rs",
];

/// Exported symbols among `known` that the sources under `folder` implement.
pub fn implemented(folder: &Path, known: &BTreeSet<&str>) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for_each_source(folder, |text| scan(text, known, &mut found))?;
    Ok(found)
}

fn for_each_source(folder: &Path, mut each: impl FnMut(&str)) -> Result<()> {
    for path in rust_files(folder)? {
        if is_generated(&path) {
            continue;
        }
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        each(&text);
    }
    Ok(())
}

/// Whether a file is one that `exports` makes.
pub fn is_generated(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| GENERATED.iter().any(|generated| name == *generated))
}

/// Every .rs file below a folder, sorted; none if there is no such folder.
pub fn rust_files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry
                .with_context(|| format!("cannot list `{}`", folder.display()))?
                .path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn scan(text: &str, known: &BTreeSet<&str>, found: &mut BTreeSet<String>) {
    for name in export_names(text) {
        if known.contains(name) {
            found.insert(name.to_owned());
        }
    }
    let tokens = tokens(text);
    let mut blocks: Vec<bool> = Vec::new();
    let mut no_mangle = false;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => {
                let bang = at >= 1 && tokens[at - 1] == "!";
                let defines = at >= 2 && tokens[at - 2] == "macro_rules";
                let call = bang && at >= 2 && is_word(tokens[at - 2]) && !defines;
                blocks.push(call);
            }
            "}" | ")" | "]" => {
                blocks.pop();
                if *token == "}" {
                    no_mangle = false;
                }
            }
            ";" => no_mangle = false,
            "no_mangle" => no_mangle = true,
            "fn" => {
                let Some(name) = tokens.get(at + 1) else {
                    continue;
                };
                let exported = no_mangle || blocks.iter().any(|call| *call);
                if exported && known.contains(name) && has_body(&tokens[at + 2..]) {
                    found.insert((*name).to_owned());
                }
            }
            _ => {}
        }
    }
}

/// Whether a function's parameters and result are followed by a body instead of a semicolon.
fn has_body(tokens: &[&str]) -> bool {
    let mut depth = 0_i32;
    for token in tokens {
        match *token {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            "{" if depth == 0 => return true,
            ";" | "}" if depth == 0 => return false,
            _ if depth < 0 => return false,
            _ => {}
        }
    }
    false
}

fn export_names(text: &str) -> impl Iterator<Item = &str> {
    text.split("export_name = \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Words and single punctuation marks; comments, strings and character literals are left out.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut i = 0;
    while i < bytes.len() {
        let rest = &text[i..];
        let c = bytes[i];
        i += if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == b'"' {
            string_len(bytes, i)
        } else if c == b'\'' && char_literal_len(bytes, i) > 0 {
            char_literal_len(bytes, i)
        } else if c.is_ascii_alphanumeric() || c == b'_' {
            let len = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            out.push(&rest[..len]);
            len
        } else if c.is_ascii() {
            if !c.is_ascii_whitespace() {
                out.push(&rest[..1]);
            }
            1
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
    }
    out
}

fn string_len(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[..start]
        .iter()
        .rev()
        .take_while(|b| **b == b'#')
        .count();
    let raw = start > hashes && bytes[start - hashes - 1] == b'r';
    let mut i = start + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' if !raw => i += 1,
            b'"' if !raw => return i + 1 - start,
            b'"' if bytes[i + 1..].iter().take_while(|b| **b == b'#').count() >= hashes => {
                return i + 1 + hashes - start;
            }
            _ => {}
        }
        i += 1;
    }
    bytes.len() - start
}

/// Length of a character literal at `start`, 0 for a lifetime.
fn char_literal_len(bytes: &[u8], start: usize) -> usize {
    match bytes.get(start + 1) {
        Some(b'\\') => bytes[start + 3..]
            .iter()
            .position(|b| *b == b'\'')
            .map_or(0, |end| end + 4),
        Some(_) if bytes.get(start + 2) == Some(&b'\'') => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let known = BTreeSet::from(["cuInit", "cuMemAlloc_v2", "cuMemFree_v2"]);
        let mut found = BTreeSet::new();
        scan(text, &known, &mut found);
        found.into_iter().collect()
    }

    #[test]
    fn no_mangle_functions_count() {
        let text = "#[unsafe(no_mangle)]\n/// Doc's.\npub unsafe extern \"C\" fn cuInit(flags: u32) -> i32 { 0 }\n\
                    fn cuMemAlloc_v2() {}";
        assert_eq!(names(text), ["cuInit"]);
    }

    #[test]
    fn functions_inside_macro_calls_count_and_definitions_do_not() {
        let text = "macro_rules! export { ($a:ident) => { fn cuInit() {} } }\n\
                    export! { /// x\n fn cuMemAlloc_v2(a: *mut u8) -> CUresult { if x { y() } Ok(()) }\n\
                    fn cuMemFree_v2(a: u64) -> CUresult { Ok(()) } }";
        assert_eq!(names(text), ["cuMemAlloc_v2", "cuMemFree_v2"]);
    }

    #[test]
    fn declarations_comments_and_strings_do_not_count() {
        let text = "unsafe extern \"C\" { #[no_mangle] fn cuInit(); }\n// #[no_mangle] fn cuMemFree_v2() {}\n\
                    const S: &str = r#\"x! { fn cuMemAlloc_v2() {} }\"#; fn f<'a>(c: char) { let d = '{'; }";
        assert_eq!(names(text), Vec::<String>::new());
    }

    #[test]
    fn half_written_files_do_not_stop_the_scan() {
        let text = "export! { fn cuInit() -> CUresult { let x = (1;\n}";
        assert_eq!(names(text), ["cuInit"]);
    }
}
