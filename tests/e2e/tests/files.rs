//! Files that a program has open at the checkpoint, and that have changed when it is restored.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::scene::Scene;

const PYTHON: &str = "/usr/bin/python3";

/// Has one file open twice, at two positions, once for reading only. With a file `go` it reads on in turns.
const PROGRAM: &str = "
import os, time
one = os.open('data', os.O_RDONLY)
os.read(one, 2)
two = os.open('data', os.O_RDWR)
os.read(two, 5)
print('ready', flush=True)
end = time.time() + 900
while not os.path.exists('go'):
    assert time.time() < end
    time.sleep(0.01)
print(os.read(one, 2), os.read(two, 2), os.read(one, 2), os.read(two, 9), flush=True)
os.write(two, b'!')
try:
    os.write(one, b'?')
except OSError as error:
    print('number', error.errno, flush=True)
";

#[test]
fn a_changed_file_that_is_open_twice_comes_back_at_two_positions() -> Result<()> {
    let scene = Scene::new()?;
    let (fermata, work) = (scene.fermata(), scene.sandbox().work());
    let data = work.join("data");
    fs::write(&data, "0123456789")?;
    fermata.run("one", Device::Soft, Path::new(PYTHON), &["-c", PROGRAM])?;
    scene.wait_says("one", "ready")?;
    fermata.checkpoint("one", "image", Mode::Stop)?;
    fermata.kill("one")?;
    fs::write(&data, "0123456789more")?;
    let refused = scene.try_restore("image", "refused")?;
    ensure!(refused.status == 1, "{refused:?}");
    let path = fermata.image("image");
    let path = path.to_str().context("path")?;
    let words = ["restore", path, "--name", "two", "--device", "soft"];
    let options = ["--detach", "--ignore-changed-files"];
    fermata
        .call(&[&words[..], &options].concat())?
        .success("fermata restore")?;
    fs::write(work.join("go"), "")?;
    fermata.wait_exit("two", PROGRAM_LIMIT)?;
    let log = fermata.log("two")?;
    for words in ["b'23' b'56' b'45' b'789more'", "number 9"] {
        ensure!(log.contains(words), "`{words}` is missing in: {log}");
    }
    ensure!(fs::read(&data)? == b"0123456789more!", "it was not written");
    scene.close()
}
