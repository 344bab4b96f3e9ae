//! Copies the program's memory to a pool on the same device.

use fermata_abi::op::Address;
use fermata_device::{Driver, DriverError, StreamHandle};

use super::map::{Slot, address_of};
use crate::protocol::Piece;

/// Copies pieces, which are told by their index, to their slots, adjacent ones in one copy. Variables are copied one by one: those of two modules may be
/// adjacent, and a driver does not copy from two of its own allocations at once.
pub(crate) fn copy_aside(
    driver: &Driver,
    piece: impl Fn(usize) -> Piece,
    aside: &[(usize, Slot)],
    stream: StreamHandle,
) -> Result<(), DriverError> {
    let mut run: Option<(u64, Address, u64)> = None;
    for (index, to) in aside {
        let piece = piece(*index);
        let (from, bytes) = (address_of(&piece), piece.len as u64);
        let ours = from.is_on_device();
        match &mut run {
            Some((run_to, run_from, len))
                if ours && *run_to + *len == *to && *run_from + *len == from =>
            {
                *len += bytes;
            }
            _ => {
                if let Some((to, from, len)) = run.replace((*to, from, bytes)) {
                    driver.copy(to, from.raw(), len, stream)?;
                }
            }
        }
    }
    match run {
        Some((to, from, len)) => driver.copy(to, from.raw(), len, stream),
        None => Ok(()),
    }
}
