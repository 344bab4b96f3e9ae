//! Programs that checkpoint themselves: `import fermata` and `fermata_program.h`, from inside what is being checkpointed.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, PROGRAM_LIMIT};
use fermata_e2e::command;
use fermata_e2e::programs::python_package;
use fermata_e2e::scene::{Scene, wait_until};

const PYTHON: &str = "/usr/bin/python3";

/// Sixteen buffers on the device and a thread that keeps writing to one of them; an image of itself; what it has afterwards.
const SELF: &str = "
import ctypes, os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import fermata

cuda = ctypes.CDLL('libcuda.so.1')
def call(name, *args):
    status = getattr(cuda, name)(*args)
    assert status == 0, (name, status)
context = ctypes.c_void_p()
call('cuInit', 0)
call('cuDevicePrimaryCtxRetain', ctypes.byref(context), 0)
call('cuCtxSetCurrent', context)
buffers = []
for n in range(16):
    buffer = ctypes.c_uint64()
    call('cuMemAlloc_v2', ctypes.byref(buffer), ctypes.c_size_t(65536))
    call('cuMemsetD8_v2', buffer, ctypes.c_ubyte(n), ctypes.c_size_t(65536))
    buffers.append(buffer)

busy = True
def work():
    call('cuCtxSetCurrent', context)
    while busy:
        call('cuMemsetD8_v2', buffers[15], ctypes.c_ubyte(15), ctypes.c_size_t(65536))
        call('cuCtxSynchronize')
thread = threading.Thread(target=work)
thread.start()

again = threading.Event()
fermata.on_restore(again.set)
assert fermata.in_session() and fermata.image() is None and fermata.session_name() == 'first'
assert fermata.ready()
for mode in ('stop', 'cow', 'snapshot'):
    handle = fermata.checkpoint(mode=mode, name=mode)
    asked = 0
    while handle.state == 'taking':
        asked += 1
    if handle.state == 'restored':
        break
    assert handle.state == 'taken' and handle.done() and os.path.isdir(handle.path), handle
    assert handle.path.endswith('/' + mode), handle.path
print('taken' if not handle.restored else 'restored from ' + os.path.basename(handle.path), flush=True)
if handle.restored:
    assert again.wait(60), 'the callback was not called'
    assert fermata.image() == handle.path and fermata.session_name() == 'second'
    # Of its own as before.
    print(fermata.checkpoint(wait=True).state, flush=True)
else:
    try:
        fermata.checkpoint(name='cow', wait=True)
    except fermata.CheckpointError as error:
        print('refused:', 'exists' in str(error) or 'already' in str(error), flush=True)
busy = False
thread.join()
for n, buffer in enumerate(buffers):
    data = ctypes.create_string_buffer(65536)
    call('cuMemcpyDtoH_v2', data, buffer, ctypes.c_size_t(65536))
    assert data.raw == bytes([n]) * 65536, n
print('whole', flush=True)
";

#[test]
fn a_program_in_python_checkpoints_itself_and_knows_that_it_was_restored() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let variables = [("PYTHONDONTWRITEBYTECODE", "1")];
    let words = ["-c", SELF, &python_package()?];
    fermata.run_with(&variables, "first", Device::Soft, Path::new(PYTHON), &words)?;
    fermata
        .call(&["wait", "--ready", "first"])?
        .success("fermata wait")?;
    let status = fermata.wait_exit("first", PROGRAM_LIMIT)?;
    let log = fermata.log("first")?;
    ensure!(
        status == 0 && log == "taken\nrefused: True\nwhole\n",
        "{status}: {log}"
    );
    for image in ["stop", "cow", "snapshot"] {
        scene
            .try_restore(image, "second")?
            .success("fermata restore")?;
        let status = fermata.wait_exit("second", PROGRAM_LIMIT)?;
        let log = fermata.log("second")?;
        let want = format!("restored from {image}\ntaken\nwhole\n");
        ensure!(status == 0 && log == want, "{image}: {status}: {log}");
    }
    scene.close()
}

/// Has a connection to the test, and says what becomes of it.
const CONNECTED: &str = "
import socket, sys
sys.path.insert(0, sys.argv[1])
import fermata
link = socket.create_connection(('127.0.0.1', int(sys.argv[2])))
try:
    fermata.checkpoint(wait=True)
except fermata.CheckpointError as error:
    print('refused:', 'tcp-close' in error.hint, flush=True)
handle = fermata.checkpoint(name='closed', wait=True, tcp_close=True)
print(handle.state, flush=True)
print(link.recv(4), flush=True)
";

#[test]
fn a_program_with_a_connection_leaves_it_out_if_it_says_so() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    let words = ["-c", CONNECTED, &python_package()?, &port];
    let variables = [("PYTHONDONTWRITEBYTECODE", "1")];
    fermata.run_with(&variables, "first", Device::Soft, Path::new(PYTHON), &words)?;
    let (mut link, _) = listener.accept()?;
    scene.wait_says("first", "taken")?;
    link.write_all(b"word")?;
    let status = fermata.wait_exit("first", PROGRAM_LIMIT)?;
    let log = fermata.log("first")?;
    ensure!(
        status == 0 && log == "refused: True\ntaken\nb'word'\n",
        "{status}: {log}"
    );
    scene
        .try_restore("closed", "second")?
        .success("fermata restore")?;
    let status = fermata.wait_exit("second", PROGRAM_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(
        status == 0 && log == "refused: True\nrestored\nb''\n",
        "{status}: {log}"
    );
    scene.close()
}

/// The same in C, without CUDA.
const IN_C: &str = r#"
#include "fermata_program.h"
int main(void) {
    fermata_request request;
    char mark[160] = "";
    fermata_program_restored(mark);
    if (fermata_program_ready() || fermata_request_checkpoint(&request, "auto"))
        return 2;
    if (fermata_request_wait(&request, 300) == FERMATA_TAKEN)
        printf("taken %d\n", access(request.text, F_OK));
    else if (request.state == FERMATA_RESTORED)
        printf("restored %d\n", fermata_program_restored(mark) && !fermata_program_restored(mark));
    else
        printf("%d %s\n", request.state, request.text);
    return 0;
}
"#;

fn compile(scene: &Scene) -> Result<std::path::PathBuf> {
    let folder = scene.sandbox().work();
    let (source, program) = (folder.join("own.c"), folder.join("own"));
    std::fs::write(&source, IN_C)?;
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/c/include");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .arg("-lm");
    command::run(cc, PROGRAM_LIMIT)?.success("cc")?;
    Ok(program)
}

#[test]
fn a_program_in_c_checkpoints_itself_and_knows_that_it_was_restored() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = compile(&scene)?;
    fermata.run("first", Device::Soft, &program, &[])?;
    let status = fermata.wait_exit("first", PROGRAM_LIMIT)?;
    let log = fermata.log("first")?;
    ensure!(status == 0 && log == "taken 0\n", "{status}: {log}");
    scene
        .try_restore("first-1", "second")?
        .success("fermata restore")?;
    let status = fermata.wait_exit("second", PROGRAM_LIMIT)?;
    let log = fermata.log("second")?;
    ensure!(status == 0 && log == "restored 1\n", "{status}: {log}");
    scene.close()
}

/// Takes an image of itself as soon as there is a file.
const WHEN_TOLD: &str = "
import os, sys, time
sys.path.insert(0, sys.argv[1])
import fermata
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
print(fermata.checkpoint(wait=True).state, flush=True)
";

#[test]
fn a_program_checkpoints_itself_with_the_daemon_that_there_is_then() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let go = scene.sandbox().work().join("go");
    let words = [
        "-c",
        WHEN_TOLD,
        &python_package()?,
        go.to_str().context("path")?,
    ];
    let variables = [("PYTHONDONTWRITEBYTECODE", "1")];
    fermata.run_with(&variables, "first", Device::Soft, Path::new(PYTHON), &words)?;
    scene.kill_daemon()?;
    scene.wait_back("first")?;
    std::fs::write(&go, "")?;
    // How it ends, this daemon cannot know.
    wait_until("the program has ended", || {
        Ok(fermata.session("first")?.state == "exited")
    })?;
    let log = fermata.log("first")?;
    ensure!(log == "taken\n", "{log}");
    scene.close()
}
