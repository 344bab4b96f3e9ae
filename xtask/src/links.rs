//! What `check` asks of links in Markdown: the file exists, and the heading that it names.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Checks every tracked page.
pub fn check(root: &Path, files: &[PathBuf], findings: &mut Vec<String>) {
    for page in files.iter().filter(|it| is_page(it)) {
        let Ok(text) = std::fs::read_to_string(root.join(page)) else {
            continue;
        };
        for link in links(&text) {
            if let Some(why) = broken(root, page, &text, link) {
                findings.push(format!("{}: the link `{link}`: {why}", page.display()));
            }
        }
    }
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "md")
}

fn broken(root: &Path, page: &Path, text: &str, link: &str) -> Option<&'static str> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => root.join(page),
        path => root.join(page.parent()?).join(path),
    };
    if !target.exists() {
        return Some("there is no such file");
    }
    if heading.is_empty() || !is_page(&target) {
        return None;
    }
    let other = std::fs::read_to_string(&target).ok();
    let text = other.as_deref().unwrap_or(text);
    (!anchors(text).contains(heading)).then_some("there is no such heading")
}

/// Where the links of a page lead, those to other sites left out.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in prose(text) {
        for behind in line.split("](").skip(1) {
            let link = behind.split(')').next().unwrap_or_default();
            if !link.contains("://") && !link.starts_with("mailto:") && !link.contains(' ') {
                found.push(link);
            }
        }
    }
    found
}

/// The headings of a page as links name them: lower case, `-` for a space, no punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.replace(' ', "-");
        let word = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_');
        kept.chars().filter(word).collect()
    };
    headings.map(anchor).collect()
}

/// The lines of a page that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_prose_are_found_and_those_in_code_or_to_other_sites_are_not() {
        let text =
            "See [a](a.md#b) and [c](../c.rs).\n```\n[d](d.md)\n```\n[e](https://e.org/x) [f](#g)";
        assert_eq!(links(text), ["a.md#b", "../c.rs", "#g"]);
    }

    #[test]
    fn headings_are_named_as_links_name_them() {
        let known = anchors("# What `x` is, and why\ntext\n```\n# no heading\n```\n## Two_words");
        assert!(known.contains("what-x-is-and-why") && known.contains("two_words"));
        assert_eq!(known.len(), 2);
    }
}
