//! Where multiprocessors lie: a program that was told finds them there after a restore, or is not restored.
use crate::common::{Answer, CONTEXT, ImageFolder, Program, Worker, digests};
use fermata_abi::op::Op;
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FailureKind, FromWorker, LoadCheck, Pace, ToWorker};

const TABLE: &str = "1734dc26-800d-4745-8726-c0f1e7dd8bca";
/// Two chips of a model.
const ONE: &str = "3,5";
const OTHER: &str = "5,3";

fn worker(places: &str) -> Worker {
    Worker::start_with(true, &[("FERMATA_SOFTGPU_PLACES", places)])
}

fn ask(program: &Program) -> Answer {
    program.ask(&Op::Places { context: CONTEXT })
}

/// What the device of [`ONE`] says.
fn of_one() -> Answer {
    Answer::Places(vec![0, 0, 0, 1, 1, 1, 1, 1], vec![0, 1, 2, 0, 1, 2, 3, 4])
}

/// An image of a program on [`ONE`], after `act`, and the memory it has.
fn image(act: impl Fn(&Program)) -> (ImageFolder, u64) {
    let mut worker = worker(ONE);
    let program = worker.attach();
    program.set_up();
    let memory = program.alloc(4096);
    program.write(memory, &[7; 4096]);
    act(&program);
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    (image, memory)
}

fn told() -> (ImageFolder, u64) {
    image(|program| assert_eq!(ask(program), of_one()))
}

/// Loads it although multiprocessors may lie elsewhere.
fn load_all_the_same(image: &ImageFolder, worker: &mut Worker) -> FromWorker {
    worker.ask(ToWorker::Load {
        store: image.path("store").into(),
        image: image.path("image").into(),
        digests: digests(&image.path("image")),
        pace: Pace::Eager,
        check: LoadCheck::Off,
        ignore_places: true,
    })
}

fn is_loaded(answer: FromWorker) -> bool {
    match answer {
        FromWorker::Loaded { .. } => true,
        other => panic!("{other:?}"),
    }
}

fn refusal(answer: FromWorker) -> String {
    match answer {
        FromWorker::Failed(failure) => {
            assert_eq!(failure.kind, FailureKind::Host, "{failure:?}");
            assert!(failure.hint.contains("--ignore-places"), "{failure:?}");
            failure.message
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_was_told_is_restored_where_they_lie_alike() {
    let (image, memory) = told();
    let mut worker = worker(ONE);
    assert!(is_loaded(image.load(&mut worker)));
    let program = worker.attach();
    assert_eq!(program.read(memory, 4096), [7; 4096]);
    assert_eq!(ask(&program), of_one());
}

#[test]
fn a_restore_where_they_lie_elsewhere_is_refused_and_leaves_the_image() {
    let (image, _) = told();
    let why = refusal(image.load(&mut worker(OTHER)));
    for part in [
        TABLE,
        "device 0 (Fermata Software GPU, GPU-",
        "lie elsewhere",
    ] {
        assert!(why.contains(part), "{why}");
    }
    // A driver that does not say where they lie is no better.
    let why = refusal(image.load(&mut worker("")));
    assert!(why.contains(TABLE) && why.contains("does not say"), "{why}");
    assert!(is_loaded(image.load(&mut worker(ONE))));
}

/// Also over a restore and another image.
#[test]
fn what_was_told_is_told_again_where_the_user_accepts_another_device() {
    let (image, _) = told();
    let mut second = worker(OTHER);
    assert!(is_loaded(load_all_the_same(&image, &mut second)));
    let program = second.attach();
    assert_eq!(ask(&program), of_one());
    second.detach(program);
    let again = ImageFolder::new();
    again.save(&mut second);
    refusal(again.load(&mut worker(OTHER)));
    assert!(is_loaded(again.load(&mut worker(ONE))));
}

#[test]
fn a_program_that_has_not_asked_is_restored_anywhere() {
    let (image, memory) = image(|_| ());
    let mut worker = worker(OTHER);
    assert!(is_loaded(image.load(&mut worker)));
    let program = worker.attach();
    assert_eq!(program.read(memory, 4096), [7; 4096]);
    assert_ne!(ask(&program), of_one());
}

/// The device has no context any more when the image is taken.
#[test]
fn what_was_told_counts_when_the_context_is_gone() {
    let (image, _) = image(|program| {
        assert_eq!(ask(program), of_one());
        let destroy = Op::ContextDestroy { context: CONTEXT };
        assert_eq!(program.ask(&destroy), Answer::None);
    });
    refusal(image.load(&mut worker(OTHER)));
    assert!(is_loaded(image.load(&mut worker(ONE))));
}

#[test]
fn a_driver_that_does_not_say_is_no_reason_to_refuse_a_restore() {
    let mut first = worker("");
    let program = first.attach();
    program.set_up();
    let none = ask(&program);
    assert!(
        matches!(none, Answer::Error(cu::CUDA_ERROR_NOT_SUPPORTED, _)),
        "{none:?}"
    );
    first.detach(program);
    let image = ImageFolder::new();
    image.save(&mut first);
    assert!(is_loaded(image.load(&mut worker(ONE))));
}
