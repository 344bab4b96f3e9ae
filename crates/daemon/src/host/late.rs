//! What a program makes while a checkpoint makes ready, after the first pass: processes with memory of their own, and memory in general. Both would be
//! CRIU's, in the stop, at about 2 GB/s.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{HostCopy, LEAST, MOST_WAITS, YOUNG};
use crate::images::space;
use crate::proc::{self, ProcessId};

/// A program that has grown by more than this meanwhile, as one whose processes load their libraries, is waited for until it grows by no
/// more than [`YOUNG`] while it is copied once, or so long.
const GROWN: u64 = 128 << 20;
const GROWTH_TIME: Duration = Duration::from_secs(10);

/// How a program grows, look by look.
struct Growth {
    /// Bytes at first, and at the last look.
    first: u64,
    last: Option<u64>,
}

impl Growth {
    /// Whether a look that finds so many bytes is the last: they have grown by no more than [`YOUNG`] since the look before, or, at the
    /// first look, by less than [`GROWN`].
    fn ends(&mut self, bytes: u64) -> bool {
        let last = self.last.replace(bytes);
        match last {
            None => bytes < self.first + GROWN,
            Some(last) => bytes <= last + YOUNG,
        }
    }
}

impl HostCopy {
    /// Copies what a program has that has grown much since [`Self::begin`], until it grows no more, or [`GROWTH_TIME`] is over.
    pub fn outlast_growth(&mut self, root: u32) {
        let (first, last) = (self.first, None);
        let mut growth = Growth { first, last };
        let until = Instant::now() + GROWTH_TIME;
        while !growth.ends(space::written_bytes(root)) && Instant::now() < until {
            self.ahead(&mut |_| {});
            // It finds ever more, which is not to count once that is over.
            self.hopeless = false;
        }
    }

    /// Tracks the processes of the tree below `root` that have come since and have much memory, and copies it; again for those that
    /// come meanwhile; how many it has taken in. `executable`, `folder` and `note` as for [`Self::begin`].
    pub fn take_in(
        &mut self,
        executable: &Path,
        root: u32,
        folder: &Path,
        note: &dyn Fn(String),
    ) -> usize {
        let before = self.processes.len();
        for _ in 0..MOST_WAITS {
            let (late, bytes) = self.late(root);
            if late.is_empty() {
                break;
            }
            if space::free_bytes(folder).is_some_and(|free| free < bytes + LEAST) {
                let what = "memory of processes that have just begun is not copied ahead";
                note(format!("{what}: too little space is free"));
                break;
            }
            self.track(executable, &late, folder, note);
            self.ahead(&mut |_| {});
        }
        // Of those that were there before, some may have ended.
        self.processes.len().saturating_sub(before)
    }

    /// The processes that have come since and have much memory that is in no copy, parents first, and how much.
    fn late(&self, root: u32) -> (Vec<u32>, u64) {
        let known = self.processes.iter().map(|it| &it.process);
        let known: HashSet<_> = known.chain(&self.refused).copied().collect();
        let mut tracked: HashSet<_> = self.processes.iter().map(|it| it.process.pid).collect();
        let (mut late, mut total) = (Vec::new(), 0);
        for pid in proc::tree(root) {
            if ProcessId::of(pid).is_none_or(|it| known.contains(&it)) {
                continue;
            }
            // What it still has in common with the process that has forked it is in that one's copy.
            let mut ancestors = proc::ancestors(pid).into_iter().skip(1);
            let from = ancestors.find(|it| tracked.contains(it));
            let is_heir = from.is_some_and(|it| proc::are_forked(it, pid));
            let bytes = proc::written_bytes(pid, is_heir);
            if bytes > YOUNG {
                late.push(pid);
                tracked.insert(pid);
                total += bytes;
            }
        }
        (late, total)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use super::super::tracked::tests::{end, tracked};
    use super::*;

    #[test]
    fn a_program_that_has_grown_much_is_looked_at_until_it_grows_no_more() {
        let looks = |first: u64, bytes: &[u64]| {
            let mut growth = Growth { first, last: None };
            let more = bytes.iter().take_while(|it| !growth.ends(**it));
            more.count()
        };
        assert_eq!(looks(7, &[7 + GROWN - 1, GROWN * 9]), 0);
        let slower = [7 + GROWN, 8 + GROWN + YOUNG, 9 + GROWN + 2 * YOUNG];
        assert_eq!(
            looks(7, &[&slower[..], &[9 + GROWN + 3 * YOUNG, 0]].concat()),
            3
        );
        // It may become smaller, and look after look may find more until the time is over.
        assert_eq!(looks(0, &[GROWN * 9, GROWN, GROWN * 9]), 1);
        let more: Vec<_> = (1..9).map(|it| GROWN * it).collect();
        assert_eq!(looks(0, &more), more.len());
    }

    #[test]
    fn what_comes_later_is_tracked_if_it_has_much_that_nobody_else_has() {
        /// More than [`YOUNG`].
        const FILL: &str = "head -c 48000000 /dev/zero | tr '\\0' x";
        let dir = tempfile::tempdir().expect("a folder");
        // `tail` keeps a line, the shell a variable; a copy of the shell has the variable in common with it.
        let script = format!(
            "exec 3<&0; text=$({FILL}); echo; read x; {{ {FILL}; read x <&3; }} | tail -n 1 > /dev/null & (read x <&3) & read x"
        );
        let mut shell = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut line = String::new();
        let output = shell.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let mut copy = HostCopy::of(vec![tracked(shell.id(), dir.path())]);
        assert_eq!(copy.late(shell.id()), (Vec::new(), 0));
        let mut input = shell.stdin.take().expect("piped");
        input.write_all(b"x\n").expect("written");
        let until = Instant::now() + Duration::from_secs(120);
        let (late, bytes) = loop {
            let (late, bytes) = copy.late(shell.id());
            if bytes > 48_000_000 {
                break (late, bytes);
            }
            assert!(Instant::now() < until, "{late:?}, {bytes} bytes");
            std::thread::sleep(Duration::from_millis(10));
        };
        let children = proc::tree(shell.id()).into_iter().skip(1);
        let tails: Vec<_> = children.filter(|it| proc::name_of(*it) == "tail").collect();
        assert_eq!(late, tails, "{bytes} bytes");
        assert!(
            proc::tree(shell.id()).len() > 2 + tails.len(),
            "the copies of the shell"
        );
        copy.processes.push(tracked(tails[0], dir.path()));
        assert_eq!(copy.late(shell.id()), (Vec::new(), 0));
        copy.processes.pop();
        copy.refused.extend(ProcessId::of(tails[0]));
        assert_eq!(copy.late(shell.id()), (Vec::new(), 0));
        drop(input);
        end(shell);
    }
}
