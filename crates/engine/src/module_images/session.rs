//! The module images of a session: starts their examination, and answers what is known of them.

use std::collections::BTreeSet;

use fermata_abi::op::ModuleId;
use fermata_state::{ImageBytes, ImageId};

use super::examination::{
    Examining, HASHED_AT_ONCE, PATIENCE, PRINTS_AT_ONCE, Request, examine, look_through,
    mentions_print,
};
use super::names;
use crate::{EngineError, Site};

impl Site {
    /// The name for an image that is new to the session: its hash, or a provisional name until the hash is known.
    pub fn name_image(&mut self, image: &ImageBytes) -> ImageId {
        match image.bytes().len() {
            0..=HASHED_AT_ONCE => ImageId::of(image.bytes()),
            _ => {
                self.live.examined.named += 1;
                ImageId::provisional(self.live.examined.named)
            }
        }
    }

    /// Has an image of the session examined, if that has not been done.
    pub fn examine_image(&mut self, id: &ImageId) {
        let sm = self.architecture();
        if self.session.facts(id).is_some_and(|facts| facts.sm == sm) {
            return;
        }
        let Some(image) = self.session.image_bytes(id).cloned() else {
            return;
        };
        let examined = &mut self.live.examined;
        if image.bytes().len() <= PRINTS_AT_ONCE {
            examined.printing.entry(*id).or_insert_with(|| {
                let mut prints = false;
                let look = |part: &[u8]| prints |= mentions_print(part);
                let readable = names::each_part(image.bytes(), sm, look);
                prints || !readable
            });
        }
        let name = *id;
        let look = look_through;
        examined.queue(Request {
            name,
            image,
            sm,
            look,
        });
    }

    /// Has all images of the session examined, of which that has not been done.
    pub(crate) fn examine_images(&mut self) {
        let ids: Vec<ImageId> = self.session.images().map(|(id, _)| *id).collect();
        for id in ids {
            self.examine_image(&id);
        }
    }

    /// Records what has been found out about images since the last call; true if there was anything.
    pub fn settle_images(&mut self) -> bool {
        self.live.examined.settle(&mut self.session)
    }

    /// The examination of images, if it is under way. Records finished ones first.
    pub fn examining_images(&mut self) -> Option<Examining> {
        self.settle_images();
        self.live.examined.under_way()
    }

    /// Waits until everything has been examined, then does [`Site::settle_images`]. Afterwards every image is named
    /// by its hash.
    ///
    /// # Errors
    /// The examination takes too long, or has failed for the image of a module.
    pub(crate) fn finish_images(&mut self) -> Result<(), EngineError> {
        // Examinations that have failed are tried again.
        self.settle_images();
        self.examine_images();
        self.live.examined.wait(PATIENCE)?;
        self.settle_images();
        let failed = &self.live.examined.failed;
        // For an image without a module only the hash matters.
        let named = |id: &ImageId| self.session.image(id).map(ImageId::of) == Some(*id);
        let of_module = |id: &ImageId| self.module_of(id);
        let fatal = failed
            .iter()
            .find(|(id, _)| of_module(id).is_some() || !named(id));
        match fatal {
            None => Ok(()),
            Some((id, why)) => Err(EngineError::NotCheckpointable(match of_module(id) {
                Some(module) => format!("the variables of module {module:#x} are unknown: {why}"),
                None => format!("the image of a library has no hash: {why}"),
            })),
        }
    }

    fn module_of(&self, image: &ImageId) -> Option<ModuleId> {
        let mut modules = self.session.modules.iter();
        let found = modules.find(|(_, it)| it.image == *image);
        found.map(|(handle, _)| handle)
    }

    /// The names that may be variables of an image; examines the image now if they are not known.
    pub(crate) fn variable_names(&mut self, id: &ImageId) -> Result<BTreeSet<String>, EngineError> {
        if let Some(facts) = self.session.facts(id) {
            return Ok(facts.names.clone());
        }
        let sm = self.architecture();
        let Some(image) = self.session.image_bytes(id) else {
            return Ok(BTreeSet::new());
        };
        let facts = examine(image.bytes(), sm, look_through);
        let facts = facts.map_err(EngineError::NotCheckpointable)?;
        let names = facts.names.clone();
        self.session.set_facts(*id, facts);
        Ok(names)
    }

    /// Whether kernels of an image may print: as long as it is not known, yes.
    pub fn may_print(&self, image: &ImageId) -> bool {
        let facts = self.session.facts(image).map(|facts| facts.prints);
        let early = || self.live.examined.printing.get(image).copied();
        facts.or_else(early).unwrap_or(true)
    }

    /// The architecture of the session's devices, if they have the same.
    pub(crate) fn architecture(&self) -> Option<u32> {
        let mut all = self.session.devices.iter().map(|it| it.compute_capability);
        let first = all.next()?;
        all.all(|it| it == first).then_some(first)
    }
}
