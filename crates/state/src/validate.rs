//! The rules that a session keeps at all times, checked when one is read.

use std::collections::BTreeSet;

use fermata_abi::op::{Address, DEVICE_BASE, DEVICE_END, FIRST_HANDLE, Op, Raw};
use fermata_abi::sys::driver as cu;

use crate::{ImageId, Session, Shared, StateError};

fn rule(
    kept: bool,
    kind: &'static str,
    handle: impl Raw,
    reason: &'static str,
) -> Result<(), StateError> {
    if kept {
        Ok(())
    } else {
        Err(StateError::Invalid {
            kind,
            handle: handle.raw(),
            reason,
        })
    }
}

/// Ranges in ascending order must not overlap or wrap.
fn disjoint(
    kind: &'static str,
    ranges: impl Iterator<Item = (Address, u64)>,
) -> Result<(), StateError> {
    let mut end = Address::NULL;
    for (start, size) in ranges {
        rule(start >= end, kind, start, "it overlaps another")?;
        end = start.checked_add(size).ok_or(StateError::Invalid {
            kind,
            handle: start.raw(),
            reason: "it wraps around",
        })?;
    }
    Ok(())
}

impl Session {
    /// Checks all rules.
    ///
    /// # Errors
    /// The first object that breaks one.
    pub fn validate(&self) -> Result<(), StateError> {
        self.validate_with(&BTreeSet::new())
    }

    /// As [`Session::validate`], of a session whose `stored` images are elsewhere.
    pub(crate) fn validate_with(&self, stored: &BTreeSet<ImageId>) -> Result<(), StateError> {
        self.check_handles()?;
        self.check_references()?;
        self.check_images(stored)?;
        for error in &self.deferred {
            let known = self.contexts.contains(error.context) && error.code != 0;
            let reason = "its error is none, or of no context";
            rule(known, "context", error.context, reason)?;
        }
        for (place, queued) in (0u64..).zip(&self.queued) {
            let known = postcard::from_bytes::<Op<'_>>(&queued.operation).is_ok();
            rule(known, "queued operation", place, "it is none")?;
        }
        for (device, places) in &self.places {
            let known = (*device as usize) < self.devices.len();
            let whole = places.clusters.len() == places.indices.len();
            let reason = "the places of its multiprocessors are not";
            rule(known && whole, "device", u64::from(*device), reason)?;
        }
        self.check_context_places()?;
        self.check_greens()?;
        self.check_memory()?;
        self.check_sharing()?;
        self.check_numbers()
    }

    fn check_context_places(&self) -> Result<(), StateError> {
        let mut slots = BTreeSet::new();
        for (context, place) in &self.context_places {
            let own = place.slot > 0 && slots.insert(place.slot);
            let sound = own && place.after <= self.next_serial && self.contexts.contains(*context);
            let reason = "its place among the modules is not its own";
            rule(sound, "context", *context, reason)?;
        }
        Ok(())
    }

    fn check_greens(&self) -> Result<(), StateError> {
        const KIND: &str = "green context";
        let mut streams = BTreeSet::new();
        for (handle, green) in self.greens.contexts.iter() {
            let own = handle.raw() >= FIRST_HANDLE && !self.contexts.contains(handle);
            rule(own, KIND, handle, "its handle is another's")?;
            let primary = self.contexts.get(green.context)?;
            let same = primary.primary && primary.device == green.resource.device;
            rule(same, KIND, handle, "its context is another device's")?;
            let sound = green.resource.is_sound() && green.after <= self.next_serial;
            rule(sound, KIND, handle, "its multiprocessors are none")?;
            for stream in &green.streams {
                let known = self.streams.get(*stream)?.context == green.context;
                let reason = "a stream is another context's";
                rule(known && streams.insert(*stream), KIND, handle, reason)?;
            }
        }
        for (resource, question) in self.greens.told.keys() {
            let sound = resource.is_sound() && question.is_sound();
            let device = u64::from(resource.device);
            rule(sound, "device", device, "no program asks that of it")?;
            self.check_device("device", device, resource.device)?;
        }
        Ok(())
    }

    fn check_handles(&self) -> Result<(), StateError> {
        let reason = "its handle is reserved";
        let all = (self.contexts.iter().map(|(handle, _)| handle.raw()))
            .chain(self.modules.iter().map(|(handle, _)| handle.raw()))
            .chain(self.functions.iter().map(|(handle, _)| handle.raw()))
            .chain(self.streams.iter().map(|(handle, _)| handle.raw()))
            .chain(self.events.iter().map(|(handle, _)| handle.raw()))
            .chain(self.executables.iter().map(|(handle, _)| handle.raw()))
            .chain(self.arrays.iter().map(|(handle, _)| handle.raw()))
            .chain(self.mipmaps.iter().map(|(handle, _)| handle.raw()))
            .chain(self.memories.iter().map(|(handle, _)| handle.raw()))
            .chain(self.held.keys().map(|handle| handle.raw()));
        for handle in all {
            rule(handle >= FIRST_HANDLE, "object", handle, reason)?;
        }
        Ok(())
    }

    fn check_device(
        &self,
        kind: &'static str,
        handle: impl Raw,
        device: u32,
    ) -> Result<(), StateError> {
        rule(
            (device as usize) < self.devices.len(),
            kind,
            handle,
            "its device does not exist",
        )
    }

    fn check_references(&self) -> Result<(), StateError> {
        for (handle, context) in self.contexts.iter() {
            self.check_device("context", handle, context.device)?;
            for peer in &context.peers {
                self.contexts.get(*peer)?;
            }
        }
        for (_, module) in self.modules.iter() {
            self.contexts.get(module.context)?;
        }
        for kept in self.kept.values() {
            self.contexts.get(kept.context)?;
        }
        for (_, function) in self.functions.iter() {
            self.modules.get(function.module)?;
        }
        let contexts = (self.streams.iter().map(|(_, it)| it.context))
            .chain(self.events.iter().map(|(_, it)| it.context))
            .chain(self.executables.iter().map(|(_, it)| it.context))
            .chain(self.arrays.iter().map(|(_, it)| it.context))
            .chain(self.textures.keys().map(|it| it.context))
            .chain(self.mipmaps.iter().map(|(_, it)| it.context))
            .chain(self.allocations.iter().map(|(_, it)| it.context));
        for context in contexts {
            self.contexts.get(context)?;
        }
        for key in self.references.keys() {
            self.modules.get(key.module)?;
        }
        self.check_mipmaps()
    }

    fn check_mipmaps(&self) -> Result<(), StateError> {
        let mut levels = BTreeSet::new();
        for (handle, mipmap) in self.mipmaps.iter() {
            let shape = &mipmap.shape;
            let count = shape.levels.len();
            let fits = (1..=shape.most_levels() as usize).contains(&count);
            rule(fits, "mipmapped array", handle, "it has no such levels")?;
            for (level, array) in (0..).zip(&shape.levels) {
                let it = self.arrays.get(*array)?;
                let same = [it.width, it.height, it.depth] == shape.extent(level)
                    && it.context == mipmap.context
                    && (it.format, it.channels, it.flags)
                        == (shape.format, shape.channels, shape.flags);
                let reason = "a level is another array";
                rule(
                    same && levels.insert(*array),
                    "mipmapped array",
                    handle,
                    reason,
                )?;
            }
        }
        Ok(())
    }

    fn check_images(&self, stored: &BTreeSet<ImageId>) -> Result<(), StateError> {
        for (id, image) in &self.images {
            let content = *id == ImageId::of(image.bytes());
            rule(
                content,
                "module image",
                0u64,
                "its content has another hash",
            )?;
        }
        let missing = "its image is missing";
        let is_there = |id: &ImageId| self.images.contains_key(id) || stored.contains(id);
        for (handle, module) in self.modules.iter() {
            rule(is_there(&module.image), "module", handle, missing)?;
        }
        for (serial, kept) in &self.kept {
            rule(is_there(&kept.image), "kept module", *serial, missing)?;
        }
        for (handle, image) in &self.held {
            rule(is_there(image), "library", *handle, missing)?;
        }
        for id in self.facts.keys() {
            rule(is_there(id), "module image", 0u64, "facts without an image")?;
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), StateError> {
        let in_range = |start: Address, size: u64| {
            start >= DEVICE_BASE && start.checked_add(size).is_some_and(|end| end <= DEVICE_END)
        };
        for (address, it) in self.allocations.iter() {
            self.check_device("allocation", address, it.device)?;
            rule(
                in_range(address, it.size),
                "allocation",
                address,
                "it is outside the device range",
            )?;
        }
        for (address, it) in self.reservations.iter() {
            rule(
                in_range(address, it.size),
                "reservation",
                address,
                "it is outside the device range",
            )?;
        }
        for (handle, it) in self.memories.iter() {
            self.check_device("physical memory", handle, it.device)?;
        }
        for (address, it) in self.mappings.iter() {
            let memory = self.memories.get(it.memory)?;
            let fits = it
                .offset
                .checked_add(it.size)
                .is_some_and(|end| end <= memory.size);
            rule(fits, "mapping", address, "it is larger than its memory")?;
            let within =
                self.reservations
                    .at_or_below(address)
                    .is_some_and(|(start, reservation)| {
                        address - start <= reservation.size
                            && it.size <= reservation.size - (address - start)
                    });
            rule(
                within,
                "mapping",
                address,
                "it is outside every reservation",
            )?;
            for device in it.access.keys() {
                self.check_device("mapping", address, *device)?;
            }
        }
        disjoint(
            "allocation",
            self.allocations
                .iter()
                .map(|(address, it)| (address, it.size)),
        )?;
        disjoint(
            "reservation",
            self.reservations
                .iter()
                .map(|(address, it)| (address, it.size)),
        )?;
        disjoint(
            "mapping",
            self.mappings.iter().map(|(address, it)| (address, it.size)),
        )?;
        disjoint(
            "host region",
            self.host_regions
                .iter()
                .map(|(address, it)| (address, it.size)),
        )
    }

    fn check_sharing(&self) -> Result<(), StateError> {
        const KIND: &str = "shared memory";
        let sharing = &self.sharing;
        let named = sharing.shared.is_empty() || sharing.own.is_some();
        rule(named, KIND, 0u64, "its process has no name")?;
        let buffers: BTreeSet<u64> = match self.shares_events() {
            true => self.buffers().iter().map(|it| it.number).collect(),
            false => BTreeSet::new(),
        };
        for (buffer, shared) in &sharing.shared {
            let own = match shared {
                Shared::Allocation(address) => self.allocations.get(*address)?.buffer == *buffer,
                Shared::Memory(handle) => self.memories.get(*handle)?.buffer == *buffer,
                Shared::Event(handle) => {
                    let known = self.events.get(*handle)?;
                    let between = known.flags & cu::CU_EVENT_INTERPROCESS != 0;
                    let again = sharing.opened.contains_key(handle) || buffers.contains(buffer);
                    between && !again && (1..=self.next_buffer).contains(buffer)
                }
            };
            rule(own, KIND, *buffer, "its number is another's")?;
        }
        for handle in sharing.opened.keys() {
            let known = self.events.get(*handle)?;
            let between = known.flags & cu::CU_EVENT_INTERPROCESS != 0;
            rule(between, "event", *handle, "no other process can have it")?;
        }
        for handle in sharing.fetched.keys() {
            let memory = self.memories.get(*handle)?;
            let again = sharing.shared.contains_key(&memory.buffer);
            rule(!again, KIND, *handle, "it is another process's")?;
        }
        Ok(())
    }

    fn shares_events(&self) -> bool {
        let mut shared = self.sharing.shared.values();
        shared.any(|it| matches!(it, Shared::Event(_)))
    }

    fn check_numbers(&self) -> Result<(), StateError> {
        let mut seen = BTreeSet::new();
        for buffer in self.buffers() {
            let fresh =
                seen.insert(buffer.number) && (1..=self.next_buffer).contains(&buffer.number);
            rule(fresh, "buffer", buffer.number, "its number is not its own")?;
        }
        let mut serials = BTreeSet::new();
        for (handle, module) in self.modules.iter() {
            let fresh = serials.insert(module.serial) && module.serial <= self.next_serial;
            rule(
                fresh,
                "module",
                handle,
                "its place in the order is not its own",
            )?;
        }
        for serial in self.kept.keys().chain(&self.gap) {
            let fresh = serials.insert(*serial) && *serial <= self.next_serial;
            rule(
                fresh,
                "kept module",
                *serial,
                "its place in the order is not its own",
            )?;
        }
        Ok(())
    }
}
