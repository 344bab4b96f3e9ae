//! Level 5 in jobs of several ranks: what they have alike is put into the bucket once and once only, stays as long as
//! one of them needs it, and comes back, whatever rank dies or is refused between any two requests.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::job::{BYTE, node, start};
use crate::common::processes::Processes;
use crate::common::proxy::{Verdict, proxy};
use crate::common::ranks::Threads;
use crate::common::server::{Server, config};
use crate::common::{host, inner, noise};
use fermata_app::{Comm, Config, Level, ObjectConfig, Session};

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(300);

/// What a rank has at a step.
type Content<'c> = &'c (dyn Fn(u32, u64) -> Vec<u8> + Sync);

/// A job of some ranks and its bucket.
struct Job<'j> {
    dir: &'j Path,
    name: &'static str,
    ranks: u32,
    objects: ObjectConfig,
    /// Whether ranks can agree behind the program.
    beside: bool,
}

impl<'j> Job<'j> {
    fn new(dir: &'j Path, server: &Server, ranks: u32) -> Self {
        Self {
            dir,
            name: "test",
            ranks,
            objects: server.config(),
            beside: true,
        }
    }

    fn run<T: Send>(&self, work: impl Fn(u32, Session) -> T + Sync) -> Vec<T> {
        let with = |c: &mut Config| {
            c.name = self.name.into();
            c.object = Some(self.objects.clone());
        };
        let one = |comm: Threads| {
            let rank = comm.rank();
            work(rank, start(self.dir, comm, &with).unwrap())
        };
        match self.beside {
            true => Threads::run_beside(self.ranks, one),
            false => Threads::run(self.ranks, one),
        }
    }

    /// Makes a checkpoint of each of these steps, on all ranks.
    fn write(&self, steps: impl Iterator<Item = u64> + Clone + Sync, content: Content<'_>) {
        self.run(|rank, mut s| {
            for step in steps.clone() {
                let mut data = content(rank, step);
                s.protect(1, host(&mut data), BYTE).unwrap();
                s.checkpoint(step as i64, Level::Object).unwrap();
                s.wait(PATIENCE).unwrap();
            }
        });
    }

    /// All nodes are lost: every rank's data comes back from the bucket alone. The step.
    fn read(&self, content: Content<'_>) -> u64 {
        for rank in 0..self.ranks {
            let _ = std::fs::remove_dir_all(node(self.dir, rank).join(self.name));
        }
        let steps = self.run(|rank, mut s| {
            let mut back = vec![0; content(rank, 1).len()];
            s.protect(1, host(&mut back), BYTE).unwrap();
            let step = s.recover().unwrap() as u64;
            assert_eq!(s.status().recovery.unwrap().level, 5);
            assert!(back == content(rank, step), "rank {rank}, step {step}");
            step
        });
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
        steps[0]
    }
}

/// The packs in the bucket, and their bytes.
fn packs(server: &Server) -> Vec<(PathBuf, u64)> {
    let mut all = server.objects();
    all.retain(|(path, _)| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with('p')
    });
    all
}

/// How many ranks' checkpoints are in the bucket.
fn checkpoints(server: &Server) -> usize {
    server.objects().len() - packs(server).len()
}

fn bytes(server: &Server) -> usize {
    packs(server).iter().map(|pack| pack.1 as usize).sum()
}

/// The same on all ranks, but for the first block.
fn replica(rank: u32, step: u64) -> Vec<u8> {
    let mut data = noise(2 * MIB, 1);
    data[..100].copy_from_slice(&noise(100, 1000 * step + u64::from(rank)));
    data
}

#[test]
fn replicas_are_in_the_bucket_once() {
    for ranks in 2..=4 {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(&dir.path().join("s3"));
        let job = Job::new(dir.path(), &server, ranks);
        job.write(1..2, &replica);
        // A block for each rank, and the rest once; each rank has put some of it.
        let blocks = |n: u32| n as usize * 16_384;
        let full = bytes(&server);
        assert_eq!(full, 2 * MIB - blocks(1) + blocks(ranks));
        let put = packs(&server);
        assert_eq!(put.len(), ranks as usize, "{put:?}");
        let least = put.iter().map(|pack| pack.1 as usize).min().unwrap();
        assert!(least > full / ranks as usize / 2, "{put:?}");
        // Only what has changed goes there, also after a restart.
        job.write(2..3, &replica);
        assert_eq!(bytes(&server), full + blocks(ranks));
        assert_eq!(job.read(&replica), 2);
        // After all nodes are lost, too.
        job.write(3..4, &replica);
        assert_eq!(bytes(&server), full + blocks(2 * ranks));
        // One of them alone has what it needs there.
        std::fs::remove_dir_all(node(dir.path(), 1)).unwrap();
        let levels = job.run(|rank, mut s| {
            let mut back = vec![0; 2 * MIB];
            s.protect(1, host(&mut back), BYTE).unwrap();
            assert_eq!(s.recover().unwrap(), 3);
            assert!(back == replica(rank, 3), "rank {rank}");
            s.status().recovery.unwrap().level
        });
        let want: Vec<u8> = (0..ranks).map(|r| if r == 1 { 5 } else { 1 }).collect();
        assert_eq!(levels, want);
        assert_eq!(job.read(&replica), 3);
        job.run(|_, s| s.finalize(true).unwrap());
        assert!(server.objects().is_empty(), "{:?}", server.objects());
    }
}

/// Without a channel on which ranks can agree behind the program each puts its own; both ways go together.
#[test]
fn ranks_that_cannot_agree_put_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let mut job = Job::new(dir.path(), &server, 3);
    let mut step = 0;
    for beside in [true, false, false, true, true, false] {
        job.beside = beside;
        step += 1;
        job.write(step..step + 1, &replica);
        assert_eq!(job.read(&replica), step);
    }
    job.write(7..12, &replica);
    assert_eq!(job.read(&replica), 11);
    // Each rank has all of the 127 blocks, and the first blocks of two steps are in their packs; the others' are those
    // of three steps.
    assert_eq!(bytes(&server), (3 * 127 + 2 * 3 + 3 * 3) * 16_384);
}

/// What one rank has put and only another one still has.
#[test]
fn what_another_rank_needs_stays_and_what_nobody_needs_goes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let job = Job::new(dir.path(), &server, 2);
    // From the second step on the first rank has something new each time, and the other one goes on with the old.
    let parted = |rank, step| match (rank, step) {
        (0, 2..) => noise(MIB, step),
        (_, 30..) => noise(MIB, 30),
        _ => noise(MIB, 1),
    };
    job.write(1..2, &parted);
    let first = packs(&server);
    assert_eq!(bytes(&server), MIB);
    job.write(2..8, &parted);
    let there = packs(&server);
    assert!(first.iter().all(|pack| there.contains(pack)), "{there:?}");
    // Two are kept, the newest is not known yet to be there on all ranks, and the old one that is needed.
    assert_eq!(bytes(&server), 4 * MIB);
    job.write(8..10, &parted);
    assert_eq!(job.read(&parted), 9);
    // Nobody needs it any more.
    job.write(30..34, &parted);
    let there = packs(&server);
    assert!(first.iter().all(|pack| !there.contains(pack)), "{there:?}");
    assert_eq!(job.read(&parted), 33);
    assert_eq!(bytes(&server), 4 * MIB);
}

/// Ranks exchange what they have, and one gets what another had all along.
#[test]
fn what_moves_between_ranks_is_not_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let job = Job::new(dir.path(), &server, 3);
    let moves = |rank, step| match step {
        1 => noise(MIB, u64::from(rank)),
        2 => noise(MIB, u64::from((rank + 1) % 3)),
        _ => noise(MIB, 0),
    };
    job.write(1..2, &moves);
    assert_eq!(bytes(&server), 3 * MIB);
    job.write(2..3, &moves);
    assert_eq!(bytes(&server), 3 * MIB);
    assert_eq!(job.read(&moves), 2);
    job.write(3..4, &moves);
    assert_eq!(bytes(&server), 3 * MIB);
    job.write(4..7, &moves);
    assert_eq!(bytes(&server), MIB);
    assert_eq!(job.read(&moves), 6);
}

/// What is still needed of a pack is less than half of it.
#[test]
fn a_pack_of_which_little_is_needed_goes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let job = Job::new(dir.path(), &server, 2);
    let changed = 45 * 16_384;
    let partly = |_, step| {
        let mut data = noise(MIB, 1);
        if step > 1 {
            data[..changed].copy_from_slice(&noise(changed, 2));
        }
        data
    };
    job.write(1..2, &partly);
    job.write(2..3, &partly);
    assert_eq!(bytes(&server), 2 * MIB);
    assert_eq!(job.read(&partly), 2);
    job.write(3..7, &partly);
    assert_eq!(bytes(&server), MIB);
    assert_eq!(job.read(&partly), 6);
}

/// Jobs of different names know nothing of each other's objects.
#[test]
fn two_jobs_in_one_bucket_leave_each_other_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let one = Job::new(dir.path(), &server, 2);
    let other = Job {
        name: "test-2",
        ..Job::new(dir.path(), &server, 2)
    };
    one.write(1..2, &replica);
    let of_one = packs(&server);
    std::thread::scope(|scope| {
        scope.spawn(|| one.write(2..7, &replica));
        scope.spawn(|| other.write(1..6, &replica));
    });
    assert_eq!((one.read(&replica), other.read(&replica)), (6, 5));
    other.run(|_, s| s.finalize(true).unwrap());
    let there = packs(&server);
    assert!(of_one.iter().all(|pack| there.contains(pack)));
    assert_eq!(one.read(&replica), 6);
}

/// A part of the newest checkpoint is gone, and one of the packs of another rank.
#[test]
fn a_checkpoint_that_is_not_whole_is_no_beginning_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let job = Job::new(dir.path(), &server, 3);
    job.write(1..3, &replica);
    for (path, _) in server.objects() {
        let text = path.to_string_lossy().into_owned();
        let second = text.contains("p000000000002") && text.contains("rank-00000");
        if second || text.contains("rank-00001/c000000000002") {
            std::fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(job.read(&replica), 1);
    job.write(2..3, &replica);
    assert_eq!(job.read(&replica), 2);
    job.write(3..7, &replica);
    assert_eq!(job.read(&replica), 6);
}

/// A rank is refused from any of its requests on that change something: all ranks are told, what is older is whole, and
/// so is what comes next.
#[test]
fn a_rank_that_is_refused_costs_one_checkpoint_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let all = |_, step| noise(200_000, step);
    let job = Job::new(dir.path(), &server, 3);
    job.write(1..3, &all);
    let mut step = 2;
    for allowed in 0.. {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let refusing = proxy(server.port, move || {
            match count.fetch_add(1, Ordering::AcqRel) < allowed {
                true => Verdict::Pass,
                false => Verdict::Refuse,
            }
        });
        step += 1;
        let before = checkpoints(&server);
        let with = |c: &mut Config| c.object = Some(job.objects.clone());
        let errors = Threads::run_beside(3, |comm| {
            let rank = comm.rank();
            let refused = |c: &mut Config| {
                c.object = Some(config(refusing));
            };
            let mut s = match rank {
                1 => start(dir.path(), comm, &refused),
                _ => start(dir.path(), comm, &with),
            }
            .unwrap();
            let mut data = all(rank, step);
            s.protect(1, host(&mut data), BYTE).unwrap();
            let made = s.checkpoint(step as i64, Level::Object);
            made.and_then(|()| s.wait(PATIENCE)).err()
        });
        if allowed == 0 {
            // Nobody refers to what it could not put.
            assert_eq!(checkpoints(&server), before);
        }
        let found = job.read(&all);
        let made = errors.iter().filter(|e| e.is_none()).count();
        match made {
            // An old one that could not be removed goes the next time.
            3 => assert_eq!(found, step),
            0 => assert_eq!(found, step - 1),
            _ => panic!("{errors:?}"),
        }
        if made == 0 {
            let told = |e: &Option<fermata_app::AppError>| e.as_ref().unwrap().text();
            assert!(told(&errors[0]).contains("rank 1"), "{errors:?}");
            assert!(told(&errors[1]).contains("403"), "{errors:?}");
            // The next attempt has the number after it.
            job.write(step..step + 1, &all);
            assert_eq!(job.read(&all), step);
        }
        if asked.load(Ordering::Acquire) <= allowed {
            assert!(allowed >= 2, "a rank has asked for {allowed} things only");
            break;
        }
    }
    job.write(step + 1..step + 5, &all);
    assert!(bytes(&server) < 4 * 200_000, "{:?}", packs(&server));
}

/// A service that never answers what would change it.
#[test]
fn a_service_that_is_away_costs_its_level_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let mut job = Job::new(dir.path(), &server, 3);
    job.write(1..2, &replica);
    let there = server.objects();
    job.objects = ObjectConfig {
        deadline: 1.0,
        ..config(proxy(server.port, || Verdict::Drop))
    };
    job.run(|rank, mut s| {
        let mut data = replica(rank, 2);
        s.protect(1, host(&mut data), BYTE).unwrap();
        let made = s.checkpoint(2, Level::Object);
        made.and_then(|()| s.wait(PATIENCE)).unwrap_err();
        data.fill(0);
        assert_eq!(s.recover().unwrap(), 2);
        assert_eq!(s.status().recovery.unwrap().level, 1);
        assert!(data == replica(rank, 2), "rank {rank}");
    });
    assert!(server.objects() == there);
    job.objects = server.config();
    job.write(3..4, &replica);
    assert_eq!(job.read(&replica), 3);
}

const RANKS: u32 = 3;

/// What the ranks of the test below have: half is the same everywhere.
fn shared_half(rank: u32, step: u64) -> Vec<u8> {
    let half = noise(150_000, step);
    [half, noise(150_000, 100 * step + u64::from(rank))].concat()
}

/// One rank of three is killed before each of its requests that write or remove something.
#[test]
fn a_rank_that_is_killed_between_two_puts_takes_nothing_older_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let (mut found, mut attempt) = (0, 0);
    for victim in [0, 2] {
        for allowed in 0.. {
            attempt += 1;
            let pid = Arc::new(AtomicU32::new(0));
            let (asked, to_kill) = (AtomicUsize::new(0), Arc::clone(&pid));
            let deadly = proxy(server.port, move || {
                if asked.fetch_add(1, Ordering::AcqRel) < allowed {
                    return Verdict::Pass;
                }
                while to_kill.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                // SAFETY: it is a child that nobody has waited for yet, as its request is not answered.
                unsafe { libc::kill(to_kill.load(Ordering::Acquire) as i32, libc::SIGKILL) };
                Verdict::Drop
            });
            let folder = dir.path().join(format!("attempt-{attempt}"));
            std::fs::create_dir_all(&folder).unwrap();
            let mut children: Vec<_> = (0..RANKS)
                .map(|rank| {
                    let port = if rank == victim { deadly } else { server.port };
                    let settings = [
                        ("FERMATA_TEST_RANK", rank.to_string()),
                        ("FERMATA_TEST_PORT", port.to_string()),
                        ("FERMATA_TEST_OLDEST", found.to_string()),
                    ];
                    let mut child = inner("replicas::one_of_three", &folder, &settings);
                    let out = std::fs::File::create(folder.join(format!("out-{rank}"))).unwrap();
                    child.stdout(out.try_clone().unwrap()).stderr(out);
                    let child = child.spawn().unwrap();
                    if rank == victim {
                        pid.store(child.id(), Ordering::Release);
                    }
                    child
                })
                .collect();
            let ended: Vec<_> = children.iter_mut().map(|c| c.wait().unwrap()).collect();
            let said =
                |rank: u32| std::fs::read_to_string(folder.join(format!("out-{rank}"))).unwrap();
            let all: String = (0..RANKS).map(said).collect();
            // What it came back with is right, or its process would have said otherwise.
            let steps: Vec<u64> = all
                .lines()
                .filter_map(|line| line.strip_prefix("recovered ")?.parse().ok())
                .collect();
            assert_eq!(steps.len(), RANKS as usize, "{all}");
            assert!(steps.iter().all(|s| *s == steps[0] && *s >= found), "{all}");
            found = steps[0];
            std::fs::remove_dir_all(&folder).unwrap();
            if ended[victim as usize].signal() == Some(libc::SIGKILL) {
                continue;
            }
            assert!(ended.iter().all(|e| e.success()), "{all}");
            assert!(allowed > 3, "it was killed {allowed} times only");
            break;
        }
    }
    // Undisturbed checkpoints leave nothing of all that but the last few.
    let job = Job::new(dir.path(), &server, RANKS);
    let steps = found + 100..found + 105;
    job.write(steps, &shared_half);
    assert_eq!(job.read(&shared_half), found + 104);
    let one = 4 * 150_000;
    assert!(bytes(&server) < 4 * one, "{:?}", packs(&server));
}

#[test]
#[ignore = "is started by the test above"]
fn one_of_three() {
    let setting = |name: &str| std::env::var(name).unwrap();
    let folder = PathBuf::from(setting("FERMATA_TEST_FOLDER"));
    let rank: u32 = setting("FERMATA_TEST_RANK").parse().unwrap();
    let sockets = folder.join("sockets");
    std::fs::create_dir_all(&sockets).unwrap();
    let comm = Processes::meet_beside(&sockets, rank, RANKS);
    let objects = config(setting("FERMATA_TEST_PORT").parse().unwrap());
    let with = |c: &mut Config| {
        c.object = Some(objects.clone());
        c.block_bytes = 16_384;
    };
    let config = crate::common::config(&folder.join(format!("node-{rank}")), with);
    let mut s = Session::init(config, Box::new(comm)).unwrap();
    let mut data = vec![0; 300_000];
    s.protect(1, host(&mut data), BYTE).unwrap();
    let newest = match setting("FERMATA_TEST_OLDEST").as_str() {
        "0" if s.status().recoverable.is_none() => 0,
        _ => s.recover().unwrap() as u64,
    };
    assert!(newest == 0 || data == shared_half(rank, newest));
    println!("recovered {newest}");
    // With the second one old ones are removed.
    for step in newest + 1..newest + 3 {
        data.copy_from_slice(&shared_half(rank, step));
        s.checkpoint(step as i64, Level::Object).unwrap();
        s.wait(PATIENCE).unwrap();
    }
    println!("complete");
}
