//! A checkpoint as one run of bytes, read at any place and written in order.
//!
//! ```text
//!  header: manifest and chunk table │ every chunk once, in the table's order
//! ```
//! Parity is computed over it, so a checkpoint that was computed again must give the bytes that the lost one gave.

use fermata_store::image::Image;
use serde::{Deserialize, Serialize};

use super::site::Site;
use super::table::once;
use crate::checkpoint::transfer::{Incoming, Outgoing};
use crate::{AppError, Result};

/// What the header has of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Header {
    /// All of it, with when and where the checkpoint was committed: older parity was made so.
    #[default]
    Committed,
    /// What is the same for every copy of the checkpoint.
    AnyCopy,
}

/// A checkpoint that is read as a stream.
pub(crate) struct Reading {
    out: Outgoing,
    /// Number in the table, and where it begins in the stream.
    chunks: Vec<(usize, u64)>,
    length: u64,
    /// The chunk that was read last.
    last: Option<(usize, Vec<u8>)>,
}

impl Reading {
    /// Opens a checkpoint.
    pub(crate) fn open(site: &Site, image: &Image, header: Header) -> Result<Self> {
        let out = match header {
            Header::Committed => Outgoing::open(site, image),
            Header::AnyCopy => Outgoing::of_any_copy(site, image),
        }?;
        let mut at = out.header().len() as u64;
        let mut chunks = Vec::new();
        for index in once(out.table()) {
            chunks.push((index, at));
            at += u64::from(out.table().records()[index].length);
        }
        Ok(Self {
            out,
            chunks,
            length: at,
            last: None,
        })
    }

    /// Bytes of the stream.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of its header.
    pub(crate) fn header(&self) -> &[u8] {
        self.out.header()
    }

    /// Fills `into` from `offset` on; all of it lies within the stream. Chunks are checked.
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, into);
        let header = self.out.header();
        if let Some(left) = header.get(at as usize..) {
            let bytes = left.len().min(rest.len());
            rest[..bytes].copy_from_slice(&left[..bytes]);
            at += bytes as u64;
            rest = &mut rest[bytes..];
        }
        while !rest.is_empty() {
            let chunk = self.chunks.partition_point(|(_, start)| *start <= at);
            let (index, start) = *chunk
                .checked_sub(1)
                .and_then(|i| self.chunks.get(i))
                .ok_or(AppError::Fault("a checkpoint's stream"))?;
            if self.last.as_ref().is_none_or(|(i, _)| *i != index) {
                self.last = Some((index, self.out.message(&[index])?));
            }
            let bytes = self.last.as_ref().map_or(&[][..], |(_, bytes)| bytes);
            let Some(bytes) = bytes.get((at - start) as usize..).filter(|b| !b.is_empty()) else {
                return Err(AppError::Fault("a checkpoint's stream"));
            };
            let count = bytes.len().min(rest.len());
            rest[..count].copy_from_slice(&bytes[..count]);
            at += count as u64;
            rest = &mut rest[count..];
        }
        Ok(())
    }
}

/// A checkpoint that is written from a stream. Whatever goes wrong is said at the end, so that other ranks
/// that take part need not know.
pub(crate) struct Writing {
    site: Site,
    header_bytes: usize,
    /// What has come and is no whole header or chunk yet.
    pending: Vec<u8>,
    incoming: Option<Incoming>,
    chunks: std::vec::IntoIter<usize>,
    next: Option<(usize, usize)>,
    failure: Option<AppError>,
}

impl Writing {
    /// For a stream with a header of so many bytes.
    pub(crate) fn new(site: &Site, header_bytes: u64) -> Self {
        Self {
            site: site.clone(),
            header_bytes: header_bytes as usize,
            pending: Vec::new(),
            incoming: None,
            chunks: Vec::new().into_iter(),
            next: None,
            failure: None,
        }
    }

    /// Takes the stream's next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.failure.is_none()
            && let Err(e) = self.take(bytes)
        {
            self.failure = Some(e);
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let want = match (&self.incoming, self.next) {
                (None, _) => self.header_bytes,
                (Some(_), Some((_, length))) => length,
                (Some(_), None) => return Err(AppError::Fault("a checkpoint's stream")),
            };
            let count = want.saturating_sub(self.pending.len()).min(rest.len());
            self.pending.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            if self.pending.len() < want {
                continue;
            }
            match (&mut self.incoming, self.next) {
                (Some(incoming), Some((index, _))) if incoming.lacks(index) => {
                    incoming.take(&[index], &self.pending);
                }
                (Some(_), _) => {}
                (none, _) => {
                    let incoming = Incoming::open(&self.site, &self.pending, true)?;
                    self.chunks = once(incoming.table()).into_iter();
                    *none = Some(incoming);
                }
            }
            self.pending.clear();
            self.advance();
        }
        Ok(())
    }

    fn advance(&mut self) {
        let incoming = self.incoming.as_ref();
        self.next = self.chunks.next().and_then(|index| {
            let chunk = incoming?.table().records().get(index)?;
            Some((index, chunk.length as usize))
        });
    }

    /// Completes the checkpoint.
    pub(crate) fn finish(self) -> Result<()> {
        match (self.failure, self.incoming) {
            (Some(e), _) => Err(e),
            (None, Some(incoming)) if self.next.is_none() => incoming.finish(),
            _ => Err(AppError::Fault("a checkpoint's stream")),
        }
    }
}
