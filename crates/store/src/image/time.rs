//! Moments as text: RFC 3339 in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Seconds since 1970, UTC.
pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// `YYYY-MM-DDThh:mm:ssZ` of seconds since 1970; after the year 9999 the last moment that can be written.
pub fn rfc3339(seconds: u64) -> String {
    let last = Timestamp::MAX.as_second();
    let second = i64::try_from(seconds).unwrap_or(last).min(last);
    Timestamp::from_second(second)
        .unwrap_or(Timestamp::MAX)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn known_moments() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_704_067_199), "2023-12-31T23:59:59Z");
        assert_eq!(rfc3339(1_735_603_200), "2024-12-31T00:00:00Z");
    }
}
