//! A front, instances that are threads, and a client.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermata_function::{FrontConfig, Host, Instance, Link, StartError, Stop, serve};

const LIMIT: Duration = Duration::from_secs(120);

/// More than sockets hold.
const LARGE: usize = 64 << 20;

/// Two instances at once, kept for ever.
pub fn config() -> FrontConfig {
    FrontConfig {
        name: "f".to_owned(),
        keep: LIMIT,
        most: 2,
        queue: 8,
        wait: LIMIT,
        limit: LIMIT,
        body: 1 << 20,
    }
}

/// What the instances of a scene share.
#[derive(Default)]
pub struct Fakes {
    pub started: AtomicUsize,
    pub live: AtomicUsize,
    pub most: AtomicUsize,
    pub broken: AtomicBool,
    /// How many requests for `/large` have come.
    pub large: AtomicUsize,
    hold: AtomicBool,
    answering: AtomicUsize,
    died: AtomicBool,
    all: Mutex<Vec<Arc<Shared>>>,
}

struct Shared {
    address: SocketAddr,
    ended: AtomicBool,
}

struct FakeHost(Arc<Fakes>);

impl Host for FakeHost {
    fn start(&self) -> Result<Box<dyn Instance>, StartError> {
        let fakes = &self.0;
        if fakes.broken.load(Ordering::SeqCst) {
            return Err(StartError {
                message: "the image is gone".to_owned(),
                hint: "make it again".to_owned(),
            });
        }
        let number = fakes.started.fetch_add(1, Ordering::SeqCst);
        let live = fakes.live.fetch_add(1, Ordering::SeqCst) + 1;
        fakes.most.fetch_max(live, Ordering::SeqCst);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared {
            address: listener.local_addr().unwrap(),
            ended: AtomicBool::new(false),
        });
        fakes.all.lock().unwrap().push(Arc::clone(&shared));
        let (its, all) = (Arc::clone(&shared), Arc::clone(fakes));
        let thread = std::thread::spawn(move || listen(&listener, &its, &all));
        Ok(Box::new(FakeInstance {
            name: format!("f-{number}"),
            shared,
            fakes: Arc::clone(fakes),
            thread: Mutex::new(Some(thread)),
        }))
    }

    fn warn(&self, _text: &str) {}
}

struct FakeInstance {
    name: String,
    shared: Arc<Shared>,
    fakes: Arc<Fakes>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Instance for FakeInstance {
    fn name(&self) -> &str {
        &self.name
    }

    fn connect(&self) -> io::Result<Link> {
        TcpStream::connect(self.shared.address).map(Link::Tcp)
    }

    fn came_back(&self) -> bool {
        self.fakes.died.load(Ordering::SeqCst)
    }

    fn end(&self) {
        end(&self.shared);
        if let Some(thread) = self.thread.lock().unwrap().take() {
            thread.join().unwrap();
            self.fakes.live.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn end(shared: &Shared) {
    shared.ended.store(true, Ordering::SeqCst);
    // It may have ended already.
    drop(TcpStream::connect(shared.address));
}

/// Answers a request on each connection, until it ends.
fn listen(listener: &TcpListener, shared: &Shared, fakes: &Fakes) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let stream = stream.unwrap();
        let (head, body) = read(&mut BufReader::new(&stream)).unwrap();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        match &*path {
            "/die" => return,
            "/die-once" if !fakes.died.swap(true, Ordering::SeqCst) => continue,
            "/half" => {
                let text = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
                (&stream).write_all(text.as_bytes()).unwrap();
                wait(shared, fakes);
                continue;
            }
            "/large" => {
                fakes.large.fetch_add(1, Ordering::SeqCst);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n");
                // The front gives it up.
                let _ = (&stream).write_all(&[head.into_bytes(), vec![b'x'; LARGE]].concat());
                continue;
            }
            "/held" => wait(shared, fakes),
            _ => {}
        }
        let answer = match body.is_empty() {
            true => path.into_bytes(),
            false => body,
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        // The front may have given it up.
        let _ = (&stream).write_all(&[head.into_bytes(), answer].concat());
    }
}

/// Stands still while the scene is held.
fn wait(shared: &Shared, fakes: &Fakes) {
    fakes.answering.fetch_add(1, Ordering::SeqCst);
    while fakes.hold.load(Ordering::SeqCst) && !shared.ended.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(2));
    }
    fakes.answering.fetch_sub(1, Ordering::SeqCst);
}

/// The lines of a head, and a body of the length that it says.
fn read(from: &mut impl BufRead) -> io::Result<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && from.read_line(&mut head)? > 0 {}
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    from.read_exact(&mut body)?;
    Ok((head, body))
}

/// What a client got.
#[derive(Debug, Default)]
pub struct Got {
    /// 0 if there was none.
    pub status: u16,
    pub body: String,
    /// Whether all of it has come.
    pub whole: bool,
    head: String,
}

impl Got {
    /// A header's value; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(its, _)| its.eq_ignore_ascii_case(name));
        found.next().map_or("", |(_, value)| value)
    }
}

/// A front with its instances.
pub struct Scene {
    address: SocketAddr,
    fakes: Arc<Fakes>,
    stop: Stop,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl Scene {
    pub fn new(config: FrontConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fakes, stop) = (Arc::<Fakes>::default(), Stop::default());
        let host = Arc::new(FakeHost(Arc::clone(&fakes)));
        let stops = stop.clone();
        let thread = std::thread::spawn(move || serve(listener, config, host, &stops));
        Self {
            address,
            fakes,
            stop,
            thread: Mutex::new(Some(thread)),
        }
    }

    pub fn host(&self) -> &Fakes {
        &self.fakes
    }

    /// Whether requests to `/held` and the rest of `/half` stand still.
    pub fn hold(&self, hold: bool) {
        self.fakes.hold.store(hold, Ordering::SeqCst);
    }

    /// How many do.
    pub fn answering(&self) -> usize {
        self.fakes.answering.load(Ordering::SeqCst)
    }

    /// Ends all instances without telling the front.
    pub fn end_all(&self) {
        self.fakes.all.lock().unwrap().iter().for_each(|it| end(it));
        // The listeners are closed by their threads.
        let closed = |it: &Arc<Shared>| TcpStream::connect(it.address).is_err();
        self.until(|| self.fakes.all.lock().unwrap().iter().all(closed));
    }

    /// A client that asks and does not read.
    pub fn ask_only(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> Got {
        self.ask(
            &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
            b"",
        )
    }

    pub fn post(&self, path: &str, body: &[u8]) -> Got {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        self.ask(&head, body)
    }

    fn ask(&self, head: &str, body: &[u8]) -> Got {
        let Ok(mut stream) = TcpStream::connect(self.address) else {
            return Got::default();
        };
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut all = Vec::new();
        let sent = stream.write_all(&[head.as_bytes(), body].concat());
        if sent.is_err() || stream.read_to_end(&mut all).is_err() && all.is_empty() {
            return Got::default();
        }
        let mut from = &all[..];
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && from.read_line(&mut head).unwrap_or(0) > 0 {}
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
        let got = Got {
            status: status.unwrap_or(0),
            body: String::from_utf8_lossy(from).into_owned(),
            whole: false,
            head,
        };
        let length = got.header("content-length").parse().unwrap_or(usize::MAX);
        Got {
            whole: got.body.len() == length,
            ..got
        }
    }

    /// Waits until something holds.
    pub fn until(&self, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LIMIT, "it does not come about");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn stop(&self) {
        self.stop.ask();
    }

    pub fn is_closed(&self) -> bool {
        TcpStream::connect(self.address).is_err()
    }

    pub fn ends_within(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let ended = self
                .thread
                .lock()
                .unwrap()
                .as_ref()
                .is_none_or(JoinHandle::is_finished);
            if ended || begun.elapsed() > limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the front; then no instance is left.
    pub fn close(self) {
        self.hold(false);
        self.stop();
        assert!(self.ends_within(LIMIT), "the front does not end");
        let thread = self.thread.lock().unwrap().take();
        thread.unwrap().join().unwrap().unwrap();
        assert_eq!(
            self.fakes.live.load(Ordering::SeqCst),
            0,
            "instances are left"
        );
    }
}
