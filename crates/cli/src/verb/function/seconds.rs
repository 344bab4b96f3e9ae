//! Spans of time as arguments.

use std::time::Duration;

/// A positive number of seconds, such as `0.5`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let given = seconds_or_none(text)?;
    match given.is_zero() {
        true => Err("must be more than 0".to_owned()),
        false => Ok(given),
    }
}

/// A number of seconds, which may be 0. What is above 0 is a millisecond at least.
pub fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let possible = seconds.filter(|it| *it == 0.0 || (0.001..=1e7).contains(it));
    let possible = possible.map(|it| Duration::from_secs_f64(it.abs()));
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

    #[test]
    fn a_span_of_none_is_told_from_what_is_no_number() {
        assert_eq!(seconds_or_none("0"), Ok(Duration::ZERO));
        assert_eq!(seconds_or_none("2"), Ok(Duration::from_secs(2)));
        for bad in ["", "-1", "nan", "0.0001", "1h"] {
            assert!(seconds_or_none(bad).is_err(), "{bad}");
        }
    }
}
