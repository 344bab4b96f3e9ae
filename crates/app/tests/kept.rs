//! Which checkpoints stay when old ones go, and which parts belong together: no policy and no lost node may leave
//! ranks without a checkpoint that they had, or with parts of different runs.

use std::path::Path;
use std::time::Duration;

use crate::common::job::{BYTE, bytes, data, node, read, start, write, write_behind};
use crate::common::ranks::Threads;
use crate::common::{Mapping, host, noise, session};
use fermata_app::{Comm, Config, Level};

fn one(c: &mut Config) {
    c.keep_last = 1;
}

fn lose(dir: &Path, rank: u32) {
    std::fs::remove_dir_all(node(dir, rank)).unwrap();
}

fn local(dir: &Path, rank: u32) -> std::path::PathBuf {
    node(dir, rank).join(format!("test/rank-{rank:05}"))
}

fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(done.unwrap().success());
}

/// A copy on a partner and parity are of use only with what the other ranks have of their own.
#[test]
fn what_survives_a_node_stays_while_newer_checkpoints_do_not() {
    let steps = |level| {
        [
            (1, Level::Local),
            (2, level),
            (3, Level::Local),
            (4, Level::Local),
            (5, Level::Local),
        ]
    };
    for (level, ranks) in [(Level::Partner, 2), (Level::Erasure, 3)] {
        for behind in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            match behind {
                true => write_behind(dir.path(), ranks, &steps(level), &one),
                false => write(dir.path(), ranks, &steps(level), &one),
            }
            let kept = std::fs::read_dir(local(dir.path(), 1)).unwrap();
            let kept: Vec<_> = kept.map(|e| e.unwrap().file_name()).collect();
            assert!(kept.len() <= 4, "{kept:?}: the lock, 2, 4 and 5");
            lose(dir.path(), 0);
            let mut want = vec![1; ranks as usize];
            want[0] = level.number();
            assert_eq!(
                read(dir.path(), ranks, &one),
                (2, want),
                "{level:?} {behind}"
            );
            // The node that came back keeps it too, with nothing of the others'.
            write(
                dir.path(),
                ranks,
                &[(6, Level::Local), (7, Level::Local)],
                &one,
            );
            assert!(local(dir.path(), 0).join("c000000000002").exists());
        }
    }
}

/// Rank 0 fails at the second, rank 1 at the third, rank 0 at the fourth: only the first is everywhere.
#[test]
fn a_checkpoint_that_failed_somewhere_pushes_none_out() {
    let dir = tempfile::tempdir().unwrap();
    Threads::run(2, |comm| {
        let rank = comm.rank();
        let mut s = start(dir.path(), comm, &one).unwrap();
        for step in 1..=4u64 {
            let fails = step > 1 && step % 2 == u64::from(rank);
            let mut data = data(rank, step);
            s.protect(1, host(&mut data), BYTE).unwrap();
            let gone = Mapping::new(1 << 16);
            if fails {
                s.protect(2, gone.memory(), BYTE).unwrap();
                gone.close();
            }
            let made = s.checkpoint(step as i64, Level::Local);
            assert_eq!(made.is_err(), fails, "rank {rank} step {step}");
            s.wait(Duration::from_secs(300)).unwrap();
            if fails {
                s.unprotect(2).unwrap();
            }
        }
        // Also without a restart: all ranks look again, and take the same.
        let mut back = vec![0u8; bytes(rank)];
        s.protect(1, host(&mut back), BYTE).unwrap();
        assert_eq!(s.recover().unwrap(), 1);
        assert!(back == data(rank, 1));
    });
    assert_eq!(read(dir.path(), 2, &one).0, 1);
}

#[test]
fn numbers_go_on_behind_what_only_partners_have() {
    let dir = tempfile::tempdir().unwrap();
    let steps: Vec<_> = (1..=3).map(|step| (step, Level::Partner)).collect();
    write(dir.path(), 2, &steps, &|_| ());
    (0..2).for_each(|rank| std::fs::remove_dir_all(local(dir.path(), rank)).unwrap());
    Threads::run(2, |comm| {
        let rank = comm.rank();
        let mut s = start(dir.path(), comm, &|_| ()).unwrap();
        let mut back = vec![0u8; bytes(rank)];
        s.protect(1, host(&mut back), BYTE).unwrap();
        assert_eq!(s.recover().unwrap(), 3);
        let mut next = data(rank, 4);
        s.protect(1, host(&mut next), BYTE).unwrap();
        s.checkpoint(4, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
    });
    assert_eq!(read(dir.path(), 2, &|_| ()).0, 4);
    // The same where a job begins afresh.
    (0..2).for_each(|rank| std::fs::remove_dir_all(local(dir.path(), rank)).unwrap());
    let afresh = |c: &mut Config| c.recover = false;
    write(dir.path(), 2, &[(10, Level::Local)], &afresh);
    assert_eq!(read(dir.path(), 2, &|_| ()).0, 10);
}

/// A node goes away with a checkpoint that the others do not have yet; the job goes on elsewhere and gives another
/// checkpoint the same number; then the first node is back.
#[test]
fn a_part_of_an_earlier_run_is_not_mixed_in() {
    for (level, ranks) in [(Level::Partner, 2), (Level::Erasure, 3)] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ranks, &[(1, level), (2, level)], &|_| ());
        let parked = dir.path().join("parked");
        copy(&node(dir.path(), 0), &parked);
        lose(dir.path(), 0);
        for rank in 1..ranks {
            let folder = node(dir.path(), rank).join("test");
            for kept in ["rank", "partner/rank", "erasure/rank"] {
                for owner in 0..ranks {
                    let second = format!("{kept}-{owner:05}/c000000000002");
                    let _ = std::fs::remove_dir_all(folder.join(second));
                }
            }
        }
        assert_eq!(read(dir.path(), ranks, &|_| ()).0, 1);
        write(dir.path(), ranks, &[(22, level)], &|_| ());
        lose(dir.path(), 0);
        copy(&parked, &node(dir.path(), 0));
        assert!(local(dir.path(), 0).join("c000000000002").exists());
        assert!(local(dir.path(), 1).join("c000000000002").exists());
        let mut want = vec![1; ranks as usize];
        want[0] = level.number();
        assert_eq!(read(dir.path(), ranks, &|_| ()), (22, want), "{level:?}");
    }
    // With nothing to put in its place the older one is taken.
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 2, &[(1, Level::Local)], &|_| ());
    copy(&node(dir.path(), 0), &dir.path().join("first"));
    write(dir.path(), 2, &[(2, Level::Local)], &|_| ());
    copy(&node(dir.path(), 0), &dir.path().join("second"));
    lose(dir.path(), 0);
    std::fs::remove_dir_all(local(dir.path(), 1).join("c000000000002")).unwrap();
    copy(&dir.path().join("first"), &node(dir.path(), 0));
    write(dir.path(), 2, &[(22, Level::Local)], &|_| ());
    lose(dir.path(), 0);
    copy(&dir.path().join("second"), &node(dir.path(), 0));
    assert_eq!(read(dir.path(), 2, &|_| ()), (1, vec![1, 1]));
}

/// A job's folders that were moved: what ranks keep for each other is not garbage there.
#[test]
fn folders_that_were_moved_keep_what_is_in_them() {
    for (level, ranks) in [(Level::Partner, 2), (Level::Erasure, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        write(&first, ranks, &[(1, level)], &one);
        std::fs::rename(&first, &second).unwrap();
        let steps: Vec<_> = (2..5).map(|step| (step, Level::Local)).collect();
        write(&second, ranks, &steps, &one);
        lose(&second, 0);
        assert_eq!(read(&second, ranks, &one).0, 1, "{level:?}");
    }
}

/// Somebody has emptied an old checkpoint's folder: the space of others is given back all the same.
#[test]
fn an_emptied_checkpoint_does_not_keep_others_from_going() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = session(dir.path(), one);
    for id in 1..=6u64 {
        let mut data = noise(1 << 20, id);
        s.protect(1, host(&mut data), BYTE).unwrap();
        s.checkpoint(id as i64, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        if id == 2 {
            let folder = dir.path().join("test/rank-00000/c000000000002");
            std::fs::remove_dir_all(&folder).unwrap();
            std::fs::create_dir(&folder).unwrap();
        }
    }
    assert_eq!(s.status().last_failure, None);
    let packs = std::fs::read_dir(dir.path().join("test/store/packs")).unwrap();
    let bytes: u64 = packs.map(|p| p.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 2 << 20, "{bytes} bytes for one checkpoint of 1 MiB");
    let folders = std::fs::read_dir(dir.path().join("test/rank-00000")).unwrap();
    assert_eq!(folders.count(), 2, "one checkpoint and the lock");
}

/// What was read ahead is not taken for a newer checkpoint that the program calls the same.
#[test]
fn what_was_read_ahead_is_dropped_when_its_number_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = noise(300_000, 1);
    let mut s = session(dir.path(), |_| ());
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(7, Level::Local).unwrap();
    s.prefetch(7).unwrap();
    data.copy_from_slice(&noise(300_000, 2));
    s.checkpoint(7, Level::Local).unwrap();
    data.fill(0);
    s.load(7).unwrap();
    assert!(data == noise(300_000, 2));
}
