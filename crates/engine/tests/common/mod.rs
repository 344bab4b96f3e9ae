//! A session on a device, made by hand. One per process: the range of device addresses is fixed.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use fermata_abi::op::{
    Address, ContextId, FunctionId, Launch, ModuleId, Op, Raw, StreamId, StreamRef,
};
use fermata_device::{Driver, Grid, KernelLaunch};
use fermata_engine::{Live, LiveContext, LiveFunction, Site};
use fermata_graph::{EdgeData, Graph, KernelNode, NodeKind};
use fermata_state::{Allocation, Context, Device, Function, ImageBytes, Session};
use parking_lot::{Mutex, MutexGuard};

/// A kernel node of one thread.
pub fn kernel(function: FunctionId, params: Vec<u8>) -> NodeKind {
    NodeKind::Kernel(KernelNode {
        function,
        context: ContextId::from_raw(0),
        grid: [1, 1, 1],
        block: [1, 1, 1],
        shared_bytes: 0,
        params,
        attributes: Vec::new(),
    })
}

/// Nodes one after another.
pub fn chain(kinds: Vec<NodeKind>) -> Graph {
    let mut graph = Graph::new();
    let mut last = Vec::new();
    for kind in kinds {
        last = vec![(graph.add(kind, &last).unwrap(), EdgeData::default())];
    }
    graph
}

pub const CONTEXT: ContextId = ContextId::from_raw(0x100);
pub const LEGACY: StreamRef = StreamRef {
    context: CONTEXT,
    stream: StreamId::from_raw(1),
};

/// The driver the tests run on: `FERMATA_TEST_DRIVER`, or softgpu as built with the tests, beside them or one folder up.
fn driver_library() -> PathBuf {
    if let Some(path) = std::env::var_os("FERMATA_TEST_DRIVER") {
        return path.into();
    }
    let own = std::env::current_exe().unwrap();
    let deps = own.parent().unwrap();
    let places = [deps.to_path_buf(), deps.parent().unwrap().to_path_buf()];
    let mut files = places
        .iter()
        .map(|folder| folder.join("libfermata_softgpu.so"));
    files
        .find(|file| file.exists())
        .expect("softgpu's library: run `cargo build -p fermata-softgpu`")
}

/// A session with one context, and the next handle to give.
pub struct Bench {
    pub site: Site,
    next: u64,
}

static BENCH: LazyLock<Mutex<Bench>> = LazyLock::new(|| Mutex::new(Bench::new()));

/// The session; tests take turns.
pub fn bench() -> MutexGuard<'static, Bench> {
    let mut bench = BENCH.lock();
    bench.site.live.forget_current();
    bench
}

impl Bench {
    fn new() -> Self {
        let driver = Arc::new(Driver::load(&driver_library()).unwrap());
        let facts = driver.device_facts(0).unwrap();
        let handle = driver.primary_context(0, 0).unwrap();
        let mut session = Session::new(vec![Device {
            name: facts.name.clone(),
            uuid: facts.uuid,
            memory: facts.memory,
            compute_capability: facts.compute_capability(),
        }]);
        let mut live = Live::new(driver, Arc::new(|_| {})).unwrap();
        let context = LiveContext {
            handle,
            device: 0,
            primary: true,
        };
        live.contexts.insert(CONTEXT, context);
        let record = Context {
            device: 0,
            flags: 0,
            primary: true,
            limits: BTreeMap::new(),
            peers: Default::default(),
        };
        session.contexts.insert(CONTEXT, record).unwrap();
        Self {
            site: Site { session, live },
            next: CONTEXT.raw(),
        }
    }

    fn handle<H: Raw>(&mut self) -> H {
        self.next += 1;
        H::from_raw(self.next)
    }

    /// Loads PTX; the module's handle.
    pub fn module(&mut self, text: &str) -> ModuleId {
        self.module_recorded_as(text, text.as_bytes())
    }

    /// Loads PTX whose module is recorded with another image: the session does not know the text of what runs.
    pub fn module_recorded_as(&mut self, text: &str, image: &[u8]) -> ModuleId {
        let module = self.handle();
        let Site { session, live } = &mut self.site;
        live.enter(CONTEXT).unwrap();
        let loaded = live.driver.load_module(text.as_bytes());
        let loaded = loaded.unwrap_or_else(|error| panic!("{error}"));
        session
            .add_module(module, CONTEXT, ImageBytes::from(image).named())
            .unwrap();
        live.modules.insert(module, loaded);
        module
    }

    pub fn function(&mut self, module: ModuleId, name: &str) -> FunctionId {
        let function = self.handle();
        let Site { session, live } = &mut self.site;
        live.enter(CONTEXT).unwrap();
        let loaded = live.modules[&module];
        let handle = live.driver.function(loaded, name).unwrap();
        let context = CONTEXT;
        live.functions
            .insert(function, LiveFunction { handle, context });
        let record = Function {
            module,
            name: name.to_owned(),
            attributes: BTreeMap::new(),
        };
        session.functions.insert(function, record).unwrap();
        function
    }

    /// A variable, recorded as one whose address the program knows.
    pub fn variable(&mut self, module: ModuleId, name: &str) -> u64 {
        let Site { session, live } = &mut self.site;
        live.enter(CONTEXT).unwrap();
        let loaded = live.modules[&module];
        let (address, size) = live.driver.variable(loaded, name).unwrap();
        session
            .add_variable(module, name, Address::from_raw(address), size, true)
            .unwrap();
        address
    }

    /// Device memory, zeroed.
    pub fn allocate(&mut self, size: u64) -> u64 {
        let Site { session, live } = &mut self.site;
        live.enter(CONTEXT).unwrap();
        let address = live.space.allocate(&live.driver, 0, size).unwrap();
        let buffer = session.number_buffer();
        let record = Allocation {
            context: CONTEXT,
            device: 0,
            size,
            buffer,
        };
        session
            .allocations
            .insert(Address::from_raw(address), record)
            .unwrap();
        self.write(address, &vec![0; size as usize]);
        address
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let live = &mut self.site.live;
        let stream = live.stream(LEGACY).unwrap();
        live.driver.copy_from_slice(address, bytes, stream).unwrap();
        live.driver.synchronize_context().unwrap();
    }

    pub fn write_words(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(address, &bytes);
    }

    /// A 32-bit word of device memory, through pinned memory.
    pub fn read(&mut self, address: u64) -> u32 {
        let live = &mut self.site.live;
        let stream = live.stream(LEGACY).unwrap();
        let place = fermata_device::PinnedWords::new(&live.driver, 1).unwrap();
        live.driver
            .copy(place.address(0), address, 4, stream)
            .unwrap();
        live.driver.synchronize_context().unwrap();
        place.load(0) as u32
    }

    /// Runs the kernel itself, one block.
    pub fn run(&mut self, launch: &Launch<'_>) {
        let live = &mut self.site.live;
        let function = live.function(launch.function).unwrap().handle;
        let stream = live.stream(LEGACY).unwrap();
        let kernel = KernelLaunch {
            function,
            size: Grid {
                grid: launch.grid,
                block: launch.block,
                shared: launch.shared,
            },
            params: launch.params,
            attributes: &[],
        };
        live.driver.launch(&kernel, stream).unwrap();
        live.driver.synchronize_context().unwrap();
    }
}

/// A launch of one block of 32 threads.
pub fn launch(function: FunctionId, params: &[u8]) -> Launch<'_> {
    Launch {
        function,
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared: 0,
        cooperative: false,
        params,
        attributes: Vec::new(),
    }
}

pub fn op<'a>(launch: &Launch<'a>) -> Op<'a> {
    Op::Launch {
        launch: launch.clone(),
        stream: LEGACY,
    }
}

pub fn block(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
