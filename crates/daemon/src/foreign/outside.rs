//! What of a foreign program ends outside of it: terminals and pipes to other programs, which CRIU would dump without saying
//! so, and the leader of its session, without which CRIU dumps nothing.

use std::collections::BTreeSet;
use std::path::Path;

use fermata_hostmem::Maps;

use crate::checkpoint::preflight::Obstacle;
use crate::proc;

const HINT: &str = "start it with its input and output in files, such as `setsid CMD <in >out 2>&1 &`, or by `fermata run`";

/// Terminals and pipes of the processes of `tree` whose other ends are with others, and leaders in other namespaces.
pub(super) fn obstacles(tree: &[u32]) -> Vec<Obstacle> {
    let led = tree
        .iter()
        .copied()
        .filter(|pid| proc::is_led_from_outside(*pid));
    let mut found: Vec<Obstacle> = led.map(led_from_outside).collect();
    let inside = pipes_of(tree);
    let others: Vec<u32> = match inside.is_empty() {
        true => Vec::new(),
        false => proc::all()
            .into_iter()
            .filter(|it| !tree.contains(it))
            .collect(),
    };
    let outside = pipes_of(&others);
    let masters = tree.iter().any(|pid| holds(*pid, is_master));
    for pid in tree {
        let mut seen = BTreeSet::new();
        for (number, target) in proc::descriptors(*pid) {
            let what = match pipe(&target) {
                Some(pipe) if outside.contains(&pipe) => "a pipe to a program outside of it",
                // Its own terminals, as `script` has them, come back.
                None if is_terminal(&target) && !masters => "a terminal",
                _ => continue,
            };
            // One word for each: three descriptors usually lead to one terminal.
            if seen.insert(target.clone()) {
                found.push(Obstacle {
                    pid: *pid,
                    what: format!(
                        "process {pid} ({}) holds, as descriptor {number}, {what}, `{}`",
                        proc::name_of(*pid),
                        target.display()
                    ),
                    hint: HINT.to_owned(),
                    connection: false,
                    gpu: false,
                });
            }
        }
    }
    found
}

fn led_from_outside(pid: u32) -> Obstacle {
    Obstacle {
        pid,
        what: format!(
            "process {pid} ({}) is in a terminal session whose leader is outside of its PID namespace",
            proc::name_of(pid)
        ),
        hint: HINT.to_owned(),
        connection: false,
        gpu: false,
    }
}

fn holds(pid: u32, is: fn(&Path) -> bool) -> bool {
    proc::descriptors(pid).iter().any(|(_, target)| is(target))
}

fn is_terminal(target: &Path) -> bool {
    let text = target.to_str().unwrap_or_default();
    let number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    text == "/dev/tty"
        || text == "/dev/console"
        || text.strip_prefix("/dev/pts/").is_some_and(number)
        || text.strip_prefix("/dev/tty").is_some_and(number)
}

fn is_master(target: &Path) -> bool {
    ["/dev/ptmx", "/dev/pts/ptmx"]
        .iter()
        .any(|it| target == Path::new(it))
}

fn pipe(target: &Path) -> Option<u64> {
    let text = target.to_str()?.strip_prefix("pipe:[")?;
    text.strip_suffix(']')?.parse().ok()
}

/// The pipes that processes hold.
fn pipes_of(pids: &[u32]) -> BTreeSet<u64> {
    let links = pids.iter().flat_map(|pid| proc::descriptors(*pid));
    let pipes = links.filter_map(|(_, target)| pipe(&target));
    pipes.collect()
}

/// Whether a process has a file mapped with such a path.
pub(super) fn maps(pid: u32, is: impl Fn(&Path) -> bool) -> bool {
    // It may have ended.
    let maps = Maps::of(pid).unwrap_or_default();
    maps.files().any(|file| is(Path::new(file)))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn terminals_are_told_from_other_devices() {
        for (path, is) in [
            ("/dev/pts/3", true),
            ("/dev/tty", true),
            ("/dev/tty1", true),
            ("/dev/console", true),
            ("/dev/pts/ptmx", false),
            ("/dev/null", false),
            ("/dev/ttyX", false),
            ("/tmp/dev/pts/3", false),
        ] {
            assert_eq!(is_terminal(Path::new(path)), is, "{path}");
        }
    }

    #[test]
    fn a_pipe_to_another_program_is_found() {
        let mut child = Command::new("setsid")
            .args(["sleep", "1000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sleep starts");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
        // Before it executes the other program it is this one, with all its descriptors.
        while proc::name_of(child.id()) != "sleep" {
            assert!(std::time::Instant::now() < until, "it does not start");
        }
        let mut found = obstacles(&[child.id()]);
        // The test may have inherited pipes, and they are there, too.
        found.retain(|it| it.what.contains("descriptor 0"));
        child.kill().expect("killed");
        child.wait().expect("waited");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].hint.contains("fermata run"));
    }
}
