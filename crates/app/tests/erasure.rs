//! Level 3: whichever ranks of a group are lost, up to the number asked for, their checkpoints are computed
//! again from the others', and one more is refused on every rank.

use std::path::Path;

use crate::common::host;
use crate::common::job::{BYTE, bytes, node, read, start, write, write_behind};
use crate::common::ranks::Threads;
use fermata_app::{Config, Level};

const STEPS: [(u64, Level); 2] = [(1, Level::Erasure), (2, Level::Erasure)];

fn code(group: u32, losses: u32) -> impl Fn(&mut Config) + Sync {
    move |c: &mut Config| {
        c.erasure_group = group;
        c.erasure_losses = losses;
    }
}

fn lose(dir: &Path, rank: u32) {
    std::fs::remove_dir_all(node(dir, rank)).unwrap();
}

/// Every set of `count` of the ranks.
fn sets(ranks: u32, count: u32) -> Vec<Vec<u32>> {
    (0..1u32 << ranks)
        .filter(|bits| bits.count_ones() == count)
        .map(|bits| (0..ranks).filter(|r| bits >> r & 1 == 1).collect())
        .collect()
}

#[test]
fn any_losses_of_a_group_come_back() {
    for (ranks, losses) in [(2, 1), (3, 1), (3, 2), (4, 2), (5, 3)] {
        let set = code(ranks, losses);
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), ranks, &STEPS, &set);
        for lost in sets(ranks, losses) {
            lost.iter().for_each(|rank| lose(dir.path(), *rank));
            let (step, levels) = read(dir.path(), ranks, &set);
            assert_eq!(step, 2, "{ranks} ranks, {lost:?} lost");
            let at = |r: u32| if lost.contains(&r) { 3 } else { 1 };
            assert_eq!(levels, (0..ranks).map(at).collect::<Vec<_>>());
            // What the lost nodes held for others is made again by the next checkpoint.
            write(dir.path(), ranks, &[(2, Level::Erasure)], &set);
        }
    }
}

/// What was computed again is good for computing others again, also in another place, before there is another checkpoint.
#[test]
fn losses_one_after_the_other_come_back_from_one_checkpoint() {
    let set = code(4, 2);
    let parent = tempfile::tempdir().unwrap();
    let mut dir = parent.path().join("node");
    write(&dir, 4, &STEPS, &set);
    for (lost, to) in [(0, "on-another-disk"), (2, "o")] {
        // The time and the place of what is computed again are others than those of what was lost.
        let moved = parent.path().join(to);
        std::fs::rename(&dir, &moved).unwrap();
        dir = moved;
        lose(&dir, lost);
        let (step, levels) = read(&dir, 4, &set);
        let want = (0..4).map(|rank| if rank == lost { 3 } else { 1 });
        assert_eq!((step, levels), (2, want.collect::<Vec<_>>()));
    }
}

#[test]
fn eight_ranks_in_two_groups_on_four_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let set = |c: &mut Config| {
        code(4, 1)(c);
        let rank: u32 = c
            .node
            .as_ref()
            .unwrap()
            .split('-')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        c.node = Some(format!("host-{}", rank / 2));
    };
    write_behind(dir.path(), 8, &STEPS, &set);
    // A host has two ranks, one of each group.
    for host in 0..4 {
        lose(dir.path(), 2 * host);
        lose(dir.path(), 2 * host + 1);
        let (step, levels) = read(dir.path(), 8, &set);
        let want: Vec<u8> = (0..8).map(|r| if r / 2 == host { 3 } else { 1 }).collect();
        assert_eq!((step, levels), (2, want));
        write_behind(dir.path(), 8, &[(2, Level::Erasure)], &set);
    }
}

#[test]
fn one_loss_too_many_is_said_by_every_rank() {
    let dir = tempfile::tempdir().unwrap();
    let set = code(4, 2);
    write(dir.path(), 4, &[(1, Level::Erasure)], &set);
    (0..3).for_each(|rank| lose(dir.path(), rank));
    let errors = Threads::run(4, |comm| {
        let rank = fermata_app::Comm::rank(&comm);
        let mut s = start(dir.path(), comm, &set).unwrap();
        let mut back = vec![0u8; bytes(rank)];
        s.protect(1, host(&mut back), BYTE).unwrap();
        let e = s.recover().unwrap_err();
        assert!(back.iter().all(|b| *b == 0));
        e.text()
    });
    for text in &errors {
        assert!(
            text.contains("too many have lost their files; 2 can be"),
            "{text}"
        );
    }
}

#[test]
fn files_that_are_cut_count_as_lost_and_parity_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let set = code(4, 2);
    write(dir.path(), 4, &STEPS, &set);
    let cut = |rank: u32, what: &str| {
        let folder = node(dir.path(), rank).join("test").join(what);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(folder)
            .unwrap();
        file.set_len(100).unwrap();
    };
    // One rank has lost its checkpoint and not its parity, another one both, a third only its parity.
    cut(0, "rank-00000/c000000000002/chunks");
    lose(dir.path(), 1);
    let (step, levels) = read(dir.path(), 4, &set);
    assert_eq!((step, levels), (2, vec![3, 3, 1, 1]));
    write(dir.path(), 4, &[(2, Level::Erasure)], &set);
    lose(dir.path(), 3);
    cut(2, "erasure/rank-00002/c000000000003/chunks");
    let (step, levels) = read(dir.path(), 4, &set);
    assert_eq!((step, levels), (2, vec![1, 1, 1, 3]));
}

#[test]
fn a_damaged_pack_under_data_and_parity_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let set = code(3, 1);
    write(dir.path(), 3, &[(1, Level::Erasure)], &set);
    for pack in std::fs::read_dir(node(dir.path(), 1).join("test/store/packs")).unwrap() {
        let path = pack.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(read(dir.path(), 3, &set).0, 1);
}

#[test]
fn levels_are_used_from_the_lowest_up() {
    let dir = tempfile::tempdir().unwrap();
    let set = code(4, 2);
    let steps = [(1, Level::Erasure), (2, Level::Partner), (3, Level::Local)];
    write_behind(dir.path(), 4, &steps, &set);
    lose(dir.path(), 0);
    assert_eq!(read(dir.path(), 4, &set), (2, vec![2, 1, 1, 1]));
    // Two neighbours: the copy of one of them is gone, so the older checkpoint it is.
    let dir = tempfile::tempdir().unwrap();
    write_behind(dir.path(), 4, &steps, &set);
    lose(dir.path(), 1);
    lose(dir.path(), 2);
    assert_eq!(read(dir.path(), 4, &set), (1, vec![1, 3, 3, 1]));
}

#[test]
fn parity_takes_its_share_and_old_parity_goes() {
    let dir = tempfile::tempdir().unwrap();
    let set = |c: &mut Config| {
        code(5, 1)(c);
        c.keep_last = 1;
    };
    let bytes = |c: &Path| -> u64 {
        let packs = std::fs::read_dir(c.join("test/store/packs")).unwrap();
        packs.map(|p| p.unwrap().metadata().unwrap().len()).sum()
    };
    let plain = tempfile::tempdir().unwrap();
    write(plain.path(), 5, &[(1, Level::Local)], &set);
    write(dir.path(), 5, &[(1, Level::Erasure)], &set);
    let (without, with) = (bytes(&node(plain.path(), 0)), bytes(&node(dir.path(), 0)));
    let share = (with - without) as f64 / without as f64;
    assert!((0.2..0.4).contains(&share), "{share}");
    write(
        dir.path(),
        5,
        &[(2, Level::Erasure), (3, Level::Erasure)],
        &set,
    );
    let kept = std::fs::read_dir(node(dir.path(), 0).join("test/erasure/rank-00000")).unwrap();
    let kept = kept.filter(|e| {
        e.as_ref()
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .starts_with('c')
    });
    assert!(kept.count() <= 2);
}

#[test]
fn a_job_too_small_for_its_losses_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let set = code(4, 2);
    let errors = Threads::run(2, |comm| {
        let mut s = start(dir.path(), comm, &set).unwrap();
        s.checkpoint(1, Level::Erasure).unwrap_err().text()
    });
    assert!(
        errors[0].contains("more ranks than `erasure.losses`"),
        "{errors:?}"
    );
    let mut alone = crate::common::session(&node(dir.path(), 9), |_| ());
    let e = alone.checkpoint(1, Level::Erasure).unwrap_err();
    assert!(e.text().contains("two ranks or more"), "{}", e.text());
}
