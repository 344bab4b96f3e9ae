//! A device that is lost while it is copied behind the program: no image comes of it, nobody waits for ever, and the
//! program is told.

use crate::common::scene::Scene;
use crate::common::{Answer, LEGACY, Worker, hold};
use fermata_abi::op::Op;
use fermata_control::worker::{FailureKind, FromWorker, ToWorker, Validate};

/// So many that the last is not on its way when the copying is held.
const BUFFERS: u64 = 16;

#[test]
fn a_device_lost_during_cow_gives_no_image_and_the_program_is_told() {
    let hold = hold();
    // The program's first kernel is its last.
    let lose = ("FERMATA_SOFTGPU_LOSE_DEVICE", "1");
    let worker = Worker::start_with(true, &[hold.variable(), lose]);
    let (mut scene, program) = Scene::over(worker, hold, BUFFERS);
    scene.fill(&program, 1);
    let program = scene.begin(program, "image", Validate::Content);
    scene.wait_first();
    // What it would write is put aside on the device, so that it begins at once.
    program.launch_add(scene.last(), 1, 1, LEGACY);
    let synced = program.ask(&Op::StreamSync { stream: LEGACY });
    assert!(matches!(synced, Answer::Error(..)), "{synced:?}");
    let FromWorker::Failed(failure) = scene.end() else {
        panic!("an image was made of a lost device")
    };
    assert!(failure.message.contains("UNAVAILABLE"), "{failure:?}");
    assert_eq!(scene.worker.ask(ToWorker::Abandon), FromWorker::Abandoned);
    assert!(
        !std::path::Path::new(&scene.path("image"))
            .join("chunks")
            .exists()
    );
    // The worker lives, and says why there can be no other image.
    assert!(matches!(program.ask(&Op::Drain), Answer::Error(..)));
    assert_eq!(scene.worker.ask(ToWorker::Detach), FromWorker::Detached);
    drop(program);
    let (store, image) = (scene.path("store"), scene.path("image"));
    let FromWorker::Failed(failure) = scene.worker.save(&store, &image) else {
        panic!("an image was made of a lost device")
    };
    assert_eq!(failure.kind, FailureKind::DeviceLost, "{failure:?}");
}
