//! The daemon's metrics as Prometheus text, at the address or Unix socket that `FERMATA_METRICS` names.
//!
//! Each connection is answered once and closed: the head of its request has a bound and a deadline, and nothing in it but its
//! first line is looked at.

mod gauges;
mod pool;

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fermata_control::settings;
use fermata_control::user::SessionMemory;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Registry, Unit};

use self::gauges::{Gauges, number};
use crate::daemon::Daemon;
use crate::memory;
use crate::parallel::breathe;
use crate::pool::spare_workers;

/// The setting that says where.
const SETTING: &str = "FERMATA_METRICS";
/// The most bytes of a request's head, and how long it may take.
const HEAD_BYTES: usize = 8 << 10;
const HEAD_TIME: Duration = Duration::from_secs(5);

/// Answers from now on, if that is asked for.
///
/// # Errors
/// The address cannot be listened at.
pub fn serve(daemon: &Arc<Daemon>) -> anyhow::Result<()> {
    let Some(place) = settings::value(SETTING) else {
        return Ok(());
    };
    let shown = place.to_string_lossy();
    let what = || format!("cannot listen at `{shown}`, which {SETTING} says");
    if Path::new(&place).is_absolute() {
        let listener = unix(Path::new(&place)).with_context(what)?;
        let next = move || listener.accept().map(|(stream, _)| Client::Unix(stream));
        return begin(daemon, next);
    }
    let listener = TcpListener::bind(&*shown).with_context(what)?;
    begin(daemon, move || {
        listener.accept().map(|(stream, _)| Client::Tcp(stream))
    })
}

/// A socket at `path` for this user alone, in place of one that an ended daemon has left. Nothing else is replaced.
fn unix(path: &Path) -> io::Result<UnixListener> {
    let found = fs::symlink_metadata(path);
    if found.is_ok_and(|it| it.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Who asks.
enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Client {
    fn limit(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(it) => it
                .set_read_timeout(Some(time))
                .and(it.set_write_timeout(Some(time))),
            Self::Unix(it) => it
                .set_read_timeout(Some(time))
                .and(it.set_write_timeout(Some(time))),
        }
    }
}

impl Read for Client {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(it) => it.read(into),
            Self::Unix(it) => it.read(into),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(it) => it.write(bytes),
            Self::Unix(it) => it.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One client after the other: there are few, and none is waited for long.
fn begin(
    daemon: &Arc<Daemon>,
    next: impl Fn() -> io::Result<Client> + Send + 'static,
) -> anyhow::Result<()> {
    let daemon = Arc::clone(daemon);
    let work = move || {
        loop {
            match next() {
                // A client that goes away has what it wanted.
                Ok(client) => drop(answer(client, || text(&daemon))),
                Err(_) => breathe(),
            }
        }
    };
    let thread = std::thread::Builder::new().name("metrics".into());
    thread
        .spawn(work)
        .map(drop)
        .context("cannot start a thread")
}

fn answer(mut client: Client, text: impl FnOnce() -> Result<String, fmt::Error>) -> io::Result<()> {
    let until = Instant::now() + HEAD_TIME;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|it| it == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() >= HEAD_BYTES {
            return Ok(());
        }
        client.limit(left)?;
        match client.read(&mut piece)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    let (status, body) = match head.starts_with(b"GET /metrics ") {
        true => ("200 OK", text().unwrap_or_default()),
        false => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
    };
    client.limit(HEAD_TIME)?;
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\ncontent-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn text(daemon: &Daemon) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("fermata");
    pool::register(&mut registry, &spare_workers(daemon));
    let states = Gauges::default();
    for session in daemon.sessions() {
        let state = format!("{:?}", session.lock().state).to_lowercase();
        states.get_or_create(&vec![("state", state)]).inc();
    }
    registry.register("sessions", "Sessions, by state", states);
    memory_of(&mut registry, &memory::of_all(daemon));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn memory_of(registry: &mut Registry, sessions: &[SessionMemory]) {
    let (pss, own, device, shared, common) = (
        Gauges::default(),
        Gauges::default(),
        Gauges::default(),
        Gauges::default(),
        Gauges::default(),
    );
    for session in sessions {
        for (part, host) in [("program", session.program), ("workers", session.workers)] {
            let labels = vec![
                ("session", session.session.clone()),
                ("part", part.to_owned()),
            ];
            pss.get_or_create(&labels).set(number(host.pss));
            own.get_or_create(&labels).set(number(host.own));
        }
        for on in &session.devices {
            let labels = vec![
                ("session", session.session.clone()),
                ("device", on.uuid.clone()),
            ];
            device.get_or_create(&labels).set(number(on.bytes));
            shared.get_or_create(&labels).set(number(on.shared));
            common.get_or_create(&labels).set(number(on.common));
        }
    }
    for (name, help, gauges) in [
        (
            "session_host_pss",
            "Host memory of a session, shared pages by their share",
            pss,
        ),
        (
            "session_host_own",
            "Host memory of a session that no other process maps",
            own,
        ),
        (
            "session_device",
            "Device memory that a session has allocated",
            device,
        ),
        (
            "session_device_shared",
            "Device memory that processes of a session use of one another",
            shared,
        ),
        (
            "session_device_common",
            "Device memory of a session that other sessions have, too, and that is there once",
            common,
        ),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, gauges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::scene;

    fn asked(question: &[u8]) -> String {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let mut client = ours;
        client.write_all(question).expect("asked");
        client.shutdown(std::net::Shutdown::Write).expect("shut");
        // What it does with a question that it does not answer is to close.
        let _ = answer(Client::Unix(theirs), || Ok("numbers\n".to_owned()));
        let mut told = String::new();
        // What is closed before all of a question was read is an error here.
        let _ = client.read_to_string(&mut told);
        told
    }

    #[test]
    fn a_question_for_metrics_is_answered_and_nothing_else_is() {
        let told = asked(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(
            told.starts_with("HTTP/1.1 200 ") && told.ends_with("\r\n\r\nnumbers\n"),
            "{told}"
        );
        assert!(asked(b"GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert_eq!(asked(b"GET /metrics HTTP/1.1\r\n"), "");
        assert_eq!(asked(&[b'x'; HEAD_BYTES + 1]), "");
    }

    #[test]
    fn a_socket_of_an_ended_daemon_is_replaced_and_a_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.sock");
        drop(unix(&path).expect("made"));
        let again = unix(&path).expect("replaced");
        let mode = fs::symlink_metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(again);
        let file = folder.path().join("file");
        fs::write(&file, "kept").expect("written");
        assert!(unix(&file).is_err());
        assert_eq!(fs::read_to_string(&file).expect("there"), "kept");
    }

    #[test]
    fn sessions_are_counted_by_state_and_their_memory_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        daemon.add(Some("one"), "", scene::plan).expect("added");
        let told = text(&daemon).expect("text");
        for line in [
            "fermata_sessions{state=\"running\"} 1",
            "fermata_session_host_pss_bytes{session=\"one\",part=\"program\"} 0",
        ] {
            assert!(told.lines().any(|it| it == line), "{line} is not in {told}");
        }
    }
}
