//! Sizes that the daemon's environment sets.

use crate::log::Log;

/// The bytes that variable `name` asks for; a text that is no size is told in the log, and counts as none.
pub(crate) fn bytes(name: &str, log: &Log) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let bytes = bytes_of(&text);
    if bytes.is_none() {
        log.line(&format!("`{name}={text}` is no size, like 16G"));
    }
    bytes
}

/// Bytes in a text like `16G`; `K`, `M`, `G`, `T` multiply by 1024.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let power = match text.chars().last()? {
        'K' | 'k' => 1,
        'M' | 'm' => 2,
        'G' | 'g' => 3,
        'T' | 't' => 4,
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
    use super::bytes_of;

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
