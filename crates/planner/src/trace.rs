//! Traces of checkpoint sizes: one row per snapshot, one size per GPU, in bytes.
//!
//! The paper's application trace (reverse time migration on 8 GPUs, 776 snapshots) is not public;
//! [`application`] draws one whose averages have its shape (figure 3): almost linear growth up to
//! snapshot 400, then fluctuation, with 80, 128 and 160 MB near the 50th, 75th and 98th percentile
//! of the average, and a spread between GPUs that is narrow early and wide around snapshot 400
//! (figure 4: up to 107 MB, 26 times, between smallest and largest). [`synthetic`] draws every size from the
//! pooled distribution, as the paper's second trace does (figure 5).

const MB: f64 = 1e6;

/// Snapshots in the paper's trace.
pub const SNAPSHOTS: usize = 776;

/// SplitMix64: a small generator with a published reference, enough for traces.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Between 0 and 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }
}

/// The average size at a snapshot, in MB: linear to 84 at snapshot 400, then up to 157 and back,
/// with noise.
fn average(snapshot: usize, random: &mut Random) -> f64 {
    if snapshot <= 400 {
        return 3.0 + 81.0 * snapshot as f64 / 400.0;
    }
    let phase = (snapshot - 400) as f64 / (SNAPSHOTS - 400) as f64;
    let rise = 1.0 - (2.0 * phase - 1.0).abs();
    (84.0 + 73.0 * rise.powf(0.7) + random.between(-8.0, 8.0)).clamp(84.0, 168.0)
}

/// What GPUs differ by from the average, at most, where their sizes are apart: `spread` below it and
/// [`ABOVE`] of that above it.
const ABOVE: f64 = 0.35;

/// The sizes of one snapshot around 400 as shares of their average: one GPU's checkpoint is far
/// smaller than all others, which are more often above the average than below.
fn apart(gpus: usize, spread: f64, random: &mut Random) -> Vec<f64> {
    let smallest = (random.next() % gpus.max(1) as u64) as usize;
    // The others make up for it: the power of a uniform number has the mean that this takes.
    let others = gpus.saturating_sub(1).max(1) as f64;
    let mean = ((ABOVE - 1.0 / others) / (1.0 + ABOVE)).max(0.05);
    let power = 1.0 / mean - 1.0;
    let share = |gpu: usize| {
        let unit = random.unit();
        match gpu == smallest {
            true => 1.0 - spread * (0.98 + 0.02 * unit),
            false => 1.0 + spread * (ABOVE - (1.0 + ABOVE) * unit.powf(power)),
        }
    };
    (0..gpus).map(share).collect()
}

/// An application-like trace of [`SNAPSHOTS`] snapshots.
pub fn application(gpus: usize, seed: u64) -> Vec<Vec<u64>> {
    let mut random = Random(seed);
    (0..SNAPSHOTS)
        .map(|snapshot| {
            let mean = average(snapshot, &mut random);
            let mut around = |spread: f64| -> Vec<f64> {
                let (low, high) = (1.0 - spread, 1.0 + spread);
                (0..gpus).map(|_| random.between(low, high)).collect()
            };
            // Narrow before snapshot 350, widest at 400, moderate afterwards.
            let shares = match snapshot {
                0..350 => around(0.10),
                350..450 => {
                    let nearness = 1.0 - ((snapshot as f64 - 400.0) / 50.0).abs();
                    apart(gpus, 0.10 + 0.855 * nearness, &mut random)
                }
                _ => around(0.30),
            };
            let bytes = |share: f64| (mean * share * MB) as u64;
            shares.into_iter().map(bytes).collect()
        })
        .collect()
}

/// A trace of `snapshots` snapshots with every size drawn from the pooled application trace.
pub fn synthetic(gpus: usize, snapshots: usize, seed: u64) -> Vec<Vec<u64>> {
    let pool: Vec<u64> = application(8, seed).into_iter().flatten().collect();
    let mut random = Random(seed ^ 0x5EED);
    let mut draw = || pool[(random.next() % pool.len() as u64) as usize];
    (0..snapshots)
        .map(|_| (0..gpus).map(|_| draw()).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn averages(trace: &[Vec<u64>]) -> Vec<f64> {
        let mean = |sizes: &Vec<u64>| sizes.iter().sum::<u64>() as f64 / sizes.len() as f64 / MB;
        trace.iter().map(mean).collect()
    }

    #[test]
    fn averages_grow_and_have_the_published_percentiles() {
        for seed in 1..=5 {
            let unsorted = averages(&application(8, seed));
            // Almost linear to snapshot 400.
            for (snapshot, mean) in unsorted.iter().enumerate().take(350) {
                let line = 3.0 + 81.0 * snapshot as f64 / 400.0;
                assert!((mean - line).abs() < 0.1 * line, "{seed} {snapshot} {mean}");
            }
            let mut sorted = unsorted;
            sorted.sort_by(f64::total_cmp);
            for (share, want) in [(50, 80.0), (75, 128.0), (98, 160.0)] {
                let found = sorted[sorted.len() * share / 100];
                assert!((found - want).abs() < 6.0, "{seed} {share} {found}");
            }
        }
    }

    /// Up to 107 MB and 26 times between the smallest and the largest of one snapshot.
    #[test]
    fn gpus_differ_as_published() {
        for seed in 1..=5 {
            let trace = application(8, seed);
            let pairs = trace.iter().map(|sizes| {
                let of = |found: Option<&u64>| *found.expect("eight sizes") as f64 / MB;
                (of(sizes.iter().min()), of(sizes.iter().max()))
            });
            let (mut ratio, mut apart) = (0.0f64, 0.0f64);
            for (snapshot, (least, most)) in pairs.enumerate() {
                ratio = ratio.max(most / least);
                if (350..450).contains(&snapshot) {
                    apart = apart.max(most - least);
                } else {
                    assert!(most / least < 2.0, "{seed} {snapshot}");
                }
            }
            assert!((20.0..36.0).contains(&ratio), "{seed} {ratio}");
            assert!((100.0..120.0).contains(&apart), "{seed} {apart}");
        }
    }

    #[test]
    fn any_number_of_gpus_has_a_trace() {
        for gpus in [0, 1, 2, 3, 128] {
            let trace = application(gpus, 1);
            assert!(trace.iter().all(|sizes| sizes.len() == gpus));
        }
    }

    /// The second trace has the sizes of the first in any order.
    #[test]
    fn synthetic_sizes_are_drawn_from_the_application() {
        let quartiles = |trace: Vec<Vec<u64>>| {
            let mut all: Vec<u64> = trace.into_iter().flatten().collect();
            all.sort_unstable();
            [1, 2, 3].map(|n| all[all.len() * n / 4] as f64 / MB)
        };
        let drawn = quartiles(synthetic(8, SNAPSHOTS, 1));
        for (a, b) in quartiles(application(8, 1)).into_iter().zip(drawn) {
            assert!((a - b).abs() < 6.0, "{a} {b}");
        }
    }

    #[test]
    fn a_seed_gives_one_trace() {
        assert_eq!(synthetic(4, 10, 7), synthetic(4, 10, 7));
        assert_ne!(synthetic(4, 10, 7), synthetic(4, 10, 8));
    }
}
