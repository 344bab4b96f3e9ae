//! Predicts the access sets of operations, and remembers what it has found out about kernels and graphs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fermata_abi::op::{Address, ExecId, FunctionId, Op, Resource};
use fermata_abi::sys::driver as cu;
use fermata_ptx::analysis::Analysis;
use fermata_ptx::excerpt::Excerpts;
use fermata_state::{ImageId, Session, TensorMaps};

use super::graph::GraphPlan;
use super::kernel::Plan;
use super::places::Named;
use super::tables::{Through, follow};
use super::{AccessSet, Places, Range, Target, transfer};
use crate::text::text_of;
use crate::{HandleMap, Live, Site};

/// Tensor maps lie at multiples of this in a parameter block.
const TENSOR_MAP_ALIGNMENT: usize = 64;

/// An image's text for an architecture, by kernel, and whether the running code was made from it.
type Known = Option<(Arc<Excerpts>, bool)>;

/// The most bytes of texts that are kept for further kernels; beyond it a text is unpacked again when it is needed.
const TEXTS: usize = 64 << 20;

/// Where a launch's addresses are looked up.
struct World<'s> {
    session: &'s Session,
    live: &'s Live,
}

/// A word of a kernel's parameter block that names memory, where only the kernel's machine code says whether it writes
/// there: the kernel has no text, or the word is in a tensor map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Doubt {
    /// The kernel.
    pub function: FunctionId,
    /// Where the word, or the tensor map, lies in the parameter block.
    pub offset: u32,
    /// First byte of the memory.
    pub memory: Address,
}

/// Finds the memory that the words of a launch name.
struct Look<'a> {
    places: &'a mut Places,
    session: &'a Session,
    function: FunctionId,
    /// Whether all memory counts as live, because the caller checks that later.
    all_live: bool,
    dispelled: &'a HashSet<Doubt>,
}

impl Look<'_> {
    fn named(&mut self, address: Address) -> Named {
        match self.all_live {
            true => Named::Memory(address),
            false => self.places.named(self.session, address),
        }
    }

    fn lives(&mut self, address: Address) -> bool {
        self.all_live || self.places.around(self.session, address).is_some()
    }

    /// Whether the kernel may write through the word at `offset`, which says `address`.
    fn may_write(&mut self, offset: usize, address: Address) -> bool {
        if self.dispelled.is_empty() {
            return true;
        }
        let memory = self.places.around(self.session, address);
        let doubt = memory.map(|it| Doubt {
            function: self.function,
            offset: offset as u32,
            memory: it.start,
        });
        doubt.is_none_or(|it| !self.dispelled.contains(&it))
    }
}

/// A graph's plan, and the versions of what it was made from.
struct KnownGraph {
    plan: GraphPlan,
    /// Of each kernel that may load pointers: how it uses what they lead to, and what its parameters point to.
    tables: Vec<(Through, Vec<Address>)>,
    /// [`Live::graph_revision`] when it was made.
    revision: u64,
    /// [`Session::last_buffer`] when it was made, if a variable was not known then.
    waits: Option<u64>,
}

/// See the module. The first prediction of a kernel searches its module's texts and analyses the kernel's; a later one
/// costs a look-up per pointer.
#[derive(Default)]
pub struct Predictor {
    places: Places,
    texts: HashMap<(ImageId, Option<u32>), Known>,
    plans: HandleMap<FunctionId, Plan>,
    /// Buffers that kernels were seen to touch outside their access sets.
    remembered: HandleMap<FunctionId, Vec<Address>>,
    /// Doubts about memory that kernels were seen to leave unchanged.
    dispelled: HashSet<Doubt>,
    graphs: HandleMap<ExecId, KnownGraph>,
}

impl Predictor {
    /// The access set of `op`. It names only live memory of the session, by the driver's addresses.
    pub fn predict(&mut self, op: &Op<'_>, site: &Site) -> AccessSet {
        let Site { session, live } = site;
        let world = World { session, live };
        match op {
            Op::Launch { launch, .. } => self.launch(launch.function, launch.params, &world),
            Op::GraphLaunch { exec, .. } => self.graph(*exec, &world),
            op => transfer::of(op),
        }
    }

    /// Whether the kernel's text says that it follows pointers which it finds in memory, so that no
    /// prediction can name all it touches.
    pub fn follows_pointers(&mut self, function: FunctionId, site: &Site) -> bool {
        let Site { session, live } = site;
        let world = World { session, live };
        self.plan(function, &world);
        self.plans
            .get(&function)
            .is_some_and(|plan| plan.follows_pointers)
    }

    /// Whether the kernel's text says that it writes through pointers which it finds in memory.
    pub fn writes_through_pointers(&mut self, function: FunctionId, site: &Site) -> bool {
        let Site { session, live } = site;
        let world = World { session, live };
        self.plan(function, &world);
        let plan = self.plans.get(&function);
        plan.is_some_and(|plan| plan.writes_through_pointers)
    }

    /// Whether the kernel's text is known.
    pub fn has_text(&mut self, function: FunctionId, site: &Site) -> bool {
        let Site { session, live } = site;
        let world = World { session, live };
        self.plan(function, &world);
        self.plans.get(&function).is_some_and(|plan| plan.has_text)
    }

    /// A predictor with what this one has found out from kernels' texts.
    pub fn of_texts(&self) -> Self {
        Self {
            plans: self.plans.clone(),
            ..Self::default()
        }
    }

    /// Analyses all kernels of a session.
    pub fn prepare_kernels(&mut self, session: &Session, live: &Live) {
        let world = World { session, live };
        // Ordered so that kernels of one text are analysed one after another.
        let mut functions: Vec<_> = session.functions.iter().collect();
        functions.sort_by_key(|(handle, it)| (it.module, *handle));
        for (function, _) in functions {
            self.plan(function, &world);
        }
    }

    /// Analyses all kernels and graphs of a session, so that no prediction has to.
    pub fn prepare(&mut self, site: &Site) {
        let Site { session, live } = site;
        self.prepare_kernels(session, live);
        let world = World { session, live };
        for (exec, _) in session.executables.iter() {
            self.graph(exec, &world);
        }
    }

    /// Learns from a mis-speculation: from now on the kernel's access sets contain the buffer at the driver's
    /// `address`, as long as it exists.
    pub fn remember(&mut self, function: FunctionId, address: Address) {
        let remembered = self.remembered.entry(function).or_default();
        if !remembered.contains(&address) {
            remembered.push(address);
            self.graphs.clear();
        }
    }

    /// From now on a launch of the kernel counts as writing nothing through this word.
    pub fn dispel(&mut self, doubt: Doubt) {
        if self.dispelled.insert(doubt) {
            self.graphs.clear();
        }
    }

    /// The doubts about a kernel launch, or about each kernel of a graph, dispelled ones included.
    pub fn doubts(&mut self, op: &Op<'_>, site: &Site) -> Vec<Vec<Doubt>> {
        let Site { session, live } = site;
        let world = World { session, live };
        let mut found = Vec::new();
        match op {
            Op::Launch { launch, .. } => {
                found.push(self.doubt(launch.function, launch.params, &world));
            }
            Op::GraphLaunch { exec, .. } => {
                if let Ok(executable) = session.executables.get(*exec) {
                    executable.graph.kernels(&mut |node| {
                        found.push(self.doubt(node.function, &node.params, &world));
                    });
                }
            }
            _ => {}
        }
        found
    }

    /// Whether this doubt has been dispelled.
    pub fn is_dispelled(&self, doubt: &Doubt) -> bool {
        self.dispelled.contains(doubt)
    }

    fn doubt(&mut self, function: FunctionId, params: &[u8], world: &World<'_>) -> Vec<Doubt> {
        self.plan(function, world);
        let Some(plan) = self.plans.get(&function) else {
            return Vec::new();
        };
        let session = world.session;
        let words = plan.words.iter().filter(|it| it.write && !plan.has_text);
        let words = words.filter_map(|it| Some((it.offset, value(params, it.offset)?)));
        let maps = tensors(params, &session.tensor_maps).map(|(at, start, _)| (at, start));
        let doubt = |(offset, address)| {
            let memory = self.places.around(session, address)?.start;
            Some(Doubt {
                function,
                offset: offset as u32,
                memory,
            })
        };
        words.chain(maps).filter_map(doubt).collect()
    }

    /// The buffers of a kernel that [`Predictor::remember`] was told of.
    pub fn remembered(&self, function: FunctionId) -> &[Address] {
        self.remembered.get(&function).map_or(&[], Vec::as_slice)
    }

    /// Drops what is known about objects that do not exist any more. Handles are never given twice, so this only
    /// saves memory.
    pub fn forget(&mut self, session: &Session) {
        self.plans
            .retain(|function, _| session.functions.contains(*function));
        self.remembered
            .retain(|function, _| session.functions.contains(*function));
        self.dispelled
            .retain(|doubt| session.functions.contains(doubt.function));
        self.graphs
            .retain(|exec, _| session.executables.contains(*exec));
        self.texts
            .retain(|(image, _), _| session.image(image).is_some());
    }

    /// The same for a graph that is about to be destroyed.
    pub fn forget_graph(&mut self, exec: ExecId) {
        self.graphs.remove(&exec);
    }

    fn launch(&mut self, function: FunctionId, params: &[u8], world: &World<'_>) -> AccessSet {
        self.plan(function, world);
        let Some(plan) = self.plans.get(&function) else {
            return unknown();
        };
        let mut look = Look {
            places: &mut self.places,
            session: world.session,
            function,
            all_live: false,
            dispelled: &self.dispelled,
        };
        let mut set = resolve(plan, params, &mut look);
        let places = &mut self.places;
        let pointers = words(plan, params);
        follow(world.session, places, pointers, plan.through, &mut set);
        for address in self.remembered.get(&function).into_iter().flatten() {
            if places.around(world.session, *address).is_some() {
                set.add(Target::Around(*address), true, true);
            }
        }
        references(world.session, &mut set);
        set
    }

    /// Makes the plan of a kernel, or completes it with variables that have become known.
    fn plan(&mut self, function: FunctionId, world: &World<'_>) {
        let settled = |plan: &Plan| plan.symbols.iter().all(|it| it.address.is_some());
        if self.plans.get(&function).is_some_and(settled) {
            return;
        }
        let Ok(record) = world.session.functions.get(function) else {
            return;
        };
        if !self.plans.contains_key(&function) {
            let plan = self.examine(function, world);
            self.plans.insert(function, plan);
        }
        if let Some(plan) = self.plans.get_mut(&function)
            && let Ok(module) = world.session.modules.get(record.module)
        {
            for symbol in plan.symbols.iter_mut().filter(|it| it.address.is_none()) {
                symbol.address = module.variables.get(&symbol.name).map(|it| it.address);
            }
        }
    }

    fn examine(&mut self, function: FunctionId, world: &World<'_>) -> Plan {
        let World { session, live, .. } = world;
        let (Ok(record), Some(found)) = (
            session.functions.get(function),
            live.functions.get(&function),
        ) else {
            return Plan::default();
        };
        let layout = live.driver.function_params(found.handle);
        let layout = layout.unwrap_or_default();
        if !live.texts {
            return Plan::from_arguments("", &layout);
        }
        let attributes = live.driver.function_attributes(found.handle);
        let version = attributes.get(cu::CU_FUNC_ATTRIBUTE_PTX_VERSION as usize);
        let version = version.and_then(|version| u32::try_from(*version).ok());
        let image = session.modules.get(record.module).map(|it| it.image);
        let known = image.ok();
        let known = known.and_then(|image| self.text(image, version, session));
        let analysis = known.and_then(|(texts, exact)| {
            let module = fermata_ptx::parse(&texts.excerpt(&record.name)?).ok()?;
            Some((Analysis::of(&module), exact))
        });
        let summary = analysis
            .as_ref()
            .and_then(|(analysis, exact)| Some((analysis.kernel(&record.name)?, *exact)));
        match summary {
            Some((summary, exact)) => Plan::from_text(summary, &record.name, &layout, exact),
            None => Plan::from_arguments(&record.name, &layout),
        }
    }

    fn text(&mut self, image: ImageId, version: Option<u32>, session: &Session) -> Known {
        if let Some(known) = self.texts.get(&(image, version)) {
            return known.clone();
        }
        let known = session
            .image(&image)
            .and_then(|image| unpacked(image, version));
        let bytes = |known: &Known| known.as_ref().map_or(0, |(texts, _)| texts.bytes());
        let kept: usize = self.texts.values().map(bytes).sum();
        if kept.saturating_add(bytes(&known)) > TEXTS {
            // Images without a text stay remembered.
            self.texts.retain(|_, known| known.is_none());
        }
        self.texts.insert((image, version), known.clone());
        known
    }

    fn graph(&mut self, exec: ExecId, world: &World<'_>) -> AccessSet {
        let World { session, live, .. } = world;
        let revision = live.graph_revision(exec);
        let fresh = self.graphs.get(&exec).is_some_and(|it| {
            it.revision == revision && it.waits.is_none_or(|last| last == session.last_buffer())
        });
        if !fresh {
            let Ok(executable) = session.executables.get(exec) else {
                return unknown();
            };
            let (mut waits, mut tables) = (None, Vec::new());
            let mut of_kernel = |function: FunctionId, params: &[u8]| {
                self.plan(function, world);
                let Some(plan) = self.plans.get(&function) else {
                    return unknown();
                };
                if plan.symbols.iter().any(|symbol| symbol.address.is_none()) {
                    waits = Some(session.last_buffer());
                }
                // Whether memory is live, and what tables hold, is looked up at each launch.
                let mut look = Look {
                    places: &mut self.places,
                    session,
                    function,
                    all_live: true,
                    dispelled: &self.dispelled,
                };
                let mut set = resolve(plan, params, &mut look);
                for address in self.remembered.get(&function).into_iter().flatten() {
                    set.add(Target::Around(*address), true, true);
                }
                if !plan.through.is_nothing() {
                    tables.push((plan.through, words(plan, params).collect()));
                }
                set
            };
            let plan = GraphPlan::of(&executable.graph, &mut of_kernel);
            let known = KnownGraph {
                plan,
                tables,
                revision,
                waits,
            };
            self.graphs.insert(exec, known);
        }
        let Self { places, graphs, .. } = self;
        let Some(known) = graphs.get(&exec) else {
            return unknown();
        };
        let mut set = known.plan.set(|address| places.named(session, address));
        for (how, pointers) in &known.tables {
            follow(session, places, pointers.iter().copied(), *how, &mut set);
        }
        references(session, &mut set);
        set
    }
}

fn unknown() -> AccessSet {
    AccessSet {
        complete: false,
        ..AccessSet::default()
    }
}

fn unpacked(image: &[u8], version: Option<u32>) -> Known {
    let (text, exact) = text_of(image, version)?;
    let texts = Excerpts::of(text.source.into_owned())?;
    Some((Arc::new(texts), exact))
}

/// The eight bytes of a parameter block at `offset`.
fn value(params: &[u8], offset: usize) -> Option<Address> {
    let bytes = params.get(offset..)?.first_chunk()?;
    Some(Address::from_raw(u64::from_le_bytes(*bytes)))
}

/// The values of those words of a parameter block that may be pointers to memory which is read.
fn words(plan: &Plan, params: &[u8]) -> impl Iterator<Item = Address> {
    let read = plan.words.iter().filter(|word| word.read);
    read.filter_map(|word| value(params, word.offset))
}

/// The set of a launch with this parameter block.
fn resolve(plan: &Plan, params: &[u8], look: &mut Look<'_>) -> AccessSet {
    let session = look.session;
    let mut set = AccessSet {
        complete: plan.complete,
        ..AccessSet::default()
    };
    for word in &plan.words {
        let Some(address) = value(params, word.offset) else {
            continue;
        };
        match look.named(address) {
            Named::Memory(address) => {
                let write = word.write && look.may_write(word.offset, address);
                set.add(Target::Around(address), word.read, write);
            }
            Named::Nothing => {}
            Named::Open => set.complete = false,
        }
    }
    textures(params, session, &mut set);
    for (at, address, bytes) in tensors(params, &session.tensor_maps) {
        if look.lives(address) {
            let all = Range {
                start: address,
                len: bytes,
            };
            let write = look.may_write(at, address);
            set.add(Target::Exactly(all), true, write);
            set.add(Target::Around(address), true, write);
        }
    }
    for symbol in &plan.symbols {
        match symbol.address {
            Some(address) => set.add(Target::Around(address), symbol.read, symbol.write),
            None => set.complete = false,
        }
    }
    set
}

/// Each tensor whose map is among the parameters: the map's offset there, the tensor's address and bytes. Whether the
/// kernel reads or writes it, only its code says.
fn tensors<'a>(
    params: &'a [u8],
    maps: &'a TensorMaps,
) -> impl Iterator<Item = (usize, Address, u64)> + 'a {
    let known = if maps.is_empty() { &[] } else { params };
    let starts = (0..known.len()).step_by(TENSOR_MAP_ALIGNMENT);
    starts.filter_map(|at| {
        let (address, bytes) = maps.find(known.get(at..)?.first_chunk()?)?;
        Some((at, address, bytes))
    })
}

/// Adds the memory of texture and surface objects among the parameters. Their numbers are small, so other parameters may
/// be taken for them: the set then names more than is touched, never less.
fn textures(params: &[u8], session: &Session, set: &mut AccessSet) {
    if session.textures.is_empty() {
        return;
    }
    let words = params.chunks_exact(8).filter_map(<[u8]>::first_chunk);
    for number in words.map(|word| u64::from_le_bytes(*word)) {
        let known = session.textures.iter();
        for (key, texture) in known.filter(|(key, _)| key.object.raw() == number) {
            texels(&texture.resource, key.surface, session, set);
        }
    }
}

/// Adds the memory of bound references: any kernel may use them, and no parameter says so.
fn references(session: &Session, set: &mut AccessSet) {
    for (key, texture) in &session.references {
        texels(&texture.resource, key.surface, session, set);
    }
}

fn texels(resource: &Resource, write: bool, session: &Session, set: &mut AccessSet) {
    match resource {
        Resource::Array(array) => set.add(Target::Array(*array), true, write),
        Resource::Mipmapped(mipmap) => {
            let known = session.mipmaps.get(*mipmap);
            let levels = known.iter().flat_map(|it| &it.shape.levels);
            levels.for_each(|level| set.add(Target::Array(*level), true, write));
        }
        memory => {
            if let Some((start, len)) = memory.memory() {
                set.add(Target::Exactly(Range { start, len }), true, write);
            }
        }
    }
}
