//! A program that lets go of its memory file and goes on with the same or another one.

#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fermata_wire::{Config, Consumer, Producer, Side, create, renew, staged};

fn small() -> Config {
    Config {
        ring: 4096,
        slots: 4,
        staging: 1 << 16,
    }
}

/// A new connection by a memory file: the program's side of it, and the worker.
fn attach(file: &OwnedFd) -> (Arc<Side>, Consumer) {
    let (program, worker) = Side::pair().unwrap();
    let consumer = Consumer::open(file.as_fd(), Arc::new(Side::new(worker))).unwrap();
    (Arc::new(Side::new(program)), consumer)
}

#[test]
fn a_program_tells_in_each_memory_file_how_much_it_has_staged() {
    let config = small();
    let memory = create(&config).unwrap();
    let (side, _consumer) = attach(&memory);
    let producer = Producer::open(memory.as_fd(), side).unwrap();
    assert_eq!(staged(memory.as_fd(), &config), 0);
    let first = producer.stage(1000).unwrap();
    drop(producer.stage(3000).unwrap());
    drop(first);
    drop(producer.stage(2000).unwrap());
    assert_eq!(staged(memory.as_fd(), &config), 1024 + 3008);
    producer.let_go().unwrap();
    let memory = create(&config).unwrap();
    let (side, _consumer) = attach(&memory);
    producer.enter(memory.as_fd(), side).unwrap();
    assert_eq!(staged(memory.as_fd(), &config), 1024 + 3008);
}

#[test]
fn staged_bytes_are_written_to_another_file_and_left_in_the_same() {
    let config = small();
    let memory = create(&config).unwrap();
    let (side, consumer) = attach(&memory);
    let producer = Producer::open(memory.as_fd(), side).unwrap();
    let staged = producer.stage(100).unwrap();
    let found = |consumer: &Consumer| {
        let mut bytes = [0; 100];
        let read = consumer.staging().read(staged.offset(), &mut bytes);
        read.map(|()| bytes).unwrap()
    };
    // SAFETY: the range is 100 bytes, and this thread's own.
    unsafe { staged.address().write_bytes(7, 100) };
    producer.prepare();
    producer.let_go().unwrap();
    // Not what a worker does: it shows here whether the bytes are written again.
    consumer.staging().write(staged.offset(), &[8; 50]).unwrap();
    drop(consumer);
    renew(memory.as_fd(), &config).unwrap();
    let (side, consumer) = attach(&memory);
    producer.enter(memory.as_fd(), side).unwrap();
    producer.tidy();
    assert_eq!(found(&consumer), [[8; 50], [7; 50]].concat()[..]);

    // Elsewhere they are missing; and so they are where something else has been meanwhile.
    producer.let_go().unwrap();
    let other = create(&config).unwrap();
    let (side, consumer) = attach(&other);
    producer.enter(other.as_fd(), side).unwrap();
    assert_eq!(found(&consumer), [[8; 50], [7; 50]].concat()[..]);
    consumer
        .staging()
        .write(staged.offset(), &[9; 100])
        .unwrap();
    producer.let_go().unwrap();
    renew(memory.as_fd(), &config).unwrap();
    let (side, consumer) = attach(&memory);
    producer.enter(memory.as_fd(), side).unwrap();
    assert_eq!(found(&consumer), [9; 100]);
}
