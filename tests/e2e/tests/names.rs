//! Names that are not UTF-8: of programs, arguments, working folders, open files, images.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::PROGRAM_LIMIT;
use fermata_e2e::command::{self, Finished};
use fermata_e2e::fermata::COMMAND_LIMIT;
use fermata_e2e::output::Output;
use fermata_e2e::scene::{SHORT, Scene, gc_when_free};

/// Says where it is and what it reads, once there is a file `go`.
const PROGRAM: &str = "
import os, sys, time
file = open(sys.argv[1], 'rb')
log = open('written', 'ab')
print('ready', flush=True)
end = time.time() + 600
while not os.path.exists('go'):
    assert time.time() < end
    time.sleep(0.01)
log.write(b'here')
log.close()
print(ascii(os.getcwdb()), ascii(os.path.basename(os.fsencode(sys.argv[1]))), file.read(), flush=True)
";

#[test]
fn names_that_are_not_utf_8_work() -> Result<()> {
    let scene = Scene::new()?;
    let odd = OsStr::from_bytes(b"od\xffd \xc3");
    let folder = scene.sandbox().work().join(odd);
    fs::create_dir(&folder)?;
    let file = folder.join(OsStr::from_bytes(b"file-\xfe"));
    fs::write(&file, "contents")?;
    let program = folder.join(OsStr::from_bytes(b"program-\xfd"));
    std::os::unix::fs::symlink("/usr/bin/python3", &program)?;
    let call = |words: &[&OsStr]| -> Result<Finished> {
        let mut command = Command::new(scene.tree().fermata());
        command.args(words);
        scene.sandbox().enter(&mut command);
        command.current_dir(&folder);
        command::run(command, COMMAND_LIMIT)
    };
    let words = ["run", "--detach", "--name", "first", "--"].map(OsStr::new);
    let code = ["-c", PROGRAM].map(OsStr::new);
    let words = [
        &words[..],
        &[program.as_os_str()],
        &code,
        &[file.as_os_str()],
    ]
    .concat();
    call(&words)?.success("fermata run")?;
    let fermata = scene.fermata();
    scene.wait_says("first", "ready")?;

    // A folder of images that is none either.
    let image = folder.join("images").join("image");
    let words = ["checkpoint", "first", "-o"].map(OsStr::new);
    call(&[&words[..], &[image.as_os_str()]].concat())?.success("fermata checkpoint")?;
    fermata.kill("first")?;
    let changed = b"contents, and more";
    for (name, options) in [("second", &[][..]), ("third", &["--ignore-changed-files"])] {
        let words = ["restore", "--detach", "--name", name].map(OsStr::new);
        let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        let words = [&words[..], &[image.as_os_str()], &options].concat();
        call(&words)?.success("fermata restore")?;
        fs::write(folder.join("go"), "")?;
        fermata.wait_exit(name, PROGRAM_LIMIT)?;
        fs::remove_file(folder.join("go"))?;
        let log = fermata.log(name)?;
        for word in ["od\\xffd \\xc3'", "b'file-\\xfe'", "b'contents"] {
            ensure!(log.contains(word), "{word} in {log}");
        }
        fs::write(&file, changed)?;
    }
    ensure!(fs::read(folder.join("written"))?.starts_with(b"here"));
    let json = call(&["ps", "--json"].map(OsStr::new))?.success("fermata ps")?;
    let json: serde_json::Value = serde_json::from_str(&json.stdout).context("a document")?;
    ensure!(
        json["sessions"].as_array().is_some_and(|it| it.len() == 3),
        "{json}"
    );
    scene.close()
}

#[test]
fn images_of_programs_with_a_gpu_may_lie_in_folders_that_are_not_utf_8() -> Result<()> {
    let scene = Scene::new()?;
    let digest = scene.straight("heat2d", SHORT)?.digest;
    let folder = scene.sandbox().work().join(OsStr::from_bytes(b"od\xffd"));
    // The daemon's store, and a folder elsewhere.
    let (images, other) = (folder.join("images"), folder.join("other"));
    fs::create_dir_all(&images)?;
    fs::create_dir(&other)?;
    let call = |words: &[&OsStr]| -> Result<Finished> {
        let mut command = Command::new(scene.tree().fermata());
        command.args(words);
        scene.sandbox().enter(&mut command);
        command.env("FERMATA_IMAGE_DIR", &images);
        command::run(command, COMMAND_LIMIT)
    };
    let words = |words: &[&'static str]| -> Vec<&'static OsStr> {
        words.iter().map(|word| OsStr::new(*word)).collect()
    };
    // The daemon is started with the folder.
    call(&words(&["ps"]))?.success("fermata ps")?;
    scene.start_held("heat")?;
    // The image's own name is in documents, so it must be text.
    let mut refused = words(&["checkpoint", "heat", "-o"]);
    let odd = other.join(OsStr::from_bytes(b"im\xfe"));
    refused.push(odd.as_os_str());
    let refused = call(&refused)?;
    ensure!(
        refused.status == 1 && refused.stderr.contains("its name is not UTF-8"),
        "{}",
        refused.stderr
    );
    let elsewhere = other.join("one");
    let mut taken = words(&["checkpoint", "heat", "--mode", "stop", "-o"]);
    taken.push(elsewhere.as_os_str());
    call(&taken)?.success("fermata checkpoint")?;
    call(&words(&["checkpoint", "heat", "--mode", "snapshot"]))?.success("fermata checkpoint")?;
    let fermata = scene.fermata();
    fermata.kill("heat")?;
    scene.let_go()?;
    for (image, name, options) in [
        (elsewhere.as_os_str(), "first", &["--eager"][..]),
        (elsewhere.as_os_str(), "second", &[]),
        (OsStr::new("heat-1"), "third", &[]),
    ] {
        call(&[OsStr::new("images"), OsStr::new("verify"), image])?.success("fermata verify")?;
        let mut restored = words(&["restore", "--detach", "--name", name]);
        restored.extend(words(options));
        restored.push(image);
        call(&restored)?.success("fermata restore")?;
        let status = fermata.wait_exit(name, PROGRAM_LIMIT)?;
        let printed = Output::parse(&fermata.log(name)?)?.digest;
        ensure!(
            status == 0 && printed == digest,
            "{name}: status {status}, digest {printed:?}"
        );
    }
    let collect = |line: &[&'static str]| gc_when_free(|| call(&words(line)));
    for shown in [
        call(&words(&["images", "ls", "--json"]))?,
        call(&words(&["images", "inspect", "heat-1", "--json"]))?,
        collect(&["images", "gc", "--json"])?,
    ] {
        let said = shown.success("fermata images")?.stdout;
        serde_json::from_str::<serde_json::Value>(&said).with_context(|| said.clone())?;
    }
    let verified = words(&["images", "verify", "--json"]);
    let verified = [&verified[..], &[elsewhere.as_os_str()]].concat();
    call(&verified)?.success("fermata images verify")?;
    let removed = [
        OsStr::new("images"),
        OsStr::new("rm"),
        elsewhere.as_os_str(),
    ];
    call(&removed)?.success("fermata images rm")?;
    collect(&["images", "gc"])?.success("fermata images gc")?;
    call(&words(&["images", "verify", "heat-1"]))?.success("fermata verify")?;
    scene.close()
}
