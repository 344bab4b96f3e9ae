//! Green contexts: parts of a device's multiprocessors, and the descriptions of such parts that the program holds.
//!
//! ```text
//!   CUdevResource ──► number ──► SmResource (device and cuts) ◄── number ◄── CUdevResourceDesc
//!   plain data of the program                     │
//!                                          green context = Context { handle: that of the primary context, green }
//! ```
//! A green context shares all but streams with the primary context of its device, so here it is a [`Context`] with the primary
//! one's handle: memory, modules and events that are made while it is current are the primary context's. Its default stream
//! is a stream of its own, which the worker knows as any other.

use std::collections::HashMap;
use std::sync::Arc;

use fermata_abi::op::{ContextId, DescriptorId, GreenId, SmResource};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::handles::{self, HandleMap, Table};
use crate::object::context::Context;
use crate::result::Result;

/// What begins a description that this library has written.
const MAGIC: [u8; 8] = *b"FERMSMS\x01";

/// All green contexts, and all descriptions that were ever given out: the program may keep copies anywhere.
#[derive(Debug, Default)]
pub struct Greens {
    contexts: Table<GreenId, Context>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    resources: HandleMap<DescriptorId, SmResource>,
    numbers: HashMap<SmResource, DescriptorId>,
}

/// A description of the program as this library understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The multiprocessors.
    pub resource: SmResource,
    /// Whether they are what a device or a green context has: only that can be split.
    pub splittable: bool,
}

impl Greens {
    /// The number of a resource.
    pub fn number(&self, resource: &SmResource) -> DescriptorId {
        let mut known = self.known.lock();
        if let Some(number) = known.numbers.get(resource) {
            return *number;
        }
        let number = handles::fresh();
        known.numbers.insert(resource.clone(), number);
        known.resources.insert(number, resource.clone());
        number
    }

    /// The resource with a number.
    pub fn resource(&self, number: DescriptorId) -> Result<SmResource> {
        let known = self.known.lock();
        let found = known.resources.get(&number).cloned();
        found.ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// A description for the program. `numbers` are those of the resource in a driver's answer; of nothing, there is a
    /// description that says so.
    pub fn describe(&self, described: &Described, numbers: [u64; 3]) -> sys::CUdevResource {
        let mut out = sys::CUdevResource::default();
        if numbers[0] == 0 {
            return out;
        }
        out.type_ = sys::CU_DEV_RESOURCE_TYPE_SM;
        let number = self.number(&described.resource).raw();
        out._internal_padding[..8].copy_from_slice(&MAGIC);
        out._internal_padding[8..16].copy_from_slice(&number.to_le_bytes());
        out._internal_padding[16] = u8::from(described.splittable);
        out.__bindgen_anon_1.sm = sys::CUdevSmResource {
            smCount: numbers[0] as u32,
            minSmPartitionSize: numbers[1] as u32,
            smCoscheduledAlignment: numbers[2] as u32,
        };
        out
    }

    /// The inverse of [`Self::describe`].
    pub fn read(&self, given: &sys::CUdevResource) -> Result<Described> {
        if given.type_ != sys::CU_DEV_RESOURCE_TYPE_SM {
            return Err(sys::CUDA_ERROR_INVALID_RESOURCE_TYPE);
        }
        let bytes = &given._internal_padding;
        let number = bytes[8..16].try_into().map_or(0, u64::from_le_bytes);
        if bytes[..8] != MAGIC {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Described {
            resource: self.resource(DescriptorId::from_raw(number))?,
            splittable: bytes[16] != 0,
        })
    }

    /// The green context with a handle.
    pub fn get(&self, green: sys::CUgreenCtx) -> Result<Arc<Context>> {
        self.contexts
            .get(handles::of(green), sys::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Adds a green context.
    pub fn insert(&self, handle: GreenId, context: Arc<Context>) {
        self.contexts.insert(handle, context);
    }

    /// Takes a green context that ends out of the table.
    pub fn take(&self, green: sys::CUgreenCtx) -> Result<Arc<Context>> {
        self.contexts
            .remove(handles::of(green), sys::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Takes the green contexts of a primary context that ends out of the table.
    pub fn take_all(&self, home: ContextId) -> Vec<Arc<Context>> {
        self.contexts.remove_if(|context| context.handle == home)
    }
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::SmSplit;

    use super::*;

    #[test]
    fn a_description_is_understood_wherever_it_was_copied() {
        let greens = Greens::default();
        let split = SmSplit {
            groups: 2,
            flags: 0,
            minimum: 8,
        };
        let whole = SmResource::whole(1);
        let part = whole.part(split, 1).expect("few cuts");
        for (resource, splittable) in [(&whole, true), (&part, false), (&part, true)] {
            let described = Described {
                resource: resource.clone(),
                splittable,
            };
            let given = greens.describe(&described, [16, 8, 8]);
            let copy = given;
            assert_eq!(greens.read(&copy), Ok(described));
            // SAFETY: `describe` has written this part of the union.
            assert_eq!(unsafe { copy.__bindgen_anon_1.sm }.smCount, 16);
        }
        assert_eq!(greens.number(&part), greens.number(&part));
        assert_ne!(greens.number(&part), greens.number(&whole));
    }

    #[test]
    fn what_this_library_has_not_written_is_refused() {
        let greens = Greens::default();
        let described = Described {
            resource: SmResource::whole(0),
            splittable: true,
        };
        let nothing = greens.describe(&described, [0; 3]);
        let of_nothing = greens.read(&nothing);
        assert_eq!(of_nothing, Err(sys::CUDA_ERROR_INVALID_RESOURCE_TYPE));
        let good = greens.describe(&described, [132, 8, 8]);
        for at in [0, 9] {
            let mut wrong = good;
            wrong._internal_padding[at] ^= 0x40;
            assert_eq!(greens.read(&wrong), Err(sys::CUDA_ERROR_INVALID_VALUE));
        }
        assert!(greens.read(&good).is_ok());
    }
}
