//! The fat binary container in which compilers ship PTX and machine code.
//!
//! ```text
//! container  0x00 u32 magic 0xBA55ED50   0x04 u16 version 1   0x06 u16 header bytes   0x08 u64 body bytes
//! entry      0x00 u16 kind (1 PTX, 2 ELF)   0x04 u32 header bytes   0x08 u64 payload bytes, padded
//!            0x10 u32 payload bytes when compressed   0x1c u32 architecture (75 is sm_75)
//!            0x28 u64 flags (0x2000 LZ4 block, 0x8000 zstd, 0x100000 sm_90a rather than sm_90)   0x38 u64 bytes when unpacked
//! ```
//! Entries follow one another. Everything read here is hostile: all ranges are checked, and what is
//! unpacked is bounded by what the entry declares and by [`MAX_UNPACKED`].

use std::borrow::Cow;
use std::io::Read;

/// First word of a container.
pub const MAGIC: u32 = 0xBA55_ED50;
/// First word of the wrapper structure that points to a container in a program's data.
pub const WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// No entry unpacks to more bytes than this.
pub const MAX_UNPACKED: u64 = 1 << 30;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// From this bit on, flags tell variants of an architecture apart.
const VARIANT_SHIFT: u32 = 20;
const ENTRY_FIELDS: usize = 0x40;

/// Why a container was refused.
#[derive(Debug, thiserror::Error)]
pub enum FatbinError {
    /// The first word is another.
    #[error("not a fat binary: it starts with {found:#010x}")]
    Magic {
        /// The word.
        found: u32,
    },
    /// A size or offset leads outside.
    #[error("fat binary: {what} at byte {offset:#x} reaches beyond the container")]
    Bounds {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        offset: usize,
    },
    /// An entry's payload cannot be unpacked.
    #[error("fat binary: cannot unpack the entry for sm_{sm}: {reason}")]
    Unpack {
        /// Its architecture.
        sm: u32,
        /// What the decoder said.
        reason: String,
    },
}

/// What an entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// PTX text.
    Ptx,
    /// Machine code.
    Elf,
    /// Something else.
    Other(u16),
}

/// One entry of a container.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// What it holds.
    pub kind: Kind,
    /// Architecture: 10 * major + minor.
    pub sm: u32,
    flags: u64,
    payload: &'a [u8],
    packed_bytes: usize,
    unpacked_bytes: u64,
}

/// Bytes of the whole container, from its first 16.
///
/// # Errors
/// Another magic number, or a size that does not fit.
pub fn container_len(header: &[u8; 16]) -> Result<usize, FatbinError> {
    let found = word(header, 0) as u32;
    if found != MAGIC {
        return Err(FatbinError::Magic { found });
    }
    let header_bytes = word(header, 4) >> 16 & 0xFFFF;
    let total = word(header, 8)
        .checked_add(header_bytes)
        .and_then(|n| usize::try_from(n).ok());
    total
        .filter(|&n| n >= 16 && n <= isize::MAX as usize)
        .ok_or(FatbinError::Bounds {
            what: "the body",
            offset: 0,
        })
}

/// The entries of the container that `bytes` starts with.
///
/// # Errors
/// Another magic number, or an entry that reaches beyond the container.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry<'_>>, FatbinError> {
    let header: &[u8; 16] = bytes.first_chunk().ok_or(FatbinError::Bounds {
        what: "the header",
        offset: 0,
    })?;
    let total = container_len(header)?;
    let body = bytes.get(..total).ok_or(FatbinError::Bounds {
        what: "the body",
        offset: 0,
    })?;
    let mut offset = (word(header, 4) >> 16 & 0xFFFF) as usize;
    let mut out = Vec::new();
    while offset < body.len() {
        let rest = &body[offset..];
        let bounds = |what| FatbinError::Bounds { what, offset };
        if rest.len() < ENTRY_FIELDS {
            return Err(bounds("an entry's header"));
        }
        let header_bytes = (word(rest, 0) >> 32) as usize;
        if header_bytes < ENTRY_FIELDS || header_bytes > rest.len() {
            return Err(bounds("an entry's header"));
        }
        let payload_bytes = usize::try_from(word(rest, 8)).map_err(|_| bounds("a payload"))?;
        let end = header_bytes
            .checked_add(payload_bytes)
            .ok_or(bounds("a payload"))?;
        let payload = rest.get(header_bytes..end).ok_or(bounds("a payload"))?;
        out.push(Entry {
            kind: match word(rest, 0) as u16 {
                1 => Kind::Ptx,
                2 => Kind::Elf,
                other => Kind::Other(other),
            },
            sm: (word(rest, 0x18) >> 32) as u32,
            flags: word(rest, 0x28),
            payload,
            packed_bytes: word(rest, 0x10) as u32 as usize,
            unpacked_bytes: word(rest, 0x38),
        });
        offset += end;
    }
    Ok(out)
}

/// The PTX entry for the highest architecture that is not above `sm` (10 * major + minor).
pub fn best_ptx<'e, 'a>(entries: &'e [Entry<'a>], sm: u32) -> Option<&'e Entry<'a>> {
    entries
        .iter()
        .filter(|e| e.kind == Kind::Ptx && e.sm <= sm)
        .max_by_key(|e| e.sm)
}

impl<'a> Entry<'a> {
    /// Which variant of the architecture it is for: 0 for the plain one, 1 for that with the suffix `a`; what the next bits
    /// mean is not known. Code for one variant may have been made from another text than that for another. Bits from 24 on tell no
    /// variant: plain code for sm_100 and sm_120 has one there that its text has not.
    pub fn variant(&self) -> u64 {
        self.flags >> VARIANT_SHIFT & 0xf
    }

    /// The payload, unpacked; trailing zero bytes of PTX text are removed.
    ///
    /// # Errors
    /// A damaged payload, or one that unpacks to more than it declares.
    pub fn contents(&self) -> Result<Cow<'a, [u8]>, FatbinError> {
        let mut contents = self.unpack()?;
        if self.kind == Kind::Ptx {
            let end = contents
                .iter()
                .rposition(|&b| b != 0)
                .map_or(0, |last| last + 1);
            match &mut contents {
                Cow::Borrowed(bytes) => *bytes = &bytes[..end],
                Cow::Owned(bytes) => bytes.truncate(end),
            }
        }
        Ok(contents)
    }

    fn unpack(&self) -> Result<Cow<'a, [u8]>, FatbinError> {
        let fail = |reason: String| FatbinError::Unpack {
            sm: self.sm,
            reason,
        };
        if self.flags & (FLAG_LZ4 | FLAG_ZSTD) == 0 {
            return Ok(Cow::Borrowed(self.payload));
        }
        if self.unpacked_bytes > MAX_UNPACKED {
            return Err(fail(format!("{} bytes are too many", self.unpacked_bytes)));
        }
        let size = self.unpacked_bytes as usize;
        let packed = match self.packed_bytes {
            0 => self.payload,
            n => self
                .payload
                .get(..n)
                .ok_or_else(|| fail("it is cut short".into()))?,
        };
        if self.flags & FLAG_ZSTD == 0 {
            // A byte of an LZ4 block yields at most 255: larger claims are not worth an allocation.
            if size / 255 > packed.len() {
                return Err(fail("it declares more bytes than it can hold".into()));
            }
            return lz4_flex::block::decompress(packed, size)
                .map(Cow::Owned)
                .map_err(|e| fail(e.to_string()));
        }
        let decoder =
            zstd::stream::read::Decoder::with_buffer(packed).map_err(|e| fail(e.to_string()))?;
        let mut out = Vec::new();
        decoder
            .single_frame()
            .take(size as u64 + 1)
            .read_to_end(&mut out)
            .map_err(|e| fail(e.to_string()))?;
        if out.len() != size {
            return Err(fail(format!(
                "it declares {size} bytes and holds another number"
            )));
        }
        Ok(Cow::Owned(out))
    }
}

/// The 8 bytes at `at` (fewer at the end count as zero).
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    for (to, from) in out.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    u64::from_le_bytes(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn container(list: &[(u16, u32, u64, Vec<u8>, u64)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, sm, flags, payload, raw) in list {
            let mut header = [0u8; 64];
            header[0..2].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&64u32.to_le_bytes());
            let padded = payload.len().next_multiple_of(8);
            header[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
            header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            header[28..32].copy_from_slice(&sm.to_le_bytes());
            header[40..48].copy_from_slice(&flags.to_le_bytes());
            header[56..64].copy_from_slice(&raw.to_le_bytes());
            body.extend(header);
            body.extend(payload);
            body.resize(body.len() + padded - payload.len(), 0);
        }
        let mut out = MAGIC.to_le_bytes().to_vec();
        out.extend([1, 0, 16, 0]);
        out.extend((body.len() as u64).to_le_bytes());
        out.extend(body);
        out
    }

    #[test]
    fn plain_lz4_and_zstd_entries_give_the_same_text() {
        let text = b".version 8.0\n.target sm_80\n".repeat(20);
        let raw = text.len() as u64;
        let bytes = container(&[
            (2, 80, 0, vec![1, 2, 3], 0),
            (1, 70, 0, text.clone(), 0),
            (1, 80, FLAG_LZ4, lz4_flex::block::compress(&text), raw),
            (
                1,
                90,
                FLAG_ZSTD,
                zstd::bulk::compress(&text, 3).unwrap(),
                raw,
            ),
        ]);
        assert_eq!(
            container_len(bytes.first_chunk().unwrap()).unwrap(),
            bytes.len()
        );
        let entries = entries(&bytes).unwrap();
        for (limit, sm) in [(75, 70), (89, 80), (120, 90)] {
            let best = best_ptx(&entries, limit).unwrap();
            assert_eq!(best.sm, sm);
            assert_eq!(&*best.contents().unwrap(), &text[..]);
        }
        assert!(best_ptx(&entries, 60).is_none());
    }

    #[test]
    fn variants_of_an_architecture_are_told_apart() {
        let flags = [0x11, 0x10_0011, 0x20_0011, 0x100_8011];
        let list = flags.map(|flags| (2, 90, flags, vec![0], 0));
        let bytes = container(&list);
        let entries = entries(&bytes).unwrap();
        let variants: Vec<u64> = entries.iter().map(Entry::variant).collect();
        assert_eq!(variants, [0, 1, 2, 0]);
    }

    #[test]
    fn bombs_are_refused() {
        let zeros = vec![0u8; 1 << 20];
        for (flag, packed) in [
            (FLAG_LZ4, lz4_flex::block::compress(&zeros)),
            (FLAG_ZSTD, zstd::bulk::compress(&zeros, 3).unwrap()),
        ] {
            for declared in [10, u64::MAX, MAX_UNPACKED] {
                let bytes = container(&[(1, 80, flag, packed.clone(), declared)]);
                assert!(entries(&bytes).unwrap()[0].contents().is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn damaged_containers_never_panic(at in 0usize..400, value: u8, cut in 0usize..600) {
            let text = b"abcdefgh".repeat(30);
            let mut bytes = container(&[
                (1, 80, FLAG_LZ4, lz4_flex::block::compress(&text), 240),
                (1, 90, FLAG_ZSTD, zstd::bulk::compress(&text, 3).unwrap(), 240),
                (1, 75, 0, text, 0),
            ]);
            let len = bytes.len();
            bytes[at.min(len - 1)] = value;
            bytes.truncate(len.saturating_sub(cut));
            if let Ok(list) = entries(&bytes) {
                for entry in list {
                    let _ = entry.contents();
                }
            }
        }
    }
}
