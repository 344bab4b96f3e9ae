//! Green contexts in the driver, made from the splits that led to their multiprocessors.
//!
//! ```text
//!   resource: cut 1, cut 2 ── of cut 1: a green context that has these parts, or one for the moment ── split ── parts
//! ```
//! A split is made once and its result kept, so that parts of one split are disjoint, as the program was promised, also if
//! they are asked for one by one.

use fermata_abi::op::{ContextId, SM_REST, SmQuestion, SmResource, SmSplit, StreamId};
use fermata_abi::sys::driver as cu;
use fermata_device::{
    ContextHandle, Driver, DriverError, GreenHandle, Multiprocessors, SplitResult, StreamHandle,
};

use super::{Live, LiveGreen, LiveStream, invalid};

fn refuse(call: &'static str, code: cu::CUresult, why: &'static str) -> DriverError {
    DriverError {
        call,
        code,
        name: why.into(),
    }
}

impl Live {
    /// Answers a question about multiprocessors, with as many numbers as [`SmQuestion`] says.
    ///
    /// # Errors
    /// The resource is none that a program can have made, or what the driver says.
    pub fn ask_multiprocessors(
        &mut self,
        of: &SmResource,
        question: &SmQuestion,
    ) -> Result<Vec<u64>, DriverError> {
        if !of.is_sound() || !question.is_sound() {
            let why = "there is no such resource";
            return Err(refuse(
                "cuDevSmResourceSplitByCount",
                cu::CUDA_ERROR_INVALID_VALUE,
                why,
            ));
        }
        match question {
            SmQuestion::Counts => self.with_splittable(of, |_, found| Ok(found.numbers().to_vec())),
            SmQuestion::Groups { flags, minimum } => self.with_splittable(of, |driver, found| {
                let count = driver.group_count(found, *flags, *minimum)?;
                Ok(vec![u64::from(count)])
            }),
            SmQuestion::Split(split) => {
                let made = self.split(of, *split)?;
                let all = [made.rest].into_iter().chain(made.groups);
                Ok(all.flat_map(|it| it.numbers()).collect())
            }
        }
    }

    /// Makes a green context in `context`, the primary one of the resource's device.
    ///
    /// # Errors
    /// As [`Live::ask_multiprocessors`], or a part is none.
    pub fn make_green(
        &mut self,
        id: ContextId,
        context: ContextId,
        resource: &SmResource,
    ) -> Result<(), DriverError> {
        self.enter(context)?;
        let (handle, converted) = self.create_green(resource)?;
        let made = LiveGreen {
            handle,
            converted,
            context,
            resource: resource.clone(),
        };
        self.greens.insert(id, made);
        Ok(())
    }

    /// Makes a stream in a green context.
    ///
    /// # Errors
    /// The green context is unknown, or what the driver says.
    pub fn make_green_stream(
        &mut self,
        id: StreamId,
        green: ContextId,
        flags: u32,
        priority: i32,
    ) -> Result<StreamHandle, DriverError> {
        let (call, code) = ("cuGreenCtxStreamCreate", cu::CUDA_ERROR_INVALID_CONTEXT);
        let found = self.greens.get(&green);
        let found = found.ok_or_else(|| invalid(call, code, "green context", green))?;
        let (green, context) = (found.handle, found.context);
        self.enter(context)?;
        let handle = self.driver.create_green_stream(green, flags, priority)?;
        self.streams.insert(id, LiveStream { handle, context });
        Ok(handle)
    }

    /// Destroys a green context, if there is such a one. Its streams must have been destroyed.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_green(&mut self, id: ContextId) -> Result<(), DriverError> {
        let Some(gone) = self.greens.remove(&id) else {
            return Ok(());
        };
        self.driver.destroy_green(gone.handle)
    }

    /// Calls `act` with multiprocessors that can be split: those of a device or of a green context. If the program has
    /// destroyed that one, another is made for the moment.
    fn with_splittable<T>(
        &mut self,
        of: &SmResource,
        act: impl FnOnce(&Driver, &Multiprocessors) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        if of.cuts.is_empty() {
            let found = self.driver.all_multiprocessors(of.device)?;
            return act(&self.driver, &found);
        }
        if let Some(green) = self.greens.values().find(|it| it.resource == *of) {
            let found = self.driver.multiprocessors_of(green.handle)?;
            return act(&self.driver, &found);
        }
        let (green, _) = self.create_green(of)?;
        let found = self.driver.multiprocessors_of(green);
        let done = found.and_then(|found| act(&self.driver, &found));
        let gone = self.driver.destroy_green(green);
        // Making and destroying it may have changed what is current.
        self.forget_current();
        let done = done?;
        gone.map(|()| done)
    }

    fn split(&mut self, of: &SmResource, split: SmSplit) -> Result<SplitResult, DriverError> {
        let key = (of.clone(), split);
        if let Some(known) = self.splits.0.get(&key) {
            return Ok(known.clone());
        }
        let SmSplit {
            groups,
            flags,
            minimum,
        } = split;
        let made = self.with_splittable(of, |driver, found| {
            driver.split(found, groups, flags, minimum)
        })?;
        self.splits.0.insert(key, made.clone());
        Ok(made)
    }

    fn create_green(
        &mut self,
        resource: &SmResource,
    ) -> Result<(GreenHandle, ContextHandle), DriverError> {
        let call = "cuDevResourceGenerateDesc";
        if !resource.is_sound() {
            let why = "there is no such resource";
            return Err(refuse(call, cu::CUDA_ERROR_INVALID_VALUE, why));
        }
        let parts = match resource.origin() {
            None => vec![self.driver.all_multiprocessors(resource.device)?],
            Some((of, cut)) => {
                let made = self.split(&of, cut.split)?;
                let part = |part: &u32| match *part {
                    SM_REST => Some(made.rest).filter(Multiprocessors::is_some),
                    group => made.groups.get(group as usize).copied(),
                };
                let parts: Option<Vec<_>> = cut.parts.iter().map(part).collect();
                parts.ok_or_else(|| {
                    let code = cu::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
                    refuse(call, code, "the split has no such part on this device")
                })?
            }
        };
        self.driver.create_green(resource.device, &parts)
    }
}
