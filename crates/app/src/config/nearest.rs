//! The existing key that looks most like a mistyped one.

use strsim::levenshtein;

/// The candidate with the fewest letters added, left out or changed, if it is similar at all.
pub(super) fn nearest(word: &str, candidates: &[&'static str]) -> Option<&'static str> {
    let word = word.to_lowercase();
    candidates
        .iter()
        .map(|c| (levenshtein(&word, &c.to_lowercase()), *c))
        .min()
        .filter(|(d, c)| *d <= 2.max(c.len() / 3))
        .map(|(_, c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far() {
        assert_eq!(nearest("intervl", &["name", "interval"]), Some("interval"));
        assert_eq!(nearest("zzzzzzzz", &["name", "interval"]), None);
    }
}
