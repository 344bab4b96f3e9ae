//! The existing key that looks most like a mistyped one.

/// The candidate with the fewest letters added, left out or changed, if it is similar at all.
pub(super) fn nearest(word: &str, candidates: &[&'static str]) -> Option<&'static str> {
    let word = word.to_lowercase();
    candidates
        .iter()
        .map(|c| (distance(&word, &c.to_lowercase()), *c))
        .min()
        .filter(|(d, c)| *d <= 2.max(c.len() / 3))
        .map(|(_, c)| c)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(nearest("intervl", &["name", "interval"]), Some("interval"));
        assert_eq!(nearest("zzzzzzzz", &["name", "interval"]), None);
    }
}
