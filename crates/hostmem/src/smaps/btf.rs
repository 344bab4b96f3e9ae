//! The kernel's type information (BTF), as far as it is asked here: where a member of a struct lies, and a function's number.
//!
//! | bytes | content |
//! | --- | --- |
//! | header | magic number, version, flags, its length; offset and length of the types and of the names behind it |
//! | type | offset of its name, kind and count, size or type; then what belongs to the kind |
//!
//! Types are numbered from 1 in their order. Whatever is not as expected ends the search.

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;
/// Kinds that only qualify another type: typedef, volatile, const, restrict, type tag.
const QUALIFIERS: [u32; 5] = [8, 9, 10, 11, 18];
/// Levels of members without a name.
const DEEPEST: u32 = 8;

/// Type information.
#[derive(Debug)]
pub struct Btf<'b> {
    types: &'b [u8],
    names: &'b [u8],
    /// Where each type begins; type 0 has no place.
    places: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    count: usize,
    /// Offsets of its members are of bits, with another number above them.
    has_bitfields: bool,
    /// Its size, or the type that it is about.
    other: u32,
    /// Where its members are.
    members: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

impl<'b> Btf<'b> {
    /// Reads `bytes`.
    pub fn read(bytes: &'b [u8]) -> Option<Self> {
        if u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let at = |place| word(bytes, place).map(|it| it as usize);
        let head = at(4)?;
        let part = |offset, length| {
            let start = head.checked_add(at(offset)?)?;
            bytes.get(start..start.checked_add(at(length)?)?)
        };
        let mut btf = Self {
            types: part(8, 12)?,
            names: part(16, 20)?,
            places: vec![0],
        };
        let mut place = 0;
        while place < btf.types.len() {
            btf.places.push(place);
            let it = btf.at(place)?;
            place = it.members + length(it.kind, it.count)?;
        }
        Some(btf)
    }

    fn at(&self, place: usize) -> Option<Type> {
        let info = word(self.types, place + 4)?;
        Some(Type {
            name: word(self.types, place)?,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            has_bitfields: info >> 31 != 0,
            other: word(self.types, place + 8)?,
            members: place + 12,
        })
    }

    fn is_called(&self, name: u32, wanted: &str) -> bool {
        let rest = self.names.get(name as usize..).unwrap_or(&[]);
        rest.strip_prefix(wanted.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The number of the function of this name.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.find(FUNCTION, name, |number, _| u32::try_from(number).ok())
    }

    /// Where `member` lies in the struct of this name, in bytes.
    pub fn member(&self, of: &str, member: &str) -> Option<u32> {
        self.find(STRUCT, of, |_, it| self.within(it, member, DEEPEST))
    }

    fn find<T>(&self, kind: u32, name: &str, take: impl Fn(usize, Type) -> Option<T>) -> Option<T> {
        let all = self.places.iter().enumerate().skip(1);
        let mut wanted = all
            .filter_map(|(number, place)| Some((number, self.at(*place)?)))
            .filter(|(_, it)| it.kind == kind && self.is_called(it.name, name));
        wanted.find_map(|(number, it)| take(number, it))
    }

    fn within(&self, of: Type, member: &str, levels: u32) -> Option<u32> {
        let levels = levels.checked_sub(1)?;
        (0..of.count).find_map(|index| {
            let place = of.members + 12 * index;
            let (name, of_type) = (word(self.types, place)?, word(self.types, place + 4)?);
            let bits = word(self.types, place + 8)?;
            let bits = if of.has_bitfields {
                bits & 0x00ff_ffff
            } else {
                bits
            };
            if self.is_called(name, member) {
                return bits.is_multiple_of(8).then_some(bits / 8);
            }
            if name != 0 {
                return None;
            }
            let inner = self.unqualified(of_type)?;
            let is_open = [STRUCT, UNION].contains(&inner.kind);
            is_open.then(|| Some(bits / 8 + self.within(inner, member, levels)?))?
        })
    }

    fn unqualified(&self, number: u32) -> Option<Type> {
        let mut it = self.at(*self.places.get(number as usize)?)?;
        for _ in 0..DEEPEST {
            if !QUALIFIERS.contains(&it.kind) {
                return Some(it);
            }
            it = self.at(*self.places.get(it.other as usize)?)?;
        }
        None
    }
}

/// Bytes behind the three words of a type.
fn length(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // Those that point to others, functions, floats.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, tags of declarations.
        1 | 14 | 17 => 4,
        3 => 12,
        STRUCT | UNION | 15 | 19 => 12 * count,
        6 | 13 => 8 * count,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct pair { union { const u64 flags; }; u32 last; }` and a function `walk`.
    fn sample() -> Vec<u8> {
        let names = b"\0pair\0flags\0last\0walk\0u64\0";
        let mut types = Vec::new();
        let mut put = |words: &[u32]| types.extend(words.iter().flat_map(|it| it.to_le_bytes()));
        put(&[22, 1 << 24, 8, 64]);
        put(&[0, 10 << 24, 1]);
        put(&[0, UNION << 24 | 1, 8, 6, 2, 0]);
        put(&[1, STRUCT << 24 | 2, 16, 0, 3, 64, 12, 1, 128]);
        put(&[17, FUNCTION << 24, 1]);
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let words = [
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            names.len() as u32,
        ];
        bytes.extend(words.iter().flat_map(|it| it.to_le_bytes()));
        bytes.extend(types);
        bytes.extend(names);
        bytes
    }

    #[test]
    fn members_of_unnamed_unions_are_found() {
        let bytes = sample();
        let btf = Btf::read(&bytes).expect("type information");
        assert_eq!(btf.member("pair", "flags"), Some(8));
        assert_eq!(btf.member("pair", "last"), Some(16));
        assert_eq!(btf.member("pair", "none"), None);
        assert_eq!(btf.member("other", "flags"), None);
        assert_eq!(btf.function("walk"), Some(5));
        assert_eq!(btf.function("pair"), None);
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let bytes = sample();
        for end in 0..bytes.len() {
            assert!(Btf::read(&bytes[..end]).is_none());
        }
    }
}
