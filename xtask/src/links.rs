//! What `check` asks of pages: the file and the heading that a link names exist, and so does every file of results that stands
//! beside a figure; the index of decisions lists every decision.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where files of results are.
pub const RESULTS: &str = "bench/results";

/// Where decisions are, and their index.
const DECISIONS: &str = "docs/decisions";
const INDEX: &str = "README.md";

/// Checks every tracked page.
pub fn check(root: &Path, files: &[PathBuf], findings: &mut Vec<String>) {
    let measured = files.iter().filter(|it| it.starts_with(RESULTS));
    let measured: Vec<&str> = measured.filter_map(|it| it.file_name()?.to_str()).collect();
    let index = std::fs::read_to_string(root.join(DECISIONS).join(INDEX)).unwrap_or_default();
    let pages = files.iter().filter(|it| it.starts_with(DECISIONS));
    for name in pages.filter_map(|it| it.file_name()?.to_str()) {
        if name != INDEX && !links(&index).contains(&name) {
            findings.push(format!("{DECISIONS}/{INDEX}: does not list `{name}`"));
        }
    }
    for page in files.iter().filter(|it| is_page(it)) {
        let Ok(text) = std::fs::read_to_string(root.join(page)) else {
            continue;
        };
        for link in links(&text) {
            if let Some(why) = broken(root, page, &text, link) {
                findings.push(format!("{}: the link `{link}`: {why}", page.display()));
            }
        }
        if page.starts_with("docs") {
            for name in results(&text).filter(|it| !is_measured(it, &measured)) {
                let page = page.display();
                findings.push(format!(
                    "{page}: there are no results `{name}` in {RESULTS}"
                ));
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

/// What a page names as results: `2026-11-22-h200-calls.json`, or `22/calls` and `soft 22/calls` for short.
fn results(text: &str) -> impl Iterator<Item = &str> {
    let spans = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    let spans = spans.map(|span| span.strip_prefix("bench/results/").unwrap_or(span));
    spans.filter(|span| {
        let whole = span.starts_with("20") && (span.ends_with(".json") || span.ends_with(".csv"));
        let pattern = span.contains('*') || span.contains("NAME");
        (whole || short_result(span).is_some()) && !pattern
    })
}

/// Day and name of results that are named for short.
fn short_result(span: &str) -> Option<(&str, &str)> {
    let (day, name) = span.strip_prefix("soft ").unwrap_or(span).split_once('/')?;
    let is_day = day.len() == 2 && day.bytes().all(|it| it.is_ascii_digit());
    is_day.then_some((day, name))
}

fn is_measured(span: &str, measured: &[&str]) -> bool {
    let Some((day, name)) = short_result(span) else {
        return measured.contains(&span);
    };
    let device = if span.starts_with("soft ") {
        "soft"
    } else {
        "h200"
    };
    let end = format!("-{day}-{device}-{name}.json");
    measured.iter().any(|it| it.ends_with(&end))
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
    fn results_are_found_by_their_whole_name_and_by_the_short_one() {
        let text =
            "`22/calls`, `soft 21/matrix` and `2026-11-22-h200-x.csv`, not `23/NAME` or `a/b`";
        let named: Vec<&str> = results(text).collect();
        assert_eq!(
            named,
            ["22/calls", "soft 21/matrix", "2026-11-22-h200-x.csv"]
        );
        let measured = ["2026-11-22-h200-calls.json", "2026-11-21-h200-matrix.json"];
        let known = |it: &&&str| is_measured(it, &measured);
        assert_eq!(named.iter().filter(known).count(), 1);
    }

    #[test]
    fn headings_are_named_as_links_name_them() {
        let known = anchors("# What `x` is, and why\ntext\n```\n# no heading\n```\n## Two_words");
        assert!(known.contains("what-x-is-and-why") && known.contains("two_words"));
        assert_eq!(known.len(), 2);
    }
}
