//! TCP connections of a program at a checkpoint: those within the session come back whole, those to elsewhere are refused
//! beforehand, or closed on request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::scene::Scene;

const PYTHON: &str = "/usr/bin/python3";

/// What all programs begin with: so much memory that it is copied ahead of the stop, and CRIU is answered by the daemon; connections of a program with
/// itself at the address `host`; and the wait for a file.
const COMMON: &str = "
import os, socket, sys, time

memory = bytes(range(256)) * (96 << 10)

def wait():
    end = time.time() + 600
    while not os.path.exists(sys.argv[1]):
        assert time.time() < end
        time.sleep(0.01)

listener = socket.create_server((host, 0))
port = listener.getsockname()[1]

def pair():
    client = socket.create_connection((host, port))
    return client, listener.accept()[0]

def whole(end):
    pieces = []
    while piece := end.recv(1 << 20):
        pieces.append(piece)
    return b''.join(pieces)
";

/// Connections in all states that both ends can be in: unread bytes, more of them than the other end has room for, one
/// direction closed, one end gone; and one of which one end is of IPv6, where there is such.
const WITHIN: &str = "
a, b = pair()
a.sendall(b'unread')
half, rest = pair()
half.sendall(b'request')
half.shutdown(socket.SHUT_WR)
gone, left = pair()
gone.sendall(b'last words')
gone.close()
full, slow = pair()
full.setblocking(False)
sent = 0
try:
    while True:
        sent += full.send(bytes([sent % 251]) * 10007)
except BlockingIOError:
    pass
full.setblocking(True)
try:
    both = socket.create_server(('::', 0), family=socket.AF_INET6, dualstack_ipv6=True)
    four = socket.create_connection((host, both.getsockname()[1]))
    six = both.accept()[0]
except OSError:
    four, six = pair()
four.sendall(b'mapped')
print('ready', flush=True)
wait()
print(six.recv(100))
print(b.recv(100))
b.sendall(b'answer')
print(a.recv(100))
print(whole(rest))
rest.sendall(b'response')
print(half.recv(100))
print(whole(left))
full.shutdown(socket.SHUT_WR)
got = whole(slow)
print(len(got) == sent)
print(pair()[0].getpeername()[1] == port, flush=True)
";

const EXPECTED: &str = "ready
b'mapped'
b'unread'
b'answer'
b'request'
b'response'
b'last words'
True
True
";

fn run(scene: &Scene, name: &str, program: &str, arguments: &[&str]) -> Result<()> {
    let host = scene.sandbox().address();
    let program = format!("host = '{host}'{COMMON}{program}");
    let go = go(scene)?;
    let words = [&["-c", &program, &go][..], arguments].concat();
    let fermata = scene.fermata();
    fermata.run(name, Device::Soft, Path::new(PYTHON), &words)?;
    scene.wait_says(name, "ready")
}

fn go(scene: &Scene) -> Result<String> {
    let path = scene.sandbox().work().join("go");
    Ok(path.to_str().context("path")?.to_owned())
}

#[test]
fn connections_within_a_session_come_back_whole() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    run(&scene, "first", WITHIN, &[])?;
    fermata.checkpoint("first", "image", Mode::Stop)?;
    // Their addresses belong to the first as long as it runs.
    let refused = scene.try_restore("image", "second")?;
    ensure!(
        refused.status == 1,
        "{}: {}",
        refused.status,
        refused.stderr
    );
    ensure!(refused.stderr.contains("in use"), "{}", refused.stderr);
    fermata.kill("first")?;
    let path = fermata.image("image");
    let path = path.to_str().context("path")?;
    let copies = fermata.call(&["restore", path, "--copies", "2"])?;
    ensure!(copies.status == 1, "{}: {}", copies.status, copies.stderr);
    ensure!(
        copies.stderr.contains("one of its copies"),
        "{}",
        copies.stderr
    );
    scene
        .try_restore("image", "second")?
        .success("fermata restore")?;
    std::fs::write(go(&scene)?, "")?;
    fermata.wait_exit("second", PROGRAM_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(log == EXPECTED, "{log}");
    scene.close()
}

/// It ends connections at the port where it listens, one before the image is taken and one after it.
const ENDING: &str = "
def end():
    client, accepted = pair()
    accepted.close()
    client.recv(1)
    client.close()

# As sockets of programs are that do not ask for it.
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
end()
print('ready', flush=True)
wait()
os.remove(sys.argv[1])
end()
print('ended', flush=True)
wait()
print(pair()[0].getpeername()[1] == port, flush=True)
";

#[test]
fn a_killed_program_listens_again_at_once_where_its_connections_have_just_ended() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    run(&scene, "first", ENDING, &[])?;
    fermata.checkpoint("first", "image", Mode::Stop)?;
    std::fs::write(go(&scene)?, "")?;
    scene.wait_says("first", "ended")?;
    fermata.kill("first")?;
    scene
        .try_restore("image", "second")?
        .success("fermata restore")?;
    std::fs::write(go(&scene)?, "")?;
    scene.wait_says("second", "ended")?;
    std::fs::write(go(&scene)?, "")?;
    fermata.wait_exit("second", PROGRAM_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(log.ends_with("True\n"), "{log}");
    scene.close()
}

#[test]
fn connections_are_as_before_in_a_program_that_goes_on() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    run(&scene, "first", WITHIN, &[])?;
    fermata.checkpoint("first", "image", Mode::Stop)?;
    std::fs::write(go(&scene)?, "")?;
    fermata.wait_exit("first", PROGRAM_LIMIT)?;
    let log = fermata.log("first")?;
    ensure!(log == EXPECTED, "{log}");
    scene.close()
}

/// Two processes, of which one sends blocks to the other as fast as that takes them.
const STREAMING: &str = "
import hashlib
SIZE = 8 << 20
client, accepted = pair()
if os.fork() == 0:
    # CRIU dumps the processes one after the other, and with each only its end.
    accepted.close()
    block, number = bytearray(os.urandom(1024)) * (SIZE // 1024), 0
    while True:
        block[:8] = number.to_bytes(8, 'little')
        client.sendall(block)
        if client.recv(1) != b'x':
            os._exit(0)
        number += 1
client.close()
number, first, bad = 0, None, 0
over = False
while not over:
    pieces, got = [], 0
    while got < SIZE:
        pieces.append(accepted.recv(min(1 << 20, SIZE - got)))
        got += len(pieces[-1])
    block = b''.join(pieces)
    rest = hashlib.sha256(block[8:]).digest()
    first = first or rest
    bad += block[:8] != number.to_bytes(8, 'little') or rest != first
    number += 1
    if number == 10:
        print('ready', flush=True)
    over = os.path.exists(sys.argv[1])
    accepted.sendall(b'.' if over else b'x')
print('bad', bad, flush=True)
";

#[test]
fn bytes_on_their_way_between_two_processes_fail_no_checkpoint_and_are_not_lost() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    run(&scene, "first", STREAMING, &[])?;
    // About one attempt in ten finds such bytes.
    for number in 0..20 {
        fermata.checkpoint("first", &format!("image-{number}"), Mode::Snapshot)?;
    }
    fermata.kill("first")?;
    scene
        .try_restore("image-19", "second")?
        .success("fermata restore")?;
    std::fs::write(go(&scene)?, "")?;
    fermata.wait_exit("second", PROGRAM_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(log.ends_with("bad 0\n"), "{log}");
    scene.close()
}

const UNIX: &str = "
a, b = socket.socketpair()
a.send(b'within')
outside = socket.socket(socket.AF_UNIX)
outside.connect(sys.argv[2])
print('ready', flush=True)
print(outside.recv(100), b.recv(100), flush=True)
outside.close()
wait()
a.send(b'still within')
print(b.recv(100), flush=True)
";

#[test]
fn a_unix_socket_to_elsewhere_is_refused_before_the_stop() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let path = scene.sandbox().work().join("socket");
    let listener = UnixListener::bind(&path)?;
    run(&scene, "first", UNIX, &[path.to_str().context("path")?])?;
    let (mut outside, _) = listener.accept()?;
    let refused = fermata.call(&["checkpoint", "first"])?;
    ensure!(
        refused.status == 14,
        "{}: {}",
        refused.status,
        refused.stderr
    );
    // Only who looks before the stop names the process at the other end.
    let us = format!("process {} (", std::process::id());
    let doctor = fermata.call(&["doctor", "first"])?;
    for said in [&refused.stderr, &doctor.stdout] {
        for word in ["Unix socket", "outside the session", "ss -xp", &us] {
            ensure!(said.contains(word), "{word}: {said}");
        }
    }
    ensure!(!fermata.image("first-1").exists());
    outside.write_all(b"still there")?;
    scene.wait_says("first", "b'still there' b'within'")?;
    // What is left has both ends in the session.
    scene.replace("first", "image", "second")?;
    std::fs::write(go(&scene)?, "")?;
    fermata.wait_exit("second", PROGRAM_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(log.ends_with("b'still within'\n"), "{log}");
    scene.close()
}

/// One connection within the session, and one to where the second argument says.
const ELSEWHERE: &str = "
there = ('127.0.0.1', int(sys.argv[2]))
a, b = pair()
a.sendall(b'within')
outside = socket.create_connection(there)
print('ready', outside.fileno(), flush=True)
wait()
print(b.recv(100))
try:
    print(outside.recv(100))
    outside.sendall(b'first')
except OSError as error:
    print(type(error).__name__)
again = socket.create_connection(there)
print(again.recv(100), flush=True)
";

/// The next connection, greeted.
fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PROGRAM_LIMIT))?;
    stream.write_all(b"hello")?;
    Ok(stream)
}

#[test]
fn a_connection_to_elsewhere_is_refused_before_the_stop_or_closed_on_request() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    let path = fermata.image("image");
    let path = path.to_str().context("path")?;
    run(&scene, "first", ELSEWHERE, &[&port])?;
    let mut outside = accept(&listener)?;

    let refused = fermata.call(&["checkpoint", "first", "-o", path])?;
    ensure!(
        refused.status == 14,
        "{}: {}",
        refused.status,
        refused.stderr
    );
    let doctor = fermata.call(&["doctor", "first"])?;
    ensure!(doctor.status == 14, "{}: {}", doctor.status, doctor.stdout);
    for word in [
        format!("127.0.0.1:{port}").as_str(),
        "descriptor 6",
        "python3",
        "--tcp-close",
    ] {
        ensure!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
        ensure!(doctor.stdout.contains(word), "{word}: {}", doctor.stdout);
    }
    ensure!(!Path::new(path).exists(), "there is an image");

    fermata.checkpoint_with("first", "image", Mode::Stop, &["--tcp-close"])?;
    std::fs::write(go(&scene)?, "")?;
    // The program that goes on has kept it.
    accept(&listener)?;
    let mut text = String::new();
    outside.read_to_string(&mut text)?;
    ensure!(text == "first", "{text}");
    fermata.wait_exit("first", PROGRAM_LIMIT)?;
    let log = fermata.log("first")?;
    ensure!(log.ends_with("b'within'\nb'hello'\nb'hello'\n"), "{log}");

    scene
        .try_restore("image", "second")?
        .success("fermata restore")?;
    accept(&listener)?;
    fermata.wait_exit("second", PROGRAM_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(
        log.ends_with("b'within'\nb''\nBrokenPipeError\nb'hello'\n"),
        "{log}"
    );
    scene.close()
}
