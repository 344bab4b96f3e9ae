//! What `check` asks of the inside of a crate: no circle of imports, and no two public types of one name.
//!
//! A circle is mended by moving what both sides use into a file below them; a name, by saying what the type is.
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::imports;
use crate::modules::Crate;

/// Folders of a crate from above: a file imports from its own folder and from those that come later. Files of the crate's
/// root lie below all.
const LEVELS: [(&str, &[&str]); 1] = [(
    "client",
    &["api", "frame", "agent", "work", "object", "link", "thread"],
)];

/// Names that types of one crate may share, with the reason.
const SHARED: [(&str, &str, &str); 1] = [(
    "cli",
    "Args",
    "each verb's options; a verb is called by its module, `verb::run::Args`",
)];

/// Runs these checks over every crate.
pub fn check(root: &Path, findings: &mut Vec<String>) -> Result<()> {
    for name in crates(root)? {
        let of = Crate::read(&root.join("crates").join(&name).join("src"))?;
        circles(&name, &of, findings);
        if let Some((_, levels)) = LEVELS.iter().find(|(of, _)| *of == name) {
            for arrow in upward(&of, levels) {
                findings.push(format!("crates/{name}: an import goes up: {arrow}"));
            }
        }
        names(&name, &of, findings);
    }
    Ok(())
}

/// The names of all crates, sorted.
fn crates(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let path = entry?.path();
        if path.join("Cargo.toml").is_file()
            && let Some(name) = path.file_name().and_then(|it| it.to_str())
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn circles(name: &str, of: &Crate, findings: &mut Vec<String>) {
    for circle in imports::report(of) {
        findings.push(format!(
            "crates/{name}: files import each other in a circle; move what both use below them:\n{circle}"
        ));
    }
}

/// Imports of a folder from one above it.
fn upward(of: &Crate, levels: &[&str]) -> Vec<String> {
    let level = |file: usize| {
        let folder = of.files[file].iter().next();
        let at = levels.iter().position(|it| folder == Some(it.as_ref()));
        at.unwrap_or(levels.len())
    };
    let arrows = imports::arrows(of).into_iter();
    let up = arrows.filter(|((from, to), _)| level(*from) > level(*to));
    up.map(|((from, to), names)| {
        let names: Vec<String> = names.into_iter().collect();
        let (from, to) = (of.files[from].display(), of.files[to].display());
        format!("{from} -> {to}: {}", names.join(", "))
    })
    .collect()
}

fn names(name: &str, of: &Crate, findings: &mut Vec<String>) {
    for (item, files) in same_names(of) {
        let shared = SHARED.iter().any(|it| (it.0, it.1) == (name, item));
        if !shared {
            findings.push(format!(
                "crates/{name}: {} public types are called `{item}`: {}",
                files.len(),
                files.join(", ")
            ));
        }
    }
}

/// Public types that share their name with others of the crate, with their files.
fn same_names(of: &Crate) -> BTreeMap<&str, Vec<String>> {
    let mut all: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for module in of.modules.values() {
        let file = &of.files[module.file];
        // Types of NVIDIA's headers are called as there, in each header anew.
        if file.starts_with("sys") {
            continue;
        }
        for item in &module.public_types {
            let file = file.display().to_string();
            all.entry(item).or_default().push(file);
        }
    }
    all.retain(|_, files| files.len() > 1);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let of = Crate::of(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            (
                "b.rs",
                "pub struct B; impl B { fn a() -> crate::A { todo!() } }",
            ),
        ]);
        let circles = imports::report(&of);
        assert_eq!(circles.len(), 1, "{circles:?}");
        assert!(circles[0].contains("a.rs -> b.rs: B") && circles[0].contains("b.rs -> a.rs: A"));
    }

    #[test]
    fn an_import_from_a_folder_above_is_found_and_one_from_below_is_none() {
        let of = Crate::of(&[
            ("lib.rs", "mod high; mod low; mod base;"),
            ("base.rs", "use crate::low::a::A; pub struct B(A);"),
            ("high/mod.rs", "pub mod c;"),
            ("high/c.rs", "use crate::low::a::A; pub struct C(A);"),
            ("low/mod.rs", "pub mod a; pub mod d;"),
            ("low/a.rs", "pub struct A;"),
            (
                "low/d.rs",
                "use super::a::A; use crate::high::c::C; struct D(A, C);",
            ),
        ]);
        let found = upward(&of, &["high", "low"]);
        assert_eq!(
            found,
            ["base.rs -> low/a.rs: A", "low/d.rs -> high/c.rs: C"]
        );
    }

    #[test]
    fn tests_and_lists_of_what_a_folder_offers_are_no_imports() {
        let of = Crate::of(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; mod c; pub use b::B;"),
            (
                "a/b.rs",
                "pub struct B; #[cfg(test)] mod tests { use super::super::c::C; }",
            ),
            ("a/c.rs", "use super::B; pub struct C(B);"),
        ]);
        assert!(imports::report(&of).is_empty());
    }

    #[test]
    fn two_public_types_of_one_name_are_found() {
        let of = Crate::of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub struct Place; struct Kept;"),
            ("b.rs", "pub(crate) enum Place {} struct Kept;"),
        ]);
        let found = same_names(&of);
        assert_eq!(found.len(), 1);
        assert_eq!(found["Place"], ["a.rs", "b.rs"]);
    }
}
