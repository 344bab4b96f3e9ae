//! Traces of checkpoint sizes: one row per snapshot, one size per GPU, in bytes.
//!
//! The paper's application trace (reverse time migration on 8 GPUs, 776 snapshots) is not public;
//! [`application`] draws one whose averages have its shape (figure 3): almost linear growth up to
//! snapshot 400, then fluctuation, with 80, 128 and 160 MB near the 50th, 75th and 98th percentile
//! of the average, and a spread between GPUs that is narrow early and wide around snapshot 400
//! (figure 4: up to 26 times between smallest and largest). [`synthetic`] draws every size from the
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

/// The average size at a snapshot, in MB: linear to 84 at snapshot 400, then up to 166 and back,
/// with noise.
fn average(snapshot: usize, random: &mut Random) -> f64 {
    if snapshot <= 400 {
        return 3.0 + 81.0 * snapshot as f64 / 400.0;
    }
    let phase = (snapshot - 400) as f64 / (SNAPSHOTS - 400) as f64;
    let rise = 1.0 - (2.0 * phase - 1.0).abs();
    (84.0 + 82.0 * rise + random.between(-8.0, 8.0)).clamp(84.0, 168.0)
}

/// An application-like trace of [`SNAPSHOTS`] snapshots.
pub fn application(gpus: usize, seed: u64) -> Vec<Vec<u64>> {
    let mut random = Random(seed);
    (0..SNAPSHOTS)
        .map(|snapshot| {
            let mean = average(snapshot, &mut random);
            // Narrow before snapshot 350, widest at 400, moderate afterwards.
            let spread = match snapshot {
                0..350 => 0.10,
                350..450 => 0.10 + 0.85 * (1.0 - ((snapshot as f64 - 400.0) / 50.0).abs()),
                _ => 0.30,
            };
            (0..gpus)
                .map(|_| (mean * random.between(1.0 - spread, 1.0 + spread) * MB) as u64)
                .collect()
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

    #[test]
    fn averages_have_the_published_percentiles() {
        let mut averages: Vec<f64> = application(8, 1)
            .iter()
            .map(|sizes| sizes.iter().sum::<u64>() as f64 / sizes.len() as f64 / MB)
            .collect();
        averages.sort_by(f64::total_cmp);
        let percentile = |p: usize| averages[averages.len() * p / 100];
        assert!((percentile(50) - 80.0).abs() < 10.0, "{}", percentile(50));
        assert!((percentile(75) - 128.0).abs() < 15.0, "{}", percentile(75));
        assert!((percentile(98) - 160.0).abs() < 15.0, "{}", percentile(98));
    }

    #[test]
    fn a_seed_gives_one_trace() {
        assert_eq!(synthetic(4, 10, 7), synthetic(4, 10, 7));
        assert_ne!(synthetic(4, 10, 7), synthetic(4, 10, 8));
    }
}
