//! Where the daemon of a user is: the same rules for the daemon and its callers.

use std::path::PathBuf;

use crate::user::{ENV_HOME, ENV_IMAGE_DIR, ENV_RUNTIME_DIR, SOCKET};

/// Folders of a user's daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Sockets, logs and folders of sessions.
    pub runtime: PathBuf,
    /// Images.
    pub images: PathBuf,
    /// The installation: `bin/`, `lib/`.
    pub home: PathBuf,
}

impl Paths {
    /// The folders by the rules in `docs/architecture.md`, from the environment and the place of the
    /// running executable. Nothing is created.
    pub fn find() -> Self {
        let set = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
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
        }
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
