//! The UUIDs of a machine's devices, and the list of devices that a process sees.

/// The UUID of the machine's device number `place`.
pub fn uuid_of(place: i32) -> [u8; 16] {
    let mut uuid = *b"fermata-softgpu\0";
    uuid[15] = place as u8;
    uuid
}

/// Which of the machine's `devices` devices a process sees whose `VISIBLE_DEVICES` is `text`.
pub fn visible(text: &str, devices: usize) -> Vec<i32> {
    let place = |name: &str| {
        let is = |place: &i32| match name.strip_prefix("GPU-") {
            Some(uuid) => text_of(uuid_of(*place)) == uuid.to_ascii_lowercase(),
            None => name.parse() == Ok(*place),
        };
        (0..devices as i32).find(is)
    };
    let mut seen = Vec::new();
    let named = text.split(',').map_while(|name| place(name.trim()));
    for place in named {
        // CUDA takes a list that names a device twice as an empty list.
        if seen.contains(&place) {
            return Vec::new();
        }
        seen.push(place);
    }
    seen
}

/// A UUID as its text.
fn text_of(uuid: [u8; 16]) -> String {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|it| format!("{it:02x}")).collect() };
    let parts = [
        &uuid[..4],
        &uuid[4..6],
        &uuid[6..8],
        &uuid[8..10],
        &uuid[10..],
    ];
    parts.map(hex).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_the_devices_that_are_named_up_to_one_that_is_none() {
        let uuid = format!("GPU-{}", text_of(uuid_of(2)));
        assert_eq!(uuid, "GPU-6665726d-6174-612d-736f-667467707502");
        for (text, seen) in [
            ("1,0", &[1, 0][..]),
            ("2", &[2]),
            (&uuid, &[2]),
            ("0, 1", &[0, 1]),
            ("", &[]),
            ("1,7,0", &[1]),
            ("-1", &[]),
            ("1,1", &[]),
        ] {
            assert_eq!(visible(text, 3), seen, "{text}");
        }
    }
}
