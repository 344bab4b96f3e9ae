//! Ranks that do not go together: other calls, other settings, other numbers of ranks, other jobs, other processes.
//! Each is told on every rank, at once, and nothing is harmed.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::job::{BYTE, bytes, data, node, read, start, write};
use crate::common::ranks::Threads;
use crate::common::{config, host, noise, session};
use fermata_app::{AppError, Comm, Config, Level, Result, Session, Solo};

#[test]
fn ranks_that_make_different_calls_are_told_which() {
    let dir = tempfile::tempdir().unwrap();
    let said = Threads::run(3, |comm| {
        let rank = comm.rank();
        let mut s = start(dir.path(), comm, &|_| ()).unwrap();
        let mut own = data(rank, 6);
        s.protect(1, host(&mut own), BYTE).unwrap();
        let mut said = Vec::new();
        let mut keep = |result: Result<()>| {
            let e = result.unwrap_err();
            assert_eq!(e.code(), 1, "{e}");
            said.push(e.to_string());
        };
        keep(match rank {
            2 => s.checkpoint(1, Level::Local),
            _ => s.snapshot().map(drop),
        });
        keep(s.checkpoint(5 + i64::from(rank == 1), Level::Local));
        keep(s.checkpoint(
            5,
            if rank == 1 {
                Level::Partner
            } else {
                Level::Local
            },
        ));
        keep(match rank {
            0 => s.recover().map(drop),
            _ => s.recover_variable(1).map(drop),
        });
        // In step again they go on.
        s.checkpoint(6, Level::Partner).unwrap();
        own.fill(0);
        assert_eq!(s.recover().unwrap(), 6);
        assert!(own == data(rank, 6));
        keep(s.finalize(rank == 0));
        said
    });
    assert!(said.iter().all(|s| *s == said[0]), "{said:?}");
    let words = [
        "rank 2 makes checkpoint 1 at level 1, rank 0 makes a snapshot",
        "rank 1 makes checkpoint 6 at level 1, rank 0 makes checkpoint 5 at level 1",
        "rank 1 makes checkpoint 5 at level 2, rank 0 makes checkpoint 5 at level 1",
        "rank 1 recovers variable 1, rank 0 recovers;",
        "rank 1 ends the session and keeps its checkpoints, rank 0 ends the session and removes",
    ];
    for (said, words) in said[0].iter().zip(words) {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(read(dir.path(), 3, &|_| ()).0, 6);
}

#[test]
fn ranks_that_are_configured_differently_are_refused_by_the_key() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 2, &[(1, Level::Local)], &|_| ());
    let shared = dir.path().join("shared");
    let second = |c: &Config| c.node.as_deref() == Some("node-1");
    type Change<'a> = Box<dyn Fn(&mut Config) + Sync + 'a>;
    let changes: [(&str, Change<'_>); 4] = [
        ("recover: true", Box::new(|c| c.recover = !second(c))),
        ("background: false", Box::new(|c| c.background = second(c))),
        (
            "keep_last: 2",
            Box::new(|c| c.keep_last += u32::from(second(c))),
        ),
        (
            "shared.folder is set: false",
            Box::new(|c| c.shared = second(c).then(|| shared.clone())),
        ),
    ];
    for (word, change) in &changes {
        let errors = Threads::run(2, |comm| {
            let e = start(dir.path(), comm, change).err().unwrap();
            (e.code(), e.to_string())
        });
        for (code, text) in errors {
            assert_eq!(code, 2, "{text}");
            assert!(
                text.contains(&format!("rank 0 has `{word}`, rank 1 `")),
                "{text}"
            );
        }
    }
    assert_eq!(read(dir.path(), 2, &|_| ()).0, 1);
}

#[test]
fn a_rank_that_cannot_read_its_configuration_tells_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let errors = Threads::run(3, |comm| {
        let config = match comm.rank() {
            1 => Config::read(&dir.path().join("not-there.toml")),
            rank => Ok(config(&node(dir.path(), rank), |_| ())),
        };
        Session::begin(config, Box::new(comm)).err().unwrap()
    });
    assert_eq!(
        errors.iter().map(AppError::code).collect::<Vec<_>>(),
        [15, 10, 15]
    );
    assert!(errors[0].text().contains("not-there.toml"), "{errors:?}");
}

/// Every file below a folder but the locks, which say who was there.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with("lock") || path.ends_with("version") => {}
                false => drop(all.insert(path.clone(), std::fs::read(path).unwrap())),
            }
        }
    }
    all
}

/// More ranks and fewer, wherever the checkpoint is: at home, with partners only, in the shared folder only.
#[test]
fn another_number_of_ranks_is_refused_and_changes_nothing() {
    let remove = |dir: &Path, rank: u32, what: &str| {
        std::fs::remove_dir_all(node(dir, rank).join(what)).unwrap();
    };
    for level in [Level::Local, Level::Partner, Level::Erasure, Level::Shared] {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        let set = |c: &mut Config| c.shared = Some(shared.clone());
        write(dir.path(), 3, &[(1, level)], &set);
        for rank in 0..3 {
            match level {
                Level::Partner => remove(dir.path(), rank, &format!("test/rank-{rank:05}")),
                Level::Shared => remove(dir.path(), rank, ""),
                _ => {}
            }
        }
        let before = files(dir.path());
        for ranks in [2, 4] {
            let errors = Threads::run(ranks, |comm| start(dir.path(), comm, &set).err().unwrap());
            let own = errors
                .iter()
                .find(|e| matches!(e, AppError::OtherSize { .. }));
            let own = own.unwrap_or_else(|| panic!("{level:?} {errors:?}"));
            let hint = own.hint().unwrap();
            assert!(hint.contains("as many ranks as before"), "{hint}");
            for e in &errors {
                let text = e.text();
                assert!(text.contains("of 3, this is rank"), "{level:?}: {text}");
            }
            assert!(before == files(dir.path()), "{level:?} {ranks}");
        }
        let (step, _) = read(dir.path(), 3, &set);
        assert_eq!(step, 1, "{level:?}");
        // The hint's other way: afresh, and from then on it is a job of this size.
        for ranks in [2, 4] {
            let afresh = |c: &mut Config| {
                set(c);
                c.recover = false;
            };
            write(
                dir.path(),
                ranks,
                &[(u64::from(ranks), Level::Local)],
                &afresh,
            );
            assert_eq!(
                read(dir.path(), ranks, &set).0,
                i64::from(ranks),
                "{level:?}"
            );
        }
    }
}

#[test]
fn a_lost_checkpoint_is_not_replaced_by_one_of_another_size() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 3, &[(1, Level::Local)], &|_| ());
    write(dir.path(), 2, &[(2, Level::Local)], &|c| c.recover = false);
    let newest = node(dir.path(), 1).join("test/rank-00001/c000000000002");
    std::fs::remove_file(newest.join("chunks")).unwrap();
    let errors = Threads::run(2, |comm| {
        let rank = comm.rank();
        let mut s = start(dir.path(), comm, &|_| ()).unwrap();
        let mut back = vec![0u8; bytes(rank)];
        s.protect(1, host(&mut back), BYTE).unwrap();
        let e = s.recover().unwrap_err();
        assert!(back.iter().all(|b| *b == 0));
        (e.code(), e.text())
    });
    for (code, text) in errors {
        assert_eq!(code, 6, "{text}");
        assert!(text.contains("written by rank"), "{text}");
    }
}

#[test]
fn a_job_of_one_rank_and_a_job_of_several_refuse_each_others_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let set = |c: &mut Config| c.node = Some("node-0".into());
    {
        let mut s = session(&node(dir.path(), 0), set);
        let mut own = noise(1000, 1);
        s.protect(1, host(&mut own), BYTE).unwrap();
        s.checkpoint(1, Level::Local).unwrap();
    }
    let errors = Threads::run(2, |comm| {
        start(dir.path(), comm, &|_| ()).err().unwrap().text()
    });
    assert!(
        errors[0].contains("rank 0 of 1, this is rank 0 of 2"),
        "{errors:?}"
    );
    write(dir.path(), 2, &[(2, Level::Local)], &|c| c.recover = false);
    let alone = Session::init(config(&node(dir.path(), 0), set), Box::new(Solo));
    let text = alone.err().unwrap().text();
    assert!(text.contains("rank 0 of 2, this is rank 0 of 1"), "{text}");
}

#[test]
fn two_jobs_on_different_nodes_do_not_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let at = |home: &str| {
        let shared = Some(dir.path().join("shared"));
        config(&dir.path().join(home), |c| c.shared.clone_from(&shared))
    };
    let first = Session::init(at("a"), Box::new(Solo)).unwrap();
    let e = Session::init(at("b"), Box::new(Solo)).err().unwrap();
    assert_eq!(e.code(), 7, "{e}");
    assert!(e.hint().unwrap().contains("`name`"));
    assert!(e.to_string().contains("shared"), "{e}");
    drop(first);
    Session::init(at("b"), Box::new(Solo)).unwrap();
}

/// A forked child has no threads and must not write over its parent; and a lock that it inherited binds nobody.
#[test]
fn a_forked_child_is_not_the_session_and_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut own = noise(100_000, 1);
    let mut s = session(dir.path(), |_| ());
    s.protect(1, host(&mut own), BYTE).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    let (mut there, end) = std::io::pipe().unwrap();
    // SAFETY: the child calls the library, which refuses without taking a lock, then waits and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(end);
        let refused = matches!(s.checkpoint(2, Level::Local), Err(AppError::Misuse { .. }))
            && matches!(s.recover(), Err(AppError::Misuse { .. }));
        let began = Instant::now();
        drop(s);
        let quick = began.elapsed() < Duration::from_secs(200);
        let code = if refused && quick { 7 } else { 1 };
        // Until its parent has seen enough.
        let _ = there.read_exact(&mut [0]);
        // SAFETY: ends the process without running what belongs to the parent.
        unsafe { libc::_exit(code) };
    }
    s.wait(Duration::from_secs(300)).unwrap();
    s.checkpoint(3, Level::Local).unwrap();
    drop(s);
    let mut s = session(dir.path(), |c| c.keep_last = 1);
    s.protect(1, host(&mut own), BYTE).unwrap();
    own.fill(0);
    assert_eq!(s.recover().unwrap(), 3);
    assert!(own == noise(100_000, 1));
    // Nor does it keep garbage from being collected.
    own.copy_from_slice(&noise(100_000, 2));
    s.checkpoint(4, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    assert_eq!(s.status().last_failure, None);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    let mut ended = |flags| unsafe { libc::waitpid(child, &mut status, flags) };
    assert_eq!(ended(libc::WNOHANG), 0, "the child is still there");
    let packs = std::fs::read_dir(dir.path().join("test/store/packs")).unwrap();
    assert_eq!(packs.count(), 1);
    drop(end);
    assert_eq!(ended(0), child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
}

/// Message passing whose second channel never answers, as when the rank on the other side has died.
struct Mute(Threads, bool);

impl Comm for Mute {
    fn rank(&self) -> u32 {
        self.0.rank()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    fn barrier(&self) -> Result<()> {
        self.0.barrier()
    }
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        self.0.broadcast(bytes, root)
    }
    fn gather(&self, mine: &[u8], all: &mut [u8], root: u32) -> Result<()> {
        match self.1 {
            true => loop {
                std::thread::park();
            },
            false => self.0.gather(mine, all, root),
        }
    }
    fn send(&self, bytes: &[u8], to: u32) -> Result<()> {
        self.0.send(bytes, to)
    }
    fn receive(&self, bytes: &mut [u8], from: u32) -> Result<()> {
        self.0.receive(bytes, from)
    }
    fn behind(&self) -> Result<Option<Box<dyn Comm>>> {
        let (mut ends, rank) = (Threads::pair(), self.rank() as usize);
        Ok(Some(Box::new(Mute(ends.swap_remove(rank), true))))
    }
}

#[test]
fn a_rank_that_never_answers_holds_nobody_for_ever() {
    // A short deadline, or one that is enough for what works on a busier machine.
    let held = [3.0, 30.0, 200.0].into_iter().any(nobody_answers);
    assert!(held, "what works does not end in time");
}

/// False if what works has not ended within the deadline, in seconds.
fn nobody_answers(deadline: f64) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (begun, both) = (AtomicU32::new(0), std::sync::Barrier::new(2));
    let ends = Threads::run(2, |comm| {
        let rank = comm.rank();
        let config = config(&node(dir.path(), rank), |c| {
            c.deadline = deadline;
            c.node = Some(rank.to_string());
        });
        let mut s = Session::init(config, Box::new(Mute(comm, false))).unwrap();
        let mut own = vec![1u8; bytes(rank)];
        s.protect(1, host(&mut own), BYTE).unwrap();
        let made = s.checkpoint(1, Level::Partner);
        begun.fetch_add(u32::from(made.is_ok()), Ordering::AcqRel);
        both.wait();
        if begun.load(Ordering::Acquire) < 2 {
            return false;
        }
        let e = s.checkpoint(2, Level::Local).unwrap_err();
        assert!([13, 15].contains(&e.code()), "{e}");
        let e = s.finalize(false).unwrap_err();
        assert!([13, 15].contains(&e.code()), "{e}");
        true
    });
    if !ends.into_iter().all(|end| end) {
        return false;
    }
    // The threads may go on, so this process keeps the folders.
    let again = config(&node(dir.path(), 0), |_| ());
    let e = Session::init(again, Box::new(Solo)).err().unwrap();
    assert_eq!(e.code(), 7, "{e}");
    true
}
