//! The driver's undocumented tables (`crates/tables`): what is unknown is refused and named, and the program goes on; what a
//! program was told of its GPU holds after a restore, or it is not restored.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::scene::{Scene, wait_until};

const PYTHON: &str = "/usr/bin/python3";
const PLACES: &str = "FERMATA_SOFTGPU_PLACES";
const PLACES_TABLE: &str = "1734dc26-800d-4745-8726-c0f1e7dd8bca";

/// Gets tables and calls what is in their slots.
const TABLES: &str = "
import ctypes, os, sys, time, uuid
cuda = ctypes.CDLL('libcuda.so.1')

def table(name):
    found = ctypes.c_void_p()
    status = cuda.cuGetExportTable(ctypes.byref(found), uuid.UUID(name).bytes)
    return status, ctypes.cast(found, ctypes.POINTER(ctypes.c_size_t))

def call(name, slot, *words):
    slots = table(name)[1]
    return ctypes.CFUNCTYPE(ctypes.c_int, *map(type, words))(slots[slot])(*words)
";

/// A table that no driver has; slots that nothing is known of, inside, at and behind the end of the table of a driver that
/// knows less than a newer runtime asks for.
const UNKNOWN: &str = "
for _ in range(2):
    print('table', table('5a5a5a5a-1111-2222-3333-444444444444')[0])
contexts = '21318c60-9714-3248-8ca6-41ff7324c8f2'
print('slots', table(contexts)[1][0] // 8)
for slot in (5, 93, 94, 127, 93):
    print('slot', slot, call(contexts, slot, ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(1 << 40)))
count = ctypes.c_int()
print('goes on', cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
";

const UNKNOWN_TOLD: &str = "\
table 500
table 500
slots 94
slot 5 801
slot 93 801
slot 94 801
slot 127 801
slot 93 801
goes on 0 0 1
";

/// What a primary context is before it is active, while it is, afterwards, and when it is again.
const PRIMARY: &str = "
runtime = '6bd5fb6c-5bf4-e74a-8987-d93912fd9df9'
assert cuda.cuInit(0) == 0
context, current, number, memory = (ctypes.c_void_p(it) for it in (0, 0, 0, 0))
version, active, flags, device = (ctypes.c_int(-1) for _ in range(4))
numbers = set()

def say(what):
    cuda.cuDevicePrimaryCtxGetState(1, ctypes.byref(flags), ctypes.byref(active))
    cuda.cuCtxGetCurrent(ctypes.byref(current))
    told = [
        cuda.cuCtxGetDevice(ctypes.byref(device)), device.value, cuda.cuCtxGetId(context, ctypes.byref(number)),
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)), cuda.cuCtxGetFlags(ctypes.byref(flags)),
        cuda.cuCtxGetApiVersion(context, ctypes.byref(version)), cuda.cuCtxSynchronize(),
    ]
    if active.value:
        assert number.value not in numbers
        numbers.add(number.value)
    print(what, active.value, current.value == context.value, *told)

print('asked', call(runtime, 2, ctypes.pointer(context), ctypes.c_int(1)), context.value != 0)
say('asked')
print('set', cuda.cuCtxSetCurrent(context))
say('set')
print('retained', cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 1), current.value == context.value)
say('retained')
print('released', cuda.cuDevicePrimaryCtxRelease(1))
say('released')
print('pushed', cuda.cuCtxPushCurrent_v2(context), cuda.cuDevicePrimaryCtxRelease(1))
print('retained', cuda.cuDevicePrimaryCtxRetain(ctypes.byref(current), 1), current.value == context.value)
say('retained')
";

/// As an H200's driver says it (580.159), with its device 0.
const PRIMARY_TOLD: &str = "\
asked 0 True
asked 0 False 201 -1 709 201 201 201 201
set 0
set 0 True 0 1 709 709 0 201 709
retained 0 True
retained 1 True 0 1 0 0 0 0 0
released 0
released 0 True 0 1 709 709 0 201 709
pushed 0 201
retained 0 True
retained 1 True 0 1 0 0 0 0 0
";

/// Says where the multiprocessors lie before and after a file is there.
const WHERE: &str = "
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0

def say():
    name = '1734dc26-800d-4745-8726-c0f1e7dd8bca'
    arrays = [ctypes.c_void_p(), ctypes.c_void_p()]
    status = call(name, 4, *map(ctypes.pointer, arrays))
    print('places', status, *(ctypes.string_at(it, 8).hex() for it in arrays), flush=True)
    call(name, 13, *arrays)

say()
end = time.time() + 600
while not os.path.exists(sys.argv[1]):
    assert time.time() < end
    time.sleep(0.01)
say()
";

const WHERE_TOLD: &str = "\
places 0 0000000101010101 0001020001020304
places 0 0000000101010101 0001020001020304
";

#[test]
fn unknown_tables_and_slots_are_errors_that_are_named_once() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = format!("{TABLES}{UNKNOWN}");
    fermata.run("one", Device::Soft, Path::new(PYTHON), &["-c", &program])?;
    let status = fermata.wait_exit("one", PROGRAM_LIMIT)?;
    let log = fermata.log("one")?;
    ensure!(log == UNKNOWN_TOLD && status == 0, "{status}: {log}");
    let note = fermata.session("one")?.note.unwrap_or_default();
    let slot = |at| {
        format!("slot {at} of the driver's undocumented table 21318c60-9714-3248-8ca6-41ff7324c8f2")
    };
    let table = "the driver's undocumented table 5a5a5a5a-1111-2222-3333-444444444444".to_owned();
    for named in [table, slot(5), slot(93), slot(94), slot(127)] {
        let named = format!("{named} was asked for and refused");
        ensure!(note.matches(&named).count() == 1, "{named}: {note}");
    }
    scene.close()
}

#[test]
fn a_primary_context_that_is_not_active_can_be_named_and_current_and_no_more() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let program = format!("{TABLES}{PRIMARY}");
    let two = [("FERMATA_SOFTGPU_DEVICES", "2")];
    let words = ["-c", program.as_str()];
    fermata.run_with(&two, "one", Device::Soft, Path::new(PYTHON), &words)?;
    let status = fermata.wait_exit("one", PROGRAM_LIMIT)?;
    let log = fermata.log("one")?;
    ensure!(log == PRIMARY_TOLD && status == 0, "{status}: {log}");
    // The software GPU by itself.
    let alone = Command::new(PYTHON)
        .args(words)
        .envs(two)
        .env("LD_LIBRARY_PATH", scene.tree().library_path(Device::Soft))
        .output()?;
    let said = String::from_utf8_lossy(&alone.stdout);
    let errors = String::from_utf8_lossy(&alone.stderr);
    ensure!(said == PRIMARY_TOLD, "{said}{errors}");
    scene.close()
}

/// Runtimes ask for the primary context of every device, and release theirs as the program exits: it ends with the process, so
/// that an exit does not wait for a checkpoint that copies the context's memory.
#[test]
fn a_program_has_a_context_on_the_device_that_it_uses_and_on_no_other() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    for name in ["heat2d", "heat2d-shared", "heat2d-cuda12", "heat2d-cuda11"] {
        let folder = scene.sandbox().work().join(name);
        std::fs::create_dir(&folder)?;
        let folder = folder.to_str().context("a path")?;
        let variables = [
            ("FERMATA_SOFTGPU_DEVICES", "3"),
            ("FERMATA_WORKER_FERMATA_TALLY", folder),
        ];
        let program = scene.tree().program(name)?;
        let words = ["--steps", "2"];
        fermata.run_with(&variables, name, Device::Soft, &program, &words)?;
        let status = fermata.wait_exit(name, PROGRAM_LIMIT)?;
        ensure!(status == 0, "{name}: {status}");
        let counted = || -> Result<String> {
            let files = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
            let all = files.iter().map(|it| std::fs::read_to_string(it.path()));
            Ok(all.collect::<std::io::Result<String>>()?)
        };
        // The runtime unloads its modules as the program exits.
        wait_until("the worker has counted its operations", || {
            Ok(counted()?.contains("ModuleUnload"))
        })?;
        let all = counted()?;
        let mut lines = all.lines().map(|it| it.split_whitespace().take(2));
        ensure!(
            lines.any(|it| it.eq(["ContextCreate", "1"])),
            "{name}: {all}"
        );
        ensure!(!all.contains("ContextDestroy"), "{name}: {all}");
    }
    scene.close()
}

/// Ends the daemon, and starts one whose software GPU is another chip.
fn change_chip(scene: &Scene, places: &str) -> Result<()> {
    scene.kill_daemon()?;
    let started = scene.fermata().call_with(&["ps"], &[(PLACES, places)])?;
    started.success("fermata ps").map(drop)
}

#[test]
fn a_restore_is_refused_where_multiprocessors_lie_elsewhere_than_the_program_was_told() -> Result<()>
{
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let started = fermata.call_with(&["ps"], &[(PLACES, "3,5")])?;
    started.success("fermata ps")?;
    let go = scene.sandbox().work().join("go");
    let go = go.to_str().expect("a path");
    let program = format!("{TABLES}{WHERE}");
    fermata.run(
        "first",
        Device::Soft,
        Path::new(PYTHON),
        &["-c", &program, go],
    )?;
    wait_until("the program was told", || {
        Ok(fermata.log("first")?.contains("places"))
    })?;
    fermata.checkpoint("first", "image", Mode::Stop)?;
    fermata.kill("first")?;

    change_chip(&scene, "5,3")?;
    let refused = scene.try_restore("image", "second")?;
    ensure!(refused.status != 0, "{}", refused.stdout);
    for word in [PLACES_TABLE, "lie elsewhere", "--ignore-places"] {
        ensure!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
    }
    let image = fermata.image("image");
    let image = image.to_str().expect("a path");
    let all_the_same = [
        "restore",
        image,
        "--name",
        "third",
        "--detach",
        "--ignore-places",
    ];
    fermata.call(&all_the_same)?.success("fermata restore")?;
    let ends = |name: &str| -> Result<()> {
        std::fs::write(go, "")?;
        let status = fermata.wait_exit(name, PROGRAM_LIMIT)?;
        std::fs::remove_file(go)?;
        let log = fermata.log(name)?;
        ensure!(
            log == WHERE_TOLD && status == 0,
            "{name} ended with {status}: {log}"
        );
        Ok(())
    };
    ends("third")?;

    // The refusal has left the image as it was.
    change_chip(&scene, "3,5")?;
    scene
        .try_restore("image", "fourth")?
        .success("fermata restore")?;
    ends("fourth")?;
    scene.close()
}
