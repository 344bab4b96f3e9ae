//! The `state` file: a session as bytes.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `FERMSTAT` |
//! | 8 | 4 | version, little-endian: 6; 5 for a body that ends before the queue, 4 for one that ends before the textures, 3 for one that ends before the tensor maps, 2 for a body that ends before the modules that are kept, 1 for one that ends before [`Session::deferred`] |
//! | 12 | 4 | reserved, 0 |
//! | 16 | 8 | length of the body |
//! | 24 | 32 | BLAKE3 of the first 24 bytes and the body |
//! | 56 | | body: the [`Session`] in postcard |
//!
//! A body must end with the file. What is read has passed the checksum and every rule that a live session
//! keeps, so that a restore may rely on references and ranges.

use std::borrow::Cow;

use crate::{Session, StateError};

/// Version written, and the newest read.
pub const VERSION: u32 = 6;
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

/// The bytes of a session.
///
/// # Errors
/// [`RecordError::Encode`].
pub fn encode(session: &Session) -> Result<Vec<u8>, RecordError> {
    let body = postcard::to_stdvec(session).map_err(RecordError::Encode)?;
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&checksum(&bytes, &body));
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The session in these bytes, which may be hostile.
///
/// # Errors
/// Any bit is wrong, the version is newer, or the objects contradict each other.
pub fn decode(bytes: &[u8]) -> Result<Session, RecordError> {
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
    // No deferred errors, no kept modules, no gap, no tensor maps, no textures, no queue: an empty list and nothing are one byte each.
    let missing = match version {
        1 => 6,
        2 => 5,
        3 => 3,
        4 => 2,
        5 => 1,
        _ => 0,
    };
    if missing > 0 {
        body.to_mut().extend(std::iter::repeat_n(0, missing));
    }
    let (session, rest): (Session, _) =
        postcard::take_from_bytes(&body).map_err(RecordError::Decode)?;
    if !rest.is_empty() {
        return Err(RecordError::Damaged("something follows its body"));
    }
    session.validate().map_err(RecordError::Inconsistent)?;
    Ok(session)
}
