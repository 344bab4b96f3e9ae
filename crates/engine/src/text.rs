//! Finds the PTX texts in a module image.

use std::borrow::Cow;

use fermata_ptx::fatbin::{self, Kind};

/// First bytes of a fat binary.
pub(crate) const FATBIN_MAGIC: [u8; 4] = fatbin::MAGIC.to_le_bytes();

/// A text of an image.
pub(crate) struct Text<'a> {
    /// The architecture it is for, 10 * major + minor; `None` if the image is the text itself.
    pub sm: Option<u32>,
    /// The text, without trailing zeros.
    pub source: Cow<'a, str>,
}

/// All texts of an image; those that cannot be unpacked are left out.
pub(crate) fn texts(image: &[u8]) -> Vec<Text<'_>> {
    if image.starts_with(&FATBIN_MAGIC) {
        let entries = fatbin::entries(image).unwrap_or_default();
        let texts = entries.iter().filter(|entry| entry.kind == Kind::Ptx);
        return texts
            .filter_map(|entry| {
                let source = entry.contents().ok()?;
                Some(Text {
                    sm: Some(entry.sm),
                    source: string(source)?,
                })
            })
            .collect();
    }
    let end = image.iter().position(|byte| *byte == 0);
    let text = &image[..end.unwrap_or(image.len())];
    let source = std::str::from_utf8(text).ok();
    let plain = source.filter(|text| text.contains(".version"));
    let plain = plain.map(|text| Text {
        sm: None,
        source: Cow::Borrowed(text),
    });
    plain.into_iter().collect()
}

fn string(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

/// The text from which code of architecture `sm` was made (`None`: the driver cannot tell), and whether that is certain:
/// code for different architectures may differ in what it touches.
pub(crate) fn text_of(image: &[u8], sm: Option<u32>) -> Option<(Text<'_>, bool)> {
    let mut texts = texts(image);
    let certain = |text: &Text<'_>| text.sm.is_none() || text.sm == sm;
    if let Some(at) = texts.iter().position(certain) {
        return Some((texts.swap_remove(at), true));
    }
    let newest = texts.into_iter().max_by_key(|text| text.sm)?;
    Some((newest, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_certain_and_ends_before_its_zeros() {
        let image = b".version 8.0\n.target sm_75\n\0\0\0";
        let (text, certain) = text_of(image, Some(90)).expect("a text");
        assert!(certain && text.source.ends_with("sm_75\n"));
    }

    #[test]
    fn machine_code_and_rubbish_have_none() {
        assert!(text_of(b"\x7fELF\x02\x01", Some(90)).is_none());
        assert!(text_of(&FATBIN_MAGIC, None).is_none());
        assert!(text_of(b"", None).is_none());
    }
}
