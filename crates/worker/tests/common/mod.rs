//! A worker process, the daemon's end of its conversation, and the program's end of its ring.
#![allow(dead_code, clippy::unwrap_used)]

pub mod content;
#[path = "../../../softgpu/tests/common/hold.rs"]
pub mod hold;
pub mod place;
pub mod scene;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::op::{
    Address, Blob, ContextId, FunctionId, FunctionInfo, HostKind, ImageRef, Launch, ModuleId, Op,
    Place, ReplyBody, StreamId, StreamRef, ToProgram,
};
use fermata_control::Connection;
use fermata_control::worker::{
    self as control, FromWorker, ImageDigests, LoadCheck, Pace, ToWorker, Totals,
};
use fermata_wire::{Config, FromProgram, Producer, Side, create, renew};

/// Until a test gives up: whatever it waits for comes, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// How often a test tries what a machine that stands still for seconds can spoil; never so often in a row.
pub const TRIES: usize = 6;

pub const CONTEXT: ContextId = ContextId::from_raw(0x100);
pub const MODULE: ModuleId = ModuleId::from_raw(0x101);
pub const FUNCTION: FunctionId = FunctionId::from_raw(0x102);
pub const LEGACY: StreamRef = StreamRef {
    context: CONTEXT,
    stream: StreamId::from_raw(1),
};

/// The stream that [`started`] has made.
pub const STREAM: StreamRef = StreamRef {
    context: CONTEXT,
    stream: StreamId::from_raw(0x200),
};

/// Adds `b` to each of `n` 32-bit words at `p`, and to the device variable `total`.
pub const PTX: &[u8] = b".version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 total;
.visible .entry add(.param .u64 p, .param .u32 b, .param .u32 n)
{
    .reg .pred %q;
    .reg .b32 %r<8>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [p];
    ld.param.u32 %r1, [b];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %q, %r6, %r2;
    @%q bra DONE;
    cvta.to.global.u64 %d2, %d1;
    mul.wide.u32 %d3, %r6, 4;
    add.s64 %d4, %d2, %d3;
    ld.global.u32 %r7, [%d4];
    add.s32 %r7, %r7, %r1;
    st.global.u32 [%d4], %r7;
    mov.u64 %d5, total;
    red.global.add.u32 [%d5], %r1;
DONE:
    ret;
}
";

/// Holds up what a worker's device does.
pub type Hold = hold::Hold<tempfile::TempDir>;

/// For one test.
pub fn hold() -> Hold {
    Hold::at(tempfile::tempdir().unwrap())
}

/// The driver the tests run on: `FERMATA_TEST_DRIVER`, or softgpu as built with the tests.
pub fn driver() -> PathBuf {
    if let Some(path) = std::env::var_os("FERMATA_TEST_DRIVER") {
        return path.into();
    }
    let bin = worker();
    let folder = bin.parent().expect("a binary lies in a folder");
    let found =
        ["libfermata_softgpu.so", "deps/libfermata_softgpu.so"].map(|name| folder.join(name));
    found
        .into_iter()
        .find(|path| path.exists())
        .expect("softgpu's library beside the worker")
}

/// The worker: `FERMATA_TEST_WORKER`, or the one built with the tests.
fn worker() -> PathBuf {
    std::env::var_os("FERMATA_TEST_WORKER")
        .map_or(env!("CARGO_BIN_EXE_fermata-worker").into(), PathBuf::from)
}

pub struct Worker {
    child: Child,
    /// The program's ring while there is one, and of one that has let go of it.
    ring: Option<OwnedFd>,
    kept: Option<OwnedFd>,
    pub daemon: Connection<FromWorker, ToWorker>,
}

impl Worker {
    pub fn start() -> Self {
        Self::start_with(std::env::var_os("FERMATA_TEST_DRIVER").is_none(), &[])
    }

    /// With these variables; `soft` is what it is told of its driver.
    pub fn start_with(soft: bool, variables: &[(&str, &str)]) -> Self {
        Self::start_limited(soft, variables, None)
    }

    /// As [`Worker::start_with`]; `files` are the soft and the hard limit of open files.
    pub fn start_limited(
        soft: bool,
        variables: &[(&str, &str)],
        files: Option<(u64, u64)>,
    ) -> Self {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let raw = theirs.as_raw_fd();
        let mut command = Command::new(worker());
        command.envs(variables.iter().copied());
        // SAFETY: setrlimit and dup2 are safe to call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if let Some((rlim_cur, rlim_max)) = files {
                    let limit = libc::rlimit { rlim_cur, rlim_max };
                    if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                match libc::dup2(raw, 3) {
                    3 if raw != 3 => Ok(()),
                    3 => {
                        libc::fcntl(3, libc::F_SETFD, 0);
                        Ok(())
                    }
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().unwrap();
        drop(theirs);
        let mut worker = Self {
            child,
            ring: None,
            kept: None,
            daemon: Connection::new(OwnedFd::from(ours), "worker"),
        };
        let driver = driver().to_string_lossy().into_owned();
        let ready = worker.ask(ToWorker::Open {
            kernels_first: true,
            protocol: fermata_control::PROTOCOL,
            driver: driver.into(),
            soft,
        });
        assert!(
            matches!(&ready, FromWorker::Ready { devices, .. } if !devices.is_empty()),
            "{ready:?}"
        );
        worker
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn ask(&mut self, request: ToWorker) -> FromWorker {
        self.daemon.send(&request, &[]).unwrap();
        self.answer()
    }

    /// Saves, and waits until the image is written.
    pub fn save(&mut self, store: &str, image: &str) -> FromWorker {
        let (store, image) = (store.to_owned(), image.to_owned());
        match self.ask(ToWorker::Save {
            store: store.into(),
            image: image.into(),
        }) {
            FromWorker::Captured(_) => self.ask(ToWorker::Finish),
            other => other,
        }
    }

    pub fn answer(&mut self) -> FromWorker {
        loop {
            let (message, _) = self.daemon.recv(PATIENCE).expect("an answer of the worker");
            if !matches!(message, FromWorker::Progress { .. }) {
                return message;
            }
        }
    }

    pub fn attach(&mut self) -> Program {
        self.attach_with_output(std::fs::File::open("/dev/null").unwrap().into())
    }

    pub fn attach_with_output(&mut self, output: OwnedFd) -> Program {
        let (ring, side) = self.offer(output);
        let producer = Producer::open(ring.as_fd(), Arc::clone(&side)).unwrap();
        let regions = regions(&side);
        Program {
            producer,
            side,
            regions,
            callbacks: AtomicU32::new(0),
        }
    }

    /// Serves a program that has come with nothing, or comes back: its end of the ring.
    fn offer(&mut self, output: OwnedFd) -> (OwnedFd, Arc<Side>) {
        let config = Config {
            ring: 1 << 20,
            slots: 16,
            staging: 4 << 20,
        };
        // The daemon does so, too: what is registered of it stays.
        let ring = match self.kept.take() {
            Some(ring) => {
                renew(ring.as_fd(), &config).unwrap();
                ring
            }
            None => create(&config).unwrap(),
        };
        self.ring = Some(ring.try_clone().unwrap());
        let (theirs, ours) = Side::pair().unwrap();
        let fds = [ring.as_fd(), theirs.as_fd(), output.as_fd()];
        self.daemon.send(&ToWorker::Attach, &fds).unwrap();
        assert_eq!(self.answer(), FromWorker::Attached);
        (ring, Arc::new(Side::new(ours)))
    }

    /// Holds all streams until the device is idle, and lets `program` go, with what it has queued.
    pub fn stop(&mut self, program: &Program) {
        self.quiesce(program);
        self.let_go(program);
    }

    /// Holds all streams until the device is idle, and takes everything that `program` has sent.
    pub fn quiesce(&mut self, program: &Program) {
        let until = std::time::Instant::now() + PATIENCE;
        while !self.hold(control::Hold::All).idle {
            assert!(std::time::Instant::now() < until, "the device is not idle");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(self.hold(control::Hold::Closing).idle);
        assert_eq!(program.ask(&Op::Drain), Answer::None);
    }

    /// Lets a program go that stands still, with what it has queued.
    pub fn let_go(&mut self, program: &Program) {
        program.producer.let_go().unwrap();
        assert_eq!(self.ask(ToWorker::Detach), FromWorker::Detached);
        self.kept = self.ring.take();
    }

    pub fn hold(&mut self, hold: control::Hold) -> control::Holding {
        match self.ask(ToWorker::Hold(hold)) {
            FromWorker::Holding(holding) => holding,
            other => panic!("{other:?}"),
        }
    }

    /// Serves a program that does not come.
    pub fn offer_in_vain(&mut self) {
        let (_, _) = self.offer(std::fs::File::open("/dev/null").unwrap().into());
        self.kept = self.ring.take();
    }

    /// Brings a program back that was let go, from this worker or another.
    pub fn bring_back(&mut self, program: &Program) {
        let (ring, side) = self.offer(std::fs::File::open("/dev/null").unwrap().into());
        program
            .producer
            .enter(ring.as_fd(), Arc::clone(&side))
            .unwrap();
        assert!(regions(&side).is_empty());
        program.callbacks.store(0, Ordering::Relaxed);
        program.producer.announce();
    }

    pub fn detach(&mut self, program: Program) {
        assert_eq!(program.ask(&Op::Drain), Answer::None);
        assert_eq!(self.ask(ToWorker::Detach), FromWorker::Detached);
        drop(program);
        self.kept = self.ring.take();
    }
}

/// What a worker sends when it begins to serve.
fn regions(side: &Side) -> Vec<(Address, u64, OwnedFd)> {
    let mut regions = Vec::new();
    loop {
        match side
            .receive_from_worker(PATIENCE)
            .unwrap()
            .expect("the regions")
        {
            (ToProgram::Region { address, size }, Some(fd)) => regions.push((address, size, fd)),
            (ToProgram::RegionsEnd, None) => return regions,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.daemon.shutdown();
        let until = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < until {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        assert!(
            std::thread::panicking(),
            "the worker did not end when the daemon was gone"
        );
    }
}

/// An answer, owned.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    None,
    U64(u64),
    Pair(u64, u64),
    F32(f32),
    Bytes(Vec<u8>),
    Devices(usize),
    Module(Vec<String>),
    Function(FunctionInfo),
    Places(Vec<u8>, Vec<u8>),
    Error(u32, String),
}

/// A worker and its program, which has a context, [`PTX`] and [`STREAM`].
pub fn started() -> (Worker, Program) {
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    program.post(&Op::StreamCreate {
        stream: STREAM.stream,
        context: CONTEXT,
        flags: 1,
        priority: 0,
    });
    (worker, program)
}

/// What the manifest of the image in this folder would say.
pub fn digests(image: &str) -> ImageDigests {
    let digest = |name: &str| {
        let bytes = std::fs::read(std::path::Path::new(image).join(name)).unwrap_or_default();
        fermata_store::ChunkId::of(&bytes).to_string()
    };
    ImageDigests {
        state: digest("state"),
        chunks: digest("chunks"),
    }
}

/// A folder for one image, and the store that it refers to.
pub struct ImageFolder(tempfile::TempDir);

impl ImageFolder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("image")).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }

    /// Saves what `worker` holds.
    pub fn save(&self, worker: &mut Worker) -> Totals {
        match worker.save(&self.path("store"), &self.path("image")) {
            FromWorker::Saved(totals) => totals,
            other => panic!("{other:?}"),
        }
    }

    /// Has `worker` load all of it; what that answers.
    pub fn load(&self, worker: &mut Worker) -> FromWorker {
        worker.ask(ToWorker::Load {
            store: self.path("store").into(),
            image: self.path("image").into(),
            digests: digests(&self.path("image")),
            pace: Pace::Eager,
            check: LoadCheck::Off,
            ignore_places: false,
        })
    }
}

/// Saves what `worker` holds and loads it into another one; what that answers.
pub fn load_anew(mut worker: Worker, program: Program) -> (Worker, FromWorker) {
    let image = ImageFolder::new();
    worker.detach(program);
    image.save(&mut worker);
    drop(worker);
    let mut worker = Worker::start();
    let loaded = image.load(&mut worker);
    (worker, loaded)
}

/// The program's view of a shared region.
pub struct HostView(pub std::fs::File);

impl HostView {
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, offset).unwrap();
    }
}

pub struct Program {
    pub producer: Producer,
    pub side: Arc<Side>,
    pub regions: Vec<(Address, u64, OwnedFd)>,
    /// Host callbacks that tests have waited for.
    callbacks: AtomicU32,
}

impl Program {
    /// To its worker it looks as if it had been killed.
    pub fn die(&self) {
        // SAFETY: the descriptor is open.
        let shut = unsafe { libc::shutdown(self.side.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
        assert_eq!(shut, 0);
    }

    pub fn post(&self, op: &Op<'_>) {
        self.producer.post(op).unwrap();
    }

    pub fn ask(&self, op: &Op<'_>) -> Answer {
        let room = self.producer.stage(256 << 10).unwrap();
        let mut buffer = Vec::new();
        let pending = self.producer.request(op, Some(&room)).unwrap();
        assert!(pending.wait_for(PATIENCE).unwrap(), "no answer: {op:?}");
        let reply = pending.wait(&mut buffer).unwrap();
        if reply.status != 0 {
            return Answer::Error(reply.status, reply.text.to_owned());
        }
        match reply.body {
            ReplyBody::None => Answer::None,
            ReplyBody::U64(it) => Answer::U64(it),
            ReplyBody::Pair(a, b) => Answer::Pair(a, b),
            ReplyBody::Variable { address, size, .. } => Answer::Pair(address.raw(), size),
            ReplyBody::F32(it) => Answer::F32(it),
            ReplyBody::Bytes(it) => Answer::Bytes(it.to_vec()),
            ReplyBody::Devices(it) => Answer::Devices(it.len()),
            ReplyBody::Module(it) => Answer::Module(it.functions),
            ReplyBody::Function(it) => Answer::Function(it),
            ReplyBody::Places(clusters, indices) => Answer::Places(clusters, indices),
        }
    }

    pub fn ask_u64(&self, op: &Op<'_>) -> u64 {
        match self.ask(op) {
            Answer::U64(value) => value,
            other => panic!("{op:?}: {other:?}"),
        }
    }

    /// Makes the context and loads [`PTX`].
    pub fn set_up(&self) {
        assert!(matches!(self.ask(&Op::Devices), Answer::Devices(1..)));
        let create = Op::ContextCreate {
            context: CONTEXT,
            device: 0,
            flags: 0,
            primary: true,
        };
        assert_eq!(self.ask(&create), Answer::None);
        self.load(MODULE, PTX);
        let params = self.kernel(FUNCTION, MODULE, "add");
        assert_eq!(params, [(0, 8), (8, 4), (12, 4)]);
    }

    /// Loads a module in [`CONTEXT`].
    pub fn load(&self, module: ModuleId, image: &[u8]) {
        let load = Op::ModuleLoad {
            module,
            context: CONTEXT,
            image: ImageRef::Blob(Blob::Inline(image)),
            beside: false,
        };
        let loaded = self.ask(&load);
        assert!(matches!(loaded, Answer::None), "{loaded:?}");
    }

    /// Finds a kernel; offsets and sizes of its parameters.
    pub fn kernel(&self, function: FunctionId, module: ModuleId, name: &str) -> Vec<(u32, u32)> {
        let get = Op::FunctionGet {
            function,
            module,
            name,
        };
        match self.ask(&get) {
            Answer::Function(info) => info.params.to_vec(),
            other => panic!("`{name}`: {other:?}"),
        }
    }

    /// A pinned region of shared memory, mapped in this process at an address of the kernel's choice.
    pub fn host_alloc(&self, address: u64, size: u64) -> HostView {
        let (answer, view) = self.try_host_alloc(address, size);
        assert_eq!(answer, Answer::None);
        view
    }

    /// As [`Program::host_alloc`], with the answer.
    pub fn try_host_alloc(&self, address: u64, size: u64) -> (Answer, HostView) {
        let fd = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, size).unwrap();
        self.side
            .send_region(
                &FromProgram::Region {
                    address: Address::from_raw(address),
                    size,
                },
                fd.as_fd(),
            )
            .unwrap();
        let map = Op::HostMap {
            address: Address::from_raw(address),
            size,
            kind: HostKind::Pinned,
            flags: 0,
            context: CONTEXT,
        };
        (self.ask(&map), HostView(fd.into()))
    }

    /// The id of the next host callback, if one is asked for now; it is waited for again.
    pub fn asked_callback(&self) -> Option<u64> {
        let number = self.callbacks.load(Ordering::Relaxed);
        self.producer.callback_asked(number, || true).unwrap()
    }

    /// Waits for a host callback's id.
    pub fn callback(&self) -> u64 {
        let number = self.callbacks.fetch_add(1, Ordering::Relaxed);
        let end = Instant::now() + PATIENCE;
        let late = || Instant::now() >= end;
        let id = self.producer.callback_asked(number, late).unwrap();
        id.expect("a host callback")
    }

    pub fn alloc(&self, size: u64) -> u64 {
        self.ask_u64(&Op::MemAlloc {
            context: CONTEXT,
            size,
        })
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        let (to, from) = (
            Place::Address(Address::from_raw(address)),
            Place::Blob(Blob::Inline(bytes)),
        );
        let copy = Op::Copy {
            to,
            from,
            len: bytes.len() as u64,
            stream: LEGACY,
            answered: true,
        };
        assert_eq!(self.ask(&copy), Answer::None);
    }

    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let room = vec![0; len];
        let (to, from) = (
            Place::Blob(Blob::Inline(&room)),
            Place::Address(Address::from_raw(address)),
        );
        match self.ask(&Op::Copy {
            to,
            from,
            len: len as u64,
            stream: LEGACY,
            answered: true,
        }) {
            Answer::Bytes(bytes) => bytes,
            other => panic!("reading {address:#x}: {other:?}"),
        }
    }

    pub fn launch_add(&self, address: u64, add: u32, words: u32, stream: StreamRef) {
        self.launch_adding(FUNCTION, (address, add, words), stream);
    }

    /// As [`Self::launch_add`], with the kernel of another module.
    pub fn launch_adding(
        &self,
        function: FunctionId,
        (address, add, words): (u64, u32, u32),
        stream: StreamRef,
    ) {
        let mut params = address.to_le_bytes().to_vec();
        params.extend_from_slice(&add.to_le_bytes());
        params.extend_from_slice(&words.to_le_bytes());
        self.post(&Op::Launch {
            launch: Launch {
                function,
                grid: [words.div_ceil(64), 1, 1],
                block: [64, 1, 1],
                shared: 0,
                cooperative: false,
                params: &params,
                attributes: Vec::new(),
            },
            stream,
        });
    }
}

pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|it| u32::from_le_bytes(it.try_into().unwrap()))
        .collect()
}
