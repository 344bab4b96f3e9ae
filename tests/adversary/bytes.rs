//! Bytes that no program of ours sends: on every socket of the daemon, and in the memory that a program shares with its
//! worker.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::ground::Ground;
use super::{Draw, Kind, Shown};
use crate::processes::Process;
use crate::scene::{Scene, Which, wait_gone};

/// Messages and writes of a case, at most.
const MOST: u64 = 40;
const LOOK: u64 = 8;
/// What the memory between program and worker is called.
const RING: &str = "fermata-ring";

/// Messages that peers send.
const SOUND: [&str; 12] = [
    r#"{"protocol":2,"verb":"Ps"}"#,
    r#"{"protocol":2,"verb":{"Session":{"name":"neighbour"}}}"#,
    r#"{"protocol":2,"verb":{"Wait":{"name":"neighbour"}}}"#,
    r#"{"protocol":2,"verb":{"Logs":{"name":"neighbour"}}}"#,
    r#"{"protocol":2,"verb":{"Doctor":{"name":"neighbour"}}}"#,
    r#"{"Hello":{"protocol":2,"pid":1,"token":"0123456789abcdef","wake_block":4096,"reattach":true}}"#,
    r#"{"Back":{"protocol":2,"pid":1,"token":"0123456789abcdef","wake_block":0}}"#,
    r#"{"Quiesced":{"threads":4294967295,"nanoseconds":18446744073709551615}}"#,
    r#"{"Back":{"protocol":2,"session":"neighbour","driver":"/x","soft":true,"devices":[]}}"#,
    r#"{"Back":{"protocol":2,"driver":[47,255],"soft":true,"kernels_first":false,"devices":[],"driver_version":13000,"serving":true}}"#,
    r#"{"Lost":{"reason":"x"}}"#,
    r#"{"Ready":{"protocol":2,"devices":[],"driver_version":-1}}"#,
];

/// See the module.
pub struct Bytes {
    ground: Ground,
}

impl Bytes {
    /// Sets the stage.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn new() -> Result<Self> {
        let ground = Ground::new(Scene::new()?)?;
        Ok(Self { ground })
    }

    /// Sends messages to one socket, some of them one after the other on one connection.
    fn send(&self, socket: &Path, draw: &mut Draw) -> Result<()> {
        for _ in 0..1 + draw.below(MOST) {
            let Ok(mut stream) = UnixStream::connect(socket) else {
                let datagrams = UnixDatagram::unbound()?;
                let sent = datagrams.connect(socket);
                sent.with_context(|| format!("`{}`", socket.display()))?;
                datagrams.set_write_timeout(Some(Duration::from_secs(5)))?;
                datagrams.send(&message(draw)).ok();
                continue;
            };
            stream.set_write_timeout(Some(Duration::from_secs(5)))?;
            for _ in 0..1 + draw.below(3) {
                // A daemon that has closed the connection already has done right.
                stream.write_all(&message(draw)).ok();
            }
        }
        Ok(())
    }

    /// Writes into the ring of a session of its own, which is ended then, whatever has become of it.
    fn scribble(&self, name: &str, draw: &mut Draw) -> Result<String> {
        let scene = &self.ground.scene;
        self.ground.start(name)?;
        let worker = scene.process(name, Which::Worker)?;
        let program = scene.process(name, Which::Program)?;
        let (memory, length) = ring(&worker)?;
        // Counters lie in the first pages; operations and staging behind them.
        let near = length.min(1 << 16);
        for _ in 0..1 + draw.below(MOST) {
            let far = draw.below(2) == 0;
            let at = draw.below(if far { length } else { near });
            let count = (1 + draw.below(16)).min(length - at);
            let bytes: Vec<u8> = match draw.below(3) {
                0 => vec![0xff; count as usize],
                1 => vec![0; count as usize],
                _ => (0..count).map(|_| draw.below(256) as u8).collect(),
            };
            memory.write_all_at(&bytes, at).context("write to a ring")?;
            if draw.below(4) == 0 {
                std::thread::sleep(Duration::from_millis(draw.below(20)));
            }
        }
        std::thread::sleep(Duration::from_millis(draw.below(100)));
        let fermata = scene.fermata();
        let went_on = fermata.session(name)?.state == "running";
        // It may have ended by now.
        fermata.call(&["kill", name])?;
        [&program, &worker].into_iter().try_for_each(wait_gone)?;
        self.ground.end_of(name)?;
        Ok(match went_on {
            true => "it went on, and could be ended".to_owned(),
            false => "it ended".to_owned(),
        })
    }
}

/// The memory that a worker shares with its program, and its bytes.
fn ring(worker: &Process) -> Result<(fs::File, u64)> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", worker.pid))?;
    let line = maps.lines().find(|it| it.contains(RING));
    let range = line.and_then(|it| it.split(' ').next());
    let range = range.context("a worker without a ring")?;
    let path = format!("/proc/{}/map_files/{range}", worker.pid);
    let file = fs::OpenOptions::new().read(true).write(true).open(&path);
    let file = file.with_context(|| path.clone())?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// A message that some peer sends, with a few bytes changed, cut, or in a frame that says another length; or noise.
fn message(draw: &mut Draw) -> Vec<u8> {
    let mut body = match draw.below(4) {
        0 => (0..draw.below(2000))
            .map(|_| draw.below(256) as u8)
            .collect(),
        _ => draw.pick(&SOUND).as_bytes().to_vec(),
    };
    for _ in 0..draw.below(4) {
        if !body.is_empty() {
            let at = draw.below(body.len() as u64) as usize;
            body[at] = draw.below(256) as u8;
        }
    }
    if draw.below(4) == 0 {
        body.truncate(draw.below(body.len() as u64 + 1) as usize);
    }
    let length = match draw.below(6) {
        0 => draw.below(1 << 32) as u32,
        _ => body.len() as u32,
    };
    [&length.to_le_bytes()[..], &body].concat()
}

impl Kind for Bytes {
    fn name(&self) -> &'static str {
        "bytes"
    }

    fn perform(&mut self, number: u64, draw: &mut Draw) -> Result<Shown> {
        let sockets = self.ground.sockets()?;
        let daemon = self.ground.scene.sandbox().daemon();
        // The ring is as likely as the sockets together.
        let (harm, came) = match draw.below(2) == 0 {
            true => {
                let socket = draw.pick(&sockets);
                let name = socket.file_name().unwrap_or_default().to_string_lossy();
                self.send(socket, draw)?;
                (format!("messages at {name}"), "nothing".to_owned())
            }
            false => {
                let came = self.scribble(&format!("case-{number}"), draw)?;
                ("writes to a ring".to_owned(), came)
            }
        };
        ensure!(
            daemon.is_some() && self.ground.scene.sandbox().daemon() == daemon,
            "{harm}: the daemon is another"
        );
        self.ground.check_nothing_left()?;
        if number.is_multiple_of(LOOK) {
            self.ground.check_neighbour()?;
            self.ground.check_files()?;
        }
        Ok(Shown { harm, came })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.ground.close()
    }
}
