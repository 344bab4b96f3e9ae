//! Green contexts: a restore makes them again by the splits that led to them, if those give what the program was told.
use crate::common::{
    Answer, CONTEXT, FUNCTION, ImageFolder, MODULE, PTX, Program, STREAM, Worker, started,
};
use fermata_abi::op::{
    ContextId, Launch, ModuleId, Op, SM_REST, SmCut, SmQuestion, SmResource, SmSplit, StreamId,
    StreamRef,
};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::{FailureKind, FromWorker};

const GREEN: ContextId = ContextId::from_raw(0x300);
const INNER: ContextId = ContextId::from_raw(0x310);
const IN_GREEN: StreamId = StreamId::from_raw(0x320);
const IN_INNER: StreamId = StreamId::from_raw(0x330);
/// One group of 8 multiprocessors; softgpu has 16.
const ONE: SmSplit = SmSplit {
    groups: 1,
    flags: 0,
    minimum: 8,
};
/// One group of 4 of what a group has, whatever groups are multiples of.
const LOOSE: SmSplit = SmSplit {
    groups: 1,
    flags: cu::CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
    minimum: 4,
};

fn whole() -> SmResource {
    SmResource::whole(0)
}

fn part(of: &SmResource, split: SmSplit, part: u32) -> SmResource {
    of.part(split, part).unwrap()
}

fn numbers(answer: Answer) -> Vec<u64> {
    match answer {
        Answer::Bytes(bytes) => {
            let words = bytes.chunks_exact(8);
            let word = |it: &[u8]| u64::from_le_bytes(it.try_into().unwrap());
            words.map(word).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn ask(program: &Program, of: &SmResource, question: SmQuestion) -> Vec<u64> {
    let of = of.clone();
    numbers(program.ask(&Op::SmAsk { of, question }))
}

fn create(program: &Program, green: ContextId, resource: SmResource) -> Answer {
    let context = CONTEXT;
    program.ask(&Op::GreenCreate {
        green,
        context,
        resource,
    })
}

fn stream(program: &Program, stream: StreamId, green: ContextId) {
    program.post(&Op::GreenStream {
        stream,
        green,
        flags: 1,
        priority: 0,
    });
}

/// Adds to 4 KiB of words in a stream, and waits.
fn add(program: &Program, stream: StreamId, memory: u64, value: u32) -> Answer {
    let params = [
        &memory.to_le_bytes()[..],
        &value.to_le_bytes(),
        &1024u32.to_le_bytes(),
    ];
    let stream = StreamRef {
        context: CONTEXT,
        stream,
    };
    program.post(&Op::Launch {
        launch: Launch {
            function: FUNCTION,
            grid: [8, 1, 1],
            block: [128, 1, 1],
            shared: 0,
            cooperative: false,
            params: &params.concat(),
            attributes: Vec::new(),
        },
        stream,
    });
    program.ask(&Op::StreamSync { stream })
}

fn words(program: &Program, memory: u64) -> Vec<u32> {
    let bytes = program.read(memory, 4096);
    let words = bytes.chunks_exact(4);
    words
        .map(|it| u32::from_le_bytes(it.try_into().unwrap()))
        .collect()
}

/// A program with a green context of a group, one of a part of that, and streams in both.
fn scene() -> (Worker, Program, u64) {
    let (worker, program) = started();
    let memory = program.alloc(4096);
    program.write(memory, &[0; 4096]);
    let group = part(&whole(), ONE, 0);
    assert_eq!(ask(&program, &whole(), SmQuestion::Counts), [16, 8, 8]);
    let told = ask(&program, &whole(), SmQuestion::Split(ONE));
    assert_eq!(told, [8, 8, 8, 8, 8, 8]);
    assert_eq!(create(&program, GREEN, group.clone()), Answer::None);
    let told = ask(&program, &group, SmQuestion::Split(LOOSE));
    assert_eq!(told, [4, 2, 2, 4, 2, 2]);
    let inner = part(&group, LOOSE, SM_REST);
    assert_eq!(create(&program, INNER, inner), Answer::None);
    stream(&program, IN_GREEN, GREEN);
    stream(&program, IN_INNER, INNER);
    (worker, program, memory)
}

fn loaded(image: &ImageFolder, variables: &[(&str, &str)]) -> Worker {
    let mut worker = Worker::start_with(true, variables);
    match image.load(&mut worker) {
        FromWorker::Loaded { .. } => worker,
        other => panic!("{other:?}"),
    }
}

fn refusal(image: &ImageFolder, variables: &[(&str, &str)]) -> String {
    let mut worker = Worker::start_with(true, variables);
    match image.load(&mut worker) {
        FromWorker::Failed(failure) => {
            assert_eq!(failure.kind, FailureKind::Host, "{failure:?}");
            assert!(failure.hint.contains("same kind"), "{failure:?}");
            failure.message
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn green_contexts_and_their_streams_are_there_after_a_restore_and_another() {
    let (mut worker, program, memory) = scene();
    assert_eq!(add(&program, IN_GREEN, memory, 1), Answer::None);
    assert_eq!(add(&program, IN_INNER, memory, 2), Answer::None);
    worker.detach(program);
    for round in 1..=2 {
        let image = ImageFolder::new();
        image.save(&mut worker);
        worker = loaded(&image, &[]);
        let program = worker.attach();
        assert_eq!(ask(&program, &whole(), SmQuestion::Counts), [16, 8, 8]);
        for stream in [IN_GREEN, IN_INNER, STREAM.stream] {
            assert_eq!(add(&program, stream, memory, 4), Answer::None);
        }
        assert_eq!(words(&program, memory), [3 + 12 * round; 1024]);
        // As before, a handle names the one object.
        let again = create(&program, GREEN, part(&whole(), ONE, 0));
        assert!(matches!(again, Answer::Error(..)), "{again:?}");
        worker.detach(program);
    }
}

#[test]
fn a_restore_where_the_driver_splits_otherwise_is_refused_and_leaves_the_image() {
    let (mut worker, program, memory) = scene();
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    // Groups of 16 leave no rest.
    let why = refusal(&image, &[("FERMATA_SOFTGPU_GROUP", "16")]);
    assert!(why.contains("GPU 0") && why.contains("8, 8"), "{why}");
    let mut worker = loaded(&image, &[]);
    let program = worker.attach();
    assert_eq!(add(&program, IN_INNER, memory, 4), Answer::None);
    assert_eq!(words(&program, memory), [4; 1024]);
}

#[test]
fn what_the_program_was_told_counts_where_it_has_no_green_context_yet() {
    let (mut worker, program) = started();
    let question = SmQuestion::Groups {
        flags: 0,
        minimum: 1,
    };
    assert_eq!(ask(&program, &whole(), question), [2]);
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    let why = refusal(&image, &[("FERMATA_SOFTGPU_GROUP", "4")]);
    assert!(why.contains("they were 2, and would be 4"), "{why}");
    loaded(&image, &[("FERMATA_SOFTGPU_GROUP", "8")]);
}

#[test]
fn a_part_of_a_green_context_that_is_gone_can_be_had_after_a_restore() {
    let (mut worker, program, memory) = scene();
    let destroyed = program.ask(&Op::GreenDestroy { green: GREEN });
    assert_eq!(destroyed, Answer::None);
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    let mut worker = loaded(&image, &[]);
    let program = worker.attach();
    assert_eq!(add(&program, IN_INNER, memory, 4), Answer::None);
    // The program may still have the description of the other half.
    let half = part(&part(&whole(), ONE, 0), LOOSE, 0);
    assert_eq!(create(&program, GREEN, half), Answer::None);
    stream(&program, IN_GREEN, GREEN);
    assert_eq!(add(&program, IN_GREEN, memory, 1), Answer::None);
    assert_eq!(words(&program, memory), [5; 1024]);
}

#[test]
fn a_green_context_ends_with_its_streams_and_with_its_primary_context() {
    let (_worker, program, memory) = scene();
    assert_eq!(add(&program, IN_GREEN, memory, 1), Answer::None);
    let destroy = Op::GreenDestroy { green: GREEN };
    assert_eq!(program.ask(&destroy), Answer::None);
    let stream = StreamRef {
        context: CONTEXT,
        stream: IN_GREEN,
    };
    let gone = program.ask(&Op::StreamSync { stream });
    assert!(
        matches!(gone, Answer::Error(cu::CUDA_ERROR_INVALID_HANDLE, _)),
        "{gone:?}"
    );
    let again = program.ask(&destroy);
    assert!(
        matches!(again, Answer::Error(cu::CUDA_ERROR_INVALID_CONTEXT, _)),
        "{again:?}"
    );
    assert_eq!(add(&program, IN_INNER, memory, 1), Answer::None);
    assert_eq!(words(&program, memory), [2; 1024]);

    let ended = program.ask(&Op::ContextDestroy { context: CONTEXT });
    assert_eq!(ended, Answer::None);
    let unknown = program.ask(&Op::GreenDestroy { green: INNER });
    assert!(matches!(unknown, Answer::Error(..)), "{unknown:?}");
    // The driver has let go of both, so that the primary context was destroyed.
    program.set_up();
    assert_eq!(
        create(&program, INNER, part(&whole(), ONE, 0)),
        Answer::None
    );
}

#[test]
fn a_green_context_ends_when_the_work_of_its_streams_has() {
    let (_worker, program, memory) = scene();
    for _ in 0..200 {
        let stream = StreamRef {
            context: CONTEXT,
            stream: IN_GREEN,
        };
        program.post(&Op::Fill {
            address: fermata_abi::op::Address::from_raw(memory),
            pitch: 0,
            element: 4,
            value: 7,
            width: 1024,
            height: 1,
            stream,
            answered: false,
        });
    }
    program.post(&Op::StreamDestroy { stream: IN_GREEN });
    let destroyed = program.ask(&Op::GreenDestroy { green: GREEN });
    assert_eq!(destroyed, Answer::None);
    assert_eq!(words(&program, memory), [7; 1024]);
}

#[test]
fn what_no_program_can_ask_for_is_refused() {
    let (_worker, program) = started();
    let cut = |groups, parts: &[u32]| SmResource {
        device: 0,
        cuts: vec![SmCut {
            split: SmSplit { groups, ..ONE },
            parts: parts.to_vec(),
        }],
    };
    let mut deep = whole();
    deep.cuts = vec![
        SmCut {
            split: ONE,
            parts: vec![0],
        };
        1000
    ];
    let wrong = [
        cut(1, &[]),
        cut(1, &[1]),
        cut(2, &[1, 0]),
        cut(u32::MAX, &[0]),
        // Softgpu makes two groups.
        cut(4, &[3]),
        deep,
        SmResource::whole(7),
    ];
    for resource in wrong {
        let made = create(&program, GREEN, resource.clone());
        assert!(matches!(made, Answer::Error(..)), "{resource:?}: {made:?}");
    }
    let huge = SmQuestion::Split(SmSplit {
        groups: u32::MAX,
        ..ONE
    });
    let of = whole();
    let answer = program.ask(&Op::SmAsk { of, question: huge });
    assert!(matches!(answer, Answer::Error(..)), "{answer:?}");
    stream(&program, IN_GREEN, GREEN);
    let lost = add(&program, IN_GREEN, 0, 1);
    assert!(matches!(lost, Answer::Error(..)), "{lost:?}");
    // A green context of a context that is not a device's primary one.
    let other = ContextId::from_raw(0x340);
    let created = program.ask(&Op::ContextCreate {
        context: other,
        device: 0,
        flags: 0,
        primary: false,
    });
    assert_eq!(created, Answer::None);
    let made = program.ask(&Op::GreenCreate {
        green: GREEN,
        context: other,
        resource: whole(),
    });
    assert!(matches!(made, Answer::Error(..)), "{made:?}");
}

/// A restore makes green contexts where they were made, so modules before and after them are where they were.
#[test]
fn modules_around_a_green_context_are_restored() {
    let (mut worker, program) = started();
    let variable = |program: &Program, module: ModuleId| {
        let name = "total";
        program.ask(&Op::VariableGet { module, name })
    };
    assert_eq!(
        create(&program, GREEN, part(&whole(), ONE, 0)),
        Answer::None
    );
    let later = ModuleId::from_raw(0x350);
    program.load(later, PTX);
    let places = [MODULE, later].map(|it| variable(&program, it));
    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    let mut worker = loaded(&image, &[]);
    let program = worker.attach();
    assert_eq!([MODULE, later].map(|it| variable(&program, it)), places);
}
