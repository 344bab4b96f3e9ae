//! An S3-compatible server of our own, which keeps objects in a folder: the example `object_store` of `fermata-object`.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fermata_object::{ObjectConfig, Secret};

pub const BUCKET: &str = "checkpoints";
const KEY: &str = "fermata";
const SECRET: &str = "a secret of the tests";

/// A server; ends when dropped.
pub struct Server {
    child: Child,
    pub port: u16,
    folder: PathBuf,
}

impl Server {
    /// Starts one that keeps its buckets in `folder`; it has one bucket.
    pub fn start(folder: &Path) -> Self {
        std::fs::create_dir_all(folder.join(BUCKET)).unwrap();
        Self::on(folder, free_port())
    }

    /// Starts one on this port.
    pub fn on(folder: &Path, port: u16) -> Self {
        let mut child = Command::new(program())
            .args([&port.to_string(), KEY, SECRET])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        listens(&mut child, port);
        Self {
            child,
            port,
            folder: folder.into(),
        }
    }

    pub fn config(&self) -> ObjectConfig {
        config(self.port)
    }

    /// The objects of the bucket that hold checkpoints or chunks: paths and bytes.
    pub fn objects(&self) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.join(BUCKET)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => found.push((entry.path(), entry.metadata().unwrap().len())),
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// TLS before a server, with a certificate that it has made itself; ends when dropped.
pub struct Tls {
    child: Child,
    pub port: u16,
    /// What a client must trust.
    pub certificate: PathBuf,
}

impl Tls {
    /// In front of the server on the port `to`; certificate and key go to `folder`.
    pub fn start(folder: &Path, to: u16) -> Self {
        let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt"]);
        openssl.args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
        openssl.args([
            "-subj",
            "/CN=tests",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate);
        let made = openssl.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let port = free_port();
        let mut child = Command::new("python3")
            .args(["-c", RELAY, &port.to_string(), &to.to_string()])
            .args([&certificate, &key])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        listens(&mut child, port);
        Self {
            child,
            port,
            certificate,
        }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes on what comes in by TLS.
const RELAY: &str = r#"
import asyncio, ssl, sys
async def pump(source, sink):
    try:
        while part := await source.read(1 << 16):
            sink.write(part)
            await sink.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    sink.close()
async def client(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(pump(reader, back), pump(there, writer))
async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    server = await asyncio.start_server(client, "127.0.0.1", int(sys.argv[1]), ssl=context)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await server.serve_forever()
asyncio.run(main())
"#;

/// A port that nobody listens on, and that no connection gets: it lies below those that the system gives to
/// connections (`ip_local_port_range`), so it is free while a server starts and while a test has it down.
fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(61);
    let mut ports = (0..COUNT).map(|_| {
        let next = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        (FIRST + next % COUNT) as u16
    });
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(free).unwrap()
}

/// The server's executable, which cargo builds beside the tests of all crates.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test
        .parent()
        .unwrap()
        .with_file_name("examples/object_store");
    assert!(
        program.exists(),
        "no {}: run `cargo build -p fermata-object --example object_store`",
        program.display()
    );
    program
}

/// Waits until somebody listens on the port.
fn listens(child: &mut Child, port: u16) {
    let until = Instant::now() + Duration::from_secs(300);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(child.try_wait().unwrap().is_none(), "the server has ended");
        assert!(Instant::now() < until, "the server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How a job gets to a server on this port.
pub fn config(port: u16) -> ObjectConfig {
    ObjectConfig {
        bucket: BUCKET.into(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: None,
        prefix: "site/".into(),
        path_style: None,
        keys: Some((KEY.into(), Secret(SECRET.into()))),
        deadline: 60.0,
    }
}
