//! All objects of a session, and the operations that touch several kinds at once.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{
    Address, ArrayId, ContextId, EventId, ExecId, FunctionId, HeldImageId, MemoryId, Mipmap,
    MipmapId, ModuleId, SmResource, StreamId, Texture,
};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::{
    Allocation, Array, Context, ContextPlace, Device, Event, Executable, Function, Green, Greens,
    HostRegion, ImageBytes, ImageFacts, ImageId, KeptModule, Mapping, Memory, MipmappedArray,
    Module, Places, Pointers, ReferenceKey, Reservation, Sharing, StateError, Stream, Table,
    TensorMaps, TextureKey, Variable,
};

/// See the crate's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Devices, by index.
    pub devices: Vec<Device>,
    /// Module images by content, one copy each. Long ones are no part of the records, see [`crate::records`].
    #[serde(serialize_with = "crate::image::serialize_short")]
    pub(crate) images: BTreeMap<ImageId, ImageBytes>,
    /// Contexts.
    pub contexts: Table<Context>,
    /// Modules.
    pub modules: Table<Module>,
    /// Functions.
    pub functions: Table<Function>,
    /// Streams.
    pub streams: Table<Stream>,
    /// Events.
    pub events: Table<Event>,
    /// Executable graphs.
    pub executables: Table<Executable>,
    /// Arrays.
    pub arrays: Table<Array>,
    /// Allocations.
    pub allocations: Table<Allocation>,
    /// Host regions.
    pub host_regions: Table<HostRegion>,
    /// Reservations.
    pub reservations: Table<Reservation>,
    /// Physical memory.
    pub memories: Table<Memory>,
    /// Mappings.
    pub mappings: Table<Mapping>,
    /// The last number given to content.
    pub(crate) next_buffer: u64,
    /// The last number given to a module.
    pub(crate) next_serial: u64,
    /// Errors that the program has not been told yet, as they were at the last consistent point.
    pub deferred: Vec<Deferred>,
    /// Modules that are kept, by their place in the order.
    pub(crate) kept: BTreeMap<u64, KeptModule>,
    /// The first place in the order of modules whose module is gone while there are later ones.
    pub(crate) gap: Option<u64>,
    /// Tensor maps that the program has made.
    pub tensor_maps: TensorMaps,
    /// Texture and surface objects. What they are about may be gone.
    pub textures: BTreeMap<TextureKey, Texture>,
    /// What the program has asked for and the device has not been given, in order, as it was when the program was let
    /// go. Its staged bytes are the program's.
    pub queued: Vec<Queued>,
    /// Images that the program holds as libraries, whether they are modules or not.
    pub(crate) held: BTreeMap<HeldImageId, ImageId>,
    /// What is known of images.
    pub(crate) facts: BTreeMap<ImageId, ImageFacts>,
    /// Memory and events shared with other processes; in the file they come behind the session.
    #[serde(skip)]
    pub sharing: Sharing,
    /// Where the multiprocessors of devices lie, by index, as the program was told. In the records it has a place of its
    /// own, see [`crate::records`].
    #[serde(skip)]
    pub places: BTreeMap<u32, Places>,
    /// Texture and surface references that are bound, and to what, which may be gone. In the records they come behind the
    /// places.
    #[serde(skip)]
    pub references: BTreeMap<ReferenceKey, Texture>,
    /// Arrays with levels. In the records they come behind the references.
    #[serde(skip)]
    pub mipmaps: Table<MipmappedArray>,
    /// Pointers that the program has copied into device memory. In the records they come behind
    /// the opened events.
    #[serde(skip)]
    pub pointers: Pointers,
    /// Where contexts stand among the modules: those that the worker makes for its program, and did not have before. In the
    /// records they come behind the pointers.
    #[serde(skip)]
    pub context_places: BTreeMap<ContextId, ContextPlace>,
    /// Green contexts. In the records they come last.
    #[serde(skip)]
    pub greens: Greens,
}

/// An operation that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// A [`fermata_abi::op::Op`], encoded.
    pub operation: ByteBuf,
    /// Where its answer goes, if it has one: reply slot, sequence number, offset and length of the overflow range.
    pub answer: Option<(u16, u32, u64, u32)>,
}

/// The error of an operation that was not waited for; the context's next synchronisation reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferred {
    /// The context.
    pub context: ContextId,
    /// A `CUresult`, not success.
    pub code: u32,
    /// What failed, in words.
    pub text: String,
}

/// What went with a context.
#[derive(Debug, Default)]
pub struct Removed {
    /// Allocations.
    pub allocations: Vec<(Address, Allocation)>,
    /// Functions.
    pub functions: Vec<FunctionId>,
    /// Modules.
    pub modules: Vec<ModuleId>,
    /// Kept modules by their place in the order.
    pub kept: Vec<u64>,
    /// Streams.
    pub streams: Vec<StreamId>,
    /// Events.
    pub events: Vec<EventId>,
    /// Executable graphs.
    pub executables: Vec<ExecId>,
    /// Arrays.
    pub arrays: Vec<ArrayId>,
    /// Texture and surface objects.
    pub textures: Vec<TextureKey>,
    /// Arrays with levels, and their levels.
    pub mipmaps: Vec<(MipmapId, Vec<ArrayId>)>,
    /// Green contexts.
    pub greens: Vec<ContextId>,
}

pub(crate) fn handles<H, T>(taken: Vec<(H, T)>) -> Vec<H> {
    taken.into_iter().map(|(handle, _)| handle).collect()
}

impl Session {
    /// A session on these devices, with nothing in it.
    pub fn new(devices: Vec<Device>) -> Self {
        Self {
            devices,
            ..Self::default()
        }
    }

    /// An image.
    pub fn image(&self, id: &ImageId) -> Option<&[u8]> {
        self.images.get(id).map(ImageBytes::bytes)
    }

    /// As [`Session::image`], to be shared.
    pub fn image_bytes(&self, id: &ImageId) -> Option<&ImageBytes> {
        self.images.get(id)
    }

    /// All images.
    pub fn images(&self) -> impl Iterator<Item = (&ImageId, &ImageBytes)> {
        self.images.iter()
    }

    /// An image that has had a provisional name goes by its content's hash from now on.
    pub fn rename_image(&mut self, from: &ImageId, to: ImageId) {
        let Some(bytes) = self.images.remove(from) else {
            return;
        };
        self.images.entry(to).or_insert(bytes);
        if let Some(facts) = self.facts.remove(from) {
            self.facts.entry(to).or_insert(facts);
        }
        let modules = self.modules.iter_mut().map(|(_, it)| &mut it.image);
        let kept = self.kept.values_mut().map(|it| &mut it.image);
        for image in modules.chain(kept).chain(self.held.values_mut()) {
            if image == from {
                *image = to;
            }
        }
    }

    /// The program holds an image, of which it may make modules.
    ///
    /// # Errors
    /// The handle is taken.
    pub fn hold_image(
        &mut self,
        handle: HeldImageId,
        id: ImageId,
        image: &ImageBytes,
    ) -> Result<(), StateError> {
        if self.held.contains_key(&handle) {
            let (kind, reason) = ("image", "there is one already");
            return Err(StateError::Invalid {
                kind,
                handle: handle.raw(),
                reason,
            });
        }
        self.held.insert(handle, id);
        self.images.entry(id).or_insert_with(|| image.clone());
        Ok(())
    }

    /// An image that the program holds.
    pub fn held_image(&self, handle: HeldImageId) -> Option<(ImageId, &ImageBytes)> {
        let id = self.held.get(&handle)?;
        Some((*id, self.images.get(id)?))
    }

    /// The images that the program holds.
    pub fn held_images(&self) -> impl Iterator<Item = (HeldImageId, ImageId)> + '_ {
        self.held.iter().map(|(handle, id)| (*handle, *id))
    }

    /// The program holds the image no more; its modules keep it.
    pub fn release_image(&mut self, handle: HeldImageId) {
        if let Some(id) = self.held.remove(&handle) {
            self.drop_unused(&id);
        }
    }

    /// Forgets an image if nothing refers to it.
    pub(crate) fn drop_unused(&mut self, id: &ImageId) {
        let mut used = (self.modules.iter().map(|(_, it)| &it.image))
            .chain(self.kept.values().map(|it| &it.image))
            .chain(self.held.values());
        if !used.any(|it| it == id) {
            self.images.remove(id);
            self.facts.remove(id);
        }
    }

    /// What is known of an image.
    pub fn facts(&self, id: &ImageId) -> Option<&ImageFacts> {
        self.facts.get(id)
    }

    /// Keeps what was found of an image, as long as the session has it.
    pub fn set_facts(&mut self, id: ImageId, facts: ImageFacts) {
        if self.images.contains_key(&id) {
            self.facts.insert(id, facts);
        }
    }

    /// Forgets what is known of images.
    pub fn forget_facts(&mut self) {
        self.facts.clear();
    }

    /// Bytes of all images.
    pub fn image_total(&self) -> u64 {
        let lengths = self.images.values().map(|it| it.bytes().len() as u64);
        lengths.fold(0, u64::saturating_add)
    }

    /// Adds a module and keeps its image, which goes by `id`.
    ///
    /// # Errors
    /// The handle is taken or the context unknown.
    pub fn add_module(
        &mut self,
        handle: ModuleId,
        context: ContextId,
        (id, image): (ImageId, ImageBytes),
    ) -> Result<(), StateError> {
        self.contexts.get(context)?;
        let serial = self.next_serial + 1;
        self.modules.insert(
            handle,
            Module {
                context,
                image: id,
                serial,
                variables: BTreeMap::new(),
            },
        )?;
        self.next_serial = serial;
        self.images.entry(id).or_insert(image);
        Ok(())
    }

    /// Records a device variable; `fixed` when the program gets to know its address.
    ///
    /// # Errors
    /// There is no such module.
    pub fn add_variable(
        &mut self,
        module: ModuleId,
        name: &str,
        address: Address,
        size: u64,
        fixed: bool,
    ) -> Result<(), StateError> {
        let number = self.next_buffer + 1;
        let variables = &mut self.modules.get_mut(module)?.variables;
        if let Some(known) = variables.get_mut(name) {
            known.fixed |= fixed;
            return Ok(());
        }
        variables.insert(
            name.to_owned(),
            Variable {
                address,
                actual: address,
                size,
                fixed,
                buffer: number,
            },
        );
        self.next_buffer = number;
        Ok(())
    }

    /// Removes a context with everything that lives in it.
    ///
    /// # Errors
    /// There is no such context.
    pub fn remove_context(&mut self, handle: ContextId) -> Result<Removed, StateError> {
        self.contexts.remove(handle)?;
        self.context_places.remove(&handle);
        for (_, context) in self.contexts.iter_mut() {
            context.peers.remove(&handle);
        }
        let mut removed = Removed::default();
        for (module, _) in self.modules.iter().filter(|(_, it)| it.context == handle) {
            removed.modules.push(module);
        }
        for handle in &removed.modules {
            let (module, functions) = self.take_module(*handle)?;
            removed.functions.extend(functions);
            self.gone(module.serial, &module.image);
        }
        let kept = self.kept.extract_if(.., |_, it| it.context == handle);
        let kept = kept.collect();
        removed.kept = self.give_up(kept);
        removed.allocations = self.allocations.take_where(|it| it.context == handle);
        for (_, gone) in &removed.allocations {
            self.sharing.shared.remove(&gone.buffer);
        }
        let greens = self.greens.contexts.take_where(|it| it.context == handle);
        removed.greens = handles(greens);
        removed.streams = handles(self.streams.take_where(|it| it.context == handle));
        removed.events = handles(self.events.take_where(|it| it.context == handle));
        for gone in &removed.events {
            self.sharing.forget_event(*gone);
        }
        removed.executables = handles(self.executables.take_where(|it| it.context == handle));
        let mipmaps = self.mipmaps.take_where(|it| it.context == handle);
        let mipmaps = mipmaps.into_iter();
        removed.mipmaps = mipmaps
            .map(|(it, known)| (it, known.shape.levels))
            .collect();
        let arrays = handles(self.arrays.take_where(|it| it.context == handle));
        let is_level = |array: &ArrayId| removed.mipmaps.iter().any(|(_, it)| it.contains(array));
        removed.arrays = arrays.into_iter().filter(|it| !is_level(it)).collect();
        let textures = self.textures.extract_if(.., |key, _| key.context == handle);
        removed.textures = textures.map(|(key, _)| key).collect();
        Ok(removed)
    }

    /// Adds an array with levels; the levels are numbered as other content. `bytes` of each level, rows packed.
    ///
    /// # Errors
    /// A handle is taken.
    pub fn add_mipmap(
        &mut self,
        handle: MipmapId,
        context: ContextId,
        shape: Mipmap,
        bytes: &[u64],
    ) -> Result<(), StateError> {
        for ((level, array), bytes) in (0..).zip(&shape.levels).zip(bytes) {
            let [width, height, depth] = shape.extent(level);
            let record = Array {
                context,
                width,
                height,
                depth,
                format: shape.format,
                channels: shape.channels,
                flags: shape.flags,
                bytes: *bytes,
                buffer: self.number_buffer(),
            };
            self.arrays.insert(*array, record)?;
        }
        self.mipmaps
            .insert(handle, MipmappedArray { context, shape })
    }

    /// Removes an array with levels, and the levels.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_mipmap(&mut self, handle: MipmapId) -> Result<MipmappedArray, StateError> {
        let gone = self.mipmaps.remove(handle)?;
        for level in &gone.shape.levels {
            self.arrays.remove(*level)?;
        }
        Ok(gone)
    }

    /// Whether an array is a level of another.
    pub fn is_level(&self, array: ArrayId) -> bool {
        self.mipmaps
            .iter()
            .any(|(_, it)| it.shape.levels.contains(&array))
    }

    /// Lets go of physical memory. The answer says whether it is gone, or lives on in a mapping.
    ///
    /// # Errors
    /// Unknown, or let go before.
    pub fn release_memory(&mut self, handle: MemoryId) -> Result<bool, StateError> {
        let memory = self.memories.get_mut(handle)?;
        if memory.released {
            let reason = "it has been released already";
            return Err(StateError::Invalid {
                kind: "physical memory",
                handle: handle.raw(),
                reason,
            });
        }
        memory.released = true;
        Ok(self.collect_memory(handle))
    }

    /// Removes a mapping, and its memory if that was its last.
    ///
    /// # Errors
    /// There is no such mapping.
    pub fn remove_mapping(&mut self, address: Address) -> Result<Mapping, StateError> {
        let mapping = self.mappings.remove(address)?;
        self.collect_memory(mapping.memory);
        Ok(mapping)
    }

    fn collect_memory(&mut self, handle: MemoryId) -> bool {
        let released = self
            .memories
            .get(handle)
            .is_ok_and(|memory| memory.released);
        let mapped = self
            .mappings
            .iter()
            .any(|(_, mapping)| mapping.memory == handle);
        let gone = released && !mapped;
        if gone && let Ok(memory) = self.memories.remove(handle) {
            self.sharing.shared.remove(&memory.buffer);
            self.sharing.fetched.remove(&handle);
        }
        gone
    }

    /// The allocation that contains `address`: its start and the allocation.
    pub fn allocation_at(&self, address: Address) -> Option<(Address, &Allocation)> {
        let (start, allocation) = self.allocations.at_or_below(address)?;
        (address - start < allocation.size.max(1)).then_some((start, allocation))
    }

    /// Removes an allocation; others can fetch it no more.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_allocation(&mut self, address: Address) -> Result<Allocation, StateError> {
        let gone = self.allocations.remove(address)?;
        self.pointers.forget(address, gone.size);
        self.sharing.shared.remove(&gone.buffer);
        Ok(gone)
    }

    /// Removes an event; others can open it no more.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_event(&mut self, handle: EventId) -> Result<Event, StateError> {
        let gone = self.events.remove(handle)?;
        self.sharing.forget_event(handle);
        Ok(gone)
    }

    /// Removes a stream.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_stream(&mut self, handle: StreamId) -> Result<(), StateError> {
        self.streams.remove(handle)?;
        self.greens.forget_stream(handle);
        Ok(())
    }

    /// A green context that is made now.
    pub fn new_green(&self, context: ContextId, resource: SmResource) -> Green {
        Green {
            context,
            resource,
            after: self.next_serial,
            streams: BTreeSet::new(),
        }
    }

    /// Removes a green context and the streams that were made in it.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_green(&mut self, handle: ContextId) -> Result<Green, StateError> {
        let gone = self.greens.contexts.remove(handle)?;
        for stream in &gone.streams {
            self.streams.remove(*stream)?;
        }
        Ok(gone)
    }

    /// Whether physical memory is another process's.
    pub fn is_fetched(&self, memory: MemoryId) -> bool {
        self.sharing.fetched.contains_key(&memory)
    }

    /// Number of streams, events, modules and executable graphs.
    pub fn object_count(&self) -> u64 {
        (self.streams.len() + self.events.len() + self.modules.len() + self.executables.len())
            as u64
    }
}
