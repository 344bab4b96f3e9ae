//! What peers write to the control sockets.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fermata_control::Connection;
use fermata_control::agent::{FromAgent, ToAgent};
use fermata_control::user::{FromDaemon, Request, Verb};
use fermata_control::worker::{FromWorker, ToWorker};

/// More does not fit into a socket that nobody reads.
const LIMIT: usize = 32 << 10;

/// The bytes are frames, received as messages of each conversation.
pub fn run(data: &[u8]) {
    let data = &data[..data.len().min(LIMIT)];
    let connect = || {
        let (mut peer, own) = UnixStream::pair().expect("a socket pair");
        peer.write_all(data).expect("the bytes fit");
        peer.shutdown(Shutdown::Write)
            .expect("the peer stops writing");
        (peer, own.into())
    };
    let (_peer, own) = connect();
    let daemon: Connection<Request, FromDaemon> = Connection::new(own, "a tool");
    while daemon.recv(Duration::ZERO).is_ok() {}
    let (_peer, own) = connect();
    let daemon: Connection<FromAgent, ToAgent> = Connection::new(own, "an agent");
    while daemon.recv(Duration::ZERO).is_ok() {}
    let (_peer, own) = connect();
    let worker: Connection<ToWorker, FromWorker> = Connection::new(own, "the daemon");
    while worker.recv(Duration::ZERO).is_ok() {}
}

/// A frame of each conversation, and two in a row.
pub fn seeds() -> Vec<Vec<u8>> {
    let frame = |json: &str| [&(json.len() as u32).to_le_bytes(), json.as_bytes()].concat();
    let kill = Request::new(Verb::Kill {
        name: "heat".into(),
        signal: 9,
    });
    let texts = [
        format!("{{\"protocol\":{},\"verb\":\"Ps\"}}", kill.protocol),
        format!(
            "{{\"protocol\":{},\"verb\":{{\"Session\":{{\"name\":\"a\"}}}}}}",
            kill.protocol
        ),
        r#"{"Quiesced":{"threads":3,"nanoseconds":100}}"#.to_owned(),
        r#"{"Save":{"store":"/s","image":"/i"}}"#.to_owned(),
    ];
    let mut seeds: Vec<_> = texts.iter().map(|t| frame(t)).collect();
    seeds.push(seeds.concat());
    seeds
}
