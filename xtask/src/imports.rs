//! Which file of a crate imports which, and the circles in that.
//!
//! A file imports another if it names something that is defined there. A name that a module only hands on
//! (`pub use`) counts for the file that defines it, so a folder's `mod.rs` may list what its files offer.
use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Crate, Module, ModulePath};

/// Re-exports followed at most on the way to a definition.
const HOPS: usize = 8;

/// Imports among the files of one crate: from, to, and the names taken.
pub type Arrows = BTreeMap<(usize, usize), BTreeSet<String>>;

/// Where a path leads.
enum Target {
    Module,
    Item(usize),
}

/// Imports among the files of a crate.
pub fn arrows(of: &Crate) -> Arrows {
    let mut arrows = Arrows::new();
    for (place, module) in &of.modules {
        let mut add = |path: &[String]| {
            if let Some(Target::Item(to)) = resolve(of, place, path, HOPS)
                && to != module.file
            {
                let name = path.last().cloned().unwrap_or_default();
                arrows.entry((module.file, to)).or_default().insert(name);
            }
        };
        for import in &module.imports {
            match &import.name {
                Some(name) if !import.is_public || module.words.contains(name) => {
                    add(&import.path);
                }
                Some(_) => {}
                None => {
                    for word in &module.words {
                        let mut path = import.path.clone();
                        path.push(word.clone());
                        add(&path);
                    }
                }
            }
        }
        for path in &module.paths {
            // A path may name more than an item (`Type::function`, `Enum::Case`): its first words decide.
            let longest = (2..=path.len()).rev();
            let known = longest
                .map(|n| &path[..n])
                .find(|p| resolve(of, place, p, HOPS).is_some());
            if let Some(known) = known {
                add(known);
            }
        }
    }
    arrows
}

fn resolve(of: &Crate, from: &[String], path: &[String], hops: usize) -> Option<Target> {
    let hops = hops.checked_sub(1)?;
    let (first, mut rest) = path.split_first()?;
    let mut place = match first.as_str() {
        "crate" => ModulePath::new(),
        "self" => from.to_vec(),
        "super" => {
            let mut place = from.to_vec();
            place.pop()?;
            while rest.first().is_some_and(|word| word == "super") {
                place.pop()?;
                rest = &rest[1..];
            }
            place
        }
        _ => {
            rest = path;
            from.to_vec()
        }
    };
    while let Some((word, behind)) = rest.split_first() {
        place.push(word.clone());
        if !of.modules.contains_key(&place) {
            place.pop();
            let module = of.modules.get(&place)?;
            return item(of, &place, module, word, behind, hops);
        }
        rest = behind;
    }
    Some(Target::Module)
}

/// The name `word` of a module, followed by `rest`.
fn item(
    of: &Crate,
    place: &[String],
    module: &Module,
    word: &str,
    rest: &[String],
    hops: usize,
) -> Option<Target> {
    if module.items.contains(word) {
        return rest.is_empty().then_some(Target::Item(module.file));
    }
    let taken = module
        .imports
        .iter()
        .find(|it| it.name.as_deref() == Some(word));
    if let Some(import) = taken {
        if import.path == [word] {
            return None;
        }
        let path: Vec<String> = import.path.iter().chain(rest).cloned().collect();
        return resolve(of, place, &path, hops);
    }
    let globs = module.imports.iter().filter(|it| it.name.is_none());
    globs.into_iter().find_map(|glob| {
        let mut path = glob.path.clone();
        path.push(word.to_owned());
        path.extend_from_slice(rest);
        resolve(of, place, &path, hops)
    })
}

/// The groups of files that import each other in a loop, largest first.
pub fn circles(files: usize, arrows: &Arrows) -> Vec<Vec<usize>> {
    let mut uses = vec![Vec::new(); files];
    for (from, to) in arrows.keys() {
        uses[*from].push(*to);
    }
    let reached: Vec<BTreeSet<usize>> = (0..files).map(|from| reach(&uses, from)).collect();
    let mut circles: Vec<Vec<usize>> = (0..files)
        .filter(|file| reached[*file].contains(file))
        .map(|file| {
            let both = |other: &usize| reached[*other].contains(&file);
            reached[file].iter().copied().filter(both).collect()
        })
        .collect();
    circles.sort_by_key(|circle: &Vec<usize>| (std::cmp::Reverse(circle.len()), circle.clone()));
    circles.dedup();
    circles
}

fn reach(uses: &[Vec<usize>], from: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut open = uses[from].clone();
    while let Some(next) = open.pop() {
        if seen.insert(next) {
            open.extend(&uses[next]);
        }
    }
    seen
}

/// The circles of a crate, one text each: the imports that tie it, a line for each pair of files.
pub fn report(of: &Crate) -> Vec<String> {
    let arrows = arrows(of);
    let mut texts = Vec::new();
    for circle in circles(of.files.len(), &arrows) {
        let mut lines = Vec::new();
        for ((from, to), names) in &arrows {
            if circle.contains(from) && circle.contains(to) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                lines.push(format!(
                    "  {} -> {}: {}",
                    of.files[*from].display(),
                    of.files[*to].display(),
                    names.join(", ")
                ));
            }
        }
        texts.push(lines.join("\n"));
    }
    texts
}
