//! Operations on green contexts and on the multiprocessors that they have.

use fermata_abi::op::{ContextId, ReplyBody, SmQuestion, SmResource, StreamId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_state::Stream;
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::Then;

impl Server {
    pub(super) fn sm_ask(
        &mut self,
        of: &SmResource,
        question: &SmQuestion,
        ticket: Option<Ticket>,
    ) -> Step {
        if of.device as usize >= self.devices.len() {
            return Err(OpError::new(
                cu::CUDA_ERROR_INVALID_DEVICE,
                format!("there is no device {}", of.device),
            ));
        }
        let numbers = self.multiprocessors(of, question)?;
        let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.answer(ticket, None, false, Ok(ReplyBody::Bytes(&bytes)));
        Ok(Reaction::Later)
    }

    /// What the driver answers. The program is told the same at each time, and in each worker.
    fn multiprocessors(
        &mut self,
        of: &SmResource,
        question: &SmQuestion,
    ) -> Result<Vec<u64>, OpError> {
        let key = (of.clone(), *question);
        if let Some(told) = self.site.session.greens.told.get(&key) {
            return Ok(told.clone());
        }
        let numbers = self.site.live.ask_multiprocessors(of, question)?;
        let told = &mut self.site.session.greens.told;
        told.insert(key, numbers.clone());
        Ok(numbers)
    }

    pub(super) fn green_create(
        &mut self,
        green: ContextId,
        context: ContextId,
        resource: &SmResource,
    ) -> Step {
        let session = &self.site.session;
        if session.greens.contexts.contains(green) || session.contexts.contains(green) {
            return Err(OpError::invalid(format!(
                "there is a context {green:#x} already"
            )));
        }
        let primary = session.contexts.get(context)?;
        if !primary.primary || primary.device != resource.device || !resource.is_sound() {
            return Err(OpError::invalid(format!(
                "context {context:#x} is not the primary one of device {}",
                resource.device
            )));
        }
        // After a restore, a resource may come from a split that only this driver makes otherwise.
        if let Some((of, cut)) = resource.origin() {
            let question = SmQuestion::Split(cut.split);
            let told = self.multiprocessors(&of, &question)?;
            if self.site.live.ask_multiprocessors(&of, &question)? != told {
                return Err(OpError::new(
                    cu::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                    "this driver splits multiprocessors otherwise than the program was told",
                ));
            }
        }
        let site = &mut self.site;
        site.live.make_green(green, context, resource)?;
        let made = site.session.new_green(context, resource.clone());
        site.session.greens.contexts.insert(green, made)?;
        DONE
    }

    pub(super) fn green_stream(
        &mut self,
        stream: StreamId,
        green: ContextId,
        flags: u32,
        priority: i32,
    ) -> Step {
        self.check_new_stream(stream)?;
        let site = &mut self.site;
        let context = site.session.greens.contexts.get(green)?.context;
        site.live
            .make_green_stream(stream, green, flags, priority)?;
        let made = Stream {
            context,
            flags,
            priority,
        };
        site.session.streams.insert(stream, made)?;
        let green = site.session.greens.contexts.get_mut(green)?;
        green.streams.insert(stream);
        DONE
    }

    pub(super) fn green_destroy(&mut self, green: ContextId, ticket: Option<Ticket>) -> Step {
        let context = self.site.session.greens.contexts.get(green)?.context;
        // Streams that were destroyed are no longer known to be of this green context, but their work may use it.
        let then = Then::GreenDestroy(green);
        self.after_all(Some(context), None, false, then, ticket)
    }

    /// Destroys a green context whose primary context is idle, and its streams.
    pub(crate) fn release_green(&mut self, green: ContextId) -> Result<(), OpError> {
        let gone = self.site.session.remove_green(green)?;
        let context = gone.context;
        let mut outcome = self.site.live.enter(context).map(drop);
        for stream in gone.streams {
            let live = &mut self.site.live;
            if let Some(found) = live.streams.remove(&stream) {
                outcome = outcome.and(live.driver.destroy_stream(found.handle));
            }
            for pace in self.queues.forget(StreamRef { context, stream }) {
                self.events.put(context, pace);
            }
        }
        let destroyed = self.site.live.destroy_green(green);
        self.site.live.forget_current();
        Ok(outcome.and(destroyed)?)
    }
}
