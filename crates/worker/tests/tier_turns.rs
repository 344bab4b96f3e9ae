//! The registered tier follows its store: images that come and go, packs that go while they are registered.

use std::time::{Duration, Instant};

use crate::common::hold::REGISTERS;
use crate::common::place::{Place, keep};
use crate::common::{PATIENCE, Worker};
use fermata_control::worker::{FromWorker, Tier, TierState};

/// Waits until the worker's tier is as it should be.
fn soon(worker: &mut Worker, place: &Place, limit: u64, wanted: impl Fn(&Tier) -> bool) -> Tier {
    let until = Instant::now() + PATIENCE;
    loop {
        let tier = keep(worker, place, limit);
        if wanted(&tier) {
            return tier;
        }
        assert!(Instant::now() < until, "{tier:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn images_made_and_removed_in_turn_find_registered_memory() {
    const LIMIT: u64 = 40 << 20;
    let place = Place::new();
    // The one serves, the other waits for a program.
    let mut worker = Worker::start_with(false, &[]);
    let mut spare = Worker::start_with(false, &[]);
    let mut address = 0;
    for turn in 1..=5 {
        place.ready(turn, 32 << 20);
        for worker in [&mut worker, &mut spare] {
            let tier = soon(worker, &place, LIMIT, |it| it.ready == 32 << 20);
            assert!(tier.registered <= LIMIT, "{tier:?}");
        }
        let program = worker.attach();
        if turn == 1 {
            program.set_up();
            address = program.alloc(17 << 20);
        }
        program.write(address, &[turn; 5000]);
        for mib in 0..17 {
            program.write(address + (mib << 20), &[turn, mib as u8]);
        }
        worker.detach(program);
        let image = place.image(&format!("image-{turn}"));
        let answer = worker.save(&place.store(), &image);
        assert!(matches!(answer, FromWorker::Saved(_)), "{answer:?}");
        assert_eq!(place.open().ready_bytes(), 0, "the ready pack was used");
        // What is published is registered in both; then it goes, and nothing of it stays.
        soon(&mut spare, &place, LIMIT, |it| {
            it.registered > 0 && it.ready == 0 && it.state == TierState::Complete
        });
        place.remove(&image);
        for worker in [&mut worker, &mut spare] {
            soon(worker, &place, LIMIT, |it| it.registered == 0);
        }
    }
}

#[test]
fn packs_that_go_while_they_are_registered_are_no_trouble() {
    let (place, hold) = (Place::new(), crate::common::hold());
    let mut worker = Worker::start_with(false, &[hold.variable()]);
    for turn in 0..3 {
        // The first are there, and the next is under way when they go.
        hold.only(REGISTERS, 1300 << 20);
        for number in 0..40 {
            place.ready_hollow(turn * 41 + number, 640 << 20);
        }
        soon(&mut worker, &place, 1 << 40, |it| {
            it.registered >= 640 << 20 && it.missing > 0 && it.state == TierState::Registering
        });
        let ready = std::path::PathBuf::from(place.store()).join("ready");
        std::fs::remove_dir_all(ready).unwrap();
        place.ready(turn * 41 + 40, 1 << 20);
        hold.release(REGISTERS);
        let tier = soon(&mut worker, &place, 1 << 40, |it| {
            (it.state, it.ready, it.missing) == (TierState::Complete, 1 << 20, 0)
        });
        assert_eq!((tier.registered, tier.trouble), (1 << 20, String::new()));
    }
}

#[test]
fn a_full_tier_says_so_until_there_is_room() {
    const LIMIT: u64 = 8 << 20;
    let place = Place::new();
    let mut worker = Worker::start_with(false, &[]);
    place.ready(1, 6 << 20);
    place.ready(2, 6 << 20);
    let tier = soon(&mut worker, &place, LIMIT, |it| it.state == TierState::Full);
    assert_eq!((tier.ready, tier.missing), (6 << 20, 6 << 20));
    // One of them goes; whichever was registered, the other is there then.
    let ready = std::path::PathBuf::from(place.store()).join("ready");
    std::fs::remove_file(ready.join(format!("{:032x}.pack", 1))).unwrap();
    soon(&mut worker, &place, LIMIT, |it| {
        (it.state, it.ready, it.missing) == (TierState::Complete, 6 << 20, 0)
    });
}
