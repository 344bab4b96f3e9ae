//! Operations on texture and surface objects, and on texture and surface references of modules.

use fermata_abi::op::{ContextId, ModuleId, ReplyBody, Texture};
use fermata_device::ModuleHandle;
use fermata_state::{ReferenceKey, TextureKey};
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::server::Server;

impl Server {
    pub(super) fn texture_create(&mut self, context: ContextId, texture: &Texture) -> Step {
        let live = &mut self.site.live;
        live.enter(context)?;
        let texels = live.texels(&texture.resource)?;
        let object = live.driver.create_texture(texture, texels)?;
        let key = TextureKey {
            context,
            surface: texture.sampler.is_none(),
            object,
        };
        self.site.session.textures.insert(key, texture.clone());
        Ok(Reaction::Answer(ReplyBody::U64(object.raw())))
    }

    pub(super) fn texture_destroy(&mut self, key: TextureKey) -> Step {
        if self.site.session.textures.remove(&key).is_none() {
            return Err(OpError::invalid(format!(
                "there is no texture or surface object {}",
                key.object.raw()
            )));
        }
        let live = &mut self.site.live;
        live.enter(key.context)?;
        live.driver.destroy_texture(key.object, key.surface)?;
        DONE
    }

    pub(super) fn reference_get(
        &mut self,
        module: ModuleId,
        name: &str,
        surface: bool,
        ticket: Option<Ticket>,
    ) -> Step {
        let context = self.site.session.modules.get(module)?.context;
        let loaded = self.module_of(module, context)?;
        let settings = self.site.live.driver.reference(loaded, name, surface)?;
        let bytes = postcard::to_stdvec(&settings)
            .map_err(|error| OpError::invalid(format!("the settings of `{name}`: {error}")))?;
        self.answer(ticket, Some(context), false, Ok(ReplyBody::Bytes(&bytes)));
        Ok(Reaction::Later)
    }

    pub(super) fn reference_bind(&mut self, module: ModuleId, name: &str, to: &Texture) -> Step {
        let context = self.site.session.modules.get(module)?.context;
        let loaded = self.module_of(module, context)?;
        let live = &mut self.site.live;
        let texels = live.texels(&to.resource)?;
        let offset = live.driver.bind_reference(loaded, name, to, texels)?;
        let key = ReferenceKey {
            module,
            surface: to.sampler.is_none(),
            name: name.to_owned(),
        };
        self.site.session.references.insert(key, to.clone());
        Ok(Reaction::Answer(ReplyBody::U64(offset)))
    }

    /// The driver's handle of a module; makes its context current.
    fn module_of(&mut self, module: ModuleId, context: ContextId) -> Result<ModuleHandle, OpError> {
        let live = &mut self.site.live;
        live.enter(context)?;
        let loaded = live.modules.get(&module).copied();
        loaded.ok_or_else(|| OpError::invalid("the module is not loaded"))
    }
}
