//! Several ranks, each a thread with a node folder of its own: what is lost comes back, all ranks take the
//! same checkpoint, and what cannot be is said on every rank.

use std::path::Path;

use crate::common::job::{BYTE, bytes, node, read, start, write};
use crate::common::ranks::Threads;
use crate::common::{host, noise};
use fermata_app::{Config, Level};

#[test]
fn a_lost_node_comes_back_from_its_partner() {
    for ranks in [2, 3, 4, 5] {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            ranks,
            &[(1, Level::Partner), (2, Level::Partner)],
            &|_| (),
        );
        for lost in 0..ranks {
            std::fs::remove_dir_all(node(dir.path(), lost)).unwrap();
            let (step, levels) = read(dir.path(), ranks, &|_| ());
            assert_eq!(step, 2, "{ranks} ranks, {lost} lost");
            let want: Vec<u8> = (0..ranks).map(|r| if r == lost { 2 } else { 1 }).collect();
            assert_eq!(levels, want);
            // What the lost node kept for another is copied again by the next checkpoint.
            write(dir.path(), ranks, &[(2, Level::Partner)], &|_| ());
        }
    }
}

#[test]
fn two_neighbours_lost_are_too_many_but_not_two_others() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4, &[(1, Level::Partner)], &|_| ());
    for lost in [0, 2] {
        std::fs::remove_dir_all(node(dir.path(), lost)).unwrap();
    }
    assert_eq!(read(dir.path(), 4, &|_| ()), (1, vec![2, 1, 2, 1]));
    for lost in [1, 2] {
        std::fs::remove_dir_all(node(dir.path(), lost)).unwrap();
    }
    let errors = Threads::run(4, |comm| {
        let rank = fermata_app::Comm::rank(&comm);
        let mut s = start(dir.path(), comm, &|_| ()).unwrap();
        let mut back = vec![0u8; bytes(rank)];
        s.protect(1, host(&mut back), BYTE).unwrap();
        let e = s.recover().unwrap_err();
        assert!(back.iter().all(|b| *b == 0));
        e.to_string()
    });
    assert_eq!(errors.len(), 4);
}

#[test]
fn a_torn_file_on_one_rank_comes_back_from_its_partner() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        3,
        &[(1, Level::Partner), (2, Level::Partner)],
        &|_| (),
    );
    let packs = node(dir.path(), 1).join("test/store/packs");
    let rank = node(dir.path(), 1).join("test/rank-00001");
    std::fs::remove_file(rank.join("c000000000002/chunks")).unwrap();
    assert_eq!(read(dir.path(), 3, &|_| ()), (2, vec![1, 2, 1]));
    // The packs of that node serve its own checkpoint and its copy of another's.
    assert!(packs.exists());
}

/// One rank's part of the newest checkpoint is nowhere any more, whichever level it was made for.
#[test]
fn all_ranks_take_the_newest_that_all_have() {
    for level in [Level::Local, Level::Partner, Level::Erasure, Level::Shared] {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        let set = |c: &mut Config| c.shared = Some(shared.clone());
        write(dir.path(), 3, &[(1, level), (2, level)], &set);
        let mut gone = 0;
        for path in folders(dir.path()) {
            let own = path.ends_with("rank-00002/c000000000002");
            // Nor can it be computed again.
            let parity = path.components().any(|c| c.as_os_str() == "erasure")
                && path.ends_with("c000000000002");
            if own || parity {
                std::fs::remove_dir_all(path).unwrap();
                gone += 1;
            }
        }
        let copies = match level {
            Level::Local => 1,
            Level::Erasure => 4,
            _ => 2,
        };
        assert_eq!(gone, copies, "{level:?}");
        assert_eq!(read(dir.path(), 3, &set), (1, vec![1; 3]), "{level:?}");
    }
}

/// All folders below this one.
fn folders(below: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(below).unwrap();
    let own: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    let own = own.into_iter().filter(|path| path.is_dir());
    own.flat_map(|path| [folders(&path), vec![path]].concat())
        .collect()
}

/// A copy that is torn where the original is lost: at a partner's, and in the shared folder.
#[test]
fn a_torn_copy_counts_as_lost() {
    for (level, read_from) in [(Level::Partner, 2), (Level::Shared, 4)] {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        let set = |c: &mut Config| c.shared = Some(shared.clone());
        write(dir.path(), 3, &[(1, level), (2, level)], &set);
        std::fs::remove_dir_all(node(dir.path(), 1)).unwrap();
        for path in folders(dir.path()) {
            if path.ends_with("rank-00001/c000000000002") {
                let chunks = path.join("chunks");
                let bytes = std::fs::read(&chunks).unwrap();
                std::fs::write(&chunks, &bytes[..bytes.len() / 2]).unwrap();
            }
        }
        let levels = vec![1, read_from, 1];
        assert_eq!(read(dir.path(), 3, &set), (1, levels), "{level:?}");
    }
}

#[test]
fn all_nodes_lost_come_back_from_the_shared_folder() {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    let set = |c: &mut Config| c.shared = Some(shared.clone());
    write(
        dir.path(),
        3,
        &[(1, Level::Shared), (2, Level::Partner), (3, Level::Local)],
        &set,
    );
    std::fs::remove_dir_all(node(dir.path(), 0)).unwrap();
    assert_eq!(read(dir.path(), 3, &set).0, 2);
    for rank in 0..3 {
        std::fs::remove_dir_all(node(dir.path(), rank)).unwrap();
    }
    assert_eq!(read(dir.path(), 3, &set), (1, vec![4, 4, 4]));
}

#[test]
fn another_number_of_ranks_is_refused_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 3, &[(1, Level::Local)], &|_| ());
    for ranks in [2, 4] {
        let errors = Threads::run(ranks, |comm| {
            start(dir.path(), comm, &|_| ()).err().unwrap()
        });
        let said = format!("written by rank 0 of 3, this is rank 0 of {ranks}");
        assert!(errors[0].to_string().contains(&said), "{errors:?}");
        let hint = errors[0].hint().unwrap();
        assert!(hint.contains("as many ranks as before"), "{hint}");
        assert_eq!(errors.len(), ranks as usize);
    }
    assert_eq!(read(dir.path(), 3, &|_| ()).0, 1);
}

#[test]
fn a_variable_missing_on_one_rank_stops_all_before_they_write() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 3, &[(1, Level::Local)], &|_| ());
    let errors = Threads::run(3, |comm| {
        let rank = fermata_app::Comm::rank(&comm);
        let mut s = start(dir.path(), comm, &|_| ()).unwrap();
        let mut back = vec![0u8; bytes(rank) - (rank == 1) as usize];
        s.protect(1, host(&mut back), BYTE).unwrap();
        let e = s.recover().unwrap_err();
        assert!(back.iter().all(|b| *b == 0), "rank {rank} has written");
        e.code()
    });
    assert_eq!(errors, [15, 5, 15]);
}

#[test]
fn damaged_bytes_are_healed_from_a_partner() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        3,
        &[(1, Level::Partner), (2, Level::Partner)],
        &|_| (),
    );
    for pack in std::fs::read_dir(node(dir.path(), 1).join("test/store/packs")).unwrap() {
        let path = pack.unwrap().path();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    }
    assert_eq!(read(dir.path(), 3, &|_| ()).0, 2);
    // What was healed is whole: nothing has to come from elsewhere now.
    assert_eq!(read(dir.path(), 3, &|_| ()), (2, vec![1, 1, 1]));
}

#[test]
fn replicas_are_stored_once_where_all_ranks_write() {
    let stored = |dir: &std::path::Path| -> u64 {
        let packs = std::fs::read_dir(dir.join("shared/test/store/packs")).unwrap();
        packs.map(|p| p.unwrap().metadata().unwrap().len()).sum()
    };
    // Four ranks with the same data, and a little of their own.
    let (dir, alone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (dir, ranks) in [(alone.path(), 1), (dir.path(), 4)] {
        let shared = dir.join("shared");
        Threads::run_beside(ranks, |comm| {
            let rank = fermata_app::Comm::rank(&comm);
            let mut s = start(dir, comm, &|c| c.shared = Some(shared.clone())).unwrap();
            for step in 1..3 {
                let mut replica = noise(3 << 20, step);
                let mut own = noise(50_000, 100 * step + u64::from(rank));
                s.protect(1, host(&mut replica), BYTE).unwrap();
                s.protect(2, host(&mut own), BYTE).unwrap();
                s.checkpoint(step as i64, Level::Shared).unwrap();
            }
            s.wait(std::time::Duration::from_secs(300)).unwrap();
        });
    }
    let (one, four) = (stored(alone.path()), stored(dir.path()));
    assert!(four < one + 4 * 150_000, "{one} {four}");
    (0..4).for_each(|rank| std::fs::remove_dir_all(node(dir.path(), rank)).unwrap());
    let shared = dir.path().join("shared");
    Threads::run(4, |comm| {
        let rank = fermata_app::Comm::rank(&comm);
        let mut s = start(dir.path(), comm, &|c| c.shared = Some(shared.clone())).unwrap();
        let (mut replica, mut own) = (vec![0; 3 << 20], vec![0; 50_000]);
        s.protect(1, host(&mut replica), BYTE).unwrap();
        s.protect(2, host(&mut own), BYTE).unwrap();
        assert_eq!(s.recover().unwrap(), 2);
        assert!(replica == noise(3 << 20, 2) && own == noise(50_000, 200 + u64::from(rank)));
    });
}
