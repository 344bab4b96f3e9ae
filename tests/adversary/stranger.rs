//! A second user of the machine: commands for another user's daemon, bytes for its sockets, its files, and files that this
//! user has given away.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::ground::{Ground, NEIGHBOUR, OLDER, check_answer};
use super::{Draw, Kind, Shown};
use crate::command::{self, Finished};
use crate::fermata::COMMAND_LIMIT;
use crate::scene::Scene;

/// Owns nothing.
const STRANGER: u32 = 65534;
const LOOK: u64 = 8;
/// What the command says where the user can mend it.
const USER: i32 = 1;

/// Commands that need the daemon, or something of its user.
const COMMANDS: [&[&str]; 10] = [
    &["ps"],
    &["kill", "neighbour"],
    &["logs", "neighbour"],
    &["wait", "neighbour"],
    &["checkpoint", "neighbour"],
    &["restore", OLDER, "--detach"],
    &["restore", OLDER, "--detach", "--trust-owner"],
    &["run", "--device", "soft", "--detach", "--", "/bin/true"],
    &["images", "verify", OLDER],
    &["images", "rm", OLDER],
];

/// In the words of a trick: a file of the stranger's own.
const MINE: &str = "MINE";
/// What the stranger does with a file, which is its last argument.
const TRICKS: [(&str, &[&str]); 4] = [
    ("reading", &["cat"]),
    ("cutting", &["truncate", "-s", "0"]),
    ("removing", &["rm"]),
    ("linking", &["ln", "-f", MINE]),
];

const PYTHON: &str = "/usr/bin/python3";
/// Connects to its argument, sends a request, and fails unless something is answered.
const ASK: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
s.connect(sys.argv[1])
body = b'{\"protocol\":1,\"verb\":\"Ps\"}'
s.sendall(len(body).to_bytes(4, 'little') + body)
sys.exit(0 if s.recv(1) else 1)
";

/// See the module.
pub struct Stranger {
    ground: Ground,
    /// A folder of the stranger's own.
    own: PathBuf,
}

impl Stranger {
    /// Sets the stage.
    ///
    /// # Errors
    /// When this process is not root, or any of it fails.
    pub fn new() -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "only root can act as another user"
        );
        let scene = Scene::new()?;
        // The folder of the case would keep the stranger out by itself.
        let images = scene.sandbox().images();
        let folder = images.parent().context("folder of the case")?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        let own = scene.sandbox().work().join("own");
        fs::create_dir(&own)?;
        chown(&own, Some(STRANGER), Some(STRANGER))?;
        let ground = Ground::new(scene)?;
        let stranger = Self { ground, own };
        stranger.check_able()?;
        Ok(stranger)
    }

    /// Demands that all that must come to nothing is done where nothing is in its way.
    fn check_able(&self) -> Result<()> {
        let sandbox = self.ground.scene.sandbox();
        let tool = self.ground.scene.tree().fermata();
        self.call(&tool, &["--version"], None)?
            .success("fermata of another user")?;
        for (what, trick) in TRICKS {
            let paths = [MINE, what].map(|name| self.own.join(name));
            for path in &paths {
                fs::write(path, "own")?;
                chown(path, Some(STRANGER), Some(STRANGER))?;
            }
            self.trick(trick, &paths[1])?.success(what)?;
        }
        let mut ask = Command::new(PYTHON);
        ask.args(["-c", ASK])
            .arg(sandbox.runtime().join("fermatad.sock"));
        sandbox.enter(&mut ask);
        command::run(ask, COMMAND_LIMIT)?.success("a request")?;
        Ok(())
    }

    /// Has the stranger do this with a file.
    fn trick(&self, words: &[&str], path: &Path) -> Result<Finished> {
        let mine = self.own.join(MINE);
        let mine = mine.to_str().context("path")?;
        let words = words.iter().map(|it| if *it == MINE { mine } else { it });
        let words: Vec<&str> = words.collect();
        self.call(Path::new(words[0]), &words[1..], Some(path))
    }

    /// Runs a program as the stranger.
    fn call(&self, program: &Path, words: &[&str], last: Option<&Path>) -> Result<Finished> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        command.arg(program).args(words).args(last);
        self.ground.scene.sandbox().enter(&mut command);
        command.current_dir("/");
        command::run(command, COMMAND_LIMIT)
    }

    /// Every file below the daemon's folder and that of images.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = self.ground.scene.image_files()?;
        let mut folders = vec![self.ground.scene.sandbox().runtime()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                // The daemon has removed it.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries.flatten() {
                match entry.file_type()?.is_dir() {
                    true => folders.push(entry.path()),
                    false => files.push(entry.path()),
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Whether this is a file that the daemon neither replaces nor removes by itself: the neighbour's log, but nothing else of a
    /// session, nothing of a restore that has failed, nor what was learnt of an image.
    fn stays(&self, path: &Path) -> bool {
        let sandbox = self.ground.scene.sandbox();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let of_image = path.starts_with(sandbox.images()) && !name.contains("profile");
        let of_daemon = path.parent() == Some(&sandbox.runtime()) && !name.starts_with("restore-");
        of_image || of_daemon || path.ends_with(Path::new(NEIGHBOUR).join("log"))
    }

    fn command(&self, draw: &mut Draw) -> Result<Shown> {
        let words = *draw.pick(&COMMANDS);
        let done = self.call(&self.ground.scene.tree().fermata(), words, None)?;
        let said = done.stderr.trim();
        ensure!(
            done.status != 0 && !said.is_empty(),
            "{words:?} was done: {said}"
        );
        Ok(Shown {
            harm: format!("`fermata {}` of another user", words.join(" ")),
            came: "refused".to_owned(),
        })
    }

    fn file(&self, draw: &mut Draw) -> Result<Shown> {
        let (path, before) = loop {
            let path = draw.pick(&self.files()?).clone();
            match fs::symlink_metadata(&path) {
                // The daemon has removed it since.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                found => break (path, found?.len()),
            }
        };
        let (what, trick) = *draw.pick(&TRICKS);
        let done = self.trick(trick, &path)?;
        ensure!(done.status != 0, "{what} `{}` was done", path.display());
        let after = fs::symlink_metadata(&path).map(|it| it.len());
        // A log may have grown.
        ensure!(
            after.is_ok_and(|it| it >= before) || !self.stays(&path),
            "`{}` is another",
            path.display()
        );
        Ok(Shown {
            harm: format!("{what} of another user's file"),
            came: "refused".to_owned(),
        })
    }

    fn socket(&self, draw: &mut Draw) -> Result<Shown> {
        let socket = draw.pick(&self.ground.sockets()?).clone();
        let done = self.call(Path::new(PYTHON), &["-c", ASK], Some(&socket))?;
        ensure!(done.status != 0, "`{}` has answered", socket.display());
        Ok(Shown {
            harm: "a socket of another user".to_owned(),
            came: "no answer".to_owned(),
        })
    }

    /// Gives away a file of the image or its store, and tries to restore it.
    fn given_away(&self, name: &str, draw: &mut Draw) -> Result<Shown> {
        let (path, mode) = loop {
            let path = draw.pick(&self.ground.scene.image_files()?).clone();
            match fs::metadata(&path) {
                // What was learnt of the image has just been renamed.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                found => break (path, found?.permissions()),
            }
        };
        let open = draw.below(2) == 0;
        let folder = path.parent().context("a folder")?;
        let folder_mode = fs::metadata(folder)?.permissions();
        match open {
            true => {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
                fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
            }
            false => chown(&path, Some(STRANGER), None)?,
        }
        let words = ["restore", OLDER, "--detach", "--name", name];
        let done = self.ground.scene.fermata().call(&words);
        let trusted = format!("{name}-trusted");
        let words = [
            "restore",
            OLDER,
            "--detach",
            "--trust-owner",
            "--name",
            &trusted,
        ];
        let again = self.ground.scene.fermata().call(&words);
        chown(&path, Some(0), None)?;
        fs::set_permissions(&path, mode)?;
        fs::set_permissions(folder, folder_mode)?;
        let (done, again) = (done?, again?);
        check_answer(&done)?;
        again.success("fermata restore --trust-owner")?;
        let ended = self.ground.end_of(&trusted)?.context("it is not there")?;
        self.ground.check_ended(&ended, true, false)?;
        let harm = match open {
            true => "a file of an image that others may write to",
            false => "a file of an image that belongs to another user",
        };
        if done.status == 0 {
            // The store has files that no restore looks at, and that others can write to only through closed folders.
            let ended = self.ground.end_of(name)?.context("it is not there")?;
            self.ground.check_ended(&ended, true, false)?;
            let store = self.ground.scene.sandbox().images().join(".store");
            ensure!(
                open || path.starts_with(store),
                "`{}` was restored",
                path.display()
            );
            return Ok(Shown {
                harm: harm.to_owned(),
                came: "right digest".to_owned(),
            });
        }
        ensure!(
            done.status == USER,
            "status {}: {}",
            done.status,
            done.stderr
        );
        Ok(Shown {
            harm: harm.to_owned(),
            came: "refused, and right with --trust-owner".to_owned(),
        })
    }
}

impl Kind for Stranger {
    fn name(&self) -> &'static str {
        "stranger"
    }

    fn perform(&mut self, number: u64, draw: &mut Draw) -> Result<Shown> {
        let shown = match draw.below(4) {
            0 => self.command(draw),
            1 => self.file(draw),
            2 => self.socket(draw),
            _ => self.given_away(&format!("case-{number}"), draw),
        }?;
        self.ground.check_nothing_left()?;
        if number.is_multiple_of(LOOK) {
            self.ground.check_neighbour()?;
            self.ground.check_files()?;
        }
        Ok(shown)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.ground.close()
    }
}
