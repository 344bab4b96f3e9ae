//! Where the daemon of a user is: the same rules for the daemon and its callers.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::user::{ENV_HOME, ENV_IMAGE_DIR, ENV_LOG_DIR, ENV_RUNTIME_DIR, SOCKET};

/// Folders of a user's daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Sockets, logs and folders of sessions.
    pub runtime: PathBuf,
    /// Images.
    pub images: PathBuf,
    /// The installation: `bin/`, `lib/`.
    pub home: PathBuf,
    /// What sessions print, if it has a place of its own.
    pub logs: Option<PathBuf>,
}

impl Paths {
    /// The folders by the rules in `docs/settings.md`, from the settings and the place of the running executable. A relative path counts from the working folder. Nothing is created.
    pub fn find() -> Self {
        Self::from_environment(crate::settings::value)
    }

    fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| {
            let path = variable(name).filter(|value| !value.is_empty())?;
            // Fails only where there is no working folder any more.
            Some(std::path::absolute(&path).unwrap_or_else(|_| path.into()))
        };
        let uid = rustix::process::getuid().as_raw();
        let runtime = set(ENV_RUNTIME_DIR)
            .or_else(|| set("XDG_RUNTIME_DIR").map(|d| d.join("fermata")))
            .unwrap_or_else(|| match uid {
                0 => PathBuf::from("/run/fermata"),
                uid => PathBuf::from(format!("/tmp/fermata-{uid}")),
            });
        let images = set(ENV_IMAGE_DIR)
            .or_else(|| set("XDG_DATA_HOME").map(|d| d.join("fermata/images")))
            .or_else(|| set("HOME").map(|d| d.join(".local/share/fermata/images")))
            .unwrap_or_else(|| PathBuf::from("/var/lib/fermata/images"));
        let home = set(ENV_HOME)
            .or_else(|| {
                let exe = std::env::current_exe().ok()?;
                Some(exe.parent()?.parent()?.to_owned())
            })
            .unwrap_or_else(|| PathBuf::from("/"));
        Self {
            runtime,
            images,
            home,
            logs: set(ENV_LOG_DIR),
        }
    }

    /// Variables that make a process with another working folder find the same folders.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let always = [
            (ENV_RUNTIME_DIR, &self.runtime),
            (ENV_IMAGE_DIR, &self.images),
            (ENV_HOME, &self.home),
        ];
        let logs = self.logs.iter().map(|logs| (ENV_LOG_DIR, logs));
        always.into_iter().chain(logs)
    }

    /// The daemon's socket for users.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join(SOCKET)
    }

    /// The chunk store.
    pub fn store(&self) -> PathBuf {
        self.images.join(".store")
    }

    /// The daemon's executable.
    pub fn daemon(&self) -> PathBuf {
        self.home.join("bin/fermatad")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_folders_count_from_the_working_folder() {
        let here = std::env::current_dir().expect("a working folder");
        let paths = Paths::from_environment(|name| match name {
            ENV_RUNTIME_DIR => Some("run".into()),
            "XDG_DATA_HOME" => Some("data".into()),
            ENV_LOG_DIR => Some("logs".into()),
            _ => None,
        });
        assert_eq!(paths.runtime, here.join("run"));
        assert_eq!(paths.images, here.join("data/fermata/images"));
        let given = |name: &str| {
            let found = paths.variables().find(|(it, _)| *it == name);
            found.map(|(_, path)| path.clone().into_os_string())
        };
        assert_eq!(Paths::from_environment(given), paths);
    }
}
