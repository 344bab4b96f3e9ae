//! A restore brings data in the order in which the program, going on from the checkpoint, was seen to use it.

use std::time::{Duration, Instant};

use crate::behind::{standing, wait_complete};
use crate::common::hold::COPIES;
use crate::common::scene::{CHUNK, Scene};
use crate::common::{PATIENCE, Worker, digests, hold, words};
use fermata_control::worker::{
    FromWorker, LoadCheck, Pace, PrefetchOrder, Stand, ToWorker, Validate,
};

#[test]
fn what_the_program_used_after_a_checkpoint_comes_first() {
    const USED: [usize; 2] = [17, 3];
    let (mut scene, program) = Scene::new();
    scene.fill(&program, 1);
    let program = scene.begin(program, "image", Validate::Content);
    for at in USED {
        let word = words(&program.read(scene.buffers[at], 4));
        assert_eq!(word, [at as u32 + 1]);
    }
    let saved = scene.end();
    assert!(matches!(saved, FromWorker::Saved(_)), "{saved:?}");
    scene.worker.detach(program);

    let only = hold();
    let mut worker = Worker::start_with(true, &[only.variable()]);
    let come = USED.len() as u64 * CHUNK;
    only.only(COPIES, come);
    let image = scene.path("image");
    let loaded = worker.ask(ToWorker::Load {
        store: scene.path("store").into(),
        digests: digests(&image),
        image: image.into(),
        pace: Pace::Behind(PrefetchOrder::Profile),
        check: LoadCheck::Off,
        ignore_places: false,
    });
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let until = Instant::now() + PATIENCE;
    while standing(&mut worker).done < come {
        assert!(Instant::now() < until, "nothing comes");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Nothing else can come now, so an answer says that these have.
    let program = worker.attach();
    for at in USED {
        let word = words(&program.read(scene.buffers[at], 4));
        assert_eq!(word, [at as u32 + 1]);
    }
    assert_eq!(standing(&mut worker).stand, Stand::Coming);
    only.release(COPIES);
    wait_complete(&mut worker);
    worker.detach(program);
}
