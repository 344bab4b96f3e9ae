//! The last passes: the copy becomes exact while the program stands still, and CRIU dumps the rest.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_control::worker::FailureKind;
use fermata_hostmem::Exact;
use parking_lot::Mutex;

use super::exact::Heir;
use super::tracked::{Tracked, find};
use super::{HostCopy, threads};
use crate::criu::mappings::{LeftOut, Tree};
use crate::failure::{Failure, OrFail, Result, fail};
use crate::proc::{self, ProcessId};

impl HostCopy {
    /// Makes the copy of each process exact once CRIU has dumped it, until it has dumped all of `tree`: less is left for
    /// [`Self::last`], which may be called meanwhile, and fails if this has.
    pub fn follow(&self, tree: &Tree) {
        let dumped = (0..).map_while(|nth| tree.dumped(nth));
        for (process, left_out) in dumped {
            if let Some(tracked) = find(&self.processes, process)
                && let Err(failure) = tracked.finish(left_out.as_deref(), &self.processes)
            {
                tracked.copy.lock().why = Some(failure);
                return;
            }
        }
    }

    /// Makes the copy exact. Every process of the tree below `root` stands still, and CRIU has dumped them to `dir`; `tree` says
    /// what it has left out. A process whose copy is exact is passed over.
    ///
    /// # Errors
    /// The copy is of no use; [`Self::has_failed`] from then on.
    pub fn last(&self, root: u32, dir: &Path, tree: &Tree) -> Result<()> {
        let left_out = tree.left_out();
        let (heirs, own): (Vec<_>, Vec<_>) = left_out.iter().partition(|it| it.from.is_some());
        let last = match tree.returned() {
            false => self.try_last(root, dir, &own),
            // It has not been seen to; what it did there may not be in the copy.
            true => {
                let message = "CRIU has dumped a process twice".to_owned();
                Err(fail(FailureKind::Internal, message))
            }
        };
        let last = last.and_then(|()| {
            let heirs = heirs.into_iter().map(|it| self.heir(it));
            // Asked once for each dump.
            let _ = self.heirs.set(heirs.collect::<Result<_>>()?);
            Ok(())
        });
        self.failed.store(last.is_err(), Ordering::Relaxed);
        last
    }

    fn try_last(&self, root: u32, dir: &Path, left_out: &[&Arc<LeftOut>]) -> Result<()> {
        let tree = proc::still_tree(root);
        let known: HashSet<ProcessId> = self.processes.iter().map(|it| it.process).collect();
        let is_known = |pid: u32| ProcessId::of(pid).is_some_and(|it| known.contains(&it));
        for pid in tree.iter().filter(|it| !is_known(**it)) {
            // CRIU has left out what it shares with a process that is tracked.
            let tracked = fermata_hostmem::is_tracked(*pid);
            let tracked = tracked.or_fail(FailureKind::Internal, || {
                format!("cannot examine the memory of process {pid}")
            })?;
            if tracked {
                let message = format!("memory of process {pid} is tracked by another");
                return Err(fail(FailureKind::Internal, message));
            }
        }
        let is_still = |it: ProcessId| tree.contains(&it.pid) && ProcessId::of(it.pid) == Some(it);
        // From the end: the thread that follows CRIU has begun with the first.
        let still = self.processes.iter().rev();
        let still = Mutex::new(still.filter(|it| is_still(it.process)));
        let failed = AtomicBool::new(false);
        let next = || match failed.load(Ordering::Relaxed) {
            true => None,
            false => still.lock().next(),
        };
        let copy = || {
            while let Some(tracked) = next() {
                let finish = |it: &Tracked| {
                    let own = left_out.iter().find(|own| own.process == it.process);
                    it.finish(own.map(|it| &***it), &self.processes)
                };
                let parent = tracked.from.and_then(|it| find(&self.processes, it));
                let parent = parent.filter(|it| is_still(it.process));
                let finished = parent.map_or(Ok(()), finish).and_then(|()| finish(tracked));
                // The others are of no use then, either.
                failed.fetch_or(finished.is_err(), Ordering::Relaxed);
                finished?;
            }
            Ok(())
        };
        let ends = fermata_hostmem::side_by_side(threads().min(tree.len()), copy);
        let ends = ends.or_fail(FailureKind::Internal, || "cannot copy host memory".into())?;
        ends.into_iter().collect::<Result<()>>()?;
        let copied = self
            .processes
            .iter()
            .filter(|it| it.copy.lock().exact.is_some());
        let copied: HashSet<ProcessId> = copied.map(|it| it.process).collect();
        // CRIU leaves out what is tracked of each. One that it has dumped may have been killed since.
        let dumped = |it: &&Tracked| dir.join(format!("mm-{}.img", it.inner)).exists();
        let dumped = self.processes.iter().filter(dumped).map(|it| it.process);
        let mut needed = left_out.iter().map(|it| it.process).chain(dumped);
        match needed.find(|it| !copied.contains(it)) {
            None => Ok(()),
            Some(lost) => Err(in_no_copy(lost.pid)),
        }
    }

    /// What the image gets of what CRIU has left out of a process, from the exact copy of another.
    fn heir(&self, left_out: &LeftOut) -> Result<Heir> {
        let LeftOut {
            process,
            inner,
            from,
            pages,
        } = left_out;
        let pid = process.pid;
        let of = from
            .and_then(ProcessId::of)
            .ok_or_else(|| in_no_copy(pid))?;
        let from = self.processes.iter().position(|it| it.process == of);
        let from = from.ok_or_else(|| in_no_copy(pid))?;
        let copy = self.processes[from].copy.lock();
        let exact = copy.exact.as_ref().ok_or_else(|| in_no_copy(pid))?;
        let found = fermata_hostmem::select([&exact.own, &exact.parents], pages);
        let [own, parents] = found.map_err(|address| {
            let message = format!("the copy lacks the memory of process {pid} at {address:#x}");
            fail(FailureKind::Internal, message)
        })?;
        Ok(Heir {
            inner: *inner,
            from,
            exact: Exact { own, parents },
        })
    }
}

fn in_no_copy(pid: u32) -> Failure {
    let message = format!("what CRIU has left out of process {pid} is in no copy");
    fail(FailureKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::Signal;

    use super::super::tracked::tests::{end, tracked};
    use super::*;

    /// A copy of a process that is killed while it stands still, and has ended when the shell that has started it has run `then`.
    fn killed_before_the_last_pass(then: &str) {
        let dir = tempfile::tempdir().expect("a folder");
        let mut shell = Command::new("sh")
            .args([
                "-c",
                &format!("sleep 30 & echo $!; read x; {then}; echo ended; read x"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(shell.stdout.take().expect("piped")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let pid = line().parse().expect("a number");
        let tracked = tracked(pid, dir.path());
        let (process, inner) = (tracked.process, tracked.inner);
        let mut copy = HostCopy::of(vec![tracked]);
        let tree = Tree::new(shell.id());
        copy.pass();
        process.signal(Signal::KILL);
        let mut input = shell.stdin.take().expect("piped");
        input.write_all(b"x\n").expect("written");
        assert_eq!(line(), "ended");
        assert!(process.ends_within(Duration::from_secs(60)));
        copy.last(shell.id(), dir.path(), &tree)
            .expect("CRIU has not dumped it either");
        fs::write(dir.path().join(format!("mm-{inner}.img")), "").expect("written");
        let lost = copy.last(shell.id(), dir.path(), &tree);
        lost.expect_err("its memory is in no copy");
        assert!(copy.has_failed());
        drop(input);
        shell.wait().expect("it ends");
    }

    /// A process that stands still, its copy in a folder, and the tree of which it is all.
    fn stopped() -> (tempfile::TempDir, Child, HostCopy, Tree) {
        let dir = tempfile::tempdir().expect("a folder");
        let child = Command::new("sleep").arg("30").spawn().expect("started");
        let tracked = tracked(child.id(), dir.path());
        tracked.process.signal(Signal::STOP);
        let mut copy = HostCopy::of(vec![tracked]);
        copy.pass();
        let tree = Tree::new(child.id());
        (dir, child, copy, tree)
    }

    #[test]
    fn what_criu_has_dumped_is_copied_while_it_dumps_the_next() {
        let (dir, child, copy, tree) = stopped();
        let until = Instant::now() + Duration::from_secs(60);
        let is_exact = || copy.processes[0].copy.lock().exact.is_some();
        std::thread::scope(|scope| {
            let _ends = tree.ends();
            scope.spawn(|| copy.follow(&tree));
            tree.asks(copy.processes[0].process, None);
            assert!(!is_exact(), "CRIU dumps it now");
            tree.asks(ProcessId::ENDED, None);
            while !is_exact() {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
        });
        copy.last(child.id(), dir.path(), &tree).expect("exact");
        // It would not be known what CRIU has done there meanwhile.
        tree.asks(copy.processes[0].process, None);
        let twice = copy.last(child.id(), dir.path(), &tree);
        twice.expect_err("CRIU has come back to it");
        assert!(copy.has_failed());
        end(child);
    }

    #[test]
    fn a_pass_that_fails_while_criu_dumps_fails_the_copy() {
        let (dir, child, copy, tree) = stopped();
        let Tracked { process, inner, .. } = copy.processes[0];
        let left_out = LeftOut {
            process,
            inner,
            from: None,
            pages: std::iter::once(0x1000..0x2000).collect(),
        };
        tree.asks(process, Some(&Arc::new(left_out)));
        tree.asks(ProcessId::ENDED, None);
        // It returns although nobody says that CRIU is done.
        copy.follow(&tree);
        tree.end();
        let failure = copy.last(child.id(), dir.path(), &tree);
        let failure = failure.expect_err("nobody knows what the copy has");
        assert!(failure.message.contains("0x1000"), "{}", failure.message);
        assert!(copy.has_failed());
        end(child);
    }

    #[test]
    fn a_process_that_was_killed_behind_criu_fails_the_copy() {
        killed_before_the_last_pass("wait");
    }

    #[test]
    fn one_that_was_not_waited_for_fails_it_too() {
        killed_before_the_last_pass(":");
    }
}
