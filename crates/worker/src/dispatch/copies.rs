//! Operations that copy, in every shape, and operations on arrays.

use std::sync::atomic::Ordering;

use fermata_abi::op::{ArrayId, Blob, ContextId, Extent, Pitch, Place, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_device::{ArrayShape, CopyBox, CopySide, Endpoint, PinnedBuffer};
use fermata_state::Array;
use fermata_wire::Ticket;

use super::{DONE, Step};
use crate::errors::OpError;
use crate::scratch::{DONE_AT, SMALL};
use crate::server::Server;
use crate::waiting::Then;

/// Bytes that a box spans at this pitch.
fn span(pitch: Pitch, extent: &Extent) -> Option<u64> {
    let slices = extent.depth.checked_sub(1)?.checked_mul(pitch.rows)?;
    let rows = slices.checked_add(extent.height.checked_sub(1)?)?;
    rows.checked_mul(pitch.row)?.checked_add(extent.width)
}

fn is_empty(extent: &Extent) -> bool {
    extent.width == 0 || extent.height == 0 || extent.depth == 0
}

impl Server {
    pub(super) fn copy(
        &mut self,
        to: &Place<'_>,
        from: &Place<'_>,
        len: u64,
        stream: StreamRef,
        answered: bool,
        ticket: Option<Ticket>,
    ) -> Step {
        if len == 0 {
            return self.issued(stream, answered, ticket);
        }
        if let (Place::Address(to), Place::Blob(Blob::Inline(bytes))) = (to, from) {
            if bytes.len() as u64 != len {
                return Err(OpError::invalid(format!(
                    "a copy of {len} bytes with {} bytes",
                    bytes.len()
                )));
            }
            let live = &mut self.site.live;
            let handle = live.stream(stream)?;
            live.driver.copy_from_slice(to.raw(), bytes, handle)?;
            self.note_bytes(*to, bytes);
            return self.issued(stream, answered, ticket);
        }
        if let (Place::Address(to), Place::Address(from)) = (to, from) {
            let live = &mut self.site.live;
            let handle = live.stream(stream)?;
            live.driver.copy(to.raw(), from.raw(), len, handle)?;
            self.note_copy(*to, *from, len);
            return self.issued(stream, answered, ticket);
        }
        let pitch = Pitch { row: len, rows: 1 };
        let extent = Extent {
            width: len,
            height: 1,
            depth: 1,
        };
        let noted = self.noted_bytes(to, from, len);
        let step = self.copy_3d(to, from, (pitch, pitch), &extent, stream, answered, ticket)?;
        if let Some(noted) = noted {
            self.take_note(noted);
        }
        Ok(step)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn copy_3d(
        &mut self,
        to: &Place<'_>,
        from: &Place<'_>,
        (to_pitch, from_pitch): (Pitch, Pitch),
        extent: &Extent,
        stream: StreamRef,
        answered: bool,
        ticket: Option<Ticket>,
    ) -> Step {
        if is_empty(extent) {
            return self.issued(stream, answered, ticket);
        }
        let (mut source, mut result) = (None, None);
        let from = self.side_of(from, from_pitch, extent, true, &mut source)?;
        let to = self.side_of(to, to_pitch, extent, false, &mut result)?;
        // Only now, because the wait for a small buffer may make another context current.
        let handle = self.site.live.stream(stream)?;
        if result.is_some() && !answered {
            return Err(OpError::invalid(
                "a copy into the answer that is not answered",
            ));
        }
        let live = &self.site.live;
        let one_row = extent.height == 1 && extent.depth == 1;
        match (to.endpoint, from.endpoint) {
            (Endpoint::Address(to), Endpoint::Address(from)) if one_row => {
                live.driver.copy(to, from, extent.width, handle)?;
            }
            _ => {
                let (width, height, depth) = (extent.width, extent.height, extent.depth);
                live.driver.copy_box(
                    &CopyBox {
                        to,
                        from,
                        width,
                        height,
                        depth,
                    },
                    handle,
                )?;
            }
        }
        match (result, source) {
            (Some((buffer, len)), _) => {
                self.keep_pace(stream, 1);
                buffer.word(DONE_AT).store(0, Ordering::Release);
                let word = buffer.address() + DONE_AT as u64;
                // If the driver cannot write the word, the stream is polled instead.
                let told = self
                    .site
                    .live
                    .driver
                    .write_value(handle, word, 1, 0, false)
                    .is_ok();
                self.after(
                    &[stream],
                    Some(stream.context),
                    true,
                    Then::Bytes { buffer, len, told },
                    ticket,
                )
            }
            (None, Some((buffer, _))) => {
                // The buffer must stay until the copy has read it, even if the operation has no answer.
                self.keep_pace(stream, 1);
                let answer = if answered { ticket } else { None };
                self.after(
                    &[stream],
                    Some(stream.context),
                    answered,
                    Then::Hold(buffer),
                    answer,
                )
            }
            (None, None) => self.issued(stream, answered, ticket),
        }
    }

    /// One side of a copy as the driver takes it. Bytes in the message go through a pinned buffer, which is put in `small`.
    fn side_of(
        &mut self,
        place: &Place<'_>,
        pitch: Pitch,
        extent: &Extent,
        is_source: bool,
        small: &mut Option<(PinnedBuffer, usize)>,
    ) -> Result<CopySide, OpError> {
        let side = |endpoint| CopySide {
            endpoint,
            x: 0,
            y: 0,
            z: 0,
            pitch: pitch.row,
            rows: pitch.rows,
        };
        let needed =
            || span(pitch, extent).ok_or_else(|| OpError::invalid("a copy beyond all addresses"));
        Ok(match place {
            Place::Address(address) => side(Endpoint::Address(address.raw())),
            Place::Array { array, x, y, z } => {
                let endpoint = Endpoint::Array(self.site.live.array(*array)?);
                CopySide {
                    endpoint,
                    x: *x,
                    y: *y,
                    z: *z,
                    pitch: 0,
                    rows: 0,
                }
            }
            Place::Blob(Blob::Staged { offset, len }) => {
                if needed()? > *len {
                    return Err(OpError::invalid("a copy larger than its staged bytes"));
                }
                side(Endpoint::Address(self.staging.address(*offset, *len)?))
            }
            Place::Blob(Blob::Inline(bytes)) => {
                if needed()? > bytes.len() as u64 || bytes.len() > SMALL {
                    return Err(OpError::invalid("a copy that does not fit its message"));
                }
                let mut buffer = self.small_buffer()?;
                if is_source {
                    buffer[..bytes.len()].copy_from_slice(bytes);
                }
                let address = buffer.address();
                *small = Some((buffer, bytes.len()));
                side(Endpoint::Address(address))
            }
        })
    }

    /// A small pinned buffer; waits for a copy under way if all are in use.
    fn small_buffer(&mut self) -> Result<PinnedBuffer, OpError> {
        loop {
            if let Some(buffer) = self.scratch.take(&mut self.site.live)? {
                return Ok(buffer);
            }
            if !self
                .waiting
                .iter()
                .any(|it| matches!(it.then, Then::Bytes { .. } | Then::Hold(_)))
            {
                return Err(OpError::new(
                    cu::CUDA_ERROR_OUT_OF_MEMORY,
                    "no buffer for a small copy",
                ));
            }
            self.poll();
            std::thread::yield_now();
        }
    }

    pub(super) fn array_create(
        &mut self,
        array: ArrayId,
        context: ContextId,
        shape: ArrayShape,
    ) -> Step {
        if self.site.session.arrays.contains(array) {
            return Err(OpError::invalid(format!(
                "there is an array {array:#x} already"
            )));
        }
        let extent = shape.extent();
        let (row, rows, slices) =
            extent.ok_or_else(|| OpError::invalid("an array of unknown element size"))?;
        let live = &mut self.site.live;
        let device = live.enter(context)?.device;
        let made = match live.driver.create_array(&shape) {
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY => {
                live.space.trim(&live.driver, device)?;
                live.driver.create_array(&shape)?
            }
            other => other?,
        };
        live.arrays.insert(array, (made, context));
        let ArrayShape {
            width,
            height,
            depth,
            format,
            channels,
            flags,
        } = shape;
        let (bytes, buffer) = (row * rows * slices, self.site.session.number_buffer());
        let record = Array {
            context,
            width,
            height,
            depth,
            format,
            channels,
            flags,
            bytes,
            buffer,
        };
        self.site.session.arrays.insert(array, record)?;
        DONE
    }

    pub(super) fn array_destroy(&mut self, array: ArrayId, ticket: Option<Ticket>) -> Step {
        if self.site.session.is_level(array) {
            return Err(OpError::invalid(format!(
                "array {array:#x} is a level of another, which it goes with"
            )));
        }
        let context = self.site.session.arrays.remove(array)?.context;
        self.after_all(
            Some(context),
            Some(context),
            false,
            Then::ArrayDestroy(array),
            ticket,
        )
    }

    /// Destroys an array that no work uses any more.
    pub(crate) fn release_array(&mut self, array: ArrayId) -> Result<(), OpError> {
        let live = &mut self.site.live;
        let Some((handle, context)) = live.arrays.remove(&array) else {
            return Ok(());
        };
        live.enter(context)?;
        Ok(live.driver.destroy_array(handle)?)
    }
}
