//! The checks of `fermata doctor`: what this host, or a session, supports.

use std::path::Path;

use fermata_control::user::{Check, CheckState, DeviceChoice};

use crate::checkpoint::preflight::{self, Obstacle};
use crate::criu::Criu;
use crate::daemon::{Daemon, check_running};
use crate::failure::Failure;
use crate::gpu::driver::Driver;
use crate::images::cache;
use crate::images::space;
use crate::session::Session;
use crate::sys;
use crate::worker;

/// Less free space than this gives a warning.
const LITTLE_SPACE: u64 = 4 << 30;

fn check(
    name: &str,
    state: CheckState,
    detail: impl Into<String>,
    hint: impl Into<String>,
) -> Check {
    Check {
        name: name.into(),
        state,
        detail: detail.into(),
        hint: hint.into(),
    }
}

fn failed(name: &str, state: CheckState, failure: Failure) -> Check {
    check(name, state, failure.message, failure.hint)
}

/// Checks of the host.
pub fn host(daemon: &Daemon) -> Vec<Check> {
    vec![
        driver("gpu", DeviceChoice::Gpu, CheckState::Warn, daemon),
        driver("softgpu", DeviceChoice::Soft, CheckState::Fail, daemon),
        installed("worker", &worker::program(&daemon.paths.home)),
        installed("client", &daemon.paths.home.join("lib/client/libcuda.so.1")),
        installed(
            "nvml",
            &daemon.paths.home.join("lib/client/libnvidia-ml.so.1"),
        ),
        criu(daemon),
        privileges(),
        lazy_pages(),
        host_memory(daemon),
        space(daemon),
        cache::check(daemon.cache.as_deref()),
    ]
}

/// Checks of a session: whether it can be checkpointed, and its obstacles.
pub fn session(daemon: &Daemon, session: &Session) -> Vec<Check> {
    let mut checks = vec![match check_running(session) {
        Ok(()) => check("state", CheckState::Ok, "the program runs", ""),
        Err(failure) => failed("state", CheckState::Fail, failure),
    }];
    let root = session.processes().root;
    // The driver closes those of a program that holds the GPU itself.
    let counts = |it: &Obstacle| !(it.gpu && session.foreign);
    let obstacles = root
        .map(|root| preflight::obstacles(root.pid, || session.processes(), counts))
        .unwrap_or_default();
    if obstacles.is_empty() && root.is_some() {
        checks.push(check(
            "descriptors",
            CheckState::Ok,
            "nothing is open that an image cannot hold",
            "",
        ));
    }
    checks.extend(obstacles.into_iter().map(|o| {
        check(
            o.subject(),
            CheckState::Fail,
            o.what.as_str(),
            o.hint.as_str(),
        )
    }));
    checks.push(criu(daemon));
    checks.push(privileges());
    checks.push(space(daemon));
    checks
}

fn driver(name: &str, choice: DeviceChoice, otherwise: CheckState, daemon: &Daemon) -> Check {
    match Driver::find(choice, &daemon.paths.home) {
        Ok(driver) => check(
            name,
            CheckState::Ok,
            format!("`{}`", driver.path.display()),
            "",
        ),
        Err(failure) => failed(name, otherwise, failure),
    }
}

fn installed(name: &str, path: &Path) -> Check {
    let shown = path.display();
    if path.is_file() {
        return check(name, CheckState::Ok, format!("`{shown}`"), "");
    }
    let hint = "set FERMATA_HOME to the folder of the installation";
    check(name, CheckState::Fail, format!("no `{shown}`"), hint)
}

fn criu(daemon: &Daemon) -> Check {
    match daemon.criu().and_then(|criu| Ok((criu.version()?, criu))) {
        Ok((version, criu)) => {
            let detail = format!("CRIU {version} at `{}`", criu.program().display());
            check("criu", CheckState::Ok, detail, "")
        }
        Err(failure) => failed("criu", CheckState::Fail, failure),
    }
}

fn privileges() -> Check {
    match Criu::check_permitted() {
        Ok(()) => check("privileges", CheckState::Ok, "all that CRIU needs", ""),
        Err(failure) => failed("privileges", CheckState::Fail, failure),
    }
}

fn lazy_pages() -> Check {
    if sys::userfaultfd_permitted() {
        return check("lazy pages", CheckState::Ok, "userfaultfd is permitted", "");
    }
    let hint =
        "restores read all host memory first; `sysctl vm.unprivileged_userfaultfd=1` permits it";
    check(
        "lazy pages",
        CheckState::Warn,
        "userfaultfd is not permitted",
        hint,
    )
}

/// Whether host memory is copied while programs run (decision 030).
fn host_memory(daemon: &Daemon) -> Check {
    const NAME: &str = "host memory";
    let filtered = daemon.criu().is_ok_and(|criu| criu.has_filter());
    let supported = match filtered {
        true => fermata_hostmem::check_kernel(),
        false => Err("the installation has no `lib/pagefilter.so`"),
    };
    match supported {
        Ok(()) => check(
            NAME,
            CheckState::Ok,
            "checkpoints copy it while programs run",
            "",
        ),
        Err(why) => {
            let detail = format!("checkpoints copy it while programs stand still: {why}");
            let hint = "for short stops use Linux 6.7 or newer, run the daemon as root, and install the whole tree of Fermata";
            check(NAME, CheckState::Warn, detail, hint)
        }
    }
}

fn space(daemon: &Daemon) -> Check {
    let images = &daemon.paths.images;
    let Some(free) = space::free_bytes(images) else {
        let detail = format!(
            "the file system of `{}` does not say how full it is",
            images.display()
        );
        return check("space", CheckState::Warn, detail, "");
    };
    let detail = format!("{} MiB left in `{}`", free >> 20, images.display());
    if free < LITTLE_SPACE {
        return check(
            "space",
            CheckState::Warn,
            detail,
            "`fermata images rm` and `gc` make room",
        );
    }
    check("space", CheckState::Ok, detail, "")
}
