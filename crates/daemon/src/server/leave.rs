//! Takes a daemon that is started inside a session out of that session. When a session's program ends, all processes with the
//! session's token end, and without this the daemon and the workers of all other sessions would have the token, too.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use fermata_control::Paths;
use fermata_control::agent::{ENV_SOCKET, ENV_TOKEN};

use crate::run::{ENV_NOTICES, libraries};

/// If this process has the environment of a session, executes itself again without the variables that Fermata has added to it,
/// and does not return.
///
/// # Errors
/// This process cannot execute itself.
pub fn leave_session() -> io::Result<()> {
    if std::env::var_os(ENV_TOKEN).is_none() {
        return Ok(());
    }
    let ours = libraries(&Paths::find().home);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1));
    for name in [ENV_TOKEN, ENV_SOCKET, ENV_NOTICES] {
        command.env_remove(name);
    }
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH"] {
        match std::env::var_os(name).and_then(|list| without(&list, &ours)) {
            Some(list) => command.env(name, list),
            None => command.env_remove(name),
        };
    }
    Err(command.exec())
}

/// A list of paths without those in `folder`; none if nothing is left.
fn without(list: &OsStr, folder: &Path) -> Option<OsString> {
    let foreign = |path: &std::path::PathBuf| !path.starts_with(folder);
    let left = std::env::split_paths(list).filter(foreign);
    std::env::join_paths(left).ok().filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_libraries_are_taken_out() {
        let left = |list: &str| without(OsStr::new(list), Path::new("/opt/lib/client"));
        let list = "/opt/lib/client:/a:/opt/lib/client/libnvidia-ml.so.1:/opt/lib/clients";
        assert_eq!(left(list), Some("/a:/opt/lib/clients".into()));
        assert_eq!(left("/opt/lib/client/libcuda.so.1"), None);
    }
}
