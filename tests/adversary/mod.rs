//! An adversary: cases drawn from a seed, each of which harms something, and demands that nothing worse comes of it than
//! a refusal.
//!
//! ```text
//!  seed, number ─► Draw ─► Kind::perform ─► what was harmed, what came of it ─► counts
//! ```
//! A kind of cases is a file beside this one (`images`: damaged and foreign files), and says what right means for it.
//! Every case can be repeated alone: it depends on the seed and its number only.

pub mod images;

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

/// Performs cases from number `first` on, of each kind in turn.
///
/// # Errors
/// A stage could not be left as it was.
pub fn run(mut kinds: Vec<Box<dyn Kind>>, seed: u64, first: u64, limit: Limit) -> Result<Counts> {
    let begun = Instant::now();
    let mut counts = Counts::default();
    for number in (first..).take(limit.cases as usize) {
        if begun.elapsed() > limit.time || kinds.is_empty() {
            break;
        }
        let at = (number % kinds.len() as u64) as usize;
        let kind = &mut kinds[at];
        match kind.perform(number, &mut Draw::of(seed, number)) {
            Ok(shown) => {
                let key = (kind.name(), shown.harm, shown.came);
                *counts.cases.entry(key).or_default() += 1;
            }
            Err(error) => counts.broken.push((number, format!("{error:#}"))),
        }
    }
    for kind in kinds {
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
