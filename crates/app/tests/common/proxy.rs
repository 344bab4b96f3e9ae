//! Stands between a rank and an object store, and is asked before each request that changes something.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is passed on.
    Pass,
    /// The service says no.
    Refuse,
    /// It is never answered: the client that asked has ended.
    Drop,
}

/// A port whose requests go on to the port `to`, those that write or remove something as `judge` says.
pub fn proxy(to: u16, judge: impl Fn() -> Verdict + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let judge = Arc::new(judge);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let judge = Arc::clone(&judge);
            // A client that is killed breaks off anywhere.
            std::thread::spawn(move || drop(one_request(client, to, &*judge)));
        }
    });
    port
}

/// One request for each connection: then the answer needs no understanding.
fn one_request(client: TcpStream, to: u16, judge: &dyn Fn() -> Verdict) -> std::io::Result<()> {
    let mut from = BufReader::new(client.try_clone()?);
    let (mut first, mut head, mut length) = (String::new(), String::new(), 0);
    from.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
        head += &line;
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    let verdict = match first.starts_with("GET") {
        true => Verdict::Pass,
        false => judge(),
    };
    let mut client = client;
    match verdict {
        Verdict::Pass => {
            let mut server = TcpStream::connect(("127.0.0.1", to))?;
            let head = format!("{first}Connection: close\r\n{head}\r\n");
            server.write_all(head.as_bytes())?;
            server.write_all(&body)?;
            std::io::copy(&mut server, &mut client).map(drop)
        }
        Verdict::Refuse => client
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        Verdict::Drop => Ok(()),
    }
}
