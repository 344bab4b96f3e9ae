//! The `state` file: a session as bytes.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `FERMSTAT` |
//! | 8 | 4 | version, little-endian |
//! | 12 | 4 | reserved, 0 |
//! | 16 | 8 | length of the body |
//! | 24 | 32 | BLAKE3 of the first 24 bytes and the body |
//! | 56 | | body: the [`Session`], a list of [`StoredImage`], what is shared ([`Sharing`]), [`Session::places`], [`Session::references`], [`Session::mipmaps`], [`Sharing::opened`], [`Session::pointers`], [`Session::context_places`] and [`Session::greens`], in postcard |
//!
//! | version | its body ends before |
//! | --- | --- |
//! | 14 | |
//! | 13 | the green contexts |
//! | 12 | the places of contexts among the modules |
//! | 11 | the pointers in device memory |
//! | 10 | the events that other processes share |
//! | 9 | the references and the arrays with levels |
//! | 8 | where multiprocessors lie |
//! | 7 | the shared memory |
//! | 6 | the images that libraries hold, what is known of images, and the stored images |
//! | 5 | the queue |
//! | 4 | the textures |
//! | 3 | the tensor maps |
//! | 2 | the modules that are kept |
//! | 1 | [`Session::deferred`] |
//!
//! A module image of at least [`STORED_FROM`] bytes is not part of the body: it is a buffer of the
//! image's chunk table, without gaps, and the list says which. Bodies up to version 6 hold every image.
//!
//! A body must end with the file. What is read has passed the checksum and every rule that a live session
//! keeps, so that a restore may rely on references and ranges.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::image::IMAGE_NUMBERS;
use crate::{
    IMAGE_BUFFERS, ImageBytes, ImageId, LONGEST_IMAGE, STORED_FROM, Session, Sharing, StateError,
    StoredImage,
};

/// Version written, and the newest read.
pub const VERSION: u32 = 14;
const MAGIC: &[u8; 8] = b"FERMSTAT";
const HEADER: usize = 56;

/// Why bytes are no session.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not a `state` file at all, or cut.
    #[error("the state is damaged: {0}")]
    Damaged(&'static str),
    /// Written by a newer release.
    #[error("the state has version {found}; this release reads up to {VERSION}")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// The body cannot be decoded.
    #[error("the state is damaged: its body cannot be decoded")]
    Decode(#[source] postcard::Error),
    /// The body cannot be encoded.
    #[error("the state cannot be encoded")]
    Encode(#[source] postcard::Error),
    /// The objects do not fit each other.
    #[error("the state is damaged: its objects contradict each other")]
    Inconsistent(#[source] StateError),
}

fn checksum(head: &[u8], body: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new()
        .update(head)
        .update(body)
        .finalize()
        .as_bytes()
}

/// A session as bytes, and what belongs into the store beside them.
#[derive(Debug)]
pub struct Encoded {
    /// The `state` file.
    pub bytes: Vec<u8>,
    /// The long images, by their number in the chunk table.
    pub images: Vec<(u64, ImageBytes)>,
}

/// A session without its long images.
#[derive(Debug)]
pub struct Decoded {
    session: Session,
    stored: Vec<StoredImage>,
}

impl Decoded {
    /// The images to be read from the store.
    pub fn stored(&self) -> &[StoredImage] {
        &self.stored
    }

    /// The session with its long images, in the order of [`Decoded::stored`]. Their content is not compared with their
    /// hash: they come from chunks that have been.
    ///
    /// # Errors
    /// [`RecordError::Damaged`] if an image is missing or has another length.
    pub fn complete(self, images: Vec<ImageBytes>) -> Result<Session, RecordError> {
        let Self {
            mut session,
            stored,
        } = self;
        let fit = |(it, image): (&StoredImage, &ImageBytes)| it.bytes == image.bytes().len() as u64;
        if images.len() != stored.len() || !stored.iter().zip(&images).all(fit) {
            return Err(RecordError::Damaged("a module image has another length"));
        }
        let ids = stored.into_iter().map(|it| it.id);
        session.images.extend(ids.zip(images));
        Ok(session)
    }
}

/// The long images of a session, each with a number of its own.
fn stored(session: &Session) -> Vec<(StoredImage, &ImageBytes)> {
    let mut taken = BTreeSet::new();
    let long = session.images.iter().filter(|(_, it)| it.is_stored());
    let numbered = long.map(|(id, image)| {
        let mut buffer = number_of(id);
        while !taken.insert(buffer) {
            buffer = IMAGE_BUFFERS + (buffer + 1) % IMAGE_NUMBERS;
        }
        let (id, bytes) = (*id, image.bytes().len() as u64);
        (StoredImage { id, buffer, bytes }, image)
    });
    numbered.collect()
}

fn number_of(id: &ImageId) -> u64 {
    let first = std::array::from_fn(|n| id.0[n]);
    IMAGE_BUFFERS + u64::from_le_bytes(first) % IMAGE_NUMBERS
}

/// The bytes of a session, whose images must all go by their hash.
///
/// # Errors
/// [`RecordError::Encode`].
pub fn encode(session: &Session) -> Result<Encoded, RecordError> {
    let stored = stored(session);
    let list: Vec<&StoredImage> = stored.iter().map(|(it, _)| it).collect();
    let body = postcard::to_stdvec(session).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&list, body).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&session.sharing, body).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&session.places, body).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&session.references, body).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&session.mipmaps, body).map_err(RecordError::Encode)?;
    let opened = &session.sharing.opened;
    let body = postcard::to_extend(opened, body).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&session.pointers, body).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&session.context_places, body).map_err(RecordError::Encode)?;
    let body = postcard::to_extend(&session.greens, body).map_err(RecordError::Encode)?;
    let images = stored.iter();
    let images = images.map(|(it, image)| (it.buffer, (*image).clone()));
    Ok(Encoded {
        bytes: with_header(&body),
        images: images.collect(),
    })
}

fn with_header(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&checksum(&bytes, body));
    bytes.extend_from_slice(body);
    bytes
}

/// The session in these bytes, which may be hostile.
///
/// # Errors
/// Any bit is wrong, the version is newer, or the objects contradict each other.
pub fn decode(bytes: &[u8]) -> Result<Decoded, RecordError> {
    let (header, body) = bytes
        .split_at_checked(HEADER)
        .ok_or(RecordError::Damaged("it is shorter than its header"))?;
    if &header[..8] != MAGIC {
        return Err(RecordError::Damaged("it does not begin with FERMSTAT"));
    }
    if header[24..] != checksum(&header[..24], body) {
        return Err(RecordError::Damaged("its checksum is wrong"));
    }
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if version > VERSION {
        return Err(RecordError::Newer { found: version });
    }
    if version == 0
        || header[12..16] != [0; 4]
        || header[16..24] != (body.len() as u64).to_le_bytes()
    {
        return Err(RecordError::Damaged("its header contradicts itself"));
    }
    let mut body = Cow::Borrowed(body);
    // Everything that came later is an empty list, or nothing, and takes one byte; nothing shared takes three, no
    // green context two.
    let missing = match version {
        1 => 20,
        2 => 19,
        3 => 17,
        4 => 16,
        5 => 15,
        6 => 14,
        7 => 11,
        8 => 8,
        9 => 7,
        10 => 5,
        11 => 4,
        12 => 3,
        13 => 2,
        _ => 0,
    };
    if missing > 0 {
        body.to_mut().extend(std::iter::repeat_n(0, missing));
    }
    let (mut session, rest): (Session, _) =
        postcard::take_from_bytes(&body).map_err(RecordError::Decode)?;
    let (stored, rest): (Vec<StoredImage>, _) =
        postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    let (sharing, rest): (Sharing, _) =
        postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.sharing = sharing;
    let (places, rest) = postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.places = places;
    let (references, rest) = postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.references = references;
    let (mipmaps, rest) = postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.mipmaps = mipmaps;
    let (opened, rest) = postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.sharing.opened = opened;
    let (pointers, rest) = postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.pointers = pointers;
    let (context_places, rest) = postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.context_places = context_places;
    let (greens, rest) = postcard::take_from_bytes(rest).map_err(RecordError::Decode)?;
    session.greens = greens;
    if !rest.is_empty() {
        return Err(RecordError::Damaged("something follows its body"));
    }
    let ids = check_stored(&session, &stored)?;
    session
        .validate_with(&ids)
        .map_err(RecordError::Inconsistent)?;
    Ok(Decoded { session, stored })
}

/// The stored images must be others than those in the body, and have numbers that no buffer has. Their hashes.
fn check_stored(
    session: &Session,
    stored: &[StoredImage],
) -> Result<BTreeSet<ImageId>, RecordError> {
    let lengths = STORED_FROM as u64..=LONGEST_IMAGE;
    let fits = |it: &StoredImage| {
        (IMAGE_BUFFERS..IMAGE_BUFFERS + IMAGE_NUMBERS).contains(&it.buffer)
            && lengths.contains(&it.bytes)
            && !session.images.contains_key(&it.id)
    };
    let numbers: BTreeSet<u64> = stored.iter().map(|it| it.buffer).collect();
    let ids: BTreeSet<ImageId> = stored.iter().map(|it| it.id).collect();
    let apart = numbers.len() == stored.len() && ids.len() == stored.len();
    if !apart || !stored.iter().all(fits) || session.last_buffer() >= IMAGE_NUMBERS {
        return Err(RecordError::Damaged(
            "its list of stored module images contradicts itself",
        ));
    }
    Ok(ids)
}
