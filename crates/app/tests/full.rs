//! A disk that is full, local or shared: a clear error, the program and its older checkpoints unharmed, and
//! the next checkpoint works once there is room. The inner test runs alone, on file systems of a few MiB in a
//! mount namespace of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::ranks::Threads;
use crate::common::{host, noise, session};
use fermata_app::{Comm, Config, ElementType, Level, Session};

const VARIABLE: &str = "FERMATA_TEST_SMALL_DISK";
const BYTE: ElementType = ElementType(1);

#[test]
fn a_full_disk_costs_one_checkpoint_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (local, shared) = (dir.path().join("local"), dir.path().join("shared"));
    for folder in [&local, &shared] {
        std::fs::create_dir(folder).unwrap();
    }
    let script = format!(
        "mount -t tmpfs -o size=8m none '{}'; mount -t tmpfs -o size=4m none '{}'; \
         exec '{}' --exact full::on_small_disks --ignored --nocapture",
        local.display(),
        shared.display(),
        std::env::current_exe().unwrap().display()
    );
    let out = Command::new("unshare")
        .args(["--map-root-user", "--mount", "--", "sh", "-ec", &script])
        .env(VARIABLE, dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "is started by the test above on small disks"]
fn on_small_disks() {
    let dir = PathBuf::from(std::env::var_os(VARIABLE).unwrap());
    let (local, shared) = (dir.join("local"), dir.join("shared"));
    for background in [false, true] {
        let set = |c: &mut Config| {
            c.shared = Some(shared.clone());
            c.background = background;
            c.keep_last = 1;
        };
        let mut s = session(&local, set);
        let mut data = noise(2 << 20, 1);
        let first = data.clone();
        s.protect(1, host(&mut data), BYTE).unwrap();
        s.checkpoint(1, Level::Shared).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();

        // Too much for the shared folder, then for the local one.
        for (id, level, bytes) in [(2, Level::Shared, 3 << 20), (3, Level::Local, 7 << 20)] {
            let mut more = noise(bytes, id as u64);
            s.protect(1, host(&mut more), BYTE).unwrap();
            let failed = s
                .checkpoint(id, level)
                .and_then(|()| s.wait(Duration::from_secs(300)))
                .unwrap_err();
            assert_eq!(failed.code(), 8, "{}", failed.text());
            assert!(failed.text().contains("no space left"), "{}", failed.text());
            assert!(failed.text().contains("bytes left"), "{}", failed.text());
            assert!(failed.hint().unwrap().contains("free some space"));
            nothing_unfinished(&local.join("test"));
            nothing_unfinished(&shared.join("test"));
        }
        assert_eq!(s.status().failed, 2);

        // What is there is whole, and the next one works.
        data[5] ^= 1;
        s.protect(1, host(&mut data), BYTE).unwrap();
        s.checkpoint(4, Level::Shared).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        drop(s);
        // A disk without room for a single byte is no reason not to begin and to recover.
        let filler = fill(&local);
        let mut s = session(&local, set);
        data.fill(0);
        s.protect(1, host(&mut data), BYTE).unwrap();
        assert_eq!(s.recover().unwrap(), 4);
        let e = s
            .checkpoint(5, Level::Local)
            .and_then(|()| s.wait(Duration::from_secs(300)));
        assert_eq!(e.unwrap_err().code(), 8);
        nothing_unfinished(&local.join("test"));
        std::fs::remove_file(filler).unwrap();
        data[5] ^= 1;
        assert!(data == first);
        s.finalize(true).unwrap();
    }
    for level in [Level::Partner, Level::Erasure, Level::Shared] {
        for behind in [false, true] {
            full_for_another_rank(&dir, level, behind);
        }
    }
}

/// A process may be allowed files of a certain size only, and is ended by the kernel if it writes more.
#[test]
fn a_limit_of_file_sizes_is_kept_to() {
    let dir = tempfile::tempdir().unwrap();
    crate::common::alone("full::with_a_limit_of_file_sizes", dir.path(), &[]);
}

#[test]
#[ignore = "is started by the test above"]
fn with_a_limit_of_file_sizes() {
    let folder = PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let limit = |bytes: u64| {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: passes a live structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    };
    let mut data = noise(5 << 20, 1);
    let mut s = session(&folder, |c| c.block_bytes = 1 << 18);
    s.protect(1, host(&mut data), BYTE).unwrap();
    limit(1 << 20);
    s.checkpoint(1, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    data.fill(0);
    assert_eq!(s.recover().unwrap(), 1);
    assert!(data == noise(5 << 20, 1));
    limit(1 << 17);
    data.copy_from_slice(&noise(5 << 20, 2));
    let e = s
        .checkpoint(2, Level::Local)
        .and_then(|()| s.wait(Duration::from_secs(300)))
        .unwrap_err();
    assert!(e.text().contains("File too large"), "{}", e.text());
    nothing_unfinished(&folder.join("test"));
    data.fill(0);
    assert_eq!(s.recover().unwrap(), 1);
}

/// Takes all the room that a disk has.
fn fill(disk: &std::path::Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    while std::io::Write::write(&mut file, &[1; 4096]).is_ok_and(|n| n > 0) {}
    path
}

/// Neither drafts nor half packs are left of what has failed.
fn nothing_unfinished(job: &std::path::Path) {
    let mut folders = vec![job.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(!name.starts_with('.'), "{}", path.display());
            assert!(!folder.ends_with("tmp"), "{}", path.display());
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
}

/// The disk of rank 1 has room for its own checkpoints, and none for what it keeps for others; the shared one
/// has room for one rank.
fn full_for_another_rank(dir: &std::path::Path, level: Level, behind: bool) {
    const BYTES: usize = 3_600_000;
    let start = |comm: Threads, rank: u32| {
        let folder = match rank {
            1 => dir.join("local"),
            _ => dir.join(format!("node-{rank}")),
        };
        let config = crate::common::config(&folder, |c| {
            c.name = format!("level-{}", level.number());
            c.background = behind;
            c.node = Some(rank.to_string());
            c.keep_last = 1;
            c.shared = Some(dir.join("shared"));
        });
        Session::init(config, Box::new(comm)).unwrap()
    };
    let codes = Threads::run_beside(3, |comm| {
        let rank = comm.rank();
        let mut s = start(comm, rank);
        let mut data = noise(BYTES, u64::from(rank));
        s.protect(1, host(&mut data), BYTE).unwrap();
        s.checkpoint(1, Level::Local).unwrap();
        data.copy_from_slice(&noise(BYTES, 10 + u64::from(rank)));
        let made = s.checkpoint(2, level);
        let failed = made.and_then(|()| s.wait(Duration::from_secs(300)));
        drop(s);
        // Without message passing behind the program, ranks have what they have in the shared folder, each for itself.
        if failed.is_ok() && level == Level::Shared && !behind {
            return 0;
        }
        let failed = failed.unwrap_err();
        assert!(failed.text().contains("no space left"), "{}", failed.text());
        failed.code()
    });
    match level {
        Level::Shared => {
            assert!(codes.contains(&8), "{codes:?}");
            assert!(codes.iter().all(|c| [0, 8, 15].contains(c)), "{codes:?}");
        }
        _ => assert_eq!(codes, [15, 8, 15]),
    }
    let name = format!("level-{}", level.number());
    for folder in ["node-0", "local", "node-2", "shared"] {
        nothing_unfinished(&dir.join(folder).join(&name));
    }
    // It is there at the first level all the same, and with room the level works.
    Threads::run_beside(3, |comm| {
        let rank = comm.rank();
        let mut s = start(comm, rank);
        let mut data = vec![0; BYTES];
        s.protect(1, host(&mut data), BYTE).unwrap();
        assert_eq!(s.recover().unwrap(), 2);
        assert!(data == noise(BYTES, 10 + u64::from(rank)));
        let mut short = noise(100_000, u64::from(rank));
        s.protect(1, host(&mut short), BYTE).unwrap();
        s.checkpoint(3, level).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        s.finalize(true).unwrap();
    });
}
