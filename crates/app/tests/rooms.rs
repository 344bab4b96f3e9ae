//! Ranks that are processes of one node send what does not fit their own GPU's room to each other's, on softgpu.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::cuda::{Cuda, at};
use crate::common::link::{self, Link};
use crate::common::processes::Processes;
use crate::common::{Mapping, alone, config, host, inner, noise};
use fermata_app::{ElementType, Level, Session, StageSchedule};

const BYTE: ElementType = ElementType(1);
const MIB: usize = 1 << 20;
const ROOM: u64 = 6 << 20;
/// What each rank has on the GPU of its number; the last has none.
const SIZES: [usize; 4] = [12 * MIB + 5000, 2 * MIB, 2 * MIB, MIB];
const WITHOUT_GPU: usize = 3;

#[test]
fn what_does_not_fit_waits_with_other_ranks_and_one_that_fails_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..SIZES.len() {
            let folder = dir.path();
            scope.spawn(move || alone("rooms::one_rank", folder, &settings(folder, rank)));
        }
    });
}

fn settings(folder: &Path, rank: usize) -> [(&'static str, String); 4] {
    let held = folder.join(format!("link-{rank}"));
    [
        ("FERMATA_SOFTGPU_DEVICES", "3".to_owned()),
        ("FERMATA_SOFTGPU_MEMORY", (40 * MIB).to_string()),
        (link::SETTING, held.display().to_string()),
        ("FERMATA_TEST_RANK", rank.to_string()),
    ]
}

/// What waits in a peer's memory is the sender's own: it outlives the peer's process.
#[test]
fn a_rank_that_dies_takes_nothing_of_others_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    std::thread::scope(|scope| {
        scope.spawn(|| alone("rooms::one_of_two", folder, &settings(folder, 0)));
        let ended = inner("rooms::one_of_two", folder, &settings(folder, 1)).output();
        let ended = ended.unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGKILL), "{ended:?}");
        std::fs::write(folder.join(GONE), "").unwrap();
    });
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || alone("rooms::one_of_two", folder, &settings(folder, rank)));
        }
    });
}

/// The file that says that the second rank has died.
const GONE: &str = "gone";

#[test]
#[ignore = "is started by the test above"]
fn one_of_two() {
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let rank: usize = std::env::var("FERMATA_TEST_RANK").unwrap().parse().unwrap();
    let content = noise(SIZES[rank], rank as u64);
    let mut data = Data::of(rank);
    let join =
        |number, data: &mut Data| join(&folder, (rank, 2), number, StageSchedule::Optimum, data);
    if folder.join(GONE).exists() {
        let mut s = join(1, &mut data);
        assert_eq!(s.recover().unwrap(), 1);
        assert!(data.get(SIZES[rank]) == content);
        return;
    }
    let mut s = join(0, &mut data);
    data.set(&content);
    let mut link = Link::of_process();
    if rank == 1 {
        s.checkpoint(1, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
        // SAFETY: it is this process, which has no more to do.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    // A third of it is still on the other's GPU when that one has gone.
    link.only(4 * MIB as u64, || s.checkpoint(1, Level::Local).unwrap());
    data.wipe(SIZES[rank]);
    let until = Instant::now() + Duration::from_secs(300);
    while !folder.join(GONE).exists() {
        assert!(Instant::now() < until, "the other rank lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(s.status().busy);
    link.open();
    s.wait(Duration::from_secs(300)).unwrap();
    assert!(s.status().last.unwrap().predicted_seconds > 0.0);
}

/// A session of this rank, with its data protected; each needs a number of its own.
fn join(
    folder: &Path,
    (rank, ranks): (usize, usize),
    number: u32,
    how: StageSchedule,
    data: &mut Data,
) -> Session {
    let sockets = folder.join(format!("sockets-{number}"));
    std::fs::create_dir_all(&sockets).unwrap();
    let comm = Processes::meet(&sockets, rank as u32, ranks as u32);
    let with = |c: &mut fermata_app::Config| {
        c.stage_bytes = ROOM;
        c.stage_schedule = how;
        c.staging_bytes = 4 << 20;
        c.deadline = 300.0;
    };
    let mut session = Session::init(config(folder, with), Box::new(comm)).unwrap();
    let memory = match data {
        Data::Device(_, address) => at(*address, SIZES[rank]),
        Data::Host(bytes) => host(bytes),
    };
    session.protect(0, memory, BYTE).unwrap();
    session
}

enum Data {
    Device(&'static Cuda, u64),
    Host(Vec<u8>),
}

impl Data {
    fn of(rank: usize) -> Self {
        if rank == WITHOUT_GPU {
            return Self::Host(vec![0; SIZES[rank]]);
        }
        let cuda = Cuda::load();
        cuda.use_device(rank as i32);
        Self::Device(cuda, cuda.device(SIZES[rank]))
    }

    fn set(&mut self, bytes: &[u8]) {
        match self {
            Self::Device(cuda, address) => cuda.write(*address, bytes),
            Self::Host(own) => own.copy_from_slice(bytes),
        }
    }

    fn wipe(&mut self, bytes: usize) {
        match self {
            Self::Device(cuda, address) => cuda.wipe(*address, bytes),
            Self::Host(own) => own.fill(0xaa),
        }
    }

    fn get(&self, bytes: usize) -> Vec<u8> {
        match self {
            Self::Device(cuda, address) => cuda.read(*address, bytes),
            Self::Host(own) => own.clone(),
        }
    }
}

#[test]
#[ignore = "is started by the test above"]
fn one_rank() {
    let folder = std::path::PathBuf::from(std::env::var_os("FERMATA_TEST_FOLDER").unwrap());
    let rank: usize = std::env::var("FERMATA_TEST_RANK").unwrap().parse().unwrap();
    let content = |run: i64| noise(SIZES[rank], 10 * run as u64 + rank as u64);
    let mut data = Data::of(rank);
    let join = |number, how, data: &mut Data| join(&folder, (rank, SIZES.len()), number, how, data);
    let mut moved = Vec::new();
    let mut link = Link::of_process();
    use StageSchedule::{Greedy, LocalOnly, Optimum};
    for (run, how) in [(1, LocalOnly), (2, Greedy), (3, Optimum)] {
        let mut s = join(2 * run, how, &mut data);
        data.set(&content(i64::from(run)));
        let mut make = || s.checkpoint(i64::from(run), Level::Local).unwrap();
        // Two of its three pieces of 4 MiB leave the first GPU: to the host, or one of them to another rank's. What
        // others have stays where it is. The program is held for what the link lets pass, and no more.
        match (rank, how) {
            (0, LocalOnly) => {
                let ((), passed) = link.little_by_little(&mut make);
                assert!(passed >= 8 * MIB as u64, "{passed}");
            }
            (0, _) => link.only(4 * MIB as u64, make),
            _ => link.only(0, make),
        }
        // Nothing of it is needed any more.
        data.wipe(SIZES[rank]);
        assert!(s.status().busy || rank == WITHOUT_GPU || (rank, how) == (0, LocalOnly));
        link.open();
        s.wait(Duration::from_secs(300)).unwrap();
        let last = s.status().last.unwrap();
        moved.push((last.moved_seconds, last.predicted_seconds));
        drop(s);
        let mut s = join(2 * run + 1, how, &mut data);
        assert_eq!(s.recover().unwrap(), i64::from(run));
        assert!(data.get(SIZES[rank]) == content(i64::from(run)), "{run}");
    }
    if rank == 0 {
        assert!(moved.iter().all(|m| m.0 > 0.0), "{moved:?}");
        assert!(moved[0].1 > 2.0 * moved[2].1, "{moved:?}");
    }
    if rank == WITHOUT_GPU {
        assert!(moved.iter().all(|m| *m == (0.0, 0.0)), "{moved:?}");
    } else {
        // All ranks have the same schedule.
        assert!(moved.is_sorted_by(|a, b| a.1 >= b.1), "{moved:?}");
        assert!(moved[2].1 > 0.0, "{moved:?}");
    }
    // One rank cannot say what it needs.
    let mut s = join(100, Optimum, &mut data);
    data.set(&content(4));
    if rank == 1 {
        let gone = Mapping::new(1 << 16);
        s.protect(1, gone.memory(), BYTE).unwrap();
        drop(gone);
        let refused = s.checkpoint(4, Level::Local).unwrap_err().text();
        assert!(refused.contains("cannot be read"), "{refused}");
    } else {
        s.checkpoint(4, Level::Local).unwrap();
        s.wait(Duration::from_secs(300)).unwrap();
    }
    drop(s);
    let mut s = join(101, Optimum, &mut data);
    assert_eq!(s.recover().unwrap(), 3);
    assert!(data.get(SIZES[rank]) == content(3));
}
