//! Operations on modules, kernels and device variables.

use std::collections::BTreeMap;

use fermata_abi::op::{
    Address, Blob, ContextId, FunctionId, FunctionInfo, ImageRef, LinkJob, ModuleId, ModuleInfo,
    ReplyBody,
};
use fermata_abi::sys::driver as cu;
use fermata_device::{MemoryKind, ModuleHandle};
use fermata_engine::LiveFunction;
use fermata_state::{Function, ImageBytes, ImageId};
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::load::Load;
use crate::module_load::LARGE;
use crate::server::Server;
use crate::waiting::Then;

impl Server {
    pub(super) fn module_load(
        &mut self,
        module: ModuleId,
        context: ContextId,
        image: &ImageRef<'_>,
        beside: bool,
        ticket: Option<Ticket>,
    ) -> Step {
        if self.site.session.modules.contains(module) {
            return Err(OpError::invalid(format!(
                "there is a module {module:#x} already"
            )));
        }
        let (name, image) = self.image(image)?;
        let live = &mut self.site.live;
        let entered = live.enter(context)?.handle;
        if beside && image.bytes().len() >= LARGE {
            let undisturbed = live.undisturbed();
            let load = Load::begin(undisturbed, (module, context), entered, (name, image));
            let load = load.map_err(|error| {
                let text = format!("cannot start a thread that loads: {error}");
                OpError::new(cu::CUDA_ERROR_OUT_OF_MEMORY, text)
            })?;
            return self.after(&[], Some(context), false, Then::ModuleLoad(load), ticket);
        }
        let handle = self.load_in_order(context, (&name, &image))?;
        self.record_module(module, context, handle, (name, image))?;
        DONE
    }

    pub(super) fn link(
        &mut self,
        context: ContextId,
        job: &Blob<'_>,
        ticket: Option<Ticket>,
    ) -> Step {
        let job = self.blob(job)?;
        let job: LinkJob<'_> = postcard::from_bytes(&job)
            .map_err(|error| OpError::invalid(format!("a linker's inputs: {error}")))?;
        let live = &mut self.site.live;
        live.enter(context)?;
        let image = live.driver.link(&job)?;
        self.answer(ticket, Some(context), false, Ok(ReplyBody::Bytes(&image)));
        Ok(Reaction::Later)
    }

    /// Records a module that the driver has loaded.
    pub(crate) fn record_module(
        &mut self,
        module: ModuleId,
        context: ContextId,
        handle: ModuleHandle,
        image: (ImageId, ImageBytes),
    ) -> Result<(), OpError> {
        let name = image.0;
        self.site.session.add_module(module, context, image)?;
        self.site.live.modules.insert(module, handle);
        self.site.examine_image(&name);
        if self.site.may_print(&name) {
            self.printing.insert(context);
        }
        Ok(())
    }

    pub(super) fn module_functions(&mut self, module: ModuleId) -> Step {
        let context = self.site.session.modules.get(module)?.context;
        let live = &mut self.site.live;
        live.enter(context)?;
        let loaded = live.modules.get(&module).copied();
        let loaded = loaded.ok_or_else(|| OpError::invalid("the module is not loaded"))?;
        let functions = live.driver.module_functions(loaded);
        Ok(Reaction::Answer(ReplyBody::Module(ModuleInfo {
            functions,
        })))
    }

    pub(super) fn module_unload(&mut self, module: ModuleId, ticket: Option<Ticket>) -> Step {
        let context = self.site.session.modules.get(module)?.context;
        self.after_all(
            Some(context),
            Some(context),
            false,
            Then::ModuleUnload(module),
            ticket,
        )
    }

    pub(super) fn function_get(
        &mut self,
        function: FunctionId,
        module: ModuleId,
        name: &str,
    ) -> Step {
        if self.site.session.functions.contains(function) {
            return Err(OpError::invalid(format!(
                "there is a function {function:#x} already"
            )));
        }
        let context = self.site.session.modules.get(module)?.context;
        let live = &mut self.site.live;
        live.enter(context)?;
        let loaded = *live
            .modules
            .get(&module)
            .ok_or_else(|| OpError::invalid("the module is not loaded"))?;
        let handle = live.driver.function(loaded, name)?;
        let params = live.driver.function_params(handle)?;
        let attributes = live.driver.function_attributes(handle);
        live.functions
            .insert(function, LiveFunction { handle, context });
        let record = Function {
            module,
            name: name.to_owned(),
            attributes: BTreeMap::new(),
        };
        self.site.session.functions.insert(function, record)?;
        Ok(Reaction::Answer(ReplyBody::Function(FunctionInfo {
            params,
            attributes,
        })))
    }

    pub(super) fn function_set_attribute(
        &mut self,
        function: FunctionId,
        attribute: i32,
        value: i32,
    ) -> Step {
        let live = &mut self.site.live;
        let found = live.function(function)?;
        live.driver
            .set_function_attribute(found.handle, attribute, value)?;
        self.site
            .session
            .functions
            .get_mut(function)?
            .attributes
            .insert(attribute, value);
        DONE
    }

    pub(super) fn variable_get(&mut self, module: ModuleId, name: &str) -> Step {
        let context = self.site.session.modules.get(module)?.context;
        let live = &mut self.site.live;
        live.enter(context)?;
        let loaded = *live
            .modules
            .get(&module)
            .ok_or_else(|| OpError::invalid("the module is not loaded"))?;
        let (address, size) = live.driver.variable(loaded, name)?;
        let lies = live.driver.resident(address)?.map(|it| it.kind);
        let managed = lies == Some(MemoryKind::Managed);
        self.site
            .session
            .add_variable(module, name, Address::from_raw(address), size, true)?;
        let address = self
            .site
            .session
            .modules
            .get(module)?
            .variables
            .get(name)
            .map_or(address, |it| it.address.raw());
        Ok(Reaction::Answer(ReplyBody::Variable {
            address: Address::from_raw(address),
            size,
            managed,
        }))
    }
}
