//! Level 5 against a real server: whole checkpoints and changed blocks, in parts and at once, back on a machine
//! that has nothing else; a server that is down, slow, flaky or says no costs that level only.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::job::{node, read, start, write};
use crate::common::ranks::Threads;
use crate::common::server::{Server, Tls, config};
use crate::common::{alone, host, noise, session};
use fermata_app::{AppError, Config, ElementType, Level, ObjectConfig, Session};

const BYTE: ElementType = ElementType(1);

fn job(dir: &Path, objects: ObjectConfig) -> Session {
    session(dir, |c| set(c, &objects))
}

fn set(c: &mut Config, objects: &ObjectConfig) {
    c.object = Some(objects.clone());
    c.block_bytes = 1 << 16;
    c.background = false;
}

/// A checkpoint at level 5 that must fail; what it says.
fn refused(s: &mut Session, id: i64) -> (String, String) {
    let e = s.checkpoint(id, Level::Object).unwrap_err();
    assert_eq!(e.code(), 17, "{}", e.text());
    assert!(
        matches!(&e, AppError::Object { bucket, key, .. } if bucket == "checkpoints" && key.starts_with("site/test/rank-00000/"))
    );
    (e.text(), e.hint().unwrap().to_owned())
}

#[test]
fn checkpoints_come_back_from_the_bucket_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let (first, other) = (dir.path().join("a"), dir.path().join("b"));
    // More than two parts.
    let mut data = noise(20 << 20, 1);
    let mut s = job(&first, server.config());
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(1, Level::Object).unwrap();
    let stored = |server: &Server| server.objects().iter().map(|o| o.1).sum::<u64>();
    let full = stored(&server);
    assert!(full > 20 << 20);
    // One block in twenty has changed: that is all that is written.
    for block in (0..320).step_by(20) {
        data[block << 16] ^= 1;
    }
    s.checkpoint(2, Level::Object).unwrap();
    let more = stored(&server) - full;
    assert!((1 << 20..2 << 20).contains(&more), "{more}");
    s.wait(Duration::from_secs(300)).unwrap();
    drop(s);

    // Another machine.
    let want = data.clone();
    data.fill(0);
    let mut s = job(&other, server.config());
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 2);
    assert_eq!(s.status().recovery.unwrap().level, 5);
    assert!(data == want);
    // And it goes on there; two are kept, and what only older ones needed goes.
    for id in 3..6 {
        data.copy_from_slice(&noise(20 << 20, id as u64));
        s.checkpoint(id, Level::Object).unwrap();
    }
    s.wait(Duration::from_secs(300)).unwrap();
    let kept = stored(&server);
    assert!(kept < 43 << 20, "{kept}");
    s.finalize(true).unwrap();
    assert_eq!(stored(&server), 0, "{:?}", server.objects());
}

#[test]
fn ranks_that_lost_their_nodes_get_their_part_each() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let objects = server.config();
    let with = |c: &mut Config| c.object = Some(objects.clone());
    let steps = [(1, Level::Object), (2, Level::Object), (3, Level::Local)];
    write(dir.path(), 3, &steps, &with);
    std::fs::remove_dir_all(node(dir.path(), 1)).unwrap();
    assert_eq!(read(dir.path(), 3, &with), (2, vec![1, 5, 1]));
    for rank in 0..3 {
        std::fs::remove_dir_all(node(dir.path(), rank)).unwrap();
    }
    assert_eq!(read(dir.path(), 3, &with), (2, vec![5, 5, 5]));
}

/// More ranks and fewer, with nothing left but the bucket.
#[test]
fn another_number_of_ranks_is_refused_by_the_bucket_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let objects = server.config();
    let with = |c: &mut Config| c.object = Some(objects.clone());
    write(dir.path(), 3, &[(1, Level::Object)], &with);
    (0..3).for_each(|rank| std::fs::remove_dir_all(node(dir.path(), rank)).unwrap());
    let before = server.objects();
    for ranks in [2, 4] {
        let errors = Threads::run(ranks, |comm| start(dir.path(), comm, &with).err().unwrap());
        for e in &errors {
            let text = e.text();
            assert!(text.contains("of 3, this is rank"), "{text}");
        }
        let hint = errors[0].hint().unwrap();
        assert!(hint.contains("as many ranks as before"), "{hint}");
    }
    assert!(before == server.objects());
    assert_eq!(read(dir.path(), 3, &with), (1, vec![5, 5, 5]));
}

/// A session that has made its first checkpoint while the server was there, and will not wait long for one that is
/// not; longer on a machine on which the first would not have answered in that time. And its deadline, in seconds.
fn hasty(folder: &Path, server: &Server, background: bool, data: &mut [u8]) -> (Session, f64) {
    for deadline in [2.0, 20.0, 200.0] {
        let objects = ObjectConfig {
            deadline,
            ..server.config()
        };
        let config = crate::common::config(folder, |c| {
            set(c, &objects);
            c.background = background;
        });
        let Ok(mut s) = Session::init(config, Box::new(fermata_app::Solo)) else {
            continue;
        };
        s.protect(1, host(data), BYTE).unwrap();
        let made = s.checkpoint(1, Level::Object);
        if made.and_then(|()| s.wait(Duration::from_secs(300))).is_ok() {
            return (s, deadline);
        }
    }
    panic!("the server never answers");
}

/// A job that begins afresh while the service is away cannot know what is there: once it sees that, it does not hide
/// behind it.
#[test]
fn numbers_go_on_behind_a_bucket_that_could_not_be_seen() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("s3");
    let server = Server::start(&folder);
    let objects = server.config();
    // It waits as long at first, where there is no server.
    let hasty = ObjectConfig {
        deadline: 30.0,
        ..server.config()
    };
    let port = server.port;
    let mut data = noise(100_000, 1);
    let mut s = job(&dir.path().join("a"), objects.clone());
    s.protect(1, host(&mut data), BYTE).unwrap();
    (1..4).for_each(|id| s.checkpoint(id, Level::Object).unwrap());
    s.wait(Duration::from_secs(300)).unwrap();
    drop((s, server));
    let mut s = session(&dir.path().join("b"), |c| {
        set(c, &hasty);
        c.recover = false;
    });
    let server = Server::on(&folder, port);
    data.copy_from_slice(&noise(100_000, 2));
    s.protect(1, host(&mut data), BYTE).unwrap();
    let (text, hint) = refused(&mut s, 10);
    assert!(text.contains("checkpoint 3 of an earlier run"), "{text}");
    assert!(
        hint.contains("next checkpoint gets a higher number"),
        "{hint}"
    );
    s.checkpoint(11, Level::Object).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    drop(s);
    data.fill(0);
    let mut s = job(&dir.path().join("c"), objects);
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 11);
    assert!(data == noise(100_000, 2));
    drop(server);
}

#[test]
fn a_server_that_is_down_costs_its_level_only() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("s3");
    let server = Server::start(&folder);
    let port = server.port;
    // For what finds no server.
    let objects = ObjectConfig {
        deadline: 1.0,
        ..server.config()
    };
    let there = server.config();
    let local = dir.path().join("a");
    let mut data = noise(100_000, 1);
    let (mut s, deadline) = hasty(&local, &server, false, &mut data);
    drop(server);
    data[0] ^= 1;
    let want = data.clone();
    let (text, hint) = refused(&mut s, 2);
    let tried = format!("cannot be reached, tried for {deadline} s");
    assert!(text.contains(&tried), "{text}");
    assert!(
        hint.contains("lower levels are intact") && hint.contains("object.endpoint"),
        "{hint}"
    );
    drop(s);

    // What was refused is there at the first level, and a restart finds it without the server.
    data.fill(0);
    let mut s = job(&local, objects.clone());
    assert!(
        s.status()
            .last_failure
            .unwrap()
            .contains("cannot be reached")
    );
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 2);
    assert!(data == want);
    drop(s);
    // With nothing at the lower levels it does not begin afresh by itself.
    let folder_b = dir.path().join("b");
    let e = Session::init(
        crate::common::config(&folder_b, |c| set(c, &objects)),
        Box::new(fermata_app::Solo),
    );
    assert_eq!(e.err().unwrap().code(), 17);

    // It is back: so is the level.
    let server = Server::on(&folder, port);
    let mut s = job(&local, there);
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(3, Level::Object).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    let names = server.objects();
    assert!(
        names
            .iter()
            .any(|(path, _)| path.to_string_lossy().contains("c000000000003")),
        "{names:?}"
    );
}

#[test]
fn a_server_that_never_answers_is_given_up_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let objects = ObjectConfig {
        deadline: 1.5,
        ..config(silent.local_addr().unwrap().port())
    };
    let mut data = noise(100_000, 1);
    let mut s = session(dir.path(), |c| {
        set(c, &objects);
        c.recover = false;
    });
    s.protect(1, host(&mut data), BYTE).unwrap();
    let start = Instant::now();
    let (text, hint) = refused(&mut s, 1);
    assert!(
        start.elapsed() < Duration::from_secs(300),
        "{:?}",
        start.elapsed()
    );
    assert!(text.contains("did not answer within 1.5 s"), "{text}");
    assert!(hint.contains("object.deadline"), "{hint}");
}

/// Passes a connection on until it ends, on threads of its own.
fn pass_on(mut client: TcpStream, to: u16) {
    std::thread::spawn(move || {
        let mut server = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let (mut a, mut b) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let up = std::thread::spawn(move || {
            let _ = std::io::copy(&mut a, &mut server);
            let _ = server.shutdown(std::net::Shutdown::Write);
        });
        let _ = std::io::copy(&mut b, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Both);
        let _ = up.join();
    });
}

/// Passes connections on whose bytes stand still while it is `shut`.
fn gate(to: u16, shut: std::sync::Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let one_way = move |mut from: TcpStream, mut to: TcpStream, shut: &AtomicBool| {
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            while shut.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    };
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let server = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let (client_too, server_too) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (up, down) = (shut.clone(), shut.clone());
            std::thread::spawn(move || one_way(client, server, &up));
            std::thread::spawn(move || one_way(server_too, client_too, &down));
        }
    });
    port
}

/// The program goes on while a service takes its time, and is told later when it is gone.
#[test]
fn a_slow_server_holds_up_no_program() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let shut = std::sync::Arc::new(AtomicBool::new(false));
    let objects = ObjectConfig {
        deadline: 600.0,
        ..config(gate(server.port, shut.clone()))
    };
    let behind = |c: &mut Config| {
        set(c, &objects);
        c.background = true;
    };
    let mut data = noise(300_000, 1);
    let mut s = session(&dir.path().join("a"), behind);
    s.protect(1, host(&mut data), BYTE).unwrap();
    shut.store(true, Ordering::Release);
    // No byte reaches the service, and none comes back.
    s.checkpoint(1, Level::Object).unwrap();
    data.copy_from_slice(&noise(300_000, 2));
    assert!(s.status().busy);
    assert!(server.objects().is_empty());
    shut.store(false, Ordering::Release);
    s.wait(Duration::from_secs(300)).unwrap();
    // What is in the bucket is what the program had then.
    let mut back = vec![0; 300_000];
    let mut other = session(&dir.path().join("b"), behind);
    other.protect(1, host(&mut back), BYTE).unwrap();
    assert_eq!(other.recover().unwrap(), 1);
    assert!(back == noise(300_000, 1));
    drop((other, s));

    // One that has gone meanwhile costs its level, which is said when the checkpoint is waited for.
    let (mut s, _) = hasty(&dir.path().join("a"), &server, true, &mut data);
    drop(server);
    s.checkpoint(2, Level::Object).unwrap();
    let e = s.wait(Duration::from_secs(300)).unwrap_err();
    assert_eq!(e.code(), 17, "{}", e.text());
    assert_eq!(s.status().failed, 1);
    s.checkpoint(3, Level::Local).unwrap();
    s.wait(Duration::from_secs(300)).unwrap();
    data.fill(0);
    assert_eq!(s.recover().unwrap(), 3);
    assert!(data == noise(300_000, 2));
}

/// A rank's part of the newest checkpoint is not in the bucket: all take the one before.
#[test]
fn all_ranks_take_the_newest_that_the_bucket_has_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let objects = server.config();
    let with = |c: &mut Config| c.object = Some(objects.clone());
    write(
        dir.path(),
        3,
        &[(1, Level::Object), (2, Level::Object)],
        &with,
    );
    (0..3).for_each(|rank| std::fs::remove_dir_all(node(dir.path(), rank)).unwrap());
    let mut gone = 0;
    for (path, _) in server.objects() {
        let text = path.to_string_lossy().into_owned();
        if text.contains("rank-00002") && text.contains("c000000000002") {
            std::fs::remove_file(path).unwrap();
            gone += 1;
        }
    }
    assert!(gone > 0, "{:?}", server.objects());
    assert_eq!(read(dir.path(), 3, &with), (1, vec![5, 5, 5]));
}

/// Passes connections on, but every third one is cut at once and every fifth is answered with 503.
fn flaky(to: u16) -> (u16, std::sync::Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = std::sync::Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let number = count.fetch_add(1, Ordering::Relaxed) + 1;
            if number.is_multiple_of(3) {
                continue;
            }
            if number.is_multiple_of(5) {
                let mut request = [0; 1 << 16];
                let _ = client.read(&mut request);
                let _ = client.write_all(
                    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                );
                continue;
            }
            pass_on(client, to);
        }
    });
    (port, seen)
}

#[test]
fn a_flaky_network_is_got_over() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let (port, seen) = flaky(server.port);
    let local = dir.path().join("a");
    let mut data = noise(30 << 20, 1);
    // A connection is used again as long as it lives, so every session meets a few.
    for id in 1..5 {
        let mut s = job(&local, config(port));
        data[0] ^= 1;
        s.protect(1, host(&mut data), BYTE).unwrap();
        s.checkpoint(id, Level::Object).unwrap();
    }
    let want = data.clone();
    std::fs::remove_dir_all(&local).unwrap();
    let mut s = job(&local, config(port));
    data.fill(0);
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 4);
    assert!(data == want);
    assert!(seen.load(Ordering::Relaxed) > 10);
}

#[test]
fn who_may_not_and_what_is_not_there_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let mut data = noise(1000, 1);
    let mut attempt = |objects: ObjectConfig| {
        let mut s = session(&dir.path().join("a"), |c| {
            set(c, &objects);
            c.recover = false;
        });
        s.protect(1, host(&mut data), BYTE).unwrap();
        let e = s.checkpoint(1, Level::Object).unwrap_err();
        (e.text(), e.hint().unwrap().to_owned())
    };
    let wrong = Some(("fermata".to_owned(), fermata_app::Secret("not it".into())));
    let (text, hint) = attempt(ObjectConfig {
        keys: wrong,
        ..server.config()
    });
    assert!(text.contains("SignatureDoesNotMatch"), "{text}");
    assert!(
        !text.contains("Signature=") && !text.contains("not it"),
        "{text}"
    );
    assert!(hint.contains("AWS_SECRET_ACCESS_KEY"), "{hint}");
    let (text, hint) = attempt(ObjectConfig {
        bucket: "elsewhere".into(),
        ..server.config()
    });
    assert!(
        text.contains("NoSuchBucket") && text.contains("`elsewhere`"),
        "{text}"
    );
    assert!(hint.contains("make the bucket"), "{hint}");
    let bad = ObjectConfig {
        endpoint: Some("nonsense".into()),
        ..server.config()
    };
    let e = Session::init(
        crate::common::config(&dir.path().join("a"), |c| set(c, &bad)),
        Box::new(fermata_app::Solo),
    );
    let text = e.err().unwrap().text();
    assert!(text.contains("the endpoint is `nonsense`"), "{text}");
}

/// Says that it is full while `full` is set, and passes connections on when it is not.
fn full(to: u16, full: std::sync::Arc<AtomicBool>) -> (u16, std::sync::Arc<AtomicUsize>) {
    const SAID: &[u8] =
        b"<Error><Code>XMinioStorageFull</Code><Message>no free space</Message></Error>";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = std::sync::Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            if !full.load(Ordering::Relaxed) {
                pass_on(client, to);
                continue;
            }
            count.fetch_add(1, Ordering::Relaxed);
            let mut request = [0; 1 << 16];
            let _ = client.read(&mut request);
            let head = format!(
                "HTTP/1.1 507 Insufficient Storage\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                SAID.len()
            );
            let _ = client.write_all(&[head.as_bytes(), SAID].concat());
        }
    });
    (port, asked)
}

#[test]
fn a_full_bucket_costs_one_checkpoint_of_its_level() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let is_full = std::sync::Arc::new(AtomicBool::new(true));
    let (port, asked) = full(server.port, is_full.clone());
    let local = dir.path().join("a");
    let mut data = noise(2000, 1);
    let want = data.clone();
    let mut s = session(&local, |c| {
        set(c, &config(port));
        c.recover = false;
    });
    s.protect(1, host(&mut data), BYTE).unwrap();
    let (text, hint) = refused(&mut s, 1);
    assert!(
        text.contains("507 XMinioStorageFull: no free space"),
        "{text}"
    );
    assert!(hint.contains("free some space in the bucket"), "{hint}");
    // Asking again and again does not help.
    assert!(asked.load(Ordering::Relaxed) < 4, "{asked:?}");
    drop(s);
    // It is there at the first level.
    is_full.store(false, Ordering::Relaxed);
    let mut s = job(&local, config(port));
    data.fill(0);
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 1);
    assert!(data == want);
    // There is room again: the next one is in the bucket, and comes back from it alone.
    s.checkpoint(2, Level::Object).unwrap();
    drop(s);
    std::fs::remove_dir_all(&local).unwrap();
    data.fill(0);
    let mut s = job(&local, config(port));
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 2);
    assert!(data == want);
}

#[test]
fn a_service_behind_tls_must_be_one_that_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let tls = Tls::start(dir.path(), server.port);
    let port = ("FERMATA_TEST_PORT", tls.port.to_string());
    let trusted = tls.certificate.to_str().unwrap().to_owned();
    alone(
        "objects::over_tls",
        dir.path(),
        &[port.clone(), ("SSL_CERT_FILE", trusted)],
    );
    alone("objects::over_tls_of_a_stranger", dir.path(), &[port]);
}

fn tls_config() -> ObjectConfig {
    let port = std::env::var("FERMATA_TEST_PORT").unwrap();
    ObjectConfig {
        endpoint: Some(format!("https://127.0.0.1:{port}")),
        ..config(0)
    }
}

fn test_folder() -> std::path::PathBuf {
    std::env::var_os("FERMATA_TEST_FOLDER").unwrap().into()
}

#[test]
#[ignore = "is started by the test above"]
fn over_tls() {
    let mut data = noise(9 << 20, 1);
    let want = data.clone();
    let mut s = job(&test_folder().join("a"), tls_config());
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(1, Level::Object).unwrap();
    drop(s);
    data.fill(0);
    let mut s = job(&test_folder().join("b"), tls_config());
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 1);
    assert!(data == want);
}

#[test]
#[ignore = "is started by the test above"]
fn over_tls_of_a_stranger() {
    let mut data = noise(1000, 1);
    let mut s = session(&test_folder().join("c"), |c| {
        set(c, &tls_config());
        c.recover = false;
    });
    s.protect(1, host(&mut data), BYTE).unwrap();
    let (text, hint) = refused(&mut s, 1);
    assert!(text.contains("certificate"), "{text}");
    assert!(hint.contains("SSL_CERT_FILE"), "{hint}");
}

#[test]
fn damage_in_the_bucket_is_found_and_an_older_checkpoint_used() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("s3"));
    let local = dir.path().join("a");
    let mut data = noise(200_000, 1);
    let first = data.clone();
    let mut s = job(&local, server.config());
    s.protect(1, host(&mut data), BYTE).unwrap();
    s.checkpoint(1, Level::Object).unwrap();
    data.copy_from_slice(&noise(200_000, 2));
    s.checkpoint(2, Level::Object).unwrap();
    drop(s);
    let objects = server.objects();
    let pack = objects
        .iter()
        .find(|(path, _)| path.to_string_lossy().contains("p000000000002"));
    let path = &pack.unwrap().0;
    let mut bytes = std::fs::read(path).unwrap();
    bytes[70_000] ^= 1;
    std::fs::write(path, bytes).unwrap();
    std::fs::remove_dir_all(&local).unwrap();
    let mut s = job(&local, server.config());
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 1);
    assert!(data == first);
    // What could not be read is not what the next checkpoint refers to.
    data.copy_from_slice(&noise(200_000, 2));
    s.checkpoint(3, Level::Object).unwrap();
    drop(s);
    std::fs::remove_dir_all(&local).unwrap();
    data.fill(0);
    let mut s = job(&local, server.config());
    s.protect(1, host(&mut data), BYTE).unwrap();
    assert_eq!(s.recover().unwrap(), 3);
    assert!(data == noise(200_000, 2));
}
