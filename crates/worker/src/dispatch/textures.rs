//! Texture and surface objects.

use fermata_abi::op::{Handle, ReplyBody, Resource, Texture};
use fermata_state::TextureKey;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::server::Server;

impl Server {
    pub(super) fn texture_create(&mut self, context: Handle, texture: &Texture) -> Step {
        let live = &mut self.site.live;
        live.enter(context)?;
        let array = match &texture.resource {
            Resource::Array(array) => Some(live.array(*array)?),
            _ => None,
        };
        let object = live.driver.create_texture(texture, array)?;
        let key = TextureKey {
            context,
            surface: texture.sampler.is_none(),
            object,
        };
        self.site.session.textures.insert(key, texture.clone());
        Ok(Reaction::Answer(ReplyBody::U64(object)))
    }

    pub(super) fn texture_destroy(&mut self, key: TextureKey) -> Step {
        if self.site.session.textures.remove(&key).is_none() {
            return Err(OpError::invalid(format!(
                "there is no texture or surface object {}",
                key.object
            )));
        }
        let live = &mut self.site.live;
        live.enter(key.context)?;
        live.driver.destroy_texture(key.object, key.surface)?;
        DONE
    }
}
