//! A front before instances that are threads of the test: who answers what, how many, and what is left.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::{Scene, config};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

#[test]
fn the_first_request_is_cold_and_the_next_is_answered_by_the_same_instance() {
    let scene = Scene::new(config());
    let first = scene.get("/echo/1");
    assert_eq!((first.status, first.body.as_str()), (200, "/echo/1"));
    assert_eq!(first.header("fermata-start"), "cold");
    let second = scene.post("/body", b"forty-two");
    assert_eq!((second.status, second.body.as_str()), (200, "forty-two"));
    assert_eq!(second.header("fermata-start"), "warm");
    assert_eq!(
        second.header("fermata-instance"),
        first.header("fermata-instance")
    );
    let metrics = scene.get("/-/metrics").body;
    for line in [
        "requests_total{code=\"200\",function=\"f\"} 2",
        "instances{state=\"idle\",function=\"f\"} 1",
    ] {
        assert!(has(&metrics, line), "{line} is not in {metrics}");
    }
    scene.close();
}

/// Whether a line of metrics is there, whatever the order of its labels.
fn has(metrics: &str, line: &str) -> bool {
    let (name, rest) = line.split_once('{').unwrap();
    let (labels, value) = rest.split_once('}').unwrap();
    metrics.lines().any(|it| {
        it.contains(&format!("_{name}{{"))
            && it.ends_with(value)
            && labels.split(',').all(|label| it.contains(label))
    })
}

#[test]
fn requests_at_once_get_an_instance_each_up_to_the_most_and_the_others_wait() {
    let scene = Scene::new(config());
    scene.hold(true);
    std::thread::scope(|scope| {
        let requests: Vec<_> = (0..5).map(|_| scope.spawn(|| scene.get("/held"))).collect();
        // Two are answered at once, and three wait.
        scene.until(|| {
            scene.answering() == 2 && has(&scene.get("/-/metrics").body, "queue_length{} 3")
        });
        scene.hold(false);
        for request in requests {
            assert_eq!(request.join().unwrap().status, 200);
        }
    });
    assert_eq!(scene.host().started.load(Ordering::SeqCst), 2);
    assert_eq!(scene.host().most.load(Ordering::SeqCst), 2);
    scene.close();
}

#[test]
fn more_requests_than_the_queue_holds_are_told_to_come_back() {
    let mut config = config();
    (config.most, config.queue) = (1, 0);
    let scene = Scene::new(config);
    scene.hold(true);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| scene.get("/held"));
        scene.until(|| scene.answering() == 1);
        let refused = scene.get("/echo");
        assert_eq!(refused.status, 503);
        assert_eq!(refused.header("retry-after"), "1");
        assert!(refused.body.contains("busy"), "{}", refused.body);
        scene.hold(false);
        assert_eq!(held.join().unwrap().status, 200);
    });
    scene.close();
}

#[test]
fn a_request_waits_for_an_instance_no_longer_than_it_may() {
    let mut config = config();
    (config.most, config.wait) = (1, Duration::from_millis(300));
    let scene = Scene::new(config);
    // An instance is there already: its start may take longer than the test's wait.
    scene.until(|| scene.get("/echo").status == 200);
    scene.hold(true);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| scene.get("/held"));
        scene.until(|| scene.answering() == 1);
        let late = scene.get("/echo");
        assert_eq!(late.status, 503);
        assert!(late.body.contains("0.3 s"), "{}", late.body);
        scene.hold(false);
        assert_eq!(held.join().unwrap().status, 200);
    });
    scene.close();
}

#[test]
fn an_instance_that_ends_while_it_serves_is_thrown_away() {
    let scene = Scene::new(config());
    let first = scene.get("/echo");
    let broken = scene.get("/die");
    assert_eq!(broken.status, 502, "{}", broken.body);
    assert!(
        broken.body.contains(first.header("fermata-instance")),
        "{}",
        broken.body
    );
    let next = scene.get("/echo");
    assert_eq!((next.status, next.header("fermata-start")), (200, "cold"));
    assert_ne!(
        next.header("fermata-instance"),
        first.header("fermata-instance")
    );
    scene.close();
}

#[test]
fn an_instance_that_ended_while_it_was_idle_is_replaced_and_no_request_fails() {
    let scene = Scene::new(config());
    scene.get("/echo");
    scene.end_all();
    let next = scene.get("/echo");
    assert_eq!((next.status, next.header("fermata-start")), (200, "cold"));
    scene.close();
}

#[test]
fn a_request_is_repeated_when_its_instance_was_taken_back_to_its_image() {
    let scene = Scene::new(config());
    let answer = scene.post("/die-once", b"the body comes twice");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "the body comes twice")
    );
    let metrics = scene.get("/-/metrics").body;
    assert!(has(&metrics, "repeated_requests_total{} 1"), "{metrics}");
    scene.close();
}

#[test]
fn a_start_that_fails_is_told_to_its_request_alone() {
    let scene = Scene::new(config());
    scene.host().broken.store(true, Ordering::SeqCst);
    let refused = scene.get("/echo");
    assert_eq!(refused.status, 503);
    assert!(
        refused.body.contains("the image is gone"),
        "{}",
        refused.body
    );
    assert!(
        refused.body.contains("hint: make it again"),
        "{}",
        refused.body
    );
    scene.host().broken.store(false, Ordering::SeqCst);
    assert_eq!(scene.get("/echo").status, 200);
    scene.close();
}

#[test]
fn an_instance_that_takes_too_long_is_ended() {
    let mut config = config();
    config.limit = Duration::from_millis(300);
    let scene = Scene::new(config);
    scene.hold(true);
    let late = scene.get("/held");
    assert_eq!(late.status, 504, "{}", late.body);
    // So is one that stops in the middle of its answer: the client sees that it is not whole.
    let mut cut = scene.get("/half");
    let begun = Instant::now();
    // On a busy machine the first half may come too late, too.
    while cut.status == 504 && begun.elapsed() < LONG {
        cut = scene.get("/half");
    }
    assert_eq!(cut.status, 200, "{cut:?}");
    assert!(!cut.whole, "{cut:?}");
    scene.until(|| scene.host().live.load(Ordering::SeqCst) == 0);
    scene.close();
}

#[test]
fn a_client_that_does_not_read_holds_no_instance_longer_than_it_may() {
    let mut config = config();
    config.limit = Duration::from_millis(500);
    let scene = Scene::new(config);
    let silent = scene.ask_only("/large");
    scene.until(|| scene.host().large.load(Ordering::SeqCst) == 1);
    scene.until(|| scene.host().live.load(Ordering::SeqCst) == 0);
    // Nor does it keep the front from ending.
    scene.close();
    drop(silent);
}

#[test]
fn a_request_that_is_too_large_is_refused_without_an_instance() {
    let mut config = config();
    config.body = 100;
    let scene = Scene::new(config);
    let refused = scene.post("/body", &[b'x'; 101]);
    assert_eq!(refused.status, 413);
    assert_eq!(scene.host().started.load(Ordering::SeqCst), 0);
    scene.close();
}

#[test]
fn an_idle_instance_is_ended_when_its_time_is_over() {
    let mut config = config();
    config.keep = Duration::from_millis(50);
    let scene = Scene::new(config);
    assert_eq!(scene.get("/echo").status, 200);
    scene.until(|| scene.host().live.load(Ordering::SeqCst) == 0);
    scene.close();
}

#[test]
fn without_a_time_to_be_kept_every_request_gets_an_instance_of_its_own() {
    let mut config = config();
    config.keep = Duration::ZERO;
    let scene = Scene::new(config);
    let names: std::collections::BTreeSet<_> = std::thread::scope(|scope| {
        // More at once than there may be instances: those that wait get fresh ones too.
        let requests: Vec<_> = (0..5).map(|_| scope.spawn(|| scene.get("/echo"))).collect();
        let got = requests.into_iter().map(|it| it.join().unwrap());
        got.map(|got| {
            assert_eq!((got.status, got.header("fermata-start")), (200, "cold"));
            got.header("fermata-instance").to_owned()
        })
        .collect()
    });
    assert_eq!(names.len(), 5, "{names:?}");
    // Each ends when it has answered, and is not counted as lost.
    scene.until(|| scene.host().live.load(Ordering::SeqCst) == 0);
    let metrics = scene.get("/-/metrics").body;
    assert!(
        has(&metrics, "lost_instances_total{function=\"f\"} 0"),
        "{metrics}"
    );
    scene.close();
}

#[test]
fn a_front_that_is_to_end_finishes_what_is_under_way_and_leaves_no_instance() {
    let scene = Scene::new(config());
    scene.hold(true);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| scene.get("/held"));
        scene.until(|| scene.answering() == 1);
        scene.stop();
        // No connection is taken any more.
        scene.until(|| scene.is_closed());
        scene.hold(false);
        assert_eq!(held.join().unwrap().status, 200);
    });
    assert!(scene.ends_within(LONG));
    scene.close();
}

#[test]
fn a_front_that_is_told_twice_cuts_what_is_under_way() {
    let scene = Scene::new(config());
    scene.hold(true);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| scene.get("/held"));
        scene.until(|| scene.answering() == 1);
        scene.stop();
        scene.stop();
        assert_eq!(held.join().unwrap().status, 0);
        assert!(scene.ends_within(LONG));
        scene.hold(false);
    });
    scene.close();
}
