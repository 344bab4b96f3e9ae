//! Executes operations: each is checked and handed to the driver, one file per family of functions.
//!
//! The order is always: check, call the driver, then change the session's state. So the state never names an object that
//! the driver does not have.

mod contexts;
mod copies;
mod graphs;
mod greens;
mod host_memory;
mod images;
mod launch;
mod memory;
mod mipmaps;
mod modules;
mod occupancy;
mod pointers;
mod sharing;
mod streams;
mod tensors;
mod textures;

use fermata_abi::op::{ContextId, Op, ReplyBody, StreamRef};
use fermata_state::TextureKey;
use fermata_wire::Ticket;

use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::{Orphans, Then, Waiting};

/// When an operation that the driver has taken is answered.
pub(crate) enum Reaction {
    /// It is answered now.
    Answer(ReplyBody<'static>),
    /// It is answered when the device is done, or has no answer.
    Later,
}

/// Success without a value.
pub(crate) const DONE: Result<Reaction, OpError> = Ok(Reaction::Answer(ReplyBody::None));

type Step = Result<Reaction, OpError>;

impl Server {
    /// Executes an operation.
    pub(crate) fn dispatch(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> Step {
        match op {
            Op::Devices => Ok(Reaction::Answer(ReplyBody::Devices(self.devices.clone()))),
            Op::Drain => self.drain(ticket),
            Op::DeviceAsk { device, question } => {
                let numbers = self.site.live.driver.ask_device(*device, question)?;
                let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
                self.answer(ticket, None, false, Ok(ReplyBody::Bytes(&bytes)));
                Ok(Reaction::Later)
            }

            Op::ContextCreate {
                context,
                device,
                flags,
                primary,
            } => self.context_create(*context, *device, *flags, *primary),
            Op::ContextDestroy { context } => self.context_destroy(*context, ticket),
            Op::ContextSync { context } => self.context_sync(*context, ticket),
            Op::ContextSetLimit {
                context,
                limit,
                value,
            } => self.context_set_limit(*context, *limit, *value),
            Op::ContextGetLimit { context, limit } => self.context_get_limit(*context, *limit),
            Op::MemInfo { context } => self.memory_info(*context),
            Op::Places { context } => self.places(*context),
            Op::PeerEnable { context, peer } => self.peer_enable(*context, *peer),
            Op::PeerDisable { context, peer } => self.peer_disable(*context, *peer),

            Op::ModuleLoad {
                module,
                context,
                image,
                beside,
            } => self.module_load(*module, *context, image, *beside, ticket),
            Op::Link { context, job } => self.link(*context, job, ticket),
            Op::ImageHold { image, from } => self.image_hold(*image, from),
            Op::ImageRelease { image } => self.image_release(*image),
            Op::ModuleFunctions { module } => self.module_functions(*module),
            Op::ModuleUnload { module } => self.module_unload(*module, ticket),
            Op::FunctionGet {
                function,
                module,
                name,
            } => self.function_get(*function, *module, name),
            Op::FunctionSetAttribute {
                function,
                attribute,
                value,
            } => self.function_set_attribute(*function, *attribute, *value),
            Op::VariableGet { module, name } => self.variable_get(*module, name),
            Op::TensorMap { tensor, of } => self.tensor_map(tensor, of, ticket),
            Op::TensorMapMove { map, address } => self.tensor_map_move(map, *address, ticket),
            Op::Occupancy { function, question } => self.occupancy(*function, question),

            Op::MemAlloc { context, size } => self.mem_alloc(*context, *size, ticket),
            Op::MemFree { address } => self.mem_free(*address, ticket),
            Op::MemAllocAsync { stream, size } => self.mem_alloc(stream.context, *size, ticket),
            Op::MemFreeAsync { address, stream } => self.mem_free_async(*address, *stream),
            Op::AddressReserve {
                size,
                align,
                address,
            } => self.address_reserve(*size, *align, *address),
            Op::AddressFree { address, .. } => self.address_free(*address),
            Op::MemCreate {
                memory,
                device,
                size,
                flags,
            } => self.mem_create(*memory, *device, *size, *flags),
            Op::MemRelease { memory } => self.mem_release(*memory),
            Op::MemMap {
                address,
                size,
                offset,
                memory,
            } => self.mem_map(*address, *size, *offset, *memory),
            Op::MemUnmap { address, size } => self.mem_unmap(*address, *size),
            Op::MemSetAccess {
                address,
                size,
                access,
                devices,
            } => self.mem_set_access(*address, *size, *access, devices),

            Op::MemShare {
                sharer,
                address,
                memory,
            } => self.mem_share(sharer, *address, *memory, ticket),
            Op::MemFetch { memory, shared } => self.mem_fetch(*memory, shared),
            Op::MemCloseAsync { address, stream } => self.mem_close_async(*address, *stream),
            Op::EventShare { sharer, event } => self.event_share(sharer, *event, ticket),
            Op::EventOpen {
                event,
                context,
                shared,
            } => self.event_open(*event, *context, shared),

            Op::ReferenceGet {
                module,
                name,
                surface,
            } => self.reference_get(*module, name, *surface, ticket),
            Op::ReferenceBind {
                module,
                name,
                texture,
            } => self.reference_bind(*module, name, texture),
            Op::MipmapCreate {
                mipmap,
                context,
                shape,
            } => self.mipmap_create(*mipmap, *context, shape),
            Op::MipmapDestroy { mipmap } => self.mipmap_destroy(*mipmap, ticket),

            Op::HostMap {
                address,
                size,
                kind,
                flags,
                context,
            } => self.host_map(*address, *size, *kind, *flags, *context),
            Op::HostUnmap { address } => self.host_unmap(*address, ticket),

            Op::Copy {
                to,
                from,
                len,
                stream,
                answered,
            } => self.copy(to, from, *len, *stream, *answered, ticket),
            Op::Copy3d {
                to,
                from,
                to_pitch,
                from_pitch,
                extent,
                stream,
                answered,
            } => self.copy_3d(
                to,
                from,
                (*to_pitch, *from_pitch),
                extent,
                *stream,
                *answered,
                ticket,
            ),
            Op::Fill {
                address,
                pitch,
                element,
                value,
                width,
                height,
                stream,
                answered,
            } => {
                let live = &mut self.site.live;
                let handle = live.stream(*stream)?;
                live.driver.fill(
                    address.raw(),
                    *pitch,
                    *element,
                    *value,
                    *width,
                    *height,
                    handle,
                )?;
                if *height == 1 {
                    let bytes = width.saturating_mul(u64::from(*element));
                    self.site.session.pointers.forget(*address, bytes);
                }
                self.issued(*stream, *answered, ticket)
            }
            Op::ArrayCreate {
                array,
                context,
                width,
                height,
                depth,
                format,
                channels,
                flags,
            } => {
                let shape = fermata_device::ArrayShape {
                    width: *width,
                    height: *height,
                    depth: *depth,
                    format: *format,
                    channels: *channels,
                    flags: *flags,
                };
                self.array_create(*array, *context, shape)
            }
            Op::ArrayDestroy { array } => self.array_destroy(*array, ticket),
            Op::TextureCreate { context, texture } => self.texture_create(*context, texture),
            Op::TextureDestroy {
                context,
                object,
                surface,
            } => self.texture_destroy(TextureKey {
                context: *context,
                surface: *surface,
                object: *object,
            }),

            Op::StreamCreate {
                stream,
                context,
                flags,
                priority,
            } => self.stream_create(*stream, *context, *flags, *priority),
            Op::StreamDestroy { stream } => self.stream_destroy(*stream),
            Op::StreamSync { stream } => self.stream_sync(*stream, ticket),
            Op::StreamQuery { stream } => self.stream_query(*stream),
            Op::StreamWait {
                stream,
                event,
                flags,
            } => self.stream_wait(*stream, *event, *flags),
            Op::EventCreate {
                event,
                context,
                flags,
            } => self.event_create(*event, *context, *flags),
            Op::EventDestroy { event } => self.event_destroy(*event),
            Op::EventRecord {
                event,
                stream,
                flags,
            } => self.event_record(*event, *stream, *flags),
            Op::EventSync { event } => self.event_sync(*event, ticket),
            Op::EventQuery { event } => self.event_query(*event),
            Op::EventElapsed { start, end } => self.event_elapsed(*start, *end),
            Op::HostCall { stream, id } => self.host_call(*stream, *id),
            Op::WriteValue {
                stream,
                address,
                value,
                flags,
                wide,
            } => {
                let live = &mut self.site.live;
                let handle = live.stream(*stream)?;
                live.driver
                    .write_value(handle, address.raw(), *value, *flags, *wide)?;
                self.issued(*stream, false, ticket)
            }
            Op::WaitValue {
                stream,
                address,
                value,
                flags,
                wide,
            } => {
                let live = &mut self.site.live;
                let handle = live.stream(*stream)?;
                live.driver
                    .wait_value(handle, address.raw(), *value, *flags, *wide)?;
                self.issued(*stream, false, ticket)
            }

            Op::Launch { launch, stream } => self.launch(launch, *stream),
            Op::GraphInstantiate {
                exec,
                context,
                graph,
                flags,
            } => self.graph_instantiate(*exec, *context, graph, *flags),
            Op::GraphUpdate { exec, graph } => self.graph_update(*exec, graph),
            Op::GraphSetKernels { exec, kernels } => self.graph_set_kernels(*exec, kernels),
            Op::GraphLaunch { exec, stream } => self.graph_launch(*exec, *stream),
            Op::GraphDestroy { exec } => self.graph_destroy(*exec),

            Op::SmAsk { of, question } => self.sm_ask(of, question, ticket),
            Op::GreenCreate {
                green,
                context,
                resource,
            } => self.green_create(*green, *context, resource),
            Op::GreenDestroy { green } => self.green_destroy(*green, ticket),
            Op::GreenStream {
                stream,
                green,
                flags,
                priority,
            } => self.green_stream(*stream, *green, *flags, *priority),
        }
    }

    /// Work has been issued to a stream. If the program waits for it, the answer is sent when the work is done.
    fn issued(&mut self, stream: StreamRef, answered: bool, ticket: Option<Ticket>) -> Step {
        self.keep_pace(stream, 1);
        if !answered {
            return DONE;
        }
        self.after(&[stream], Some(stream.context), true, Then::Answer, ticket)
    }

    /// Does `then` and answers when all work of `streams` is done.
    fn after(
        &mut self,
        streams: &[StreamRef],
        context: Option<ContextId>,
        reports: bool,
        then: Then,
        ticket: Option<Ticket>,
    ) -> Step {
        let marks = self.mark(streams)?;
        self.waiting.push(Waiting {
            ticket,
            context,
            orphans: Orphans::Ignored,
            reports,
            marks,
            event: None,
            then,
            failed: None,
            looks: 0,
        });
        Ok(Reaction::Later)
    }

    /// Does `then` and answers when all work of a context, or of all, is done.
    fn after_all(
        &mut self,
        of: Option<ContextId>,
        context: Option<ContextId>,
        reports: bool,
        then: Then,
        ticket: Option<Ticket>,
    ) -> Step {
        let marks = self.mark(&self.queues.busy_streams(of))?;
        self.waiting.push(Waiting {
            ticket,
            context,
            orphans: Orphans::All,
            reports,
            marks,
            event: None,
            then,
            failed: None,
            looks: 0,
        });
        Ok(Reaction::Later)
    }

    fn drain(&mut self, ticket: Option<Ticket>) -> Step {
        if self.hold.is_whole() {
            self.park_allocations();
        }
        self.after_all(None, None, false, Then::Drained, ticket)
    }
}
