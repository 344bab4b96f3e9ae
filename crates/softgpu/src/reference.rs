//! Texture and surface references: variables of a module that kernels name where they could have a handle.
//!
//! The address of the variable stands for the handle, so that code needs no load, and the variable's memory is not read.
//! A binding changes only when the context's work is done: launches use what was bound before them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;
use parking_lot::{Mutex, RwLock};

use crate::driver::Driver;
use crate::error::{INVALID_VALUE, Result};
use crate::exec::texture::Texture;
use crate::handle::{self, Table, Tag};
use crate::module::Module;
use crate::view;

/// A reference of a module, or one that a program has made.
pub struct Reference {
    /// Its handle.
    pub handle: u64,
    /// Its module, and the address of the variable.
    pub place: Option<(Arc<Module>, u64)>,
    /// It is a surface reference.
    pub surface: bool,
    set: Mutex<Bound>,
}

/// What is set on a reference.
#[derive(Clone, Copy)]
pub struct Bound {
    /// How it is read.
    pub sampling: cu::CUDA_TEXTURE_DESC,
    /// Format of texels in linear memory.
    pub format: cu::CUarray_format,
    /// Channels of texels in linear memory.
    pub channels: u32,
    /// What it is bound to.
    pub resource: Option<cu::CUDA_RESOURCE_DESC>,
}

// SAFETY: the pointers in the descriptions are handles and device addresses, which are never followed.
unsafe impl Send for Bound {}

impl std::fmt::Debug for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reference")
            .field("handle", &self.handle)
            .field("surface", &self.surface)
            .finish()
    }
}

/// All references, and the bindings of variables.
#[derive(Debug, Default)]
pub struct References {
    known: Table<Reference>,
    bound: RwLock<HashMap<u64, Vec<Texture>>>,
}

impl Driver {
    /// Texture and surface references.
    pub fn references(&self) -> &'static References {
        static ALL: LazyLock<References> = LazyLock::new(References::default);
        &ALL
    }
}

impl References {
    /// The reference of a name in a module.
    ///
    /// # Errors
    /// There is none.
    pub fn of_module(
        &self,
        module: &Arc<Module>,
        name: &str,
        surface: bool,
    ) -> Result<Arc<Reference>> {
        let address = module.reference(name, surface)?;
        let is = |it: &Arc<Reference>| it.place.as_ref().is_some_and(|(_, at)| *at == address);
        if let Some(known) = self.known.all().into_iter().find(is) {
            return Ok(known);
        }
        Ok(self.add(Some((Arc::clone(module), address)), surface))
    }

    /// A reference, of which nothing is set.
    pub fn add(&self, place: Option<(Arc<Module>, u64)>, surface: bool) -> Arc<Reference> {
        let sampling = cu::CUDA_TEXTURE_DESC {
            addressMode: [cu::CU_TR_ADDRESS_MODE_CLAMP; 3],
            ..Default::default()
        };
        let reference = Arc::new(Reference {
            handle: handle::fresh(Tag::Reference),
            place,
            surface,
            set: Mutex::new(Bound {
                sampling,
                format: cu::CU_AD_FORMAT_FLOAT,
                channels: 1,
                resource: None,
            }),
        });
        self.known.insert(reference.handle, Arc::clone(&reference));
        reference
    }

    /// The reference behind a handle, if it is of this kind.
    ///
    /// # Errors
    /// It is not.
    pub fn get(&self, handle: u64, surface: bool) -> Result<Arc<Reference>> {
        let found = self.known.get(handle);
        found
            .filter(|it| it.surface == surface)
            .ok_or(INVALID_VALUE)
    }

    /// Ends a reference that the program has made.
    ///
    /// # Errors
    /// It has not.
    pub fn destroy(&self, handle: u64) -> Result {
        if self.get(handle, false)?.place.is_some() {
            return Err(INVALID_VALUE);
        }
        self.known.remove(handle).map(drop).ok_or(INVALID_VALUE)
    }

    /// Forgets the references of a module.
    pub fn forget(&self, module: u64) {
        let of_module = |it: &Reference| {
            let place = it.place.as_ref();
            place.is_some_and(|(of, _)| of.handle == module)
        };
        for gone in self.known.remove_unless(|it| !of_module(it)) {
            if let Some((_, address)) = &gone.place {
                self.bound.write().remove(address);
            }
        }
    }

    /// A level of what the variable at an address is bound to.
    pub fn texture(&self, address: u64, level: u32) -> Option<Texture> {
        let bound = self.bound.read();
        bound.get(&address)?.get(level as usize).cloned()
    }
}

impl Reference {
    /// What is set.
    pub fn bound(&self) -> Bound {
        *self.set.lock()
    }

    /// Changes settings or binding, for launches from now on.
    ///
    /// # Errors
    /// What the change says; what it is bound to is gone, or cannot be read like this.
    pub fn change(&self, driver: &Driver, how: impl FnOnce(&mut Bound) -> Result) -> Result {
        let mut set = self.set.lock();
        let mut new = *set;
        how(&mut new)?;
        if let (Some(resource), Some((module, address))) = (&new.resource, &self.place) {
            let mut levels = view::texels(driver, resource)?;
            if !self.surface {
                levels = view::sampled(levels, &new.sampling)?;
            }
            module.context.synchronize()?;
            let mut bound = driver.references().bound.write();
            bound.insert(*address, levels);
        }
        *set = new;
        Ok(())
    }
}
