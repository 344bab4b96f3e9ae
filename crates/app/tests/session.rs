//! Sessions with host memory: what is stored comes back, what is wrong is refused before memory is touched.

use std::path::Path;
use std::time::Duration;

use crate::common::{config, host, noise, session};
use fermata_app::{AppError, ElementType, Interval, Level, Session, Snapshot, Solo};

const F64: ElementType = ElementType(3 << 24 | 8);
const BYTE: ElementType = ElementType(1);

fn rank_folder(dir: &Path) -> std::path::PathBuf {
    dir.join("test/rank-00000")
}

fn newest(dir: &Path) -> std::path::PathBuf {
    let mut all: Vec<_> = std::fs::read_dir(rank_folder(dir))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_dir())
        .collect();
    all.sort();
    all.pop().unwrap()
}

#[test]
fn what_is_stored_comes_back_in_another_session() {
    for background in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut big = noise(9 << 20 | 12_345, 1);
        let mut small = [1.5f64, 2.5];
        let mut empty: [u8; 0] = [];
        let (want_big, want_small) = (big.clone(), small);
        let mut s = session(dir.path(), |c| c.background = background);
        s.protect(7, host(&mut big), BYTE).unwrap();
        s.protect(0, host(&mut small), F64).unwrap();
        s.protect(3, host(&mut empty), BYTE).unwrap();
        s.checkpoint(42, Level::Local).unwrap();
        big.fill(0xEE);
        small = [0.0; 2];
        s.wait(Duration::from_secs(300)).unwrap();
        let last = s.status().last.unwrap();
        assert_eq!(
            (last.id, last.level, last.bytes),
            (42, 1, want_big.len() as u64 + 16)
        );
        drop(s);

        let mut s = session(dir.path(), |_| ());
        assert_eq!(s.status().recoverable, Some(42));
        assert_eq!(s.stored_bytes(7), Some(want_big.len() as u64));
        assert_eq!(s.stored_bytes(8), None);
        s.protect(7, host(&mut big), BYTE).unwrap();
        s.protect(0, host(&mut small), F64).unwrap();
        s.protect(3, host(&mut empty), BYTE).unwrap();
        assert_eq!(s.recover().unwrap(), 42);
        assert!(
            big == want_big && small == want_small,
            "background {background}"
        );
        let report = s.status().recovery.unwrap();
        assert!(report.integrity_seconds > 0.0 && report.data_seconds > 0.0);
        s.finalize(true).unwrap();
        assert_eq!(session(dir.path(), |_| ()).status().recoverable, None);
    }
}

#[test]
fn only_changed_blocks_are_written_and_one_variable_can_be_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = noise(64 * 65_536, 2);
    let mut other = noise(100, 3);
    let mut s = session(dir.path(), |c| c.block_bytes = 65_536);
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.protect(2, host(&mut other), BYTE).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    assert_eq!(s.status().last.unwrap().written_bytes, 64 * 65_536 + 100);
    for block in [0, 7, 63] {
        data[block * 65_536 + 11] ^= 1;
    }
    s.checkpoint(2, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    assert_eq!(s.status().last.unwrap().written_bytes, 3 * 65_536);
    // It is what a full checkpoint of the same data is.
    let full = tempfile::tempdir().unwrap();
    let mut t = session(full.path(), |c| c.block_bytes = 65_536);
    t.protect(1, host(&mut data), BYTE).unwrap();
    t.protect(2, host(&mut other), BYTE).unwrap();
    t.checkpoint(2, Level::Local).unwrap();
    t.wait(Duration::from_secs(300)).unwrap();
    assert_eq!(t.status().last.unwrap().written_bytes, 64 * 65_536 + 100);
    let chunks = |dir: &Path| std::fs::read(newest(dir).join("chunks")).unwrap();
    assert!(chunks(dir.path()) == chunks(full.path()));
    let (want, kept) = (data.clone(), noise(100, 4));
    data.fill(0);
    other.copy_from_slice(&kept);
    assert_eq!(s.recover_variable(1).unwrap(), 2);
    assert!(data == want && other == kept);
}

#[test]
fn old_checkpoints_go_and_their_space_with_them() {
    for (keep, level) in [(2, Level::Local), (3, Level::Local), (2, Level::Shared)] {
        let (dir, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut data = noise(1 << 20, 5);
        let mut s = session(dir.path(), |c| {
            c.keep_last = keep;
            c.shared = Some(shared.path().into());
        });
        s.protect(1, host(&mut data), BYTE).unwrap();
        for id in 1..=6 {
            data.copy_from_slice(&noise(1 << 20, 100 + id as u64));
            s.checkpoint(id, level).unwrap();
        }
        s.wait(Duration::from_secs(300)).unwrap();
        assert_eq!(s.status().failed, 0, "{:?}", s.status().last_failure);
        let there = match level {
            Level::Shared => shared.path(),
            _ => dir.path(),
        };
        let count = std::fs::read_dir(rank_folder(there)).unwrap().count() as u32;
        assert_eq!(count, keep + 1, "checkpoints and the lock, {level:?}");
        let packs = std::fs::read_dir(there.join("test/store/packs")).unwrap();
        let bytes: u64 = packs.map(|p| p.unwrap().metadata().unwrap().len()).sum();
        assert!(
            bytes < u64::from(keep + 1) << 20,
            "{bytes} bytes for {keep} checkpoints of 1 MiB"
        );
    }
}

#[test]
fn damage_is_found_before_memory_is_touched_and_the_older_one_serves() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = noise(3 << 20, 6);
    let first = data.clone();
    let mut s = session(dir.path(), |_| ());
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    let before: Vec<_> = packs(dir.path());
    data.copy_from_slice(&noise(3 << 20, 7));
    s.checkpoint(2, Level::Local).unwrap();
    drop(s);
    let new = packs(dir.path())
        .into_iter()
        .find(|p| !before.contains(p))
        .unwrap();
    let mut bytes = std::fs::read(&new).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&new, bytes).unwrap();

    let mut s = session(dir.path(), |_| ());
    assert_eq!(s.status().recoverable, Some(1));
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 1);
    assert!(data == first);
    drop(s);
    // Both are gone now: that is said, and nothing is written.
    for pack in packs(dir.path()) {
        std::fs::OpenOptions::new()
            .write(true)
            .open(pack)
            .unwrap()
            .set_len(5000)
            .unwrap();
    }
    let mut s = session(dir.path(), |_| ());
    data.fill(9);
    s.protect(1, host(&mut data), BYTE).unwrap();
    let e = s.recover().unwrap_err();
    assert_eq!(e.code(), 6, "{e}");
    assert!(e.text().contains("checkpoint 2"), "{}", e.text());
    assert!(data.iter().all(|b| *b == 9));
    assert!(s.snapshot().is_err(), "the first snapshot says so");
    assert_eq!(s.snapshot().unwrap(), Snapshot::Nothing);
}

fn packs(dir: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(dir.join("test/store/packs"))
        .unwrap()
        .map(|p| p.unwrap().path())
        .collect()
}

#[test]
fn a_damaged_index_file_does_not_keep_old_checkpoints_from_going() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = noise(1 << 20, 12);
    let mut s = session(dir.path(), |_| ());
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    let old = packs(dir.path()).pop().unwrap();
    data.copy_from_slice(&noise(1 << 20, 13));
    s.checkpoint(2, Level::Local).unwrap();
    drop(s);
    let name = old.file_stem().unwrap().to_str().unwrap();
    let index = dir.path().join(format!("test/store/index/{name}.idx"));
    std::fs::write(&index, "damaged").unwrap();
    // The newest is whole: there is nothing to look for.
    let mut s = session(dir.path(), |_| ());
    assert_eq!(s.status().recoverable, Some(2));
    s.protect(1, host(&mut data), BYTE).unwrap();
    for id in 3..=4 {
        data.copy_from_slice(&noise(1 << 20, 11 + id as u64));
        s.checkpoint(id, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
    }
    assert_eq!(s.status().last_failure, None);
    assert!(!old.exists() && !index.exists());
    assert_eq!(packs(dir.path()).len(), 2);
}

#[test]
fn a_file_that_is_cut_or_missing_is_found() {
    for file in ["manifest.json", "manifest.b3", "chunks"] {
        for cut in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let mut data = noise(1000, 8);
            let mut s = session(dir.path(), |_| ());
            s.protect(1, host(&mut data), BYTE).unwrap();
            for id in [1, 2] {
                data[0] = id as u8;
                s.checkpoint(id, Level::Local).unwrap();
            }
            drop(s);
            let path = newest(dir.path()).join(file);
            match cut {
                true => std::fs::write(&path, &std::fs::read(&path).unwrap()[..10]).unwrap(),
                false => std::fs::remove_file(&path).unwrap(),
            }
            let s = session(dir.path(), |_| ());
            assert_eq!(s.status().recoverable, Some(1), "{file} {cut}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = noise(800, 9);
    let mut s = session(dir.path(), |_| ());
    s.protect(1, host(&mut data), F64).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    drop(s);
    let mut s = session(dir.path(), |_| ());
    let mut shorter = noise(792, 9);
    let kept = shorter.clone();
    s.protect(1, host(&mut shorter), F64).unwrap();
    let e = s.recover().unwrap_err();
    assert!(e.to_string().contains("had 800 bytes and has 792"), "{e}");
    s.protect(1, host(&mut data), BYTE).unwrap();
    let e = s.recover().unwrap_err();
    assert!(e.to_string().contains("was float64 and is 1 bytes"), "{e}");
    s.protect(1, host(&mut data), F64).unwrap();
    s.protect(2, host(&mut shorter), F64).unwrap();
    let e = s.recover().unwrap_err();
    assert!(e.to_string().contains("variable 2"), "{e}");
    s.unprotect(2).unwrap();
    assert!(s.unprotect(2).is_err());
    s.unprotect(1).unwrap();
    let e = s.recover().unwrap_err();
    assert!(e.to_string().contains("not protected now"), "{e}");
    assert_eq!(e.code(), 5);
    assert!(shorter == kept);
}

#[test]
fn memory_that_is_gone_is_an_error_and_the_program_lives() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = session(dir.path(), |_| ());
    let mapped = crate::common::Mapping::new(1 << 20);
    s.protect(5, mapped.memory(), BYTE).unwrap();
    s.checkpoint(1, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    drop(mapped);
    let e = s.checkpoint(2, Level::Local).unwrap_err();
    assert!(matches!(e, AppError::Variable { id: 5, .. }), "{e}");
    let e = s.recover().unwrap_err();
    assert!(matches!(e, AppError::Variable { id: 5, .. }), "{e}");
    let mut again = vec![0u8; 1 << 20];
    s.protect(5, host(&mut again), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 1);
    assert_eq!(s.status().failed, 1);
}

#[test]
fn one_job_in_a_folder_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = session(dir.path(), |_| ());
    let second = Session::init(config(dir.path(), |_| ()), Box::new(Solo));
    let e = second.err().unwrap();
    assert!(
        e.to_string().contains(&std::process::id().to_string()),
        "{e}"
    );
    assert_eq!(e.code(), 7);
    let other = Session::init(
        config(dir.path(), |c| c.name = "other".into()),
        Box::new(Solo),
    );
    assert!(other.is_ok());
    drop(first);
    session(dir.path(), |_| ());
}

#[test]
fn levels_that_are_not_there_are_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = session(dir.path(), |_| ());
    for (number, word) in [
        (2, "two ranks"),
        (3, "erasure"),
        (4, "shared"),
        (5, "bucket"),
    ] {
        let level = Level::from_number(number).unwrap();
        let e = s.checkpoint(1, level).unwrap_err();
        assert!(e.to_string().contains(word), "{e}");
        assert_eq!(e.code(), 3);
    }
    assert!(Level::from_number(6).is_err());
}

#[test]
fn the_shared_folder_serves_when_the_node_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let shared = tempfile::tempdir().unwrap();
    let set = |c: &mut fermata_app::Config| c.shared = Some(shared.path().into());
    let mut data = noise(5 << 20, 10);
    let mut s = session(dir.path(), set);
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(1, Level::Shared).unwrap();
    let want = data.clone();
    s.wait(Duration::from_secs(300)).unwrap();
    data[77] ^= 1;
    s.checkpoint(2, Level::Local).unwrap();
    drop(s);
    std::fs::remove_dir_all(dir.path().join("test")).unwrap();
    let mut s = session(dir.path(), set);
    data.fill(0);
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 1);
    assert_eq!(s.status().recovery.unwrap().level, 4);
    assert!(data == want);
    // The numbers go on behind those of the shared folder.
    s.checkpoint(3, Level::Shared).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    drop(s);
    assert_eq!(session(dir.path(), set).status().recoverable, Some(3));
}

#[test]
fn damage_in_the_shared_folder_is_not_referred_to_again() {
    let (dir, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let set = |c: &mut fermata_app::Config| c.shared = Some(shared.path().into());
    let mut data = noise(3 << 20, 11);
    let mut s = session(dir.path(), set);
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(1, Level::Shared).unwrap();
    drop(s);
    let packs = packs(shared.path());
    for pack in &packs {
        let mut bytes = std::fs::read(pack).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(pack, bytes).unwrap();
    }
    std::fs::remove_dir_all(dir.path().join("test")).unwrap();
    let mut s = session(dir.path(), set);
    assert_eq!(s.status().recoverable, None);
    assert!(packs.iter().all(|pack| !pack.exists()));
    // The same data again: what was damaged is written anew.
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(2, Level::Shared).unwrap();
    drop(s);
    std::fs::remove_dir_all(dir.path().join("test")).unwrap();
    let mut s = session(dir.path(), set);
    assert_eq!(s.status().recoverable, Some(2));
    data.fill(0);
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 2);
    assert!(data == noise(3 << 20, 11));
}

#[test]
fn snapshots_keep_the_interval_and_recover_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut step = [0u64];
    let mut s = session(dir.path(), |c| c.interval = Interval::Seconds(1e-6));
    s.protect(1, host(&mut step), ElementType(2 << 24 | 8))
        .unwrap();
    for n in 1..=3u64 {
        step[0] = n;
        assert_eq!(s.snapshot().unwrap(), Snapshot::Checkpoint(n as i64));
    }
    drop(s);
    let mut s = session(dir.path(), |c| c.interval = Interval::Seconds(1e6));
    step[0] = 0;
    s.protect(1, host(&mut step), ElementType(2 << 24 | 8))
        .unwrap();
    assert_eq!(s.snapshot().unwrap(), Snapshot::Recovered(3));
    assert_eq!(step[0], 3);
    assert_eq!(s.snapshot().unwrap(), Snapshot::Nothing);
    assert_eq!(s.status().interval_seconds, Some(1e6));
}

#[test]
fn steps_that_were_saved_forward_are_read_backward() {
    let dir = tempfile::tempdir().unwrap();
    let with = |c: &mut fermata_app::Config| c.keep_last = 20;
    let mut data = noise(600_000, 0);
    {
        let mut s = session(dir.path(), with);
        s.protect(1, host(&mut data), BYTE).unwrap();
        for step in 1..=10 {
            data.copy_from_slice(&noise(600_000, step));
            s.checkpoint(step as i64, Level::Local).unwrap();
        }
        // Still the same run: what is being written is waited for.
        for step in (6..=10).rev() {
            data.fill(0);
            s.load(step as i64).unwrap();
            assert!(data == noise(600_000, step));
            s.prefetch(step as i64 - 1).unwrap();
        }
        let e = s.load(11).unwrap_err();
        assert!(e.text().contains("none is called 11"), "{}", e.text());
        assert!(s.prefetch(0).is_err());
    }
    // Another run, with and without reading ahead, and another one than was read ahead.
    let mut s = session(dir.path(), with);
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.prefetch(3).unwrap();
    for step in [5, 3, 3, 1] {
        data.fill(0);
        s.load(step).unwrap();
        assert!(data == noise(600_000, step as u64));
    }
    // A variable that was resized is refused before a byte is written, from memory too.
    let mut longer = vec![0u8; 600_001];
    s.protect(1, host(&mut longer), BYTE).unwrap();
    s.prefetch(2).unwrap();
    for _ in 0..2 {
        assert_eq!(s.load(2).unwrap_err().code(), 5);
        assert!(longer.iter().all(|b| *b == 0));
    }
}
