//! Costs of calls and of a checkpoint through the worker; run by hand on a GPU:
//! `FERMATA_TEST_DRIVER=.../libcuda.so.1 cargo test --release --test costs -- --ignored --nocapture`.

use std::time::Instant;

use crate::common::{Answer, CONTEXT, LEGACY, STREAM, Worker, started};
use fermata_abi::op::{Address, Op};
use fermata_control::worker::{FromWorker, LoadCheck, Pace, ToWorker};
use fermata_device::{AddressSpace, Driver, Grid, KernelLaunch, PinnedPool};

/// Median seconds of `run`, over rounds of `count`.
fn median(count: u32, mut run: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..21)
        .map(|_| {
            let start = Instant::now();
            (0..count).for_each(|_| run());
            start.elapsed().as_secs_f64() / f64::from(count)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn calls() {
    let (_worker, program) = started();
    let device = program.alloc(4096);
    let mut buffer = Vec::new();
    let mut ask =
        |op: &Op<'_>| assert_eq!(program.producer.ask(op, &mut buffer).unwrap().status, 0);
    let sync = Op::StreamSync { stream: STREAM };
    let issue = median(200, || program.launch_add(device, 1, 16, STREAM));
    ask(&sync);
    let both = median(1000, || {
        program.launch_add(device, 1, 16, STREAM);
        ask(&sync);
    });
    let idle = median(1000, || ask(&sync));
    let through = median(1, || {
        (0..2000).for_each(|_| program.launch_add(device, 1, 16, STREAM));
        ask(&sync);
    }) / 2000.0;
    let down = median(1000, || drop(program.read(device, 4)));
    let up = median(1000, || program.write(device, &[1; 4]));
    for (name, seconds) in [
        ("launch, issue", issue),
        ("launch + sync", both),
        ("sync, nothing to wait for", idle),
        ("launch, throughput", through),
        ("4 bytes down", down),
        ("4 bytes up", up),
    ] {
        println!("{name}: {:.2} us", seconds * 1e6);
    }
}

/// The same without a worker, with each way to learn that a stream is done.
#[test]
#[ignore = "a measurement"]
fn native() {
    let driver = Driver::load(&crate::common::driver()).unwrap();
    driver
        .primary_context(0, 0)
        .and_then(|context| driver.set_current(context))
        .unwrap();
    let mut space = AddressSpace::new(&driver).unwrap();
    let device = space.allocate(&driver, 0, 4096).unwrap();
    let module = driver.load_module(crate::common::PTX).unwrap();
    let function = driver.function(module, "add").unwrap();
    let stream = driver.create_stream(1, 0).unwrap();
    let event = driver.create_event(2).unwrap();
    let pinned = PinnedPool::new(&driver, 1, 4096)
        .unwrap()
        .try_take()
        .unwrap();
    let word = pinned.as_ptr().cast::<u32>();
    let mut params = device.to_le_bytes().to_vec();
    params.extend_from_slice(&[1, 0, 0, 0, 16, 0, 0, 0]);
    let size = Grid {
        grid: [1; 3],
        block: [64, 1, 1],
        shared: 0,
    };
    let launch = || {
        let launch = KernelLaunch {
            function,
            size,
            params: &params,
            attributes: &[],
        };
        driver.launch(&launch, stream).unwrap();
    };
    let down = || {
        driver
            .copy(pinned.address() + 64, device, 4, stream)
            .unwrap()
    };
    let query = || while driver.query_stream(stream).is_err() {};
    let by_event = || {
        driver.record_event(event, stream, 0).unwrap();
        while driver.query_event(event).is_err() {}
    };
    let counter = std::cell::Cell::new(0u32);
    let by_word = || {
        counter.set(counter.get() + 1);
        driver
            .write_value(stream, pinned.address(), u64::from(counter.get()), 0, false)
            .unwrap();
        // SAFETY: the word is pinned memory of this process that the device writes.
        while unsafe { word.read_volatile() } != counter.get() {}
    };
    let sync = || driver.synchronize_stream(stream).unwrap();
    let ways: [(&str, &dyn Fn()); 4] = [
        ("sync", &sync),
        ("query", &query),
        ("event", &by_event),
        ("word", &by_word),
    ];
    for (name, wait) in ways {
        let launched = median(1000, || {
            launch();
            wait();
        });
        let copied = median(1000, || {
            down();
            wait();
        });
        println!(
            "native {name}: launch {:.2} us, 4 bytes down {:.2} us",
            launched * 1e6,
            copied * 1e6
        );
    }
    let through = median(1, || {
        (0..2000).for_each(|_| launch());
        sync();
    });
    println!(
        "native launch, throughput: {:.2} us",
        through / 2000.0 * 1e6
    );
    let one = median(1000, || drop(driver.query_stream(stream)));
    println!("query of an idle stream {:.2} us", one * 1e6);
}

#[test]
#[ignore = "a measurement"]
fn checkpoint() {
    let gib: u64 = std::env::var("FERMATA_TEST_GIB")
        .ok()
        .and_then(|it| it.parse().ok())
        .unwrap_or(1);
    let folder =
        tempfile::tempdir_in(std::env::var("FERMATA_TEST_FOLDER").unwrap_or("/dev/shm".into()))
            .unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    let word_count = gib << 28;
    let base = program.alloc(gib << 30);
    // Every word differs, so that nothing is zero or stored already.
    for block in 0..(gib << 8) {
        let fill = Op::Fill {
            address: Address::from_raw(base + (block << 22)),
            pitch: 0,
            element: 4,
            value: block as u32 + 1,
            width: word_count / (gib << 8),
            height: 1,
            stream: LEGACY,
            answered: false,
        };
        program.post(&fill);
    }
    assert_eq!(
        program.ask(&Op::ContextSync { context: CONTEXT }),
        Answer::None
    );
    worker.detach(program);
    for round in 0..3 {
        let image = folder.path().join(format!("image-{round}"));
        std::fs::create_dir(&image).unwrap();
        let store = if round == 1 {
            format!("{store}-1")
        } else {
            store.clone()
        };
        let image = image.to_string_lossy().into_owned();
        let start = Instant::now();
        let FromWorker::Saved(totals) = worker.save(&store, &image) else {
            panic!("saved")
        };
        let seconds = start.elapsed().as_secs_f64();
        let rate = (gib << 30) as f64 / seconds / 1e9;
        println!(
            "save {round}: {seconds:.3} s, {rate:.1} GB/s, {} bytes written",
            totals.written_bytes
        );
    }
    drop(worker);
    let mut worker = Worker::start();
    let image = folder.path().join("image-0").to_string_lossy().into_owned();
    let start = Instant::now();
    let loaded = worker.ask(ToWorker::Load {
        store: store.into(),
        digests: crate::common::digests(&image),
        image: image.into(),
        pace: Pace::Eager,
        check: LoadCheck::Off,
        ignore_places: false,
    });
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "load: {seconds:.3} s, {:.1} GB/s",
        (gib << 30) as f64 / seconds / 1e9
    );
}
