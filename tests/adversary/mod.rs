//! An adversary: cases drawn from a seed, each of which harms something, and demands that nothing worse comes of it than
//! a refusal.
//!
//! ```text
//!  seed, number ─► Draw ─► Kind::perform ─► what was harmed, what came of it ─► counts
//! ```
//! A kind of cases is a file beside this one, and says what right means for it; `ground` is what most of them stand on.
//! Every case can be repeated alone: it depends on the seed and its number only. Which of several processes is there at a
//! drawn time does not.

pub mod bytes;
pub mod disks;
pub mod ground;
pub mod images;
pub mod kills;
pub mod stranger;

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Numbers that depend on nothing but a seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// Those of case `number`.
    pub fn of(seed: u64, number: u64) -> Self {
        let mut draw = Self(seed);
        let base = draw.next();
        Self(base ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of 0 to `n` - 1; 0 for `n` of 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// One of these, of which there must be some.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// What a case did, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// What was harmed, and how: the same word for all that are alike.
    pub harm: String,
    /// What came of it, as `refused` or `right digest`.
    pub came: String,
}

/// Cases of one kind, on a stage of their own.
pub trait Kind {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Performs a case, and undoes what it has harmed.
    ///
    /// # Errors
    /// A promise was broken; the message says which, and by what.
    fn perform(&mut self, number: u64, draw: &mut Draw) -> Result<Shown>;

    /// Demands that all is as it was before the first case, and ends the stage.
    ///
    /// # Errors
    /// What is not, or is left behind.
    fn close(self: Box<Self>) -> Result<()>;
}

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// After so many cases.
    pub cases: u64,
    /// No case is begun after this time.
    pub time: Duration,
}

/// What came of how many cases.
#[derive(Debug, Default)]
pub struct Counts {
    cases: BTreeMap<(&'static str, String, String), u64>,
    /// Promises that were broken, by the number of the case.
    pub broken: Vec<(u64, String)>,
}

impl Counts {
    /// How many cases there were.
    pub fn all(&self) -> u64 {
        self.cases.values().sum::<u64>() + self.broken.len() as u64
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((kind, harm, came), count) in &self.cases {
            writeln!(f, "{count:6}  {kind}: {harm}: {came}")?;
        }
        for (number, what) in &self.broken {
            writeln!(f, "BROKEN case {number}: {what}")?;
        }
        let (all, broken) = (self.all(), self.broken.len());
        write!(f, "adversary: {all} cases, {broken} broken promises")
    }
}

/// A kind, and what sets its stage.
pub type Maker = (&'static str, fn() -> Result<Box<dyn Kind>>);

/// All kinds.
pub const KINDS: [Maker; 5] = [
    ("images", || Ok(Box::new(images::Images::new()?))),
    ("kills", || Ok(Box::new(kills::Kills::new()?))),
    ("disks", || Ok(Box::new(disks::Disks::new()?))),
    ("bytes", || Ok(Box::new(bytes::Bytes::new()?))),
    ("stranger", || Ok(Box::new(stranger::Stranger::new()?))),
];

/// Performs cases from number `first` on, of each kind in turn; those of other kinds than `only` are passed over. `tell`
/// hears of broken promises at once. A stage on which one was broken is not used again.
///
/// # Errors
/// A stage could not be set, or not be left as it was.
pub fn run(
    only: &[&str],
    seed: u64,
    first: u64,
    limit: Limit,
    tell: &mut dyn FnMut(u64, &str),
) -> Result<Counts> {
    let begun = Instant::now();
    let mut counts = Counts::default();
    let mut stages: [Option<Box<dyn Kind>>; KINDS.len()] = [const { None }; KINDS.len()];
    let kind_of = |number: u64| (number % KINDS.len() as u64) as usize;
    let wanted = |number: &u64| only.is_empty() || only.contains(&KINDS[kind_of(*number)].0);
    for number in (first..).filter(wanted).take(limit.cases as usize) {
        if begun.elapsed() > limit.time {
            break;
        }
        let at = kind_of(number);
        let (name, make) = KINDS[at];
        let mut kind = match stages[at].take() {
            Some(kind) => kind,
            None => make().with_context(|| format!("the stage of `{name}`"))?,
        };
        match kind.perform(number, &mut Draw::of(seed, number)) {
            Ok(shown) => {
                let key = (kind.name(), shown.harm, shown.came);
                *counts.cases.entry(key).or_default() += 1;
                stages[at] = Some(kind);
            }
            Err(error) => {
                let what = format!("{name}: {error:#}");
                tell(number, &what);
                counts.broken.push((number, what));
            }
        }
    }
    for kind in stages.into_iter().flatten() {
        let name = kind.name();
        kind.close()
            .with_context(|| format!("after the cases of `{name}` with seed {seed}"))?;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_depends_on_seed_and_number_only() {
        let numbers = |seed, number| {
            let mut draw = Draw::of(seed, number);
            [(); 4].map(|()| draw.below(1000))
        };
        assert_eq!(numbers(7, 3), numbers(7, 3));
        assert_ne!(numbers(7, 3), numbers(7, 4));
        assert_ne!(numbers(7, 3), numbers(8, 3));
    }
}
