//! A session of chunks, captured with `cow`, and a kernel that stores where no argument points.
//!
//! The first chunks are copied, the rest when the test says so: what it does meanwhile is done in the middle of the
//! copying, however fast or busy the machine is.

use std::time::{Duration, Instant};

use fermata_abi::op::{
    Address, Blob, ContextId, ExecId, FunctionId, Launch, ModuleId, Op, StreamRef,
};
use fermata_control::worker::{FromWorker, LoadCheck, Pace, ToWorker, Totals, Validate, Way};
use fermata_graph::{Graph, KernelNode, NodeKind};

use super::hold::COPIES;
use super::{Answer, CONTEXT, Hold, LEGACY, PATIENCE, Program, Worker, words};

pub const CHUNK: u64 = 4 << 20;
/// So many that the last is not on its way when the first ones are there.
pub const BUFFERS: u64 = 24;
/// Chunks that are copied before the rest is let go.
pub const FIRST: u64 = 4;
pub const MODULE: ModuleId = ModuleId::from_raw(0x301);
pub const OUTSIDE: FunctionId = FunctionId::from_raw(0x302);
pub const EXEC: ExecId = ExecId::from_raw(0x600);

/// Stores `value` where the address in `table` leads.
pub const PTX: &[u8] = b".version 7.0
.target sm_75
.address_size 64
.visible .entry outside(.param .u64 table, .param .u32 value)
{
    .reg .b32 %r1;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [table];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %d2, %d1;
    ld.global.u64 %d3, [%d2];
    st.global.u32 [%d3], %r1;
    ret;
}
";

/// A session of [`BUFFERS`] chunks, and a table with the address of the last.
pub struct Scene {
    /// Holds what the worker copies; gone before that is to end.
    pub hold: Hold,
    pub worker: Worker,
    pub folder: tempfile::TempDir,
    pub buffers: Vec<u64>,
    pub table: u64,
}

impl Scene {
    pub fn new() -> (Self, Program) {
        let hold = super::hold();
        let worker = Worker::start_with(true, &[hold.variable()]);
        Self::over(worker, hold, BUFFERS)
    }

    /// A session of `count` chunks in this worker.
    pub fn over(mut worker: Worker, hold: Hold, count: u64) -> (Self, Program) {
        let program = worker.attach();
        program.set_up();
        program.load(MODULE, PTX);
        program.kernel(OUTSIDE, MODULE, "outside");
        let table = program.alloc(4096);
        let buffers: Vec<u64> = (0..count).map(|_| program.alloc(CHUNK)).collect();
        if let Some(last) = buffers.last() {
            // In halves: a whole address would be followed, and what the kernel stores foreseen.
            let (low, high) = (*last as u32, (*last >> 32) as u32);
            program.write(table, &low.to_le_bytes());
            program.write(table + 4, &high.to_le_bytes());
        }
        let scene = Self {
            worker,
            folder: tempfile::tempdir().unwrap(),
            buffers,
            table,
            hold,
        };
        (scene, program)
    }

    /// Fills the n-th chunk with `base` + n, so that the store has none of them.
    pub fn fill(&self, program: &Program, base: u32) {
        for (value, address) in (base..).zip(&self.buffers) {
            let fill = Op::Fill {
                address: Address::from_raw(*address),
                pitch: 0,
                element: 4,
                value,
                width: CHUNK / 4,
                height: 1,
                stream: LEGACY,
                answered: true,
            };
            assert_eq!(program.ask(&fill), Answer::None);
        }
    }

    pub fn last(&self) -> u64 {
        self.buffers[self.buffers.len() - 1]
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Begins a capture with `cow`, of which no more than [`FIRST`] chunks are copied until [`Self::end`]; the program
    /// runs on.
    pub fn begin(&mut self, program: Program, image: &str, validate: Validate) -> Program {
        // A processor takes its digests from copies, which go over the link too.
        let digests = match validate {
            Validate::Content | Validate::Both => self.buffers.len() as u64,
            Validate::Ptx | Validate::Off => 0,
        };
        self.hold.only(COPIES, (digests + FIRST) * CHUNK);
        self.begin_with(program, image, validate, 64 << 20)
    }

    /// Begins one with a pool of so many bytes, which copies as much as the test's hold allows.
    pub fn begin_with(
        &mut self,
        program: Program,
        image: &str,
        validate: Validate,
        pool_bytes: u64,
    ) -> Program {
        let (store, image) = (self.path("store"), self.path(image));
        std::fs::create_dir(&image).unwrap();
        let prepare = ToWorker::Prepare {
            store: store.into(),
            way: Some(Way::Cow),
            pool_bytes: Some(pool_bytes),
            validate,
        };
        let way = Way::Cow;
        assert_eq!(self.worker.ask(prepare), FromWorker::Prepared { way });
        self.worker.detach(program);
        let begun = self.worker.ask(ToWorker::Begin {
            image: image.into(),
        });
        let as_asked = matches!(begun, FromWorker::Begun { way: Way::Cow, .. });
        assert!(as_asked, "{begun:?}");
        self.worker.attach()
    }

    /// Waits until the first chunks are copied, and the next ones stand still.
    pub fn wait_first(&mut self) {
        let looked = self.look(FIRST * CHUNK);
        let FromWorker::Capturing { done, .. } = looked else {
            panic!("{looked:?}")
        };
        assert_eq!(done / CHUNK, FIRST);
    }

    /// Lets everything be copied; how the capture ends.
    pub fn end(&mut self) -> FromWorker {
        self.hold.release(COPIES);
        self.look(u64::MAX)
    }

    /// Looks until `enough` bytes are copied, or the end.
    pub fn look(&mut self, enough: u64) -> FromWorker {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "the capture does not end");
            match self.worker.ask(ToWorker::Look) {
                FromWorker::Capturing { done, .. } if done < enough => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                other => return other,
            }
        }
    }

    /// Chunks that a capture under way has copied; none if it has ended.
    pub fn copied(&mut self) -> Option<u64> {
        match self.look(0) {
            FromWorker::Capturing { done, .. } => Some(done / CHUNK),
            _ => None,
        }
    }

    /// Ends an overtaken capture as the daemon does; what the image says of its validation.
    pub fn stop(&mut self, program: Program, image: &str) -> (Program, Totals) {
        self.worker.detach(program);
        let (store, image) = (self.path("store"), self.path(image));
        match self.worker.save(&store, &image) {
            FromWorker::Saved(totals) => (self.worker.attach(), totals),
            other => panic!("{other:?}"),
        }
    }

    /// The first word of the last buffer in an image, and of the first.
    pub fn words_in(&self, image: &str) -> (u32, u32) {
        let found = self.first_words_in(image, &[self.last(), self.buffers[0]]);
        (found[0], found[1])
    }

    /// The first word of each of these buffers in an image.
    pub fn first_words_in(&self, image: &str, buffers: &[u64]) -> Vec<u32> {
        self.first_words_by(Worker::start(), image, buffers)
    }

    /// As another worker loads them.
    pub fn first_words_by(&self, mut worker: Worker, image: &str, buffers: &[u64]) -> Vec<u32> {
        let (store, image) = (self.path("store"), self.path(image));
        let pace = Pace::Eager;
        let loaded = worker.ask(ToWorker::Load {
            store: store.into(),
            digests: super::digests(&image),
            image: image.into(),
            pace,
            check: LoadCheck::Off,
            ignore_places: false,
        });
        assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
        let program = worker.attach();
        let first = |address: &u64| words(&program.read(*address, 4))[0];
        let found = buffers.iter().map(first).collect();
        worker.detach(program);
        found
    }

    pub fn store_outside(&self, program: &Program, value: u32) {
        let mut params = self.table.to_le_bytes().to_vec();
        params.extend_from_slice(&value.to_le_bytes());
        program.post(&Op::Launch {
            launch: Launch {
                function: OUTSIDE,
                grid: [1, 1, 1],
                block: [1, 1, 1],
                shared: 0,
                cooperative: false,
                params: &params,
                attributes: Vec::new(),
            },
            stream: LEGACY,
        });
        assert_eq!(
            program.ask(&Op::StreamSync { stream: LEGACY }),
            Answer::None
        );
    }
}

impl Scene {
    /// Instantiates a graph of the kernel, which is to store `value`.
    pub fn instantiate(&self, program: &Program, value: u32) {
        let mut params = self.table.to_le_bytes().to_vec();
        params.extend_from_slice(&value.to_le_bytes());
        instantiate(program, &kernel_graph(OUTSIDE, [1, 1], params));
    }

    pub fn replay(&self, program: &Program) {
        replay(program, LEGACY);
    }
}

/// A graph of one kernel, with so many blocks and threads.
pub fn kernel_graph(function: FunctionId, [grid, block]: [u32; 2], params: Vec<u8>) -> Graph {
    let mut graph = Graph::new();
    let kernel = KernelNode {
        function,
        context: ContextId::from_raw(0),
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
        params,
        attributes: Vec::new(),
    };
    graph.add(NodeKind::Kernel(kernel), &[]).unwrap();
    graph
}

/// Makes [`EXEC`] of a graph.
pub fn instantiate(program: &Program, graph: &Graph) {
    let graph = postcard::to_stdvec(graph).unwrap();
    let instantiate = Op::GraphInstantiate {
        exec: EXEC,
        context: CONTEXT,
        graph: Blob::Inline(&graph),
        flags: 0,
    };
    assert_eq!(program.ask(&instantiate), Answer::None);
}

/// Launches [`EXEC`], and waits for it.
pub fn replay(program: &Program, stream: StreamRef) {
    program.post(&Op::GraphLaunch { exec: EXEC, stream });
    let synced = program.ask(&Op::StreamSync { stream });
    assert_eq!(synced, Answer::None);
}
