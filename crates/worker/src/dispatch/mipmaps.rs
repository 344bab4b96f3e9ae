//! Operations on mipmapped arrays.

use fermata_abi::op::{ArrayId, ContextId, Mipmap, MipmapId};
use fermata_engine::level_bytes;
use fermata_state::MipmappedArray;
use fermata_wire::Ticket;

use super::{DONE, Step};
use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::Then;

impl Server {
    pub(super) fn mipmap_create(
        &mut self,
        mipmap: MipmapId,
        context: ContextId,
        shape: &Mipmap,
    ) -> Step {
        let session = &self.site.session;
        let taken = |it: &ArrayId| session.arrays.contains(*it);
        if session.mipmaps.contains(mipmap) || shape.levels.iter().any(taken) {
            return Err(OpError::invalid(format!(
                "there is an array {mipmap:#x}, or one of its levels, already"
            )));
        }
        let count = shape.levels.len();
        let mut numbers = shape.levels.clone();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() != count || !(1..=shape.most_levels() as usize).contains(&count) {
            return Err(OpError::invalid(format!("an array of {count} levels")));
        }
        let bytes = level_bytes(shape)
            .ok_or_else(|| OpError::invalid("an array of unknown element size"))?;
        self.site.live.create_mipmap(mipmap, context, shape)?;
        self.site
            .session
            .add_mipmap(mipmap, context, shape.clone(), &bytes)?;
        DONE
    }

    pub(super) fn mipmap_destroy(&mut self, mipmap: MipmapId, ticket: Option<Ticket>) -> Step {
        let gone = self.site.session.remove_mipmap(mipmap)?;
        let context = gone.context;
        self.after_all(
            Some(context),
            Some(context),
            false,
            Then::MipmapDestroy(mipmap, gone),
            ticket,
        )
    }

    /// Destroys an array whose levels no work uses any more.
    pub(crate) fn release_mipmap(
        &mut self,
        mipmap: MipmapId,
        gone: &MipmappedArray,
    ) -> Result<(), OpError> {
        let live = &mut self.site.live;
        let Some((handle, context)) = live.take_mipmap(mipmap, &gone.shape.levels) else {
            return Ok(());
        };
        live.enter(context)?;
        Ok(live.driver.destroy_mipmap(handle)?)
    }
}
