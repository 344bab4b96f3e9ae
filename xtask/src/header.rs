//! Reads declarations out of the toolkit's headers after the C preprocessor has been over them.
//!
//! Only identifiers, types and version numbers are taken. The internal-version switch makes the headers
//! declare every exported symbol under its own name: versions, per-thread variants and legacy ones.
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A declared function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// Symbol as declared.
    pub symbol: String,
    /// C type of the result.
    pub result: String,
    /// Name and C type of each parameter.
    pub params: Vec<(String, String)>,
}

/// A function pointer type that names the version of a driver function: `PFN_cuMemAlloc_v3020`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// `cuMemAlloc`
    pub base: String,
    /// 3020
    pub since: u32,
    /// `_ptsz`, `_ptds` or nothing.
    pub suffix: String,
    /// Name and C type of each parameter.
    pub params: Vec<(String, String)>,
}

/// The header after preprocessing, on one line per declaration.
pub fn preprocess(include: &Path, header: &str) -> Result<String> {
    let output = Command::new("cc")
        .args(["-E", "-P", "-x", "c", "-D__CUDA_API_VERSION_INTERNAL", "-I"])
        .arg(include)
        .arg(include.join(header))
        .output()
        .context("cannot start the C preprocessor `cc -E`")?;
    ensure!(
        output.status.success(),
        "cc -E failed on `{header}`: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).context("the header is not UTF-8")?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Functions whose name starts with `prefix` and goes on with a capital letter.
pub fn declarations(text: &str, prefix: &str) -> Result<Vec<Declaration>> {
    let mut found = Vec::new();
    for statement in statements(text) {
        let statement = strip_attributes(statement);
        let Some((head, params)) = statement.strip_suffix(')').and_then(|s| s.split_once('('))
        else {
            continue;
        };
        let Some((result, symbol)) = head.trim().rsplit_once([' ', '*']) else {
            continue;
        };
        let after = symbol.strip_prefix(prefix).and_then(|s| s.chars().next());
        if !after.is_some_and(|c| c.is_ascii_uppercase()) || head.contains("typedef") {
            continue;
        }
        let pointers = head[..head.len() - symbol.len()].ends_with('*');
        let result = result.trim().trim_start_matches("extern").trim();
        let result = if pointers {
            format!("{result} *")
        } else {
            result.to_owned()
        };
        found.push(Declaration {
            symbol: symbol.to_owned(),
            result: normalise(&result),
            params: parameters(params).with_context(|| format!("in `{symbol}`"))?,
        });
    }
    Ok(found)
}

/// The function pointer types `PFN_<base>_v<version>[_ptds|_ptsz]`.
pub fn versions(text: &str) -> Result<Vec<Versioned>> {
    let mut found = Vec::new();
    for statement in statements(text) {
        let Some(at) = statement.find("*PFN_") else {
            continue;
        };
        let rest = &statement[at + "*PFN_".len()..];
        let Some((name, params)) = rest.strip_suffix(')').and_then(|s| s.split_once(")(")) else {
            bail!("`{statement}` is not a function pointer type");
        };
        let (stem, suffix) = split_per_thread(name);
        let (base, since) = stem
            .rsplit_once("_v")
            .context("no version in a type name")?;
        found.push(Versioned {
            base: base.to_owned(),
            since: since
                .parse()
                .with_context(|| format!("version of `{name}`"))?,
            suffix: suffix.to_owned(),
            params: parameters(params).with_context(|| format!("in `{name}`"))?,
        });
    }
    Ok(found)
}

/// Splits `_ptsz` or `_ptds` off a symbol.
pub fn split_per_thread(symbol: &str) -> (&str, &str) {
    match symbol.len().checked_sub(5) {
        Some(at) if symbol.ends_with("_ptsz") || symbol.ends_with("_ptds") => symbol.split_at(at),
        _ => (symbol, ""),
    }
}

/// Splits `_v2` off a symbol; a symbol without it is version 1.
pub fn split_version(stem: &str) -> (&str, u32) {
    match stem.rsplit_once("_v") {
        Some((base, digits)) => digits.parse().map_or((stem, 1), |version| (base, version)),
        None => (stem, 1),
    }
}

fn statements(text: &str) -> impl Iterator<Item = &str> {
    text.split([';', '{', '}']).map(str::trim)
}

fn strip_attributes(head: &str) -> String {
    let mut out = head.to_owned();
    while let Some(at) = out.find("__attribute__") {
        let mut depth = 0;
        let end = out[at..].char_indices().find_map(|(i, c)| {
            match c {
                '(' => depth += 1,
                ')' if depth == 1 => return Some(at + i + 1),
                ')' => depth -= 1,
                _ => {}
            }
            None
        });
        out.replace_range(at..end.unwrap_or(out.len()), "");
    }
    out
}

fn parameters(text: &str) -> Result<Vec<(String, String)>> {
    let text = text.trim();
    if text.is_empty() || text == "void" {
        return Ok(Vec::new());
    }
    text.split(',').map(parameter).collect()
}

fn parameter(text: &str) -> Result<(String, String)> {
    let text = text.trim();
    let start = text
        .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map_or(0, |i| i + 1);
    let (ctype, name) = text.split_at(start);
    ensure!(
        !ctype.is_empty() && !name.is_empty() && !ctype.contains(['(', '[']),
        "cannot read the parameter `{text}`"
    );
    Ok((name.to_owned(), normalise(ctype)))
}

/// One spelling per type: no tag words, one space before pointers, none between them.
fn normalise(ctype: &str) -> String {
    let spaced = ctype.replace('*', " * ");
    let words = spaced
        .split_whitespace()
        .filter(|w| !matches!(*w, "struct" | "enum" | "union"));
    words.collect::<Vec<_>>().join(" ").replace("* *", "**")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_over_several_words_are_read() {
        let text = "CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize); typedef int cuX; \
                    extern __attribute__((a(b))) cudaError_t cudaFoo(void); \
                    const char * cudaName(enum cudaError e);";
        let driver = declarations(text, "cu").expect("driver");
        assert_eq!(driver[0].symbol, "cuMemAlloc_v2");
        assert_eq!(driver[0].params[0], ("dptr".into(), "CUdeviceptr *".into()));
        let runtime = declarations(text, "cuda").expect("runtime");
        assert_eq!(runtime.len(), 2);
        assert_eq!(runtime[0].params.len(), 0);
        assert_eq!(runtime[1].result, "const char *");
        assert_eq!(runtime[1].params[0].1, "cudaError");
    }

    #[test]
    fn version_types_are_read() {
        let text =
            "typedef CUresult ( *PFN_cuMemcpy_v7000_ptds)(CUdeviceptr dst, const void **src);";
        let found = versions(text).expect("versions");
        assert_eq!(found[0].base, "cuMemcpy");
        assert_eq!((found[0].since, found[0].suffix.as_str()), (7000, "_ptds"));
        assert_eq!(found[0].params[1].1, "const void **");
    }
}
