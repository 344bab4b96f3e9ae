//! A small fuzzer for stable Rust: mutates seeds, keeps nothing, runs for a number of inputs or a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::Target;

/// Numbers that break length fields.
const STRANGE: [u64; 8] = [
    0,
    1,
    0x7f,
    0x80,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0xffff_ffff_ffff_fff0,
];
const LONGEST: usize = 64 << 10;

/// A xorshift generator: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// How much a target is given after its seeds.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// So many inputs: the same ones on any machine.
    Inputs(u64),
    /// So much time: as many inputs as the machine tries in it.
    Time(Duration),
}

/// Runs a target on all its seeds, and then as far as `bound`; returns how many inputs it had.
///
/// # Panics
/// When the target panics, naming the try and the input.
pub fn run(target: &Target, bound: Bound, seed: u64) -> u64 {
    let seeds = target.inputs();
    let first = seeds.len() as u64;
    let mut random = Random(seed | 1);
    let started = Instant::now();
    let mut tries = 0;
    let more = |tries: u64| match bound {
        Bound::Inputs(inputs) => tries < first + inputs,
        Bound::Time(time) => tries < first || started.elapsed() < time,
    };
    while more(tries) {
        let input = match seeds.get(tries as usize) {
            Some(seed) => seed.clone(),
            None => mutate(&seeds, &mut random),
        };
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) {
            let text = input.escape_ascii();
            panic!(
                "target `{}`, seed {seed}, try {tries}: {:?}\ninput: {text}",
                target.name,
                said(&*cause)
            );
        }
        tries += 1;
    }
    tries
}

fn said(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().cloned();
    text.or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_default()
}

fn mutate(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + random.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let more: Vec<u8> = (0..random.below(16)).map(|_| random.next() as u8).collect();
                bytes.splice(at..at, more);
            }
            5 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let to = (from + random.below(64)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            6 => {
                let end = (at + random.below(64)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let number = STRANGE[random.below(STRANGE.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                for (to, from) in bytes.iter_mut().skip(at).zip(&number[..width]) {
                    *to = *from;
                }
            }
        }
    }
    bytes.truncate(LONGEST);
    bytes
}
