//! Contexts, their limits, memory figures and peers.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{Handle, ReplyBody};
use fermata_abi::sys::driver as cu;
use fermata_engine::LiveContext;
use fermata_state::Context;
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::completions::Then;
use crate::errors::OpError;
use crate::serve::Server;

impl Server {
    pub(super) fn context_create(
        &mut self,
        context: Handle,
        device: u32,
        flags: u32,
        primary: bool,
    ) -> Step {
        if device as usize >= self.devices.len() {
            return Err(OpError::new(
                cu::CUDA_ERROR_INVALID_DEVICE,
                format!("there is no device {device}"),
            ));
        }
        if self.site.session.contexts.contains(context) {
            return Err(OpError::invalid(format!(
                "there is a context {context:#x} already"
            )));
        }
        let live = &mut self.site.live;
        live.forget_current();
        let handle = if primary {
            live.driver.primary_context(device, flags)?
        } else {
            live.driver.create_context(device, flags)?
        };
        live.contexts.insert(
            context,
            LiveContext {
                handle,
                device,
                primary,
            },
        );
        live.enter(context)?;
        self.staging.register(&live.driver)?;
        let (limits, peers) = (BTreeMap::new(), BTreeSet::new());
        self.site.session.contexts.insert(
            context,
            Context {
                device,
                flags,
                primary,
                limits,
                peers,
            },
        )?;
        DONE
    }

    pub(super) fn context_destroy(&mut self, context: Handle, ticket: Option<Ticket>) -> Step {
        self.site.session.contexts.get(context)?;
        self.after_all(
            Some(context),
            None,
            false,
            Then::ContextDestroy(context),
            ticket,
        )
    }

    /// The context is idle: it goes with everything in it.
    pub(crate) fn release_context(&mut self, context: Handle) -> Result<(), OpError> {
        let removed = self.site.session.remove_context(context)?;
        let live = &mut self.site.live;
        let LiveContext {
            handle,
            device,
            primary,
        } = live.enter(context)?;
        for pace in self.queues.forget_context(context) {
            self.events.put(context, pace);
        }
        self.events.drain(&live.driver, context);
        for (address, _) in removed.allocations {
            live.space.free(&live.driver, address)?;
        }
        // A primary context outlives its release if anything else holds it, so its objects go one by one.
        for stream in removed.streams {
            if let Some(found) = live.streams.remove(&stream) {
                live.driver.destroy_stream(found.handle)?;
            }
        }
        for event in removed.events {
            if let Some((found, _)) = live.events.remove(&event) {
                live.driver.destroy_event(found)?;
            }
        }
        for exec in removed.executables {
            if let Some((found, _)) = live.executables.remove(&exec) {
                live.driver.destroy_exec(found)?;
            }
        }
        for array in removed.arrays {
            if let Some((found, _)) = live.arrays.remove(&array) {
                live.driver.destroy_array(found)?;
            }
        }
        for function in removed.functions {
            live.functions.remove(&function);
        }
        for module in removed.modules {
            if let Some(found) = live.modules.remove(&module) {
                live.driver.unload_module(found)?;
            }
        }
        live.contexts.remove(&context);
        self.faults.forget(context);
        self.printing.remove(&context);
        // The staging area and shared host memory are registered with the driver through whichever context
        // was there first; the worker's own hold on the device's primary context keeps them.
        let gone = if primary {
            live.driver.release_primary(device)
        } else {
            live.driver.destroy_context(handle)
        };
        live.forget_current();
        Ok(gone?)
    }

    pub(super) fn context_sync(&mut self, context: Handle, ticket: Option<Ticket>) -> Step {
        self.site.session.contexts.get(context)?;
        self.after_all(Some(context), Some(context), true, Then::Answer, ticket)
    }

    pub(super) fn context_set_limit(&mut self, context: Handle, limit: u32, value: u64) -> Step {
        let live = &mut self.site.live;
        live.enter(context)?;
        live.driver.set_limit(limit, value)?;
        self.site
            .session
            .contexts
            .get_mut(context)?
            .limits
            .insert(limit, value);
        DONE
    }

    pub(super) fn context_get_limit(&mut self, context: Handle, limit: u32) -> Step {
        let live = &mut self.site.live;
        live.enter(context)?;
        Ok(Reaction::Answer(ReplyBody::U64(live.driver.limit(limit)?)))
    }

    pub(super) fn memory_info(&mut self, context: Handle) -> Step {
        let live = &mut self.site.live;
        let device = live.enter(context)?.device;
        let (free, total) = live.driver.memory_info()?;
        let set_aside = live.set_aside.bytes(device);
        let free = (free + live.space.cached(device) + set_aside).min(total);
        Ok(Reaction::Answer(ReplyBody::Pair(free, total)))
    }

    pub(super) fn peer_enable(&mut self, context: Handle, peer: Handle) -> Step {
        self.site.session.contexts.get(peer)?;
        self.site.live.enable_peer(context, peer)?;
        self.site
            .session
            .contexts
            .get_mut(context)?
            .peers
            .insert(peer);
        DONE
    }

    pub(super) fn peer_disable(&mut self, context: Handle, peer: Handle) -> Step {
        self.site.session.contexts.get(peer)?;
        self.site.live.disable_peer(context, peer)?;
        self.site
            .session
            .contexts
            .get_mut(context)?
            .peers
            .remove(&peer);
        DONE
    }
}
