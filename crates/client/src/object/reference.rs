//! Texture and surface references: their settings and bindings.
//!
//! Settings are kept here. A module's reference is sent to the worker with all settings as soon as it is bound, and again
//! when a setting of a bound one changes. References that a program creates itself stay here: no kernel can use them.

use std::sync::Arc;

use fermata_abi::op::{Op, ReferenceId, ReferenceSettings, ReplyBody, Resource, Sampler, Texture};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::handles::{self, Table};
use crate::link;
use crate::object::module::Module;
use crate::result::Result;

/// All references that the program has asked for.
#[derive(Debug, Default)]
pub struct References(Table<ReferenceId, Reference>);

/// A reference.
#[derive(Debug)]
pub struct Reference {
    /// Its handle.
    pub handle: ReferenceId,
    /// Its module and its name there; none if the program created it.
    place: Option<(Arc<Module>, String)>,
    surface: bool,
    set: Mutex<Bound>,
}

/// The settings and the binding of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// How it is read.
    pub settings: ReferenceSettings,
    /// The resource that it is bound to.
    pub resource: Option<Resource>,
    /// Bytes from the first linear texel to the address that the program gave.
    pub offset: u64,
}

impl References {
    /// The reference of a name in a module.
    pub fn of_module(
        &self,
        module: &Arc<Module>,
        name: &str,
        surface: bool,
    ) -> Result<Arc<Reference>> {
        let is = |known: &Reference| {
            let place = known.place.as_ref();
            let same = |(of, it): &(Arc<Module>, String)| of.handle == module.handle && it == name;
            known.surface == surface && place.is_some_and(same)
        };
        if let Some(known) = self.0.find(is) {
            return Ok(known);
        }
        let op = Op::ReferenceGet {
            module: module.handle,
            name,
            surface,
        };
        let settings = link::ask(&op, |body| match body {
            ReplyBody::Bytes(bytes) => {
                postcard::from_bytes(bytes).map_err(|_| sys::CUDA_ERROR_UNKNOWN)
            }
            _ => Err(sys::CUDA_ERROR_UNKNOWN),
        })?;
        Ok(self.add(Some((module.clone(), name.to_owned())), surface, settings))
    }

    /// A reference of no module.
    pub fn create(&self) -> Arc<Reference> {
        let sampler = Sampler {
            address_modes: [sys::CU_TR_ADDRESS_MODE_CLAMP; 3],
            filter: sys::CU_TR_FILTER_MODE_POINT,
            flags: 0,
            anisotropy: 0,
            level_filter: sys::CU_TR_FILTER_MODE_POINT,
            levels: [0; 3],
            border: [0; 4],
        };
        let settings = ReferenceSettings {
            sampler,
            format: sys::CU_AD_FORMAT_FLOAT,
            channels: 1,
        };
        self.add(None, false, settings)
    }

    fn add(
        &self,
        place: Option<(Arc<Module>, String)>,
        surface: bool,
        settings: ReferenceSettings,
    ) -> Arc<Reference> {
        let reference = Arc::new(Reference {
            handle: handles::fresh(),
            place,
            surface,
            set: Mutex::new(Bound {
                settings,
                resource: None,
                offset: 0,
            }),
        });
        self.0.insert(reference.handle, reference.clone());
        reference
    }

    /// The reference behind a handle, if it is of this kind.
    pub fn get(&self, handle: ReferenceId, surface: bool) -> Result<Arc<Reference>> {
        let found = self.0.get(handle, sys::CUDA_ERROR_INVALID_VALUE)?;
        if found.surface == surface {
            Ok(found)
        } else {
            Err(sys::CUDA_ERROR_INVALID_VALUE)
        }
    }

    /// Ends a reference that the program has made.
    pub fn destroy(&self, handle: ReferenceId) -> Result {
        if self.get(handle, false)?.place.is_some() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        self.0
            .remove(handle, sys::CUDA_ERROR_INVALID_VALUE)
            .map(|_| ())
    }

    /// Forgets the references of modules that have been unloaded (`gone`).
    pub fn forget(&self, gone: impl Fn(&Module) -> bool) {
        self.0
            .remove_if(|it| it.place.as_ref().is_some_and(|(module, _)| gone(module)));
    }
}

impl Reference {
    /// Its settings and its binding.
    pub fn bound(&self) -> Bound {
        self.set.lock().clone()
    }

    /// Changes settings or binding. The change takes effect only if the worker accepts it.
    pub fn change(&self, how: impl FnOnce(&mut Bound) -> Result) -> Result {
        let mut set = self.set.lock();
        let mut new = set.clone();
        how(&mut new)?;
        if let (Some(resource), Some((module, name))) = (&new.resource, &self.place) {
            let sampler = (!self.surface).then(|| new.settings.sampler.clone());
            let texture = Box::new(Texture {
                resource: resource.clone(),
                sampler,
                view: None,
            });
            let op = Op::ReferenceBind {
                module: module.handle,
                name,
                texture,
            };
            new.offset = link::ask(&op, link::number)?;
        }
        *set = new;
        Ok(())
    }
}
