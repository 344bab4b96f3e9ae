//! A daemon and a worker for tests: enough of both to run a small program against the library.

#[macro_use]
pub mod driver;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{DirBuilder, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermata_abi::op::Address;
use fermata_abi::op::*;
use fermata_abi::sys::driver::CUDA_ERROR_FILE_NOT_FOUND;
use fermata_control::agent::{
    ENV_SOCKET, ENV_TOKEN, FromAgent, ToAgent, WAKE_REATTACH, wake_block,
};
use fermata_control::{Connection, PROTOCOL};
use fermata_wire::{CallbackCount, Config, Consumer, Event, FromProgram, Side, StagedArea, create};

/// Until a test gives up: what it waits for comes, however busy the machine is.
pub const WAIT: Duration = Duration::from_secs(300);
const TOKEN: &str = "a-token";

type Agent = Connection<FromAgent, ToAgent>;

/// What the worker holds; it survives a detachment, as the real one's does.
#[derive(Default)]
pub struct Device {
    pub memory: BTreeMap<Address, Vec<u8>>,
    regions: HashMap<Address, (u64, OwnedFd)>,
    next: Address,
    pub launches: Vec<(u64, [u32; 3], Vec<u8>)>,
    pub copies: u64,
    pub drains: u32,
    /// Images, and how each has come.
    pub images: Vec<(&'static str, Vec<u8>)>,
    /// Streams made, and streams destroyed.
    pub streams: (u32, u32),
    /// Id and value of every attribute of a launch.
    pub attributes: Vec<(u32, Vec<u8>)>,
    /// Events by their handles.
    pub events: Vec<u64>,
    /// Physical memory that was let go.
    pub released: u32,
    /// Every question about occupancy and every tensor map that has come, as text.
    pub questions: Vec<String>,
    /// Operations on green contexts, streams and events, in order.
    pub ordered: Vec<String>,
    /// Values of every attribute of a function that was set.
    pub set: Vec<i32>,
}

/// A program under test, its daemon and its worker.
pub struct Stage {
    listener: UnixListener,
    socket: PathBuf,
    pub program: Child,
    pub agent: Agent,
    pub device: Arc<Mutex<Device>>,
    config: Config,
    wake: u64,
    worker: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Stage {
    /// Runs the scenario `name` of this test binary as a program.
    pub fn start(name: &str) -> Self {
        Self::start_with(name, Config::default())
    }

    /// As [`Stage::start`], with a ring of these sizes.
    pub fn start_with(name: &str, config: Config) -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args([
            "--exact",
            name,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        let mut stage = Self::start_program(name, &mut program, config);
        let (pid, reattach) = stage.hello();
        assert_eq!((pid, reattach), (stage.program.id(), false));
        stage.welcome(true);
        stage
    }

    /// Runs a program, which has not been welcomed yet. `name` is the test's own.
    pub fn start_program(name: &str, program: &mut Command, config: Config) -> Self {
        // The library takes no socket in a folder into which others may write, as they may into that for temporary files.
        let folder = std::env::temp_dir().join(format!("fermata-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let socket = folder.join("sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let program = program
            .env(ENV_SOCKET, &socket)
            .env(ENV_TOKEN, TOKEN)
            // What a program waits for until its stage has seen what it wants to see.
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let device = Arc::new(Mutex::new(Device {
            next: DEVICE_BASE,
            ..Device::default()
        }));
        let agent = Connection::new(listener.accept().unwrap().0.into(), "agent");
        Self {
            listener,
            socket,
            program,
            agent,
            device,
            config,
            wake: 0,
            worker: None,
        }
    }

    pub fn hello(&mut self) -> (u32, bool) {
        match self.agent.recv(WAIT).unwrap().0 {
            FromAgent::Hello {
                protocol: PROTOCOL,
                pid,
                token,
                wake_block,
                reattach,
                says_mapped: true,
                ..
            } => {
                assert_eq!(token, TOKEN);
                self.wake = wake_block;
                (pid, reattach)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn welcome(&mut self, resume: bool) {
        let memory = create(&self.config).unwrap();
        let (program, worker) = Side::pair().unwrap();
        let side = Arc::new(Side::new(worker));
        let consumer = Consumer::open(memory.as_fd(), side.clone()).unwrap();
        let (stop, device) = (Arc::new(AtomicBool::new(false)), self.device.clone());
        let welcome = ToAgent::Welcome {
            protocol: PROTOCOL,
            resume,
        };
        self.agent
            .send(&welcome, &[memory.as_fd(), program.as_fd()])
            .unwrap();
        let serving = Serving {
            callbacks: consumer.callbacks(),
            consumer: Some(consumer),
            side,
            device,
            stop: stop.clone(),
            streams: VecDeque::new(),
            ran: 0,
        };
        self.worker = Some((stop, std::thread::spawn(move || serving.run())));
    }

    /// Waits until the program has allocated something.
    pub fn wait_for_allocation(&self) {
        let end = std::time::Instant::now() + WAIT;
        while self.device.lock().unwrap().memory.is_empty() {
            assert!(std::time::Instant::now() < end, "nothing allocated");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the program has made so many more copies.
    pub fn wait_for_copies(&self, more: u64) {
        let copies = || self.device.lock().unwrap().copies;
        let (end, enough) = (Instant::now() + WAIT, copies() + more);
        while copies() < enough {
            assert!(Instant::now() < end, "the program does not work");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn order(&self, message: &ToAgent) -> FromAgent {
        self.agent.send(message, &[]).unwrap();
        self.agent.recv(WAIT).unwrap().0
    }

    pub fn quiesce(&self) -> FromAgent {
        self.order(&ToAgent::Quiesce {
            deadline_ms: 60_000,
        })
    }

    /// Ends the worker's thread, as a killed worker would, or after a detachment.
    pub fn stop_worker(&mut self) {
        if let Some((stop, thread)) = self.worker.take() {
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        }
    }

    /// Detaches and lists what the program still has open.
    pub fn detach(&mut self) -> Vec<String> {
        assert_eq!(self.order(&ToAgent::Detach), FromAgent::Detached);
        assert!(self.agent.recv(WAIT).is_err(), "the connection must end");
        self.stop_worker();
        let folder = format!("/proc/{}/fd", self.program.id());
        let links = std::fs::read_dir(folder).unwrap();
        links
            .filter_map(|e| {
                Some(
                    std::fs::read_link(e.ok()?.path())
                        .ok()?
                        .display()
                        .to_string(),
                )
            })
            .collect()
    }

    pub fn maps(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/maps", self.program.id())).unwrap()
    }

    /// How often the program's threads have slept and been made to, by their ids, once that does not change any more:
    /// it must not for longer than any of them sleeps by itself. Ours are left out.
    pub fn settled(&self) -> BTreeMap<String, Vec<String>> {
        let (end, mut last) = (Instant::now() + WAIT, self.sleepers());
        loop {
            std::thread::sleep(Duration::from_millis(400));
            let now = self.sleepers();
            if now == last {
                return now;
            }
            assert!(Instant::now() < end, "threads run: {last:?}, then {now:?}");
            last = now;
        }
    }

    /// The same of all threads asleep at one moment.
    fn sleepers(&self) -> BTreeMap<String, Vec<String>> {
        let end = Instant::now() + WAIT;
        loop {
            let folder = std::fs::read_dir(format!("/proc/{}/task", self.program.id())).unwrap();
            let statuses: Vec<String> = folder
                .map(|it| std::fs::read_to_string(it.unwrap().path().join("status")).unwrap())
                .filter(|status| !status.starts_with("Name:\tfermata"))
                .collect();
            if statuses.iter().all(|it| it.contains("State:\tS")) {
                let lines = |status: &str, what: &str| -> Vec<String> {
                    let lines = status.lines().filter(|line| line.contains(what));
                    lines.map(str::to_owned).collect()
                };
                let told = |it: &String| (lines(it, "Pid:\t").concat(), lines(it, "ctxt_switches"));
                return statuses.iter().map(told).collect();
            }
            assert!(Instant::now() < end, "threads run: {statuses:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a summons has not been followed yet.
    pub fn is_summoned(&self) -> bool {
        let memory = File::open(format!("/proc/{}/mem", self.program.id())).unwrap();
        let mut state = [0; 4];
        let at = self.wake + wake_block::STATE;
        memory.read_exact_at(&mut state, at).unwrap();
        state == WAKE_REATTACH.to_le_bytes()
    }

    /// Summons the agent to the socket at `path`.
    pub fn summon(&self, path: &str) {
        let memory = File::options()
            .write(true)
            .open(format!("/proc/{}/mem", self.program.id()))
            .unwrap();
        let write = |at: u64, bytes: &[u8]| memory.write_all_at(bytes, self.wake + at).unwrap();
        write(wake_block::SOCKET, format!("{path}\0").as_bytes());
        write(wake_block::TOKEN, format!("{TOKEN}\0").as_bytes());
        write(wake_block::STATE, &WAKE_REATTACH.to_le_bytes());
    }

    /// Summons the agent, and takes it back into service with a new ring.
    pub fn reattach(&mut self) {
        self.summon(&self.socket.display().to_string());
        self.agent = Connection::new(self.listener.accept().unwrap().0.into(), "agent");
        let (pid, reattach) = self.hello();
        assert_eq!((pid, reattach), (self.program.id(), true));
        self.welcome(true);
        assert_eq!(self.agent.recv(WAIT).unwrap().0, FromAgent::Resumed);
    }

    /// Once the program has allocated something: stops the session, and has it go on with another worker.
    #[allow(dead_code)]
    pub fn change_worker(&mut self) {
        self.wait_for_allocation();
        assert!(matches!(self.quiesce(), FromAgent::Quiesced { .. }));
        self.detach();
        self.reattach();
    }

    /// Lets the program go on to its end, and waits for that; whether it succeeded.
    pub fn finish(mut self) -> bool {
        drop(self.program.stdin.take());
        let end = Instant::now() + WAIT;
        loop {
            if let Some(status) = self.program.try_wait().unwrap() {
                self.stop_worker();
                return status.success();
            }
            assert!(Instant::now() < end, "the program hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        let _ = self.socket.parent().map(std::fs::remove_dir_all);
    }
}

struct Serving {
    consumer: Option<Consumer>,
    side: Arc<Side>,
    device: Arc<Mutex<Device>>,
    stop: Arc<AtomicBool>,
    /// For each callback that has not run, what is to come after it.
    streams: VecDeque<Vec<fermata_wire::Ticket>>,
    /// Callbacks that have run.
    ran: u32,
    callbacks: CallbackCount,
}

impl Serving {
    fn run(mut self) {
        for (address, (size, file)) in &self.device.lock().unwrap().regions {
            let region = ToProgram::Region {
                address: *address,
                size: *size,
            };
            self.side
                .send_to_program(&region, Some(file.as_fd()))
                .unwrap();
        }
        self.side
            .send_to_program(&ToProgram::RegionsEnd, None)
            .unwrap();
        let mut consumer = self.consumer.take().unwrap();
        let (replier, staging) = (consumer.replier(), consumer.staging());
        let ran = self.callbacks.clone();
        let mut names = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            self.release(&ran, &replier);
            let message = match consumer.next(Duration::from_millis(1)) {
                Ok(Event::Message(message)) => message,
                Ok(Event::Idle) => continue,
                Ok(Event::Closed) | Err(_) => return,
            };
            let mut bytes = Vec::new();
            let (status, body) = self.execute(&message.op, &staging, &mut bytes, &mut names);
            // Work behind a callback waits for it; nothing else in here takes any time.
            let behind = matches!(
                message.op,
                Op::StreamSync { .. } | Op::Drain | Op::ContextSync { .. }
            );
            if let (true, Some(waiting)) = (behind, self.streams.back_mut()) {
                waiting.extend(message.ticket);
                continue;
            }
            if let Some(ticket) = message.ticket {
                replier
                    .answer(
                        ticket,
                        &Reply {
                            status,
                            body,
                            text: "",
                        },
                    )
                    .unwrap();
            }
        }
    }

    /// Answers what has waited for callbacks that have run by now.
    fn release(&mut self, ran: &CallbackCount, replier: &fermata_wire::Replier) {
        while !self.streams.is_empty() && ran.has_run(self.ran, Duration::ZERO) {
            self.ran += 1;
            for ticket in self.streams.pop_front().into_iter().flatten() {
                let reply = Reply {
                    status: 0,
                    body: ReplyBody::None,
                    text: "",
                };
                replier.answer(ticket, &reply).unwrap();
            }
        }
    }

    fn execute<'b>(
        &mut self,
        op: &Op<'_>,
        staging: &StagedArea,
        bytes: &'b mut Vec<u8>,
        names: &mut Vec<(u64, String)>,
    ) -> (u32, ReplyBody<'b>) {
        let mut device = self.device.lock().unwrap();
        if let Some(line) = ordered(op) {
            device.ordered.push(line);
        }
        match op {
            Op::SmAsk { of, question } => {
                let numbers = multiprocessors(of, question);
                bytes.extend(numbers.iter().flat_map(|it| it.to_le_bytes()));
                return (0, ReplyBody::Bytes(bytes));
            }
            Op::Devices => return (0, ReplyBody::Devices(vec![info(0), info(1)])),
            Op::Drain => device.drains += 1,
            Op::StreamCreate { .. } => device.streams.0 += 1,
            Op::StreamDestroy { .. } => device.streams.1 += 1,
            Op::MemAlloc { size, .. } | Op::MemAllocAsync { size, .. } => {
                let address = device.next;
                device.next += size.next_multiple_of(1 << 21);
                device.memory.insert(address, vec![0; *size as usize]);
                return (0, ReplyBody::U64(address.raw()));
            }
            Op::AddressReserve { size, .. } => {
                let address = device.next;
                device.next += size.next_multiple_of(1 << 21);
                return (0, ReplyBody::U64(address.raw()));
            }
            Op::MemFree { address } => {
                device.memory.remove(address).unwrap();
            }
            Op::MemInfo { .. } => return (0, ReplyBody::Pair(1, 2)),
            Op::HostMap { address, .. } => {
                let (message, file) = self.side.receive_from_program(WAIT).unwrap().unwrap();
                let FromProgram::Region { address: at, size } = message else {
                    panic!("{message:?}")
                };
                assert_eq!(at, *address);
                device.regions.insert(at, (size, file.unwrap()));
            }
            Op::HostUnmap { address } => {
                device.regions.remove(address).unwrap();
            }
            Op::Copy { to, from, len, .. } => {
                device.copies += 1;
                let source = device.load(from, *len, staging);
                if let Place::Blob(Blob::Inline(room)) = to {
                    assert_eq!(room.len() as u64, *len);
                    *bytes = source;
                    return (0, ReplyBody::Bytes(bytes));
                }
                device.store(to, &source, staging);
            }
            Op::Fill {
                address,
                element: 1,
                value,
                width,
                height: 1,
                ..
            } => {
                let data = vec![*value as u8; *width as usize];
                device.store(&Place::Address(*address), &data, staging);
            }
            Op::ImageHold { from, .. } => {
                let came = image(&self.side, from, staging);
                let status = if came.is_some() {
                    0
                } else {
                    CUDA_ERROR_FILE_NOT_FOUND
                };
                device.images.extend(came);
                return (status, ReplyBody::None);
            }
            Op::ModuleLoad { image: from, .. } => {
                device.images.extend(image(&self.side, from, staging));
            }
            Op::ModuleFunctions { .. } => {
                let functions = vec!["first".into(), "second".into()];
                return (0, ReplyBody::Module(ModuleInfo { functions }));
            }
            Op::FunctionGet { function, name, .. } => {
                names.push((function.raw(), (*name).to_owned()));
                if !matches!(*name, "first" | "second") {
                    return (500, ReplyBody::None);
                }
                let params = vec![(0, 8), (8, 4), (16, 8)];
                let attributes = vec![1024, 0, 0, 0, 16, 0, 0, 0, 40 << 10];
                return (0, ReplyBody::Function(FunctionInfo { params, attributes }));
            }
            Op::Launch { launch, .. } => {
                device
                    .launches
                    .push((launch.function.raw(), launch.grid, launch.params.to_vec()));
                let given = launch.attributes.iter();
                let given = given.map(|it| (it.id, it.value.to_vec()));
                device.attributes.extend(given);
            }
            Op::FunctionSetAttribute { value, .. } => device.set.push(*value),
            Op::EventCreate { event, .. } => device.events.push(event.raw()),
            Op::TensorMap { tensor, of } => {
                device.questions.push(format!("{tensor:?} {of:?}"));
                bytes.resize(TENSOR_MAP, 0);
                bytes[..8].copy_from_slice(&tensor.address.raw().to_le_bytes());
                bytes[8..16].copy_from_slice(&tensor.extent().to_le_bytes());
                return (0, ReplyBody::Bytes(bytes));
            }
            Op::TensorMapMove { map, address } => {
                device.questions.push(format!("move to {address:#x}"));
                bytes.extend_from_slice(map);
                bytes[..8].copy_from_slice(&address.raw().to_le_bytes());
                return (0, ReplyBody::Bytes(bytes));
            }
            Op::Link { job, .. } => {
                let Blob::Staged { offset, len } = job else {
                    panic!("{job:?}")
                };
                let mut given = vec![0; *len as usize];
                staging.read(*offset, &mut given).unwrap();
                let job: LinkJob<'_> = postcard::from_bytes(&given).unwrap();
                device.questions.push(format!("{job:?}"));
                job.inputs.iter().for_each(|it| bytes.extend(it.bytes));
                return (0, ReplyBody::Bytes(bytes));
            }
            Op::TextureCreate { texture, .. } => {
                device.questions.push(format!("{texture:?}"));
                return (0, ReplyBody::U64(device.questions.len() as u64));
            }
            Op::TextureDestroy { .. } | Op::MipmapDestroy { .. } => device.released += 1,
            Op::ReferenceGet { name: "none", .. } => return (500, ReplyBody::None),
            Op::ReferenceGet { .. } => {
                let sampler = Sampler {
                    address_modes: [1; 3],
                    filter: 1,
                    flags: 2,
                    anisotropy: 0,
                    level_filter: 0,
                    levels: [0; 3],
                    border: [0; 4],
                };
                let settings = ReferenceSettings {
                    sampler,
                    format: 32,
                    channels: 1,
                };
                bytes.extend(postcard::to_stdvec(&settings).unwrap());
                return (0, ReplyBody::Bytes(bytes));
            }
            Op::ReferenceBind { name, texture, .. } => {
                device.questions.push(format!("{name}: {texture:?}"));
                return (0, ReplyBody::U64(0));
            }
            Op::MipmapCreate { shape, .. } => device.questions.push(format!("{shape:?}")),
            Op::MemRelease { .. } => device.released += 1,
            Op::MemShare { sharer, memory, .. } => {
                let shared = SharedMemory {
                    sharer: *sharer,
                    buffer: 1,
                    whole: 2 << 20,
                    offset: 0,
                    size: 2 << 20,
                    memory: *memory,
                };
                bytes.extend_from_slice(&shared.encode());
                return (0, ReplyBody::Bytes(bytes));
            }
            // This session has no other process.
            Op::MemFetch { .. } => return (1, ReplyBody::None),
            Op::Occupancy { question, .. } => {
                device.questions.push(format!("{question:?}"));
                return (0, answer(question));
            }
            Op::HostCall { id, .. } => {
                let number = self.ran + self.streams.len() as u32;
                self.streams.push_back(Vec::new());
                assert!(self.callbacks.ask(number, *id));
            }
            _ => {}
        }
        (0, ReplyBody::None)
    }
}

/// Operations on green contexts, on streams of the program, and on events, as short lines.
fn ordered(op: &Op<'_>) -> Option<String> {
    Some(match op {
        Op::GreenCreate {
            green, resource, ..
        } => format!("green {green:x} of {:?}", resource.cuts),
        Op::GreenDestroy { green } => format!("no green {green:x}"),
        Op::GreenStream { stream, green, .. } => format!("stream {stream:x} in {green:x}"),
        Op::StreamCreate { stream, .. } => format!("stream {stream:x}"),
        Op::StreamDestroy { stream } => format!("no stream {stream:x}"),
        Op::StreamSync { stream } => format!("sync {:x}", stream.stream),
        Op::EventRecord { event, stream, .. } => format!("record {event:x} in {:x}", stream.stream),
        Op::StreamWait { event, stream, .. } => format!("wait {event:x} in {:x}", stream.stream),
        Op::Launch { launch, stream } => {
            format!("launch {:x} in {:x}", launch.function, stream.stream)
        }
        Op::MemAlloc { context, .. } => format!("memory in {context:x}"),
        _ => return None,
    })
}

/// A device of 132 multiprocessors that are split as asked.
fn multiprocessors(of: &SmResource, question: &SmQuestion) -> Vec<u64> {
    let count = of.cuts.last().map_or(132, |cut| match cut.parts[..] {
        [SM_REST] => 132 - u64::from(cut.split.groups * cut.split.minimum),
        ref parts => parts.len() as u64 * u64::from(cut.split.minimum),
    });
    match question {
        SmQuestion::Counts => vec![count, 8, 8],
        SmQuestion::Groups { minimum, .. } => vec![count / u64::from(*minimum)],
        SmQuestion::Split(split) => {
            let most = count / u64::from(split.minimum);
            let groups = most.min(u64::from(split.groups));
            let size = u64::from(split.minimum);
            let groups = std::iter::repeat_n([size, 8, 8], groups as usize);
            let taken = size * groups.len() as u64;
            let rest = match count - taken {
                0 => [0; 3],
                rest => [rest, 8, 8],
            };
            std::iter::once(rest).chain(groups).flatten().collect()
        }
    }
}

/// Numbers by which a test sees that all of its question has come over.
fn answer(question: &Occupancy<'_>) -> ReplyBody<'static> {
    let first_words = |launch: &Launch<'_>| {
        let words = launch.attributes.iter().map(|it| u64::from(it.value[0]));
        words.sum::<u64>() * 1000 + u64::from(launch.grid[0])
    };
    match question {
        Occupancy::Blocks {
            block,
            shared,
            flags,
        } => ReplyBody::U64(shared.wrapping_add_signed((*block).into()) + u64::from(*flags)),
        Occupancy::BlockSize { shared, limit, .. } => match shared {
            SharedOf::Any(bytes) => ReplyBody::Pair(*bytes, *limit as u64),
            SharedOf::Sizes(sizes) => {
                ReplyBody::Pair(sizes.len() as u64, sizes.iter().map(|it| it.1).sum())
            }
        },
        Occupancy::SharedMemory { blocks, block } => ReplyBody::U64((blocks * block) as u64),
        Occupancy::Clusters(launch, _) => ReplyBody::U64(first_words(launch)),
        Occupancy::ClusterSize(launch, _) => ReplyBody::U64(1_000_000 + first_words(launch)),
    }
}

/// How an image has come, and its bytes; none if its file is too short.
fn image(
    side: &Side,
    from: &ImageRef<'_>,
    staging: &StagedArea,
) -> Option<(&'static str, Vec<u8>)> {
    match from {
        ImageRef::Blob(Blob::Inline(bytes)) => Some(("inline", bytes.to_vec())),
        ImageRef::Blob(Blob::Staged { offset, len }) => {
            let mut bytes = vec![0; *len as usize];
            staging.read(*offset, &mut bytes).unwrap();
            Some(("staged", bytes))
        }
        ImageRef::File { file, offset, len } => {
            let (message, fd) = side.receive_from_program(WAIT).unwrap().unwrap();
            assert_eq!(message, FromProgram::File { file: *file });
            let file = File::from(fd.unwrap());
            let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            let path = std::fs::read_link(link).unwrap();
            let in_memory = path.display().to_string().starts_with("/memfd:");
            let way = if in_memory { "memory file" } else { "file" };
            let mut bytes = vec![0; *len as usize];
            let read = file.read_exact_at(&mut bytes, *offset);
            read.is_ok().then_some((way, bytes))
        }
        ImageRef::Held { .. } => Some(("held", Vec::new())),
    }
}

impl Device {
    fn load(&self, place: &Place<'_>, len: u64, staging: &StagedArea) -> Vec<u8> {
        let mut out = vec![0; len as usize];
        match place {
            Place::Blob(Blob::Inline(bytes)) => out.copy_from_slice(bytes),
            Place::Blob(Blob::Staged { offset, .. }) => staging.read(*offset, &mut out).unwrap(),
            Place::Address(address) => match self.region(*address) {
                Some((at, file)) => file.read_exact_at(&mut out, at).unwrap(),
                None => {
                    let (start, bytes) = self.memory.range(..=address).next_back().unwrap();
                    out.copy_from_slice(&bytes[(*address - *start) as usize..][..len as usize]);
                }
            },
            Place::Array { .. } => panic!("no arrays here"),
        }
        out
    }

    fn store(&mut self, place: &Place<'_>, data: &[u8], staging: &StagedArea) {
        match place {
            Place::Blob(Blob::Staged { offset, .. }) => staging.write(*offset, data).unwrap(),
            Place::Address(address) => match self.region(*address) {
                Some((at, file)) => file.write_all_at(data, at).unwrap(),
                None => {
                    let (start, bytes) = self.memory.range_mut(..=address).next_back().unwrap();
                    bytes[(*address - *start) as usize..][..data.len()].copy_from_slice(data);
                }
            },
            _ => panic!("cannot store there"),
        }
    }

    fn region(&self, address: Address) -> Option<(u64, File)> {
        let (start, (_, file)) = self
            .regions
            .iter()
            .find(|(start, (size, _))| (**start..**start + *size).contains(&address))?;
        Some((address - *start, File::from(file.try_clone().unwrap())))
    }
}

fn info(n: u8) -> DeviceInfo {
    DeviceInfo {
        name: format!("Test device {n}"),
        uuid: [n; 16],
        memory: 1 << 30,
        bus_id: format!("0000:0{n}:00.0"),
        attributes: vec![i32::MIN, 1024, 1024, 1024, 64],
        peers: vec![true, true],
        driver_version: 13000,
    }
}
