//! Rebuilds a session's objects, each kind after those it refers to.

use fermata_abi::op::{Address, ContextId, HostKind};
use std::collections::BTreeSet;
use std::os::fd::AsFd;

use fermata_device::{ArrayShape, HostMapping, ModuleHandle, StreamHandle};
use fermata_graph::{CopyEnd, Graph, NodeKind};
use fermata_state::{ImageId, Loaded, Session};

use crate::live::{LiveFunction, LiveStream};
use crate::restore::blocks::{self, Block, Blocks};
use crate::restore::rebuild::{greens, references, textures};
use crate::share::event_handle;
use crate::steps::Steps;
use crate::{EngineError, Live, Site, places};

/// Makes the objects that take no memory of the program, which may be done ahead of the restore.
pub(in crate::restore) fn without_memory(
    session: &mut Session,
    live: &mut Live,
    steps: &mut Steps,
) -> Result<(), EngineError> {
    check_reach(session, live)?;
    first_contexts(session, live)?;
    // Modules come before any other memory, so that the driver chooses the same addresses as before. Contexts that were
    // made between modules are made at the same point again.
    steps.time("objects.modules", || modules(session, live))?;
    greens::check(session, live)?;
    peers(session, live)?;
    steps.time("objects.functions", || functions(session, live))?;
    events(session, live)?;
    steps.time("objects.streams", || streams(session, live))
}

/// Makes the other objects, without content. Blocks that may come on demand get no memory, and are added to `late`.
pub(in crate::restore) fn with_memory(
    site: &mut Site,
    late: &mut Blocks,
    steps: &mut Steps,
) -> Result<(), EngineError> {
    let Site { session, live } = site;
    places::check(session, live)?;
    // If a variable has moved, all content must be searched for its address before the program runs.
    match live.moved.is_empty() {
        true => late_allocations(session, live, late)?,
        false => allocations(session, live)?,
    }
    steps.time("objects.shared", || {
        mapped_memory(session, live)?;
        opened_events(session, live)
    })?;
    steps.time("objects.host", || host_regions(session, live))?;
    arrays(session, live)?;
    textures::rebuild(session, live)?;
    references::rebind(session, live)?;
    steps.time("objects.graphs", || executables(session, live))?;
    site.examine_images();
    Ok(())
}

/// Has the driver load the code of all kernels onto their devices now; else it does so at a kernel's first launch.
pub(in crate::restore) fn bring_code(live: &mut Live) {
    let functions: Vec<LiveFunction> = live.functions.values().copied().collect();
    for function in functions {
        // If this fails, the launch loads the code, or fails.
        if live.enter(function.context).is_ok() {
            let _ = live.driver.load_function(function.handle);
        }
    }
}

/// The contexts that were made before all modules.
fn first_contexts(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, _) in session.contexts.iter() {
        if !session.context_places.contains_key(&handle) {
            context(session, live, handle)?;
        }
    }
    Ok(())
}

fn context(session: &Session, live: &mut Live, handle: ContextId) -> Result<(), EngineError> {
    let context = session.contexts.get(handle)?;
    let made = live.make_context(handle, context, session.context_places.get(&handle));
    made.map_err(EngineError::driver(format!(
        "make context {handle:#x} on device {}",
        context.device
    )))?;
    for (limit, value) in &context.limits {
        let set = live.driver.set_limit(*limit, *value);
        set.map_err(EngineError::driver(format!(
            "set limit {limit} of context {handle:#x}"
        )))?;
    }
    Ok(())
}

/// Refuses devices that do not reach each other's memory, where those of the program do.
///
/// # Errors
/// [`EngineError::Peers`], which names two.
fn check_reach(session: &Session, live: &Live) -> Result<(), EngineError> {
    let mut reached = BTreeSet::new();
    for (_, context) in session.contexts.iter() {
        let peers = context.peers.iter();
        let peers = peers.filter_map(|it| session.contexts.get(*it).ok());
        reached.extend(peers.map(|peer| (context.device, peer.device)));
    }
    for (_, mapping) in session.mappings.iter() {
        if let Ok(memory) = session.memories.get(mapping.memory) {
            let by = mapping.access.iter().filter(|(_, flags)| **flags != 0);
            reached.extend(by.map(|(from, _)| (*from, memory.device)));
        }
    }
    for (from, to) in reached.into_iter().filter(|(from, to)| from != to) {
        let can = live.driver.can_reach(from, to);
        let asked = || format!("ask whether device {from} reaches the memory of device {to}");
        if !can.map_err(EngineError::driver(asked()))? {
            return Err(EngineError::Peers { from, to });
        }
    }
    Ok(())
}

fn peers(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, context) in session.contexts.iter() {
        for peer in &context.peers {
            live.enable_peer(handle, *peer)
                .map_err(EngineError::driver(format!(
                    "let context {handle:#x} reach {peer:#x}"
                )))?;
        }
    }
    Ok(())
}

fn modules(session: &mut Session, live: &mut Live) -> Result<(), EngineError> {
    for next in session.load_order() {
        let named = named(next);
        let handle = match next {
            Loaded::Module(handle) => handle,
            Loaded::Context(handle) => {
                context(session, live, handle)?;
                continue;
            }
            Loaded::Green(handle) => {
                greens::make(session, live, handle)?;
                continue;
            }
            Loaded::Kept(serial) => {
                let Some(kept) = session.kept().get(&serial) else {
                    continue;
                };
                // The program has unloaded this module; it is loaded so that later modules get their places.
                let loaded = module(session, live, &named, kept.context, &kept.image)?;
                live.kept.insert(serial, (loaded, kept.context));
                continue;
            }
        };
        let record = session.modules.get(handle)?;
        let loaded = module(session, live, &named, record.context, &record.image)?;
        live.modules.insert(handle, loaded);
        for (name, variable) in &mut session.modules.get_mut(handle)?.variables {
            let found = live.driver.variable(loaded, name);
            let (address, size) = found.map_err(EngineError::driver(format!(
                "find variable `{name}` of module {handle:#x}"
            )))?;
            let address = Address::from_raw(address);
            if size != variable.size {
                let why = format!(
                    "variable `{name}` has {size} bytes and had {}",
                    variable.size
                );
                return Err(EngineError::Damaged(why));
            }
            if address == variable.address {
                continue;
            }
            if variable.fixed {
                return Err(EngineError::Moved(format!(
                    "the program knows the address {:#x} of device variable `{name}`, which the driver has put elsewhere, at {address:#x}",
                    variable.address
                )));
            }
            live.moved.insert(variable.address, size);
            (variable.address, variable.actual) = (address, address);
        }
    }
    session.forget_gap();
    Ok(())
}

/// The name of a module in messages. A module that the program has unloaded has no handle any more.
fn named(module: Loaded) -> String {
    match module {
        Loaded::Module(handle) => format!("module {handle:#x}"),
        Loaded::Context(handle) => format!("context {handle:#x}"),
        Loaded::Green(handle) => format!("green context {handle:#x}"),
        Loaded::Kept(serial) => {
            format!("module number {serial}, which the program has unloaded")
        }
    }
}

fn module(
    session: &Session,
    live: &mut Live,
    named: &str,
    context: ContextId,
    image: &ImageId,
) -> Result<ModuleHandle, EngineError> {
    live.enter(context)
        .map_err(EngineError::driver(format!("load {named}")))?;
    let image = session.image_bytes(image);
    let image = image.ok_or_else(|| EngineError::Damaged(format!("{named} has no image")))?;
    let loaded = live.undisturbed().load_module(image);
    let refused = |source| EngineError::Module {
        module: named.to_owned(),
        source,
    };
    loaded.map_err(refused)
}

fn functions(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, function) in session.functions.iter() {
        let operation = format!("find function `{}`", function.name);
        let context = session.modules.get(function.module)?.context;
        live.enter(context)
            .map_err(EngineError::driver(&*operation))?;
        let module = live.modules.get(&function.module).copied();
        let module = module
            .ok_or_else(|| EngineError::Internal(format!("cannot {operation}: no module")))?;
        let found = live
            .driver
            .function(module, &function.name)
            .map_err(EngineError::driver(&*operation))?;
        for (attribute, value) in &function.attributes {
            let set = live
                .driver
                .set_function_attribute(found, *attribute, *value);
            set.map_err(EngineError::driver(format!(
                "set attribute {attribute} of `{}`",
                function.name
            )))?;
        }
        live.functions.insert(
            handle,
            LiveFunction {
                handle: found,
                context,
            },
        );
    }
    Ok(())
}

fn allocations(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (address, allocation) in session.allocations.iter() {
        let operation = format!("allocate {} bytes at {address:#x}", allocation.size);
        live.enter(allocation.context)
            .map_err(EngineError::driver(&*operation))?;
        live.space
            .allocate_at(&live.driver, address.raw(), allocation.size)
            .map_err(EngineError::memory(operation))?;
    }
    Ok(())
}

fn late_allocations(
    session: &Session,
    live: &mut Live,
    late: &mut Blocks,
) -> Result<(), EngineError> {
    let touched: BTreeSet<Address> = blocks::touched(session)
        .into_iter()
        .filter_map(|address| {
            let (start, it) = session.allocations.at_or_below(address)?;
            (address - start < it.size).then(|| blocks::block_of(start, it.size))
        })
        .collect();
    for (address, allocation) in session.allocations.iter() {
        let size = allocation.size;
        let operation = format!("allocate {size} bytes at {address:#x}");
        if touched.contains(&blocks::block_of(address, size)) {
            live.enter(allocation.context)
                .map_err(EngineError::driver(&*operation))?;
            live.space
                .allocate_at(&live.driver, address.raw(), size)
                .map_err(EngineError::memory(operation))?;
            continue;
        }
        let placed = live.space.place_late(address.raw(), size);
        if let Some((at, len)) = placed.map_err(EngineError::memory(operation))? {
            late.insert(Block::new(Address::from_raw(at), len, allocation.device));
        }
    }
    Ok(())
}

fn mapped_memory(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (address, reservation) in session.reservations.iter() {
        let operation = format!("reserve {} bytes at {address:#x}", reservation.size);
        live.space
            .reserve_at(address.raw(), reservation.size)
            .map_err(EngineError::memory(operation))?;
    }
    for (handle, memory) in session.own_memories() {
        let operation = format!("make physical memory {handle:#x} of {} bytes", memory.size);
        let made = live
            .driver
            .create_memory(memory.device, memory.size)
            .map_err(EngineError::driver(operation))?;
        live.memories.insert(handle, made);
    }
    // Offers come first, because other workers wait for them.
    live.share_all(session)?;
    for (handle, from) in &session.sharing.fetched {
        let known = session.memories.get(*handle)?;
        let operation = format!("fetch shared memory {handle:#x}");
        let descriptor = live.sharing.await_and_fetch(from);
        let descriptor = descriptor.map_err(|source| EngineError::Shared {
            operation: operation.clone(),
            source,
        })?;
        let fetched = live.driver.import_memory(descriptor.as_fd());
        let (memory, device) = fetched.map_err(EngineError::driver(&*operation))?;
        live.memories.insert(*handle, memory);
        if device != known.device {
            let why = format!(
                "it shares memory on device {}, which is on device {device} now",
                known.device
            );
            return Err(EngineError::Unsuitable(why));
        }
    }
    for (address, mapping) in session.mappings.iter() {
        let operation = format!("map physical memory at {address:#x}");
        let memory = live.memories.get(&mapping.memory).copied();
        let memory = memory
            .ok_or_else(|| EngineError::Internal(format!("cannot {operation}: no memory")))?;
        let mapped = live
            .driver
            .map(address.raw(), mapping.size, mapping.offset, memory);
        mapped.map_err(EngineError::driver(&*operation))?;
        for (device, access) in &mapping.access {
            let set = live
                .driver
                .set_access(address.raw(), mapping.size, *access, &[*device]);
            set.map_err(EngineError::driver(&*operation))?;
        }
    }
    Ok(())
}

fn host_regions(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (address, region) in session.host_regions.iter() {
        // The program sends its file.
        if region.kind == HostKind::Shared {
            continue;
        }
        let size = region.size;
        let mut mapping =
            HostMapping::create(address.raw(), size).map_err(|source| EngineError::HostRegion {
                address,
                size,
                source,
            })?;
        let operation = format!("register host region {address:#x}");
        live.enter_any()
            .and_then(|()| mapping.register(&live.driver))
            .map_err(EngineError::driver(operation))?;
        live.hosts.insert(address, mapping);
    }
    Ok(())
}

fn streams(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, stream) in session.streams.iter() {
        let operation = format!("make stream {handle:#x}");
        if let Some(green) = session.greens.of_stream(handle) {
            live.make_green_stream(handle, green, stream.flags, stream.priority)
                .map_err(EngineError::driver(operation))?;
            continue;
        }
        live.enter(stream.context)
            .map_err(EngineError::driver(&*operation))?;
        let made = live
            .driver
            .create_stream(stream.flags, stream.priority)
            .map_err(EngineError::driver(operation))?;
        live.streams.insert(
            handle,
            LiveStream {
                handle: made,
                context: stream.context,
            },
        );
    }
    Ok(())
}

/// Makes events, except those of other processes.
fn events(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, event) in session.events.iter() {
        if session.sharing.opened.contains_key(&handle) {
            continue;
        }
        let operation = format!("make event {handle:#x}");
        live.enter(event.context)
            .map_err(EngineError::driver(&*operation))?;
        let made = live
            .driver
            .create_event(event.flags)
            .map_err(EngineError::driver(&*operation))?;
        if event.recorded {
            // Everything recorded before the checkpoint had completed, so any completed record will do.
            live.driver
                .record_event(made, StreamHandle::LEGACY, 0)
                .map_err(EngineError::driver(operation))?;
        }
        live.events.insert(handle, (made, event.context));
    }
    Ok(())
}

/// Opens the events of other processes. All their recordings have completed.
fn opened_events(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, from) in &session.sharing.opened {
        let context = session.events.get(*handle)?.context;
        let operation = format!("open shared event {handle:#x}");
        let descriptor = live.sharing.await_and_fetch(from);
        let found = descriptor.and_then(event_handle::read);
        let found = found.map_err(|source| EngineError::Shared {
            operation: operation.clone(),
            source,
        })?;
        let opened = live.open_event(context, found);
        let opened = opened.map_err(EngineError::driver(operation))?;
        live.events.insert(*handle, (opened, context));
    }
    Ok(())
}

fn arrays(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, mipmap) in session.mipmaps.iter() {
        let operation = format!("make mipmapped array {handle:#x}");
        live.create_mipmap(handle, mipmap.context, &mipmap.shape)
            .map_err(EngineError::driver(operation))?;
    }
    for (handle, array) in session.arrays.iter() {
        if live.arrays.contains_key(&handle) {
            // It is a level of a mipmapped array.
            continue;
        }
        let operation = format!("make array {handle:#x}");
        live.enter(array.context)
            .map_err(EngineError::driver(&*operation))?;
        let shape = ArrayShape {
            width: array.width,
            height: array.height,
            depth: array.depth,
            format: array.format,
            channels: array.channels,
            flags: array.flags,
        };
        let made = live
            .driver
            .create_array(&shape)
            .map_err(EngineError::driver(operation))?;
        live.arrays.insert(handle, (made, array.context));
    }
    Ok(())
}

fn executables(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for (handle, it) in session.executables.iter() {
        if !is_whole(session, &it.graph) {
            // The program may not launch it until it has updated it, which makes it again.
            continue;
        }
        let operation = format!("instantiate graph {handle:#x}");
        live.instantiate(handle, it.context, &it.graph, it.flags)
            .map_err(EngineError::driver(operation))?;
    }
    Ok(())
}

/// Whether everything that a graph refers to still exists: a program may have unloaded a module or destroyed an event, an
/// array or a context since.
fn is_whole(session: &Session, graph: &Graph) -> bool {
    let lives =
        |context: ContextId| context == ContextId::NULL || session.contexts.contains(context);
    let reaches = |end: &CopyEnd| {
        lives(end.context) && end.array().is_none_or(|it| session.arrays.contains(it))
    };
    let is_there = |kind: &NodeKind| match kind {
        NodeKind::Kernel(kernel) => {
            let green = session.greens.contexts.contains(kernel.context);
            (green || lives(kernel.context)) && session.functions.contains(kernel.function)
        }
        NodeKind::Memcpy(copy) => reaches(&copy.src) && reaches(&copy.dst),
        NodeKind::EventWait(event) | NodeKind::EventRecord(event) => {
            session.events.contains(*event)
        }
        NodeKind::Conditional(node) => lives(node.context),
        _ => true,
    };
    graph.nodes().all(|(_, node)| {
        let mut inside = node.kind.graphs().iter();
        is_there(&node.kind) && inside.all(|it| is_whole(session, it))
    })
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::ModuleId;

    use super::*;

    #[test]
    fn an_unloaded_module_is_not_named_as_one_of_the_program() {
        let number = 0x110;
        let own = named(Loaded::Module(ModuleId::from_raw(number)));
        assert_eq!(own, "module 0x110");
        let kept = named(Loaded::Kept(number));
        assert_eq!(kept, "module number 272, which the program has unloaded");
    }
}
