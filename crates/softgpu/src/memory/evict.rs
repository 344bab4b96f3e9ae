//! Moves device memory out of its addresses, and back.

use std::ptr::with_exposed_provenance;

use super::map::Kind;
use super::{Memory, sys};
use crate::error::{OPERATING_SYSTEM, OUT_OF_MEMORY, Result};

/// Unit in which contents are kept; units of zeros are not.
const UNIT: usize = 64 << 10;

/// A mapping of device memory that is not at its addresses now.
#[derive(Debug)]
pub struct Saved {
    base: u64,
    len: u64,
    /// Offset and contents.
    units: Vec<(u64, Box<[u8]>)>,
}

impl Memory {
    /// Whether there is managed memory.
    pub fn has_managed(&self) -> bool {
        self.inner
            .read()
            .map
            .iter()
            .any(|range| matches!(range.kind, Kind::Managed { .. }))
    }

    /// Takes the contents of all device memory that is not mapped by the program itself, and leaves its
    /// addresses reserved. Nothing may use device memory meanwhile.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn evict(&self) -> Result<Vec<Saved>> {
        let inner = self.inner.write();
        let mut all = Vec::new();
        for (&base, charge) in &inner.charges {
            let len = charge.bytes();
            // SAFETY: every charge is a mapping of this length that stays while the map is locked, and
            // nothing writes to device memory now.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    with_exposed_provenance::<u8>(base as usize),
                    len as usize,
                )
            };
            let units = bytes
                .chunks(UNIT)
                .enumerate()
                .filter(|(_, unit)| unit.iter().any(|b| *b != 0));
            let units = units
                .map(|(index, unit)| ((index * UNIT) as u64, unit.into()))
                .collect();
            all.push(Saved { base, len, units });
        }
        for saved in &all {
            sys::reset_to_reserved(saved.base, saved.len).map_err(|_| OPERATING_SYSTEM)?;
        }
        Ok(all)
    }

    /// Puts device memory back.
    ///
    /// # Errors
    /// There is no memory.
    pub fn bring_back(&self, saved: &[Saved]) -> Result {
        for mapping in saved {
            {
                let _inner = self.inner.write();
                sys::map_again(mapping.base, mapping.len).map_err(|_| OUT_OF_MEMORY)?;
            }
            for (offset, unit) in &mapping.units {
                let to = super::Side {
                    address: mapping.base + offset,
                    checked: false,
                };
                self.write_side(to, unit)?;
            }
        }
        Ok(())
    }
}
