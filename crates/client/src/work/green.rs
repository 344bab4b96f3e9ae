//! Makes green contexts, and forgets them.

use std::sync::Arc;

use fermata_abi::op::{Op, SmResource};

use crate::handles;
use crate::link;
use crate::object::context::{Context, Green};
use crate::object::session::Session;
use crate::object::stream::DEFAULT_OF_GREEN;
use crate::result::Result;

/// Makes a green context. The caller has retained `home`, the primary context of the resource's device, for it.
pub fn create(
    session: &Session,
    home: &Arc<Context>,
    resource: SmResource,
) -> Result<Arc<Context>> {
    let green = Green {
        name: handles::fresh(),
        handle: handles::fresh(),
        home: home.clone(),
        resource,
        default: handles::fresh(),
    };
    let (name, handle, default) = (green.name, green.handle, green.default);
    let op = Op::GreenCreate {
        green: name,
        context: home.handle,
        resource: green.resource.clone(),
    };
    link::ask(&op, link::nothing)?;
    let context = session.contexts.add_green(green);
    let flags = DEFAULT_OF_GREEN;
    session
        .streams
        .create_as(default, &context, flags, 0)
        .inspect_err(|_| session.contexts.forget(&context))?;
    session.greens.insert(handle, context.clone());
    Ok(context)
}

/// Forgets a green context that was taken out of the table. Its streams are of no more use.
pub fn forget(session: &Session, context: &Context) {
    // While its handle is still valid.
    fermata_tables::context_gone(context.pointer());
    session.contexts.forget(context);
    session.streams.end_green(&session.graphs, context);
}
