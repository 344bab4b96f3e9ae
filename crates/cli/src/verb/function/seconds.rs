//! Spans of time as arguments.

use std::time::Duration;

/// A positive number of seconds, such as `0.5`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let possible = seconds.filter(|it| (0.001..=1e7).contains(it));
    let possible = possible.map(Duration::from_secs_f64);
    possible.ok_or_else(|| "not a number of seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_positive_and_finite() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "nan", "inf", "1h"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
