//! More work than queues hold: nothing that waits may hold up what it waits for.

use std::time::Duration;

use crate::common::hold::MODULES;
use crate::common::{Answer, CONTEXT, LEGACY, PATIENCE, STREAM, Worker, started, words};
use fermata_abi::op::{Blob, FunctionId, ImageRef, ModuleId, Op};

/// More than a driver takes for one stream, and more than the ring of these tests holds.
const LAUNCHES: u32 = 20_000;

#[test]
fn a_callback_ends_while_queue_and_ring_are_full_behind_it() {
    let (_worker, program) = started();
    let device = program.alloc(64);
    program.write(device, &[0; 64]);
    program.post(&Op::HostCall {
        stream: STREAM,
        id: 3,
    });
    std::thread::scope(|scope| {
        scope.spawn(|| (0..LAUNCHES).for_each(|_| program.launch_add(device, 1, 16, STREAM)));
        assert_eq!(program.callback(), 3);
        // Mostly long enough for the ring to fill, if the driver's queue does; nothing is said of what is not.
        std::thread::sleep(Duration::from_millis(300));
        program.producer.callback_done();
    });
    let synced = program
        .producer
        .request(&Op::StreamSync { stream: STREAM }, None)
        .unwrap();
    assert!(synced.wait_for(PATIENCE).unwrap());
    assert_eq!(words(&program.read(device, 64)), [LAUNCHES; 16]);
}

#[test]
fn a_ring_full_of_launches_is_no_deadlock() {
    let (_worker, program) = started();
    let device = program.alloc(64);
    program.write(device, &[0; 64]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..LAUNCHES / 4 {
                    program.launch_add(device, 1, 16, LEGACY);
                    if n % 1000 == 0 {
                        assert_eq!(
                            program.ask(&Op::ContextSync { context: CONTEXT }),
                            Answer::None
                        );
                    }
                }
            });
        }
    });
    assert_eq!(words(&program.read(device, 64)), [LAUNCHES; 16]);
}

/// So many kernels that a driver takes long to load them; the software GPU as long as the test likes.
fn large_module() -> Vec<u8> {
    let text = std::str::from_utf8(crate::common::PTX).unwrap();
    let (head, kernel) = text.split_at(text.find(".visible .entry").unwrap());
    let kernels = (0..3000).map(|n| kernel.replace(" add(", &format!(" add_{n}(")));
    head.chars()
        .chain(kernels.collect::<String>().chars())
        .collect::<String>()
        .into_bytes()
}

#[test]
fn a_large_module_holds_up_only_the_thread_that_loads_it() {
    let hold = crate::common::hold();
    let soft = std::env::var_os("FERMATA_TEST_DRIVER").is_none();
    let mut worker = Worker::start_with(soft, &[hold.variable()]);
    let program = worker.attach();
    program.set_up();
    let device = program.alloc(64);
    program.write(device, &[0; 64]);
    let image = large_module();
    let staged = program.producer.stage(image.len() as u64).unwrap();
    // SAFETY: the range is as long as the image.
    unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), staged.address(), image.len()) };
    let room = program.producer.stage(1 << 20).unwrap();
    let load = Op::ModuleLoad {
        module: ModuleId::from_raw(0x700),
        context: CONTEXT,
        image: ImageRef::Blob(Blob::Staged {
            offset: staged.offset(),
            len: staged.len(),
        }),
        beside: true,
    };
    hold.only(MODULES, 0);
    let loading = program.producer.request(&load, Some(&room)).unwrap();
    program.launch_add(device, 5, 16, LEGACY);
    assert_eq!(
        program.ask(&Op::StreamSync { stream: LEGACY }),
        Answer::None
    );
    assert!(!loading.is_done(), "the launch was held up");
    hold.release(MODULES);
    // The consistent point comes after it.
    assert_eq!(program.ask(&Op::Drain), Answer::None);
    assert!(loading.is_done());
    assert_eq!(loading.wait(&mut Vec::new()).unwrap().status, 0);
    let get = Op::FunctionGet {
        function: FunctionId::from_raw(0x701),
        module: ModuleId::from_raw(0x700),
        name: "add_2999",
    };
    assert!(matches!(program.ask(&get), Answer::Function(_)));
    assert_eq!(words(&program.read(device, 64)), [5; 16]);
    // A context waits for loads into it before it goes.
    hold.only(MODULES, 0);
    let again = program
        .producer
        .request(
            &Op::ModuleLoad {
                module: ModuleId::from_raw(0x702),
                context: CONTEXT,
                image: ImageRef::Blob(Blob::Staged {
                    offset: staged.offset(),
                    len: staged.len(),
                }),
                beside: true,
            },
            Some(&room),
        )
        .unwrap();
    let destroy = Op::ContextDestroy { context: CONTEXT };
    let destroyed = program.producer.request(&destroy, None).unwrap();
    assert!(!destroyed.wait_for(Duration::from_millis(200)).unwrap());
    hold.release(MODULES);
    assert!(destroyed.wait_for(PATIENCE).unwrap());
    assert!(again.is_done());
    assert_eq!(destroyed.wait(&mut Vec::new()).unwrap().status, 0);
}
