//! Rebuilds texture and surface objects with the numbers they had, because kernels get them as parameters, and programs
//! keep them in memory.
//!
//! A driver numbers its objects upwards. So objects are made until one has the wanted number. Those in between stand for
//! objects that the program has destroyed, and are destroyed at the end.

use fermata_abi::op::{Address, TextureId};
use fermata_device::DriverError;
use fermata_state::{Session, TextureKey};

use crate::{EngineError, Live};

/// The most objects that are made to get one number.
const MOST: usize = 1 << 16;

/// Makes all objects of a session whose arrays and memory are there.
pub(in crate::restore) fn rebuild(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    let mut fillers = Vec::new();
    // Textures and surfaces may be numbered together.
    let mut wanted: Vec<_> = session.textures.iter().collect();
    wanted.sort_by_key(|(key, _)| key.object);
    for (key, texture) in wanted {
        let kind = if key.surface { "surface" } else { "texture" };
        let operation = format!("make {kind} object {}", key.object.raw());
        let Ok(texels) = live.texels(&texture.resource) else {
            continue;
        };
        if let Some((address, _)) = texture.resource.memory()
            && !lives(session, address)
        {
            continue;
        }
        live.enter(key.context)
            .map_err(EngineError::driver(&*operation))?;
        let make = || live.driver.create_texture(texture, texels);
        let mut before = Vec::new();
        let found = reach(key.object, make, &mut before);
        let filler = |object| TextureKey { object, ..*key };
        fillers.extend(before.into_iter().map(filler));
        if !found.map_err(EngineError::driver(operation))? {
            return Err(EngineError::Moved(format!(
                "the program knows {kind} object {}, and the driver gives no object this number",
                key.object.raw()
            )));
        }
    }
    for key in fillers {
        let operation = "end an object that was made for its number";
        live.enter(key.context)
            .and_then(|_| live.driver.destroy_texture(key.object, key.surface))
            .map_err(EngineError::driver(operation))?;
    }
    Ok(())
}

/// Makes objects until one has the number `wanted`; false if none gets it. The others are added to `before`.
fn reach(
    wanted: TextureId,
    mut make: impl FnMut() -> Result<TextureId, DriverError>,
    before: &mut Vec<TextureId>,
) -> Result<bool, DriverError> {
    while before.len() < MOST {
        let made = make()?;
        if made == wanted {
            return Ok(true);
        }
        before.push(made);
        if made > wanted {
            return Ok(false);
        }
    }
    Ok(false)
}

/// Whether the session has memory at an address.
pub(super) fn lives(session: &Session, address: Address) -> bool {
    let mapped = session.mappings.at_or_below(address);
    let shared = session.host_regions.at_or_below(address);
    let mut variables = session
        .modules
        .iter()
        .flat_map(|(_, it)| it.variables.values());
    session.allocation_at(address).is_some()
        || mapped.is_some_and(|(start, it)| address - start < it.size)
        || shared.is_some_and(|(start, it)| address - start < it.size)
        || variables.any(|it| (it.address..it.address.saturating_add(it.size)).contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that counts from `first`, by two.
    fn counting(first: u64) -> impl FnMut() -> Result<TextureId, DriverError> {
        let mut next = first;
        move || {
            next += 2;
            Ok(TextureId::from_raw(next - 2))
        }
    }

    #[test]
    fn objects_before_the_wanted_one_are_remembered() {
        let mut before = Vec::new();
        assert_eq!(
            reach(TextureId::from_raw(7), counting(1), &mut before),
            Ok(true)
        );
        assert_eq!(before, [1, 3, 5].map(TextureId::from_raw));
    }

    #[test]
    fn a_number_that_does_not_come_is_given_up() {
        let mut before = Vec::new();
        assert_eq!(
            reach(TextureId::from_raw(8), counting(1), &mut before),
            Ok(false)
        );
        assert_eq!(before, [1, 3, 5, 7, 9].map(TextureId::from_raw));
        before.clear();
        assert_eq!(
            reach(TextureId::from_raw(0), counting(1), &mut before),
            Ok(false)
        );
        assert_eq!(before, [1].map(TextureId::from_raw));
    }
}
