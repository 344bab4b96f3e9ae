//! GPU memory, events and memory pools that the processes of a session share: an image holds content once, a restore shares it
//! again, and what a restore could not bring back is refused before the stop.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::scene::{Scene, wait_until};

const PYTHON: &str = "/usr/bin/python3";
const OPTIONS: &[&str] = &["--size", "300000", "--steps", "40"];
/// Of the program whose processes are ordered by events alone.
const OF_EVENTS: &[&str] = &["--size", "60000", "--steps", "120"];
/// Of the program whose processes share host memory.
const OF_HOST: &[&str] = &["--size", "20000", "--steps", "60"];
/// The step at which the first process stands still, and the other waits for it.
const HELD: u64 = 12;

/// Demands that session `name` ends with what the program prints alone.
fn check_result(scene: &Scene, name: &str) -> Result<()> {
    scene.check_ends_as(name, &scene.straight("shared", OPTIONS)?)
}

#[test]
fn shared_memory_is_in_an_image_once_and_shared_again_after_a_restore() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = scene.tree().program("shared")?;
    fermata.run_with(
        &scene.hold(HELD)?,
        "source",
        Device::Soft,
        &program,
        OPTIONS,
    )?;
    scene.wait_steps("source", HELD as usize)?;
    fermata.checkpoint("source", "image", Mode::Stop)?;
    fermata.kill("source")?;
    // One process has content of one array of its own, the other that of four; which of them came first is open.
    let image = fermata.image("image");
    let size = |path: &str| std::fs::metadata(image.join(path)).map(|it| it.len());
    let (one, other) = (size("chunks")?, size("process-2/chunks")?);
    let (less, more) = (one.min(other), one.max(other));
    ensure!(2 * less < more, "{less} and {more} bytes of records");
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    // What is restored is checkpointed like what was started, and copies share among themselves.
    fermata.checkpoint("again", "second", Mode::Cow)?;
    scene
        .try_restore("second", "third")?
        .success("fermata restore")?;
    scene.let_go()?;
    check_result(&scene, "again")?;
    check_result(&scene, "third")?;
    scene.close()
}

/// Both processes write all that they share again and again while the image is taken.
fn comes_back_whole(mode: Mode) -> Result<()> {
    Scene::comes_back("shared", OPTIONS, mode)
}

#[test]
fn events_order_two_processes_again_after_a_restore_of_stop() -> Result<()> {
    Scene::comes_back("ipcevents", OF_EVENTS, Mode::Stop)
}

#[test]
fn events_order_two_processes_again_after_a_restore_of_snapshot() -> Result<()> {
    Scene::comes_back("ipcevents", OF_EVENTS, Mode::Snapshot)
}

#[test]
fn events_order_two_processes_again_after_a_restore_of_cow() -> Result<()> {
    Scene::comes_back("ipcevents", OF_EVENTS, Mode::Cow)
}

#[test]
fn host_memory_that_two_processes_have_registered_is_shared_again_after_a_restore_of_stop()
-> Result<()> {
    Scene::comes_back("hostshare", OF_HOST, Mode::Stop)
}

#[test]
fn host_memory_that_two_processes_have_registered_is_shared_again_after_a_restore_of_cow()
-> Result<()> {
    Scene::comes_back("hostshare", OF_HOST, Mode::Cow)
}

#[test]
fn a_session_that_was_paused_shares_its_host_memory_again() -> Result<()> {
    goes_on_after_pauses("hostshare", OF_HOST)
}

#[test]
fn shared_memory_is_as_it_was_at_one_moment_in_an_image_of_stop() -> Result<()> {
    comes_back_whole(Mode::Stop)
}

#[test]
fn shared_memory_is_as_it_was_at_one_moment_in_an_image_of_snapshot() -> Result<()> {
    comes_back_whole(Mode::Snapshot)
}

#[test]
fn shared_memory_is_as_it_was_at_one_moment_in_an_image_of_cow() -> Result<()> {
    comes_back_whole(Mode::Cow)
}

#[test]
fn shared_memory_is_as_it_was_at_one_moment_in_an_image_of_recopy() -> Result<()> {
    comes_back_whole(Mode::Recopy)
}

#[test]
fn a_session_that_was_paused_shares_its_memory_again() -> Result<()> {
    goes_on_after_pauses("shared", OPTIONS)
}

#[test]
fn a_session_that_was_paused_shares_its_events_and_pools_again() -> Result<()> {
    goes_on_after_pauses("ipcevents", OF_EVENTS)
}

fn goes_on_after_pauses(name: &str, options: &[&str]) -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = scene.tree().program(name)?;
    fermata.run_with(&scene.hold(HELD)?, "one", Device::Soft, &program, options)?;
    scene.wait_steps("one", HELD as usize)?;
    // Twice: sockets of workers that have ended lie in the way of the next.
    for _ in 0..2 {
        fermata.call(&["pause", "one"])?.success("fermata pause")?;
        fermata
            .call(&["resume", "one"])?
            .success("fermata resume")?;
    }
    scene.let_go()?;
    scene.check_ends_as("one", &scene.straight(name, options)?)?;
    scene.close()
}

/// What processes that share memory in Python begin with: the driver, a context, and a file to wait for.
const COMMON: &str = "
import ctypes, os, subprocess, sys, time
cuda = ctypes.CDLL('libcuda.so.1')

class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_char * 64)]

def wait(name):
    end = time.time() + 600
    while not os.path.exists(name):
        assert time.time() < end
        time.sleep(0.01)

def begin():
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0

def open_event(handle):
    event = ctypes.c_void_p()
    return cuda.cuIpcOpenEventHandle(ctypes.byref(event), Handle.from_buffer_copy(handle)), event

def open_memory(handle):
    at = ctypes.c_uint64()
    return cuda.cuIpcOpenMemHandle_v2(ctypes.byref(at), Handle.from_buffer_copy(handle), 1), at
";

/// Shares memory and frees it when there is a file `free`.
const OWNER: &str = "
begin()
at, handle = ctypes.c_uint64(), Handle()
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4 << 20)) == 0
assert cuda.cuIpcGetMemHandle(ctypes.byref(handle), at) == 0
print('handle', bytes(handle).hex(), flush=True)
child = subprocess.Popen([sys.executable, '-c', sys.argv[1], bytes(handle).hex()])
wait('free')
assert cuda.cuMemFree_v2(at) == 0
print('freed', flush=True)
child.wait()
wait('end')
";

/// Opens memory, and closes it when there is a file `close`.
const USER: &str = "
begin()
code, at = open_memory(bytes.fromhex(sys.argv[1]))
print('opened', code, flush=True)
wait('close')
if code == 0:
    print('closed', cuda.cuIpcCloseMemHandle(at), flush=True)
";

fn file(scene: &Scene, name: &str) -> Result<()> {
    Ok(std::fs::write(scene.sandbox().work().join(name), "")?)
}

fn wait_for(scene: &Scene, session: &str, text: &str) -> Result<()> {
    wait_until(&format!("`{session}` says `{text}`"), || {
        Ok(scene.fermata().log(session)?.contains(text))
    })
}

/// Starts an owner with its child as session `one`.
fn start_owner(scene: &Scene) -> Result<()> {
    let (owner, user) = (format!("{COMMON}{OWNER}"), format!("{COMMON}{USER}"));
    let words = ["-c", &owner, &user];
    let python = Path::new(PYTHON);
    scene.fermata().run("one", Device::Soft, python, &words)?;
    wait_for(scene, "one", "opened 0")
}

#[test]
fn a_handle_of_another_session_is_refused_with_the_reason() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start_owner(&scene)?;
    let log = fermata.log("one")?;
    let handle = log.split_whitespace().nth(1).context("no handle")?;
    let user = format!("{COMMON}{USER}");
    let words = ["-c", &user, handle];
    fermata.run("two", Device::Soft, Path::new(PYTHON), &words)?;
    // `CUDA_ERROR_INVALID_VALUE`
    wait_for(&scene, "two", "opened 1")?;
    let note = fermata.session("two")?.note.unwrap_or_default();
    for word in [
        "cuIpcOpenMemHandle",
        "outside the session",
        "one `fermata run`",
    ] {
        ensure!(note.contains(word), "{word}: {note}");
    }
    // It has nothing that could not be restored.
    fermata.checkpoint("two", "image", Mode::Stop)?;
    fermata.kill("two")?;
    fermata.kill("one")?;
    scene.close()
}

#[test]
fn memory_that_its_owner_has_freed_is_refused_before_the_stop() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    start_owner(&scene)?;
    fermata.checkpoint("one", "before", Mode::Stop)?;
    file(&scene, "free")?;
    wait_for(&scene, "one", "freed")?;
    let refused = fermata.call(&["checkpoint", "one"])?;
    ensure!(refused.status == 14, "{}", refused.stderr);
    for word in ["freed", "cuIpcCloseMemHandle"] {
        ensure!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    ensure!(!fermata.image("one-1").exists(), "there is an image");
    // Once it is closed nothing is in the way.
    file(&scene, "close")?;
    wait_for(&scene, "one", "closed 0")?;
    fermata.checkpoint("one", "after", Mode::Stop)?;
    fermata.kill("one")?;
    for image in ["before", "after"] {
        scene
            .try_restore(image, image)?
            .success("fermata restore")?;
        file(&scene, "end")?;
        wait_until("a session ends", || {
            Ok(fermata.session(image)?.state == "exited")
        })?;
        ensure!(fermata.session(image)?.exit_status == Some(0));
    }
    scene.close()
}

/// Shares an event, and destroys it when there is a file `destroy`.
const OWNER_OF_EVENT: &str = "
begin()
event, handle = ctypes.c_void_p(), Handle()
assert cuda.cuEventCreate(ctypes.byref(event), 6) == 0
assert cuda.cuIpcGetEventHandle(ctypes.byref(handle), event) == 0
print('handle', bytes(handle).hex(), flush=True)
child = subprocess.Popen([sys.executable, '-c', sys.argv[1], bytes(handle).hex()])
wait('destroy')
assert cuda.cuEventDestroy_v2(event) == 0
print('destroyed', flush=True)
wait('end')
assert child.wait() == 0
";

/// Opens an event, and uses it when there is a file `end`.
const USER_OF_EVENT: &str = "
begin()
code, event = open_event(bytes.fromhex(sys.argv[1]))
print('opened', code, flush=True)
wait('end')
if code == 0:
    assert cuda.cuEventRecord(event, None) == 0
    assert cuda.cuStreamWaitEvent(None, event, 0) == 0
    assert cuda.cuEventSynchronize(event) == 0
    assert cuda.cuEventDestroy_v2(event) == 0
    print('used', flush=True)
";

#[test]
fn an_event_is_restored_whether_its_owner_has_destroyed_it_or_not() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let owner = format!("{COMMON}{OWNER_OF_EVENT}");
    let user = format!("{COMMON}{USER_OF_EVENT}");
    let (python, words) = (Path::new(PYTHON), ["-c", &owner, &user]);
    fermata.run("one", Device::Soft, python, &words)?;
    wait_for(&scene, "one", "opened 0")?;
    // A process of another session has no such event.
    let log = fermata.log("one")?;
    let handle = log.split_whitespace().nth(1).context("no handle")?;
    fermata.run("two", Device::Soft, python, &["-c", &user, handle])?;
    wait_for(&scene, "two", "opened 1")?;
    let note = fermata.session("two")?.note.unwrap_or_default();
    for word in ["cuIpcOpenEventHandle", "outside the session"] {
        ensure!(note.contains(word), "{word}: {note}");
    }
    fermata.kill("two")?;
    fermata.checkpoint("one", "shared", Mode::Stop)?;
    file(&scene, "destroy")?;
    wait_for(&scene, "one", "destroyed")?;
    fermata.checkpoint("one", "plain", Mode::Stop)?;
    fermata.kill("one")?;
    file(&scene, "end")?;
    for image in ["shared", "plain"] {
        scene
            .try_restore(image, image)?
            .success("fermata restore")?;
        wait_until("a session ends", || {
            Ok(fermata.session(image)?.state == "exited")
        })?;
        ensure!(fermata.session(image)?.exit_status == Some(0));
        ensure!(
            fermata.log(image)?.contains("used"),
            "the event was not used"
        );
    }
    scene.close()
}
