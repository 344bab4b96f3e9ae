//! Where the multiprocessors lie on a device's chip: one of the driver's undocumented tables (see `fermata-tables`).
//! A program's libraries read it once and rely on it, and chips of one model differ. So the session records what the
//! program was told, and a restore is refused on a device whose table is another.

use std::fmt::Write as _;

use fermata_abi::PLACES_TABLE;
use fermata_abi::op::ContextId;
use fermata_abi::sys::driver as cu;
use fermata_device::DriverError;
use fermata_state::{Places, Session};

use crate::{EngineError, Live, Site};

impl Site {
    /// Where the multiprocessors of a context's device lie. The session records the answer, and gives the same one
    /// from then on.
    ///
    /// # Errors
    /// The context is unknown; `CUDA_ERROR_NOT_SUPPORTED` if the driver has no such table.
    pub fn tell_places(&mut self, context: ContextId) -> Result<Places, DriverError> {
        let device = self.live.enter(context)?.device;
        if let Some(told) = self.session.places.get(&device) {
            return Ok(told.clone());
        }
        let (clusters, indices) = self.live.driver.places(device)?;
        let places = Places { clusters, indices };
        self.session.places.insert(device, places.clone());
        Ok(places)
    }
}

/// Checks that the devices have their multiprocessors where the program was told, unless the user has waived that.
///
/// # Errors
/// [`EngineError::Places`], which names the table and the device.
pub(crate) fn check(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    if live.other_places {
        return Ok(());
    }
    for (device, told) in &session.places {
        let found = find(live, *device);
        live.forget_current();
        let found = found.map_err(EngineError::driver(format!(
            "ask where the multiprocessors of device {device} lie"
        )))?;
        if found.as_ref() == Some(told) {
            continue;
        }
        let made_on = session.devices.get(*device as usize);
        let made_on = made_on.map_or(String::new(), |it| {
            format!(" ({}, {})", it.name, uuid(it.uuid))
        });
        let here = match found {
            Some(_) => "those of this host's device lie elsewhere",
            None => "this host's driver does not say where those of its device lie",
        };
        return Err(EngineError::Places(format!(
            "the program was told where the multiprocessors of device {device}{made_on} lie, by the driver's undocumented \
             table {}, and {here}",
            identifier(&PLACES_TABLE)
        )));
    }
    Ok(())
}

/// The driver's table for a device, if it has one.
fn find(live: &mut Live, device: u32) -> Result<Option<Places>, DriverError> {
    let found = if live.contexts.values().any(|it| it.device == device) {
        live.enter_device(device)?;
        live.driver.places(device)
    } else {
        // The program has destroyed its contexts there since.
        let context = live.driver.primary_context(device, 0)?;
        let found = (live.driver.set_current(context)).and_then(|()| live.driver.places(device));
        live.driver.release_primary(device)?;
        found
    };
    match found {
        Ok((clusters, indices)) => Ok(Some(Places { clusters, indices })),
        Err(error) if error.code == cu::CUDA_ERROR_NOT_SUPPORTED => Ok(None),
        Err(error) if error.code == cu::CUDA_ERROR_NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}

/// A device's identifier as tools write it.
fn uuid(bytes: [u8; 16]) -> String {
    format!("GPU-{}", identifier(&bytes))
}

fn identifier(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}
