//! What a program writes into the ring, and the messages in it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fermata_abi::op::{Op, Reply, ToProgram};
use fermata_wire::{Config, Consumer, Event, Side, create};

const SMALL: Config = Config {
    ring: 4096,
    slots: 4,
    staging: 1 << 16,
};
const HEAD_AT: u64 = 0x100;
const RING_AT: u64 = 4096;

/// The bytes are a message, and the ring itself.
pub fn run(data: &[u8]) {
    if let Ok(op) = postcard::from_bytes::<Op<'_>>(data) {
        let bytes = postcard::to_stdvec(&op).expect("a decoded operation can be encoded");
        let again: Op<'_> = postcard::from_bytes(&bytes).expect("and decoded again");
        assert_eq!(format!("{op:?}"), format!("{again:?}"));
    }
    // These may refuse or accept; they must not panic.
    let _ = postcard::from_bytes::<Reply<'_>>(data);
    let _ = postcard::from_bytes::<ToProgram>(data);
    ring(data);
}

fn ring(data: &[u8]) {
    let memory = create(&SMALL).expect("a memory file");
    let (_program, worker) = Side::pair().expect("a socket pair");
    let side = Arc::new(Side::new(worker));
    let mut consumer = Consumer::open(memory.as_fd(), side).expect("a fresh ring");
    let data = &data[..data.len().min(SMALL.ring as usize)];
    let head = (data.len() as u64).next_multiple_of(16).min(SMALL.ring);
    for (bytes, at) in [(data, RING_AT), (&head.to_le_bytes()[..], HEAD_AT)] {
        let written = rustix::io::pwrite(&memory, bytes, at);
        assert_eq!(written, Ok(bytes.len()), "the memory file is writable");
    }
    for _ in 0..=SMALL.ring {
        match consumer.next(Duration::ZERO) {
            Ok(Event::Message(_)) => {}
            Ok(Event::Idle | Event::Closed) | Err(_) => return,
        }
    }
    panic!("the consumer reads for ever");
}

/// Messages alone, and behind a header as in the ring.
pub fn seeds() -> Vec<Vec<u8>> {
    let bytes = postcard::to_stdvec(&Op::Drain).expect("encoded");
    let mut framed = vec![0u8; 32];
    framed[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    // An operation that wants no answer.
    framed[4..8].copy_from_slice(&[1, 0, 0xff, 0xff]);
    framed.extend(&bytes);
    let mut answered = framed.clone();
    answered[6..8].fill(0);
    vec![bytes, framed, answered]
}
