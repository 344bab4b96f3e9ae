//! Finds the PTX texts in a module image.

use std::borrow::Cow;

use fermata_ptx::fatbin::{self, Entry, Kind};

/// First bytes of a fat binary.
pub(crate) const FATBIN_MAGIC: [u8; 4] = fatbin::MAGIC.to_le_bytes();

/// A text of an image.
pub(crate) struct Text<'a> {
    /// The architecture it is for, 10 * major + minor; `None` if the image is the text itself.
    pub sm: Option<u32>,
    /// See [`Entry::variant`].
    variant: u64,
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
                    variant: entry.variant(),
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
        variant: 0,
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
/// code for different architectures, or variants of one, may differ in what it touches.
pub(crate) fn text_of(image: &[u8], sm: Option<u32>) -> Option<(Text<'_>, bool)> {
    let mut texts = texts(image);
    let variant = variant_of(image, sm);
    let certain =
        |text: &Text<'_>| text.sm.is_none() || text.sm == sm && Some(text.variant) == variant;
    if let Some(at) = texts.iter().position(certain) {
        return Some((texts.swap_remove(at), true));
    }
    let newest = texts.into_iter().max_by_key(|text| text.sm)?;
    Some((newest, false))
}

/// The variant of the architecture that an image's code for `sm` is for: that of machine code, else that of text to be
/// compiled. `None` if there are several, or if there is only text and an entry of unknown kind, which may be what runs.
fn variant_of(image: &[u8], sm: Option<u32>) -> Option<u64> {
    let entries = fatbin::entries(image).ok()?;
    let entries: Vec<&Entry<'_>> = entries.iter().filter(|it| Some(it.sm) == sm).collect();
    let compiled = entries.iter().any(|it| it.kind == Kind::Elf) && !compiles();
    let runs = if compiled { Kind::Elf } else { Kind::Ptx };
    let known = |it: &&Entry<'_>| matches!(it.kind, Kind::Elf | Kind::Ptx);
    let mut variants = entries.iter().filter(|it| it.kind == runs);
    let first = variants.next()?.variant();
    let one = variants.all(|it| it.variant() == first);
    let sure = compiled || entries.iter().all(known);
    (one && sure).then_some(first)
}

/// Whether the environment has the driver compile texts where there is machine code, too.
pub(crate) fn compiles() -> bool {
    std::env::var_os("CUDA_FORCE_PTX_JIT").is_some_and(|it| it != "0")
}

#[cfg(test)]
pub(crate) mod scene {
    use super::FATBIN_MAGIC;

    /// A fat binary of unpacked entries: kind, architecture, flags, contents.
    pub(crate) fn fat<'c>(entries: impl Iterator<Item = (u16, u32, u64, &'c [u8])>) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, sm, flags, contents) in entries {
            let mut head = [0u8; 0x40];
            head[..2].copy_from_slice(&kind.to_le_bytes());
            head[4..8].copy_from_slice(&0x40u32.to_le_bytes());
            head[8..16].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            head[0x1c..0x20].copy_from_slice(&sm.to_le_bytes());
            head[0x28..0x30].copy_from_slice(&flags.to_le_bytes());
            body.extend(head);
            body.extend(contents);
        }
        let mut image = FATBIN_MAGIC.to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend((body.len() as u64).to_le_bytes());
        image.extend(body);
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fat binary of entries: kind, architecture, flags. The content of each is a text.
    fn fat(entries: &[(u16, u32, u64)]) -> Vec<u8> {
        let entries = entries
            .iter()
            .map(|(kind, sm, flags)| (*kind, *sm, *flags, &b".version 8.0\n"[..]));
        scene::fat(entries)
    }

    #[test]
    fn a_text_for_another_variant_of_the_architecture_is_not_certain() {
        const A: u64 = 0x10_0000;
        let certain = |entries: &[(u16, u32, u64)]| {
            let image = fat(entries);
            let (text, certain) = text_of(&image, Some(90)).expect("a text");
            (text.variant, certain)
        };
        assert_eq!(certain(&[(2, 90, 0x11), (1, 90, 0x11)]), (0, true));
        assert_eq!(certain(&[(2, 90, A), (1, 90, 0)]), (0, false));
        assert_eq!(certain(&[(2, 90, 0), (1, 90, A)]), (1, false));
        assert_eq!(certain(&[(2, 90, A), (1, 90, 0), (1, 90, A)]), (1, true));
        // The driver chooses between these.
        assert!(!certain(&[(1, 90, 0), (1, 90, A)]).1);
        assert!(!certain(&[(2, 90, 0), (2, 90, A), (1, 90, 0)]).1);
        assert!(!certain(&[(1, 90, 0), (64, 90, 0)]).1);
        assert!(certain(&[(1, 90, 0), (2, 90, 0), (64, 90, 0)]).1);
        // Code for other architectures does not matter.
        assert_eq!(certain(&[(2, 80, A), (1, 90, 0)]), (0, true));
    }

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
