//! Operations on contexts: their limits, memory figures and peers.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{ContextId, ReplyBody};
use fermata_abi::sys::driver as cu;
use fermata_device::DriverError;
use fermata_state::{Context, ContextPlace, Places, Removed};
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::Then;

impl Server {
    pub(super) fn context_create(
        &mut self,
        context: ContextId,
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
        // The driver does the same natively; here the worker's own reference to the dead context would hide the fault.
        if let Some(fault) = self.faults.spent(device) {
            return Err(OpError::new(
                cu::CUDA_ERROR_DEVICE_UNAVAILABLE,
                format!(
                    "a fault has ended a context of this process, so that device {device} makes none any more: {}",
                    fault.text
                ),
            ));
        }
        let site = &mut self.site;
        let made = Context {
            device,
            flags,
            primary,
            limits: BTreeMap::new(),
            peers: BTreeSet::new(),
        };
        // The worker's own primary context is there already.
        let is_home = primary && device == site.live.home_device;
        let place = (!is_home).then(|| ContextPlace {
            kernels: site.live.wants_kernels_first(device),
            ..site.session.next_context_place()
        });
        site.live.make_context(context, &made, place.as_ref())?;
        site.live.at_home(|driver| self.staging.register(driver))?;
        site.session.contexts.insert(context, made)?;
        if let Some(place) = place {
            site.session.context_places.insert(context, place);
        }
        DONE
    }

    pub(super) fn context_destroy(&mut self, context: ContextId, ticket: Option<Ticket>) -> Step {
        self.site.session.contexts.get(context)?;
        self.after_all(
            Some(context),
            None,
            false,
            Then::ContextDestroy(context),
            ticket,
        )
    }

    /// Destroys an idle context with everything in it. A dead one is removed whatever the driver says.
    pub(crate) fn release_context(&mut self, context: ContextId) -> Result<(), OpError> {
        let device = self.site.session.contexts.get(context)?.device;
        self.part_from_peers(context);
        let removed = self.site.session.remove_context(context)?;
        self.keep_offers();
        let released = self.release_contents(context, removed);
        let live = &mut self.site.live;
        let gone = match live.contexts.remove(&context) {
            // The staging area is registered in the context that the worker itself holds, where its small buffers are, too.
            Some(it) if it.primary => live.driver.release_primary(it.device),
            Some(it) => live.driver.destroy_context(it.handle),
            None => Ok(()),
        };
        live.forget_current();
        self.printing.remove(&context);
        let dead = self.faults.fatal(context).is_some();
        self.faults.forget(context, device);
        match dead {
            true => Ok(()),
            false => released.and(gone.map_err(OpError::from)),
        }
    }

    /// Disables peer access of a context that is released. A primary context that the worker holds outlives its release, and
    /// a program that makes it again would be told that access is enabled already.
    fn part_from_peers(&mut self, context: ContextId) {
        let live = &mut self.site.live;
        let contexts = &self.site.session.contexts;
        for (own, record) in contexts.iter() {
            for peer in &record.peers {
                if (own == context || *peer == context)
                    && let Some(other) = live.contexts.get(peer).copied()
                    && live.enter(own).is_ok()
                {
                    // A dead context has no peers any more.
                    let _ = live.driver.disable_peer(other.handle);
                }
            }
        }
    }

    /// Destroys the objects of a context one by one, because a primary context may outlive its release. Goes on after a
    /// failure; returns the first.
    fn release_contents(&mut self, context: ContextId, removed: Removed) -> Result<(), OpError> {
        let mut outcome = self.site.live.enter(context).map(drop);
        let mut note = |done: Result<(), DriverError>| {
            if outcome.is_ok() {
                outcome = done;
            }
        };
        for pace in self.queues.forget_context(context) {
            self.events.put(context, pace);
        }
        let live = &mut self.site.live;
        self.events.drain(&live.driver, context);
        let mut freed = Ok(());
        for (address, _) in removed.allocations {
            freed = freed.and(live.space.free(&live.driver, address.raw()).map(drop));
        }
        for stream in removed.streams {
            if let Some(found) = live.streams.remove(&stream) {
                note(live.driver.destroy_stream(found.handle));
            }
        }
        for green in removed.greens {
            note(live.destroy_green(green));
        }
        for event in removed.events {
            if let Some((found, _)) = live.events.remove(&event) {
                note(live.driver.destroy_event(found));
            }
        }
        for exec in removed.executables {
            if let Some((found, _)) = live.take_executable(exec) {
                note(live.driver.destroy_exec(found));
            }
        }
        for key in removed.textures {
            note(live.driver.destroy_texture(key.object, key.surface));
        }
        for (mipmap, levels) in removed.mipmaps {
            if let Some((found, _)) = live.take_mipmap(mipmap, &levels) {
                note(live.driver.destroy_mipmap(found));
            }
        }
        for array in removed.arrays {
            if let Some((found, _)) = live.arrays.remove(&array) {
                note(live.driver.destroy_array(found));
            }
        }
        for function in removed.functions {
            live.functions.remove(&function);
        }
        // The last is unloaded first, so that the driver gives out the places again in their former order.
        for place in removed.kept {
            if let Some((found, _)) = live.kept.remove(&place) {
                note(live.driver.unload_module(found));
            }
        }
        for module in removed.modules {
            if let Some(found) = live.modules.remove(&module) {
                note(live.driver.unload_module(found));
            }
        }
        freed
            .map_err(OpError::from)
            .and(outcome.map_err(OpError::from))
    }

    pub(super) fn context_sync(&mut self, context: ContextId, ticket: Option<Ticket>) -> Step {
        self.site.session.contexts.get(context)?;
        self.after_all(Some(context), Some(context), true, Then::Answer, ticket)
    }

    pub(super) fn context_set_limit(&mut self, context: ContextId, limit: u32, value: u64) -> Step {
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

    pub(super) fn context_get_limit(&mut self, context: ContextId, limit: u32) -> Step {
        let live = &mut self.site.live;
        live.enter(context)?;
        Ok(Reaction::Answer(ReplyBody::U64(live.driver.limit(limit)?)))
    }

    pub(super) fn memory_info(&mut self, context: ContextId) -> Step {
        let live = &mut self.site.live;
        let device = live.enter(context)?.device;
        let (free, total) = live.driver.memory_info()?;
        let set_aside = live.set_aside.bytes(device);
        let kept = self.site.session.kept_variables(device);
        let free = (free + live.space.cached(device) + set_aside + kept).min(total);
        Ok(Reaction::Answer(ReplyBody::Pair(free, total)))
    }

    /// Where the multiprocessors of a context's device lie.
    pub(super) fn places(&mut self, context: ContextId) -> Step {
        let Places { clusters, indices } = self.site.tell_places(context)?;
        Ok(Reaction::Answer(ReplyBody::Places(clusters, indices)))
    }

    pub(super) fn peer_enable(&mut self, context: ContextId, peer: ContextId) -> Step {
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

    pub(super) fn peer_disable(&mut self, context: ContextId, peer: ContextId) -> Step {
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
