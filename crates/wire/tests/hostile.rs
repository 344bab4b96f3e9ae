//! A program that writes nonsense: the worker gets an error, never a panic, never an endless loop.

#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fermata_abi::op::{EventId, Op};
use fermata_wire::{Config, Consumer, Event, Producer, Side, WireError, create};
use proptest::prelude::*;

const SMALL: Config = Config {
    ring: 4096,
    slots: 4,
    staging: 1 << 16,
};
const HEAD: u64 = 0x100;
const RING: u64 = 4096;
const CALLBACKS_RUN: u64 = 0x280;
const CALLBACKS_ASKED: u64 = 0x2c0;

struct Pair {
    memory: OwnedFd,
    producer: Producer,
    consumer: Consumer,
}

fn pair() -> Pair {
    let memory = create(&SMALL).unwrap();
    let (program, worker) = Side::pair().unwrap();
    let consumer = Consumer::open(memory.as_fd(), Arc::new(Side::new(worker))).unwrap();
    let producer = Producer::open(memory.as_fd(), Arc::new(Side::new(program))).unwrap();
    Pair {
        memory,
        producer,
        consumer,
    }
}

impl Pair {
    fn poke(&self, at: u64, bytes: &[u8]) {
        assert_eq!(
            rustix::io::pwrite(&self.memory, bytes, at).unwrap(),
            bytes.len()
        );
    }

    /// Reads until nothing is left or something is wrong.
    fn drain(&mut self) -> Result<usize, WireError> {
        for count in 0..1000 {
            match self.consumer.next(Duration::ZERO)? {
                Event::Message(_) => {}
                Event::Idle | Event::Closed => return Ok(count),
            }
        }
        panic!("the consumer reads for ever");
    }
}

#[test]
fn a_write_position_from_nowhere_is_named() {
    for head in [8u64, 4096 + 16, u64::MAX - 15] {
        let mut pair = pair();
        pair.poke(HEAD, &head.to_le_bytes());
        assert!(matches!(
            pair.drain(),
            Err(WireError::Malformed { position: 0, .. })
        ));
    }
}

#[test]
fn more_callbacks_than_there_are_places_are_named() {
    let pair = pair();
    pair.poke(CALLBACKS_ASKED, &1000u32.to_le_bytes());
    let error = pair.producer.callback_asked(0, || false).unwrap_err();
    assert!(error.to_string().contains("callbacks"), "{error}");
}

#[test]
fn callbacks_counted_before_they_are_asked_for_hold_nobody_up() {
    let pair = pair();
    pair.poke(CALLBACKS_RUN, &5u32.to_le_bytes());
    let callbacks = pair.consumer.callbacks();
    assert!(callbacks.ask(0, 7));
    assert!(callbacks.has_run(0, Duration::ZERO));
    assert_eq!(pair.producer.callback_asked(0, || false).unwrap(), Some(7));
}

#[test]
fn a_slot_or_overflow_that_does_not_exist_is_refused() {
    for (at, bytes) in [(6, vec![4, 0]), (12, vec![1, 0, 1, 0]), (16, vec![0xff; 8])] {
        let mut pair = pair();
        let room = pair.producer.stage(64).unwrap();
        let pending = pair.producer.request(&Op::Drain, Some(&room)).unwrap();
        drop((pending, room));
        pair.poke(RING + at, &bytes);
        assert!(
            matches!(pair.drain(), Err(WireError::Malformed { .. })),
            "byte {at}"
        );
    }
}

proptest! {
    #[test]
    fn any_flipped_bytes_in_a_full_ring(flips in prop::collection::vec((0u64..4096, any::<u8>()), 1..8)) {
        let mut pair = pair();
        for id in 0..80 {
            pair.producer.post(&Op::EventDestroy { event: EventId::from_raw(id) }).unwrap();
        }
        for (at, byte) in flips {
            pair.poke(RING + at, &[byte]);
        }
        if let Ok(count) = pair.drain() {
            prop_assert!(count <= 80);
        }
    }

    #[test]
    fn a_ring_of_noise(noise in prop::collection::vec(any::<u8>(), 4096), head in 1u64..=256) {
        let mut pair = pair();
        pair.poke(RING, &noise);
        pair.poke(HEAD, &(head * 16).to_le_bytes());
        let _ = pair.drain();
    }

    #[test]
    fn noise_behind_a_good_header(noise in prop::collection::vec(any::<u8>(), 0..256), slot in 0u16..4) {
        let mut pair = pair();
        let mut message = Vec::new();
        message.extend((noise.len() as u32).to_le_bytes());
        message.extend(1u16.to_le_bytes());
        message.extend(slot.to_le_bytes());
        message.extend([0; 24]);
        message.extend(&noise);
        let head = (message.len() as u64).next_multiple_of(16);
        pair.poke(RING, &message);
        pair.poke(HEAD, &head.to_le_bytes());
        let outcome = pair.drain();
        let expected = matches!(outcome, Ok(1) | Err(WireError::Decode { .. }));
        prop_assert!(expected, "{:?}", outcome);
    }
}
