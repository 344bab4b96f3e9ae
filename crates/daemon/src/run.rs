//! Starts a program as a session.
//!
//! The program leads its own session and group. It reads the input that it was given, or `/dev/null`, and writes to the session's
//! log. The log is opened for appending, so that another writer (device `printf`, a restored copy) never overwrites it, and CRIU
//! need not restore a position.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fermata_control::agent::{ENV_SOCKET, ENV_TOKEN};
use fermata_control::settings;
use fermata_control::user::{Run, SessionState};
use fermata_control::worker::FailureKind;
use rustix::process::Signal;

use crate::daemon::Daemon;
use crate::failure::{Hint, OrFail, Result, fail};
use crate::gpu::visible;
use crate::helpers::modes::status_code;
use crate::open_files::input;
use crate::proc::ProcessId;
use crate::session::{Plan, Session};
use crate::sys::{self, Extra};
use crate::worker;

/// Environment variable: the file to which the library in the program appends messages for the user.
pub const ENV_NOTICES: &str = "FERMATA_NOTICE_FILE";

/// The mask of a program whose request, of an older tool, has none.
const USUAL_UMASK: u32 = 0o022;
/// What hwloc, with which MPI's libraries look at the machine, is to look for; and what it is not to. NVIDIA's OpenCL would
/// open the GPU within the program.
const HWLOC: (&str, &str) = ("HWLOC_COMPONENTS", "-opencl");

/// Starts the program.
///
/// # Errors
/// `User` when it cannot be executed or the name is taken.
pub fn run(daemon: &Arc<Daemon>, request: &Run, stdin: Option<OwnedFd>) -> Result<Arc<Session>> {
    let mut env: Vec<(OsString, OsString)> = request
        .env
        .iter()
        .map(|(name, value)| (name.to_os(), value.to_os()))
        .collect();
    settings::complete(&mut env);
    // Those of the program and of its worker; the tool has told the unknown ones.
    settings::check(env.iter().map(|(name, value)| (&**name, &**value))).map_err(|wrong| {
        fail(FailureKind::User, wrong.to_string())
            .hint("`fermata doctor --settings` lists the settings")
    })?;
    let argv: Vec<OsString> = request.argv.iter().map(|a| a.to_os()).collect();
    let program = argv
        .first()
        .ok_or_else(|| fail(FailureKind::User, "there is no program to run"))?;
    let cwd = request.cwd.to_path();
    let path = look_up(program, &cwd, &env)?;
    let fallback = path
        .file_name()
        .map_or_else(|| "session".into(), |n| n.to_string_lossy());
    let text =
        |(name, value): &(OsString, OsString)| Some((name.to_str()?.to_owned(), value.clone()));
    let pairs: Vec<(String, OsString)> = env.iter().filter_map(text).collect();
    let all = || {
        pairs
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
    };
    let mut variables = worker::variables(all());
    let gpus = visible::of_workers_alone(&mut variables, all());
    // A missing driver is reported now, not when the program asks for a device.
    crate::gpu::driver::Driver::find(request.device, &daemon.paths.home)?;

    let session = daemon.add(request.name.as_deref(), &fallback, |name, dir| Plan {
        name,
        dir,
        argv: request.argv.iter().map(|a| a.lossy()).collect(),
        cwd: request.cwd.lossy(),
        device: request.device,
        variables,
        gpus,
        image: None,
        own_network: false,
        priority: request.priority,
        foreign: false,
        state: SessionState::Running,
    })?;
    match start(daemon, &session, request, &path, &argv, env, stdin) {
        Ok(()) => Ok(session),
        Err(failure) => {
            daemon.remove(&session);
            Err(failure)
        }
    }
}

fn start(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    request: &Run,
    path: &Path,
    argv: &[OsString],
    env: Vec<(OsString, OsString)>,
    stdin: Option<OwnedFd>,
) -> Result<()> {
    let log = session.open_log()?;
    let errors = log
        .try_clone()
        .or_fail(FailureKind::Internal, || "cannot open the log".into())?;
    let mut command = Command::new(path);
    command
        .arg0(&argv[0])
        .args(&argv[1..])
        .current_dir(request.cwd.to_path())
        .env_clear();
    let is_allowed = |what: &str| {
        let mut all = env.iter();
        all.any(|(name, value)| name == what && value == settings::ALLOW)
    };
    let (io_uring, system_v) = (
        is_allowed(settings::IO_URING),
        is_allowed(settings::SYSTEM_V),
    );
    command.envs(injected(env, &daemon.paths.home));
    command.env(ENV_SOCKET, daemon.agent_socket());
    command.env(ENV_TOKEN, &session.lock().token);
    command.env(ENV_NOTICES, session.notices());
    session.lock().input = stdin.as_ref().and_then(input::pipe_of);
    command
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(log)
        .stderr(errors);
    sys::prepare(
        &mut command,
        Extra {
            setsid: true,
            former_limits: true,
            umask: Some(request.umask.unwrap_or(USUAL_UMASK)),
            without_io_uring: !io_uring,
            own_ipc: !system_v,
            ..Extra::default()
        },
    );
    // A daemon that dies now leaves a program that the next one knows by its token.
    session.note_down().or_fail(FailureKind::User, || {
        format!("cannot note down session `{}`", session.name)
    })?;
    let spawned = command.spawn();
    let mut child = spawned.or_fail(FailureKind::User, || {
        format!("cannot execute `{}`", path.display())
    })?;
    let root = ProcessId::of(child.id());
    session.lock().root = root;
    session.save();
    let watched = session.clone();
    let watch = move || {
        let status = child.wait().ok().map(status_code);
        watched.ended(status);
    };
    std::thread::Builder::new()
        .name("session-watch".into())
        .spawn(watch)
        .map(drop)
        .or_fail(FailureKind::Internal, || {
            format!("cannot watch session `{}`", session.name)
        })
        .inspect_err(|_| {
            // Ended, because no later daemon would know of it.
            if let Some(root) = root {
                root.signal(Signal::KILL);
            }
        })
}

/// The folder of Fermata's libraries for programs.
pub fn libraries(home: &Path) -> PathBuf {
    home.join("lib/client")
}

/// The environment of a program: its own, with our libraries first, and nothing that opens a GPU for those who do not ask.
fn injected(mut env: Vec<(OsString, OsString)>, home: &Path) -> Vec<(OsString, OsString)> {
    let client = libraries(home);
    if env.iter().all(|(name, _)| name != HWLOC.0) {
        env.push((HWLOC.0.into(), HWLOC.1.into()));
    }
    let mut preload = vec![client.join("libcuda.so.1")];
    // By its path: in a container, the folder of the driver's libraries often comes first in the program's own list.
    preload.extend(Some(client.join("libnvidia-ml.so.1")).filter(|p| p.is_file()));
    prepend(&mut env, "LD_PRELOAD", preload);
    prepend(&mut env, "LD_LIBRARY_PATH", vec![client]);
    env
}

/// Puts `paths` before the list that variable `name` holds.
fn prepend(env: &mut Vec<(OsString, OsString)>, name: &str, paths: Vec<PathBuf>) {
    let old = env
        .iter()
        .position(|(n, _)| n == name)
        .map(|at| env.swap_remove(at).1);
    let mut list = Vec::new();
    for path in paths
        .into_iter()
        .map(PathBuf::into_os_string)
        .chain(old.filter(|o| !o.is_empty()))
    {
        if !list.is_empty() {
            list.push(b':');
        }
        list.extend(path.as_bytes());
    }
    env.push((name.into(), OsString::from_vec(list)));
}

/// The program's file: as a shell finds it, in the `PATH` of its own environment.
fn look_up(program: &OsString, cwd: &Path, env: &[(OsString, OsString)]) -> Result<PathBuf> {
    let shown = program.to_string_lossy();
    let executable = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if program.as_bytes().contains(&b'/') {
        let path = cwd.join(program);
        return if executable(&path) {
            Ok(path)
        } else {
            Err(fail(
                FailureKind::User,
                format!("`{shown}` is not an executable file"),
            ))
        };
    }
    let path = env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.clone());
    std::env::split_paths(&path.unwrap_or_default())
        .map(|folder| cwd.join(folder).join(program))
        .find(executable)
        .ok_or_else(|| {
            fail(
                FailureKind::User,
                format!("there is no program `{shown}` in PATH"),
            )
            .hint("a program in this folder is written `./PROGRAM`")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_libraries_come_first() {
        let mut env = vec![
            ("A".into(), "b".into()),
            ("LD_PRELOAD".into(), "/other.so".into()),
        ];
        prepend(
            &mut env,
            "LD_PRELOAD",
            vec!["/x/libcuda.so.1".into(), "/y".into()],
        );
        assert!(env.contains(&("LD_PRELOAD".into(), "/x/libcuda.so.1:/y:/other.so".into())));
        prepend(&mut env, "LD_LIBRARY_PATH", vec!["/x".into()]);
        assert!(env.contains(&("LD_LIBRARY_PATH".into(), "/x".into())));
        assert_eq!(env.len(), 3);
    }

    #[test]
    fn no_opencl_is_looked_for_unless_the_program_says_what_is() {
        let told = |env: Vec<(OsString, OsString)>| {
            let env = injected(env, Path::new("/h")).into_iter();
            let found: Vec<_> = env.filter(|(name, _)| name == HWLOC.0).collect();
            assert_eq!(found.len(), 1);
            found[0].1.clone()
        };
        assert_eq!(told(vec![]), "-opencl");
        assert_eq!(told(vec![(HWLOC.0.into(), "xml".into())]), "xml");
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let env = [("PATH".into(), "/nonexistent:/bin".into())];
        let found = look_up(&"sh".into(), Path::new("/"), &env).expect("found");
        assert_eq!(found, Path::new("/bin/sh"));
        assert!(look_up(&"sh".into(), Path::new("/"), &[]).is_err());
        assert!(look_up(&"./sh".into(), Path::new("/bin"), &[]).is_ok());
        assert!(look_up(&"./passwd".into(), Path::new("/etc"), &[]).is_err());
    }
}
