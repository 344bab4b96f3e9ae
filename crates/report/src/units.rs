//! Numbers as people read them.

/// Bytes with a binary unit: `17.2 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A size as people write it: `4096`, `512MiB`, `2 GiB`, `2G`. Units are binary.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        other => return Err(format!("`{other}` is no unit; use KiB, MiB, GiB or TiB")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is no size, such as 2GiB"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too large"))
}

/// Seconds with a fitting unit: `0.31 s`, `42 ms`.
pub fn seconds(s: f64) -> String {
    if s < 0.001 {
        format!("{:.0} us", s * 1e6)
    } else if s < 0.1 {
        format!("{:.0} ms", s * 1e3)
    } else {
        format!("{s:.2} s")
    }
}

/// A span up to now in one or two units: `2 h 5 min`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes(" 2 gib "), Ok(2 << 30));
        assert_eq!(parse_bytes("6G"), Ok(6 << 30));
        for bad in ["", "GiB", "-1", "1.5GiB", "3 parsecs", "99999999TiB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn units_fit_the_size() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes((1 << 30) - 1), "1.0 GiB");
        assert_eq!(bytes(16 << 30), "16.0 GiB");
        assert_eq!(seconds(0.0421), "42 ms");
        assert_eq!(seconds(3.0), "3.00 s");
        assert_eq!(span(3661), "1 h 1 min");
    }
}
