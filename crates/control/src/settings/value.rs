//! What values a setting takes.

use std::ffi::OsStr;
use std::path::Path;

use super::table::{ALLOW, Kind};

impl Kind {
    /// Whether a setting of this kind can have `value`, which is not empty.
    pub(super) fn takes(self, value: &OsStr) -> bool {
        let text = value.to_str();
        match self {
            Self::Any => true,
            Self::Path => !value.as_encoded_bytes().contains(&b'\n'),
            Self::AbsolutePath => Path::new(value).is_absolute(),
            Self::Endpoint => {
                let is_address = |it: &str| it.parse::<std::net::SocketAddr>().is_ok();
                Path::new(value).is_absolute() || text.is_some_and(is_address)
            }
            Self::Bytes | Self::Number => text.and_then(bytes_of).is_some(),
            Self::Count(most) => text
                .and_then(|it| it.trim().parse::<u64>().ok())
                .is_some_and(|it| it <= most),
            Self::Signal => text
                .and_then(|it| it.parse::<i32>().ok())
                .is_some_and(|it| (1..=64).contains(&it)),
            Self::Capability => text
                .and_then(|it| it.split_once('.'))
                .is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok()),
            Self::Permission => matches!(text, Some(ALLOW | "deny")),
        }
    }

    /// What values those are, in words.
    pub(super) fn allowed(self) -> &'static str {
        match self {
            Self::Any => "any text",
            Self::Path => "a path",
            Self::AbsolutePath => "an absolute path",
            Self::Endpoint => {
                "an address such as `127.0.0.1:9464`, or the absolute path of a Unix socket"
            }
            Self::Bytes => {
                "a number of bytes, such as `512M` or `16G` (`K`, `M`, `G`, `T` count by 1024)"
            }
            Self::Count(1) => "0 or 1",
            Self::Count(64) => "a whole number from 0 to 64",
            Self::Count(600) => "a whole number from 0 to 600",
            Self::Count(1024) => "a whole number from 0 to 1024",
            Self::Count(86_400) => "a whole number from 0 to 86400",
            Self::Count(604_800) => "a whole number from 0 to 604800",
            Self::Count(_) | Self::Number => "a whole number",
            Self::Signal => "the number of a signal, from 1 to 64",
            Self::Capability => "two numbers with a dot between, such as `9.0`",
            Self::Permission => "`allow` or `deny`",
        }
    }
}

/// Bytes in a text such as `16G`; `K`, `M`, `G`, `T` multiply by 1024. None if the text says no number.
pub fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let power = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 1,
        'M' => 2,
        'G' => 3,
        'T' => 4,
        _ => 0,
    };
    let digits = if power > 0 {
        &text[..text.len() - 1]
    } else {
        text
    };
    digits.parse::<u64>().ok()?.checked_mul(1024u64.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(bytes_of("16G"), Some(16 << 30));
        assert_eq!(bytes_of(" 5 "), Some(5));
        assert_eq!(bytes_of("3k"), Some(3072));
        for bad in ["", "G", "-1", "1.5G", "9999999999T"] {
            assert_eq!(bytes_of(bad), None, "{bad}");
        }
    }
}
