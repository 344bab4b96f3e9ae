//! Memory that processes share by name, in `/dev/shm` or by System V's numbers: an image holds what is in it, not only its name.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::scene::{Scene, wait_until};

const PYTHON: &str = "/usr/bin/python3";

/// Two processes count in shared memory, in turns, and each in memory of its own: what they have fits together as of one moment
/// only. With a file `stop` they end, and remove what they share.
const PROGRAM: &str = "
import mmap, os, sys, time
name, length = sys.argv[1], 1 << 20
file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
os.ftruncate(file, length)
shared = mmap.mmap(file, length)
os.close(file)
open('held', 'w').close()
held = open('held')
child = os.fork()
if child == 0:
    # As another program would.
    file = os.open(name, os.O_RDWR)
    shared = mmap.mmap(file, length)

def word(at):
    return int.from_bytes(shared[at:at + 8], 'little')

def put(at, number):
    shared[at:at + 8] = number.to_bytes(8, 'little')

count = 1 if child == 0 else 0
end = time.time() + 900
while True:
    now = word(0)
    if now not in (count - 1, count):
        print('shared', now, 'own', count, flush=True)
        os._exit(1)
    if now == count:
        last = word(8) or os.path.exists('stop')
        put(4096 + 8 * (count % 10000), count)
        put(8, int(last))
        put(0, count + 1)
        count += 2
        if count == 20:
            print('counts', flush=True)
        if last:
            break
    assert time.time() < end
    time.sleep(0.0005)
if child == 0:
    os._exit(0)
status = os.waitpid(child, 0)[1]
wrong = sum(word(4096 + 8 * (at % 10000)) != at for at in range(max(0, word(0) - 9000), word(0)))
try:
    os.unlink(name)
    named = True
except FileNotFoundError:
    # A copy of this program may end at the same moment.
    named = False
print('wrong', wrong + status, 'named', named, flush=True)
";

/// A name of the scene's own.
fn name(scene: &Scene) -> PathBuf {
    let own = scene.sandbox().work();
    let own = own.parent().and_then(Path::file_name).unwrap_or_default();
    Path::new("/dev/shm").join(own)
}

/// Starts the program as session `one`, and takes an image of it in the middle.
fn take(scene: &Scene) -> Result<()> {
    let fermata = scene.fermata();
    let name = name(scene);
    let words = ["-c", PROGRAM, name.to_str().context("a name")?];
    fermata.run("one", Device::Soft, Path::new(PYTHON), &words)?;
    wait_until("both count", || Ok(fermata.log("one")?.contains("counts")))?;
    fermata.checkpoint("one", "image", Mode::Stop)?;
    Ok(())
}

fn stop(scene: &Scene) -> Result<()> {
    Ok(std::fs::write(scene.sandbox().work().join("stop"), "")?)
}

/// Demands that session `session` has ended and has found what it shares whole, under its name or not.
fn check_whole(scene: &Scene, session: &str, named: bool) -> Result<()> {
    wait_until("a session ends", || {
        Ok(scene.fermata().session(session)?.state == "exited")
    })?;
    let log = scene.fermata().log(session)?;
    let expected = match named {
        true => "wrong 0 named True",
        false => "wrong 0 named False",
    };
    ensure!(log.contains(expected), "`{session}`: {log}");
    Ok(())
}

#[test]
fn shared_memory_comes_back_as_it_was_whether_it_is_gone_or_was_left() -> Result<()> {
    let scene = Scene::new()?;
    take(&scene)?;
    // It goes on counting, and leaves its file where it is.
    scene.fermata().kill("one")?;
    ensure!(name(&scene).exists(), "nothing was left");
    scene
        .try_restore("image", "left")?
        .success("fermata restore")?;
    // What is restored is checkpointed like what was started.
    scene.fermata().checkpoint("left", "second", Mode::Stop)?;
    stop(&scene)?;
    check_whole(&scene, "left", true)?;
    ensure!(!name(&scene).exists(), "it was not removed");
    for image in ["image", "second"] {
        scene
            .try_restore(image, image)?
            .success("fermata restore")?;
        check_whole(&scene, image, true)?;
    }
    scene.close()
}

#[test]
fn a_copy_beside_the_program_has_shared_memory_of_its_own() -> Result<()> {
    let scene = Scene::new()?;
    take(&scene)?;
    scene
        .try_restore("image", "copy")?
        .success("fermata restore")?;
    // The copy has no name for it; both go on by themselves, and can be taken again.
    scene.fermata().checkpoint("copy", "second", Mode::Stop)?;
    scene.fermata().checkpoint("one", "third", Mode::Stop)?;
    stop(&scene)?;
    wait_until("the copy ends", || {
        Ok(scene.fermata().session("copy")?.state == "exited")
    })?;
    let log = scene.fermata().log("copy")?;
    ensure!(log.contains("wrong 0 "), "{log}");
    wait_until("the program ends", || {
        Ok(scene.fermata().session("one")?.state == "exited")
    })?;
    let log = scene.fermata().log("one")?;
    ensure!(log.contains("wrong 0 "), "{log}");
    for image in ["second", "third"] {
        scene
            .try_restore(image, image)?
            .success("fermata restore")?;
        check_whole(&scene, image, image == "third")?;
    }
    scene.close()
}

#[test]
fn a_restore_that_fails_leaves_shared_memory_as_it_was() -> Result<()> {
    let scene = Scene::new()?;
    take(&scene)?;
    scene.fermata().kill("one")?;
    let left = std::fs::read(name(&scene))?;
    // A file that the program has open is gone.
    std::fs::remove_file(scene.sandbox().work().join("held"))?;
    let refused = scene.try_restore("image", "refused");
    ensure!(refused?.status != 0, "it was restored");
    ensure!(std::fs::read(name(&scene))? == left, "it was changed");
    std::fs::remove_file(name(&scene))?;
    scene.close()
}

/// System V memory that a child writes and its parent reads, when there is a file `stop`.
const SYSTEM_V: &str = "
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(4711, 1 << 20, 0o1600)
memory = libc.shmat(number, None, 0)
assert number >= 0 and memory != ctypes.c_void_p(-1).value
word = ctypes.c_uint64.from_address(memory)
word.value = 7

def wait():
    end = time.time() + 900
    while not os.path.exists('stop'):
        assert time.time() < end
        time.sleep(0.01)

child = os.fork()
if child == 0:
    wait()
    word.value *= 6
    os._exit(0)
print('waits', flush=True)
wait()
os.waitpid(child, 0)
print('found', word.value, libc.shmget(4711, 0, 0) == number, flush=True)
libc.shmctl(number, 0, None)
";

fn start_system_v(scene: &Scene, name: &str, variables: &[(&str, &str)]) -> Result<()> {
    let fermata = scene.fermata();
    let words = ["-c", SYSTEM_V];
    fermata.run_with(variables, name, Device::Soft, Path::new(PYTHON), &words)?;
    wait_until("it waits", || Ok(fermata.log(name)?.contains("waits")))
}

#[test]
fn system_v_memory_is_the_programs_own_and_comes_back() -> Result<()> {
    let scene = Scene::new()?;
    // Both have the same key.
    start_system_v(&scene, "one", &[])?;
    start_system_v(&scene, "other", &[])?;
    scene.fermata().checkpoint("one", "image", Mode::Stop)?;
    scene.fermata().kill("one")?;
    stop(&scene)?;
    scene
        .try_restore("image", "again")?
        .success("fermata restore")?;
    for name in ["other", "again"] {
        wait_until("a session ends", || {
            Ok(scene.fermata().session(name)?.state == "exited")
        })?;
        let log = scene.fermata().log(name)?;
        ensure!(log.contains("found 42 True"), "`{name}`: {log}");
    }
    scene.close()
}

#[test]
fn system_v_memory_of_the_machine_is_refused_before_the_stop() -> Result<()> {
    let scene = Scene::new()?;
    start_system_v(&scene, "one", &[("FERMATA_SYSTEM_V", "allow")])?;
    let refused = scene.fermata().call(&["checkpoint", "one"])?;
    stop(&scene)?;
    wait_until("the program ends", || {
        Ok(scene.fermata().session("one")?.state == "exited")
    })?;
    ensure!(refused.status == 14, "{}", refused.stderr);
    for word in ["System V memory", "python3", "FERMATA_SYSTEM_V"] {
        ensure!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    scene.close()
}
