//! The program's texture and surface objects, by the driver's numbers for them.

use std::collections::HashMap;

use fermata_abi::op::{ContextId, Op, Texture, TextureId};
use fermata_abi::sys::driver::CUDA_ERROR_INVALID_VALUE;
use parking_lot::Mutex;

use crate::link;
use crate::object::context::current;
use crate::result::Result;

/// Context, whether it is a surface, number.
type Key = (ContextId, bool, TextureId);

/// All objects.
#[derive(Debug, Default)]
pub struct Textures(Mutex<HashMap<Key, Texture>>);

impl Textures {
    /// A new object in the current context; without a sampler it is a surface.
    pub fn create(&self, texture: Texture) -> Result<TextureId> {
        let (context, surface) = (current()?.handle, texture.sampler.is_none());
        let op = Op::TextureCreate {
            context,
            texture: Box::new(texture.clone()),
        };
        let object = TextureId::from_raw(link::ask(&op, link::number)?);
        self.0.lock().insert((context, surface, object), texture);
        Ok(object)
    }

    /// Ends an object.
    pub fn destroy(&self, surface: bool, object: TextureId) -> Result {
        let mut known = self.0.lock();
        let key = find(&known, surface, object)?;
        known.remove(&key);
        drop(known);
        let context = key.0;
        let op = Op::TextureDestroy {
            context,
            object,
            surface,
        };
        link::ask(&op, link::nothing)
    }

    /// The description that an object was made from.
    pub fn get(&self, surface: bool, object: TextureId) -> Result<Texture> {
        let known = self.0.lock();
        let key = find(&known, surface, object)?;
        known.get(&key).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Forgets the objects of a context that has ended.
    pub fn forget(&self, context: ContextId) {
        self.0.lock().retain(|(of, ..), _| *of != context);
    }
}

/// The object of this number in the current context, else in any: two contexts may use the same number.
fn find(known: &HashMap<Key, Texture>, surface: bool, object: TextureId) -> Result<Key> {
    let own = (current()?.handle, surface, object);
    if known.contains_key(&own) {
        return Ok(own);
    }
    let mut others = known.keys();
    let other = others.find(|(_, kind, number)| (*kind, *number) == (surface, object));
    other.copied().ok_or(CUDA_ERROR_INVALID_VALUE)
}
