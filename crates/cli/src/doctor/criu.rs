//! CRIU: is it there, which release, what does it say about this kernel.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use fermata_control::user::Check;
use fermata_control::{Paths, settings, wait};

use super::system;
use super::verdict::{fail, ok, warn};

const LIMIT: Duration = Duration::from_secs(60);
/// The oldest release that is supported.
const OLDEST: (u32, u32) = (4, 2);
const INSTALL: &str = "install the whole tree of Fermata, which has a CRIU (from source, `make deps` gets it), or set \
     `FERMATA_CRIU` to a CRIU 4.2 or newer";

/// Presence and release, and CRIU's own check.
pub fn checks(paths: &Paths) -> Vec<Check> {
    let criu = find(paths);
    if !criu.exists() {
        return vec![fail("criu", format!("no `{}`", criu.display()), INSTALL)];
    }
    let Some((_, text)) = output(&criu, &["--version"]) else {
        return vec![fail(
            "criu",
            format!("`{}` cannot be run", criu.display()),
            INSTALL,
        )];
    };
    let release = text
        .lines()
        .find_map(|l| l.strip_prefix("Version: "))
        .unwrap_or("?")
        .trim();
    let found = format!("{release} at `{}`", criu.display());
    let presence = if system::version(release).is_some_and(|it| it >= OLDEST) {
        ok("criu", found)
    } else {
        warn("criu", found, INSTALL)
    };
    let check = match output(&criu, &["check"]) {
        Some((true, _)) => ok("criu check", "looks good"),
        Some((false, text)) => {
            let line = text
                .lines()
                .rfind(|l| l.contains("Error"))
                .or(text.lines().last());
            let line = line.unwrap_or("failed").trim().to_owned();
            fail(
                "criu check",
                line,
                "run the daemon as root, on a kernel that CRIU supports",
            )
        }
        None => fail(
            "criu check",
            format!("gave no answer within {LIMIT:?}"),
            INSTALL,
        ),
    };
    vec![presence, check]
}

/// The CRIU that the daemon uses.
fn find(paths: &Paths) -> PathBuf {
    match settings::value("FERMATA_CRIU") {
        Some(set) => set.into(),
        None => paths.home.join("lib/criu/criu"),
    }
}

/// Whether it succeeded and all it said; `None` when it did not end in time or did not start.
fn output(program: &PathBuf, args: &[&str]) -> Option<(bool, String)> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let in_time = wait::child_ends(&child, LIMIT);
    if !in_time {
        // It is our own child; that it has just ended by itself is as good.
        let _ = child.kill();
    }
    let status = child.wait().ok().filter(|_| in_time)?;
    let mut text = String::new();
    child.stdout?.take(1 << 16).read_to_string(&mut text).ok()?;
    child.stderr?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some((status.success(), text))
}
