//! A conversation with the daemon that breaks in the middle costs the program nothing.

use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::common::Worker;
use fermata_control::Connection;
use fermata_control::worker::{ENV_SOCKET, FromWorker, ToWorker};

/// The worker's next call on the daemon.
fn called(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match listener.accept() {
            Ok((link, _)) => {
                link.set_nonblocking(false).unwrap();
                return link;
            }
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => panic!("the worker does not call: {error}"),
        }
    }
}

/// What a daemon never sends: the worker cannot go on reading.
fn talk_nonsense(worker: &Worker) {
    assert_eq!(
        rustix::io::write(&worker.daemon, &u32::MAX.to_le_bytes()).unwrap(),
        4
    );
}

/// The test is the worker's next daemon.
fn come_back(listener: &UnixListener, worker: &mut Worker, serving: bool) {
    worker.daemon = Connection::new(called(listener).into(), "worker");
    match worker.answer() {
        FromWorker::Back(back) => assert_eq!(back.serving, serving),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_that_cannot_understand_its_daemon_keeps_the_program_and_looks_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let soft = std::env::var_os("FERMATA_TEST_DRIVER").is_none();
    let variables = [(ENV_SOCKET, socket.to_str().unwrap())];
    let mut worker = Worker::start_with(soft, &variables);
    let program = worker.attach();
    program.set_up();
    let memory = program.alloc(64);
    program.write(memory, &[9; 64]);
    talk_nonsense(&worker);
    // It is served meanwhile, and afterwards.
    assert_eq!(program.read(memory, 64), [9; 64]);
    come_back(&listener, &mut worker, true);
    let described = worker.ask(ToWorker::Describe);
    assert!(
        matches!(described, FromWorker::Description(_)),
        "{described:?}"
    );
    assert_eq!(program.read(memory, 64), [9; 64]);
    // A program that is detached, as for a checkpoint, has nobody else.
    worker.detach(program);
    talk_nonsense(&worker);
    come_back(&listener, &mut worker, false);
    let program = worker.attach();
    assert_eq!(program.read(memory, 64), [9; 64]);
    worker.daemon.send(&ToWorker::Exit, &[]).unwrap();
}
