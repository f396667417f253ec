//! Many callers that each do one thing after another, and what came of it.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;

/// What one run measured.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Finished operations a second.
    pub rate: f64,
    /// How many finished.
    pub operations: usize,
    /// Half took no longer, in microseconds.
    pub p50_us: u64,
    /// Of a hundred, one took longer, in microseconds.
    pub p99_us: u64,
}

/// Lets every caller do `once` again and again for `length`. The first failure ends the run.
pub async fn run<C>(callers: &mut [C], length: Duration, once: impl AsyncFn(&mut C) -> Result<()>) -> Result<Sample> {
    let start = Instant::now();
    let end = start + length;
    let once = &once;
    let mut work: FuturesUnordered<_> = callers
        .iter_mut()
        .map(|caller| async move {
            let mut took = Vec::new();
            let mut now = Instant::now();
            while now < end {
                once(caller).await?;
                let after = Instant::now();
                took.push(micros(after - now));
                now = after;
            }
            anyhow::Ok(took)
        })
        .collect();
    let mut took = Vec::new();
    while let Some(mut one) = work.try_next().await? {
        took.append(&mut one);
    }
    let operations = took.len();
    let rate = operations as f64 / start.elapsed().as_secs_f64();
    let [p50_us, p99_us] = percentiles(&mut took, [50, 99]);
    Ok(Sample { rate, operations, p50_us, p99_us })
}

/// The run with the median rate, with the medians of the others' latencies.
pub fn median(samples: &[Sample]) -> Sample {
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    Sample {
        rate: middle(samples.iter().map(|sample| sample.rate).collect()),
        operations: samples.iter().map(|sample| sample.operations).sum(),
        p50_us: middle(samples.iter().map(|sample| sample.p50_us as f64).collect()) as u64,
        p99_us: middle(samples.iter().map(|sample| sample.p99_us as f64).collect()) as u64,
    }
}

/// Nearest-rank percentiles; sorts the values. 0 where there are none.
pub fn percentiles<const N: usize>(values: &mut [u64], wanted: [usize; N]) -> [u64; N] {
    values.sort_unstable();
    wanted.map(|percent| {
        let rank = (values.len() * percent).div_ceil(100).max(1);
        values.get(rank - 1).copied().unwrap_or_default()
    })
}

/// Whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
