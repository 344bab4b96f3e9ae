//! A conversation with the daemon that breaks in the middle costs the program nothing.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Answer, LEGACY, PATIENCE, Program, Worker, words};
use fermata_abi::op::Op;
use fermata_control::Connection;
use fermata_control::worker::{ENV_SOCKET, FromWorker, Hold, ToWorker};
use fermata_wire::Pending;

/// A worker that looks for its next daemon at a socket where the test listens.
fn start(folder: &Path) -> (UnixListener, Worker) {
    let socket = folder.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let soft = std::env::var_os("FERMATA_TEST_DRIVER").is_none();
    let variables = [(ENV_SOCKET, socket.to_str().unwrap())];
    (listener, Worker::start_with(soft, &variables))
}

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
    let (listener, mut worker) = start(folder.path());
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

/// Has a program stand still for a stop, with a kernel and a wait for it in its queue.
fn stop<'p>(worker: &mut Worker, program: &'p Program, memory: u64) -> Pending<'p> {
    worker.hold(Hold::All);
    program.launch_add(memory, 1, 16, LEGACY);
    let sync = Op::StreamSync { stream: LEGACY };
    let pending = program.producer.request(&sync, None).unwrap();
    worker.quiesce(program);
    pending
}

/// Ends the daemon; returns when the worker has found the next one.
fn forsake(listener: &UnixListener, worker: &mut Worker) {
    worker.daemon.shutdown();
    come_back(listener, worker, true);
}

fn finish(program: &Program, pending: Pending<'_>, memory: u64, value: u32) {
    assert!(pending.wait_for(PATIENCE).unwrap(), "it is not answered");
    assert_eq!(pending.wait(&mut Vec::new()).unwrap().status, 0);
    assert_eq!(words(&program.read(memory, 64)), [value; 16]);
}

#[test]
fn a_program_whose_daemon_ends_during_a_stop_takes_its_queue_along_or_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, mut worker) = start(folder.path());
    let program = worker.attach();
    program.set_up();
    let memory = program.alloc(64);
    program.write(memory, &[0; 64]);
    // The daemon has told it to detach.
    let pending = stop(&mut worker, &program, memory);
    forsake(&listener, &mut worker);
    worker.let_go(&program);
    worker.bring_back(&program);
    finish(&program, pending, memory, 1);
    // The daemon has told it nothing: the program sends something. That may come before the worker misses the daemon.
    let pending = stop(&mut worker, &program, memory);
    forsake(&listener, &mut worker);
    program.post(&Op::Devices);
    finish(&program, pending, memory, 2);
    let pending = stop(&mut worker, &program, memory);
    assert!(matches!(program.ask(&Op::Devices), Answer::Devices(_)));
    forsake(&listener, &mut worker);
    finish(&program, pending, memory, 3);
    worker.daemon.send(&ToWorker::Exit, &[]).unwrap();
}
