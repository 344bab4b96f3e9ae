//! An S3-compatible server of our own, which keeps objects in a folder; `tools/setup.sh s3` installs it.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_app::{ObjectConfig, Secret};

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
        // Free a moment ago; the next test gets another one.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        Self::on(folder, port)
    }

    /// Starts one on this port.
    pub fn on(folder: &Path, port: u16) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = root.join(".deps/s3/bin/s3s-fs");
        assert!(
            program.exists(),
            "no {}: run `tools/setup.sh s3`",
            program.display()
        );
        let mut child = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the server has ended");
            assert!(Instant::now() < until, "the server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
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

/// How a job gets to a server on this port.
pub fn config(port: u16) -> ObjectConfig {
    ObjectConfig {
        bucket: BUCKET.into(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: None,
        prefix: "site/".into(),
        path_style: None,
        keys: Some((KEY.into(), Secret(SECRET.into()))),
        deadline: 20.0,
    }
}
