//! Figures of one run: rates and times, as perftest computes them.

use std::time::Duration;

/// What perftest calls MB.
const MIB: f64 = 1_048_576.0;
/// The most messages for which the peak is looked for: it takes a step for each pair of them.
const PEAK_OF: u64 = 5000;
/// The most times of messages that are kept.
const MAX_SAMPLES: usize = 1 << 20;

/// When messages were posted and completed, in nanoseconds since the start.
#[derive(Debug, Default)]
pub(super) struct Times {
    posted: Vec<u64>,
    completed: Vec<u64>,
    on: bool,
}

impl Times {
    /// Records a run of so many messages, if the peak can be found.
    pub(super) fn of(messages: Option<u64>) -> Times {
        Times { on: messages.is_some_and(|messages| messages <= PEAK_OF), ..Times::default() }
    }

    /// Whether anything is recorded.
    pub(super) fn are_recorded(&self) -> bool {
        self.on
    }

    /// Some messages were posted.
    pub(super) fn posted(&mut self, count: u64, at: Duration) {
        self.posted.extend((0..count).map(|_| at.as_nanos() as u64));
    }

    /// Some messages have completed.
    pub(super) fn completed(&mut self, count: u64, at: Duration) {
        self.completed.extend((0..count).map(|_| at.as_nanos() as u64));
    }

    /// The shortest time per message in any stretch of them, from the posting of its first to the completion of its
    /// last one.
    fn shortest(&self) -> Option<f64> {
        let mut least = f64::INFINITY;
        for (first, posted) in self.posted.iter().enumerate() {
            for (count, completed) in (1u32..).zip(self.completed.iter().skip(first)) {
                least = least.min(completed.saturating_sub(*posted) as f64 / f64::from(count));
            }
        }
        (least.is_finite() && least > 0.0).then_some(least)
    }
}

/// The rate of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rate {
    /// All messages, of all queue pairs.
    pub(super) messages: u64,
    /// The most MiB per second in a stretch of messages; none if there were too many to tell.
    pub(super) peak: Option<f64>,
    /// MiB per second.
    pub(super) average: f64,
    /// Millions of messages per second.
    pub(super) mpps: f64,
}

impl Rate {
    /// Makes it of a run's time.
    pub(super) fn new(size: u64, messages: u64, elapsed: Duration, times: &Times) -> Rate {
        let per_second = messages as f64 / elapsed.as_secs_f64().max(1e-9);
        let peak = times.shortest().map(|nanos| size as f64 * 1e9 / nanos / MIB);
        Rate { messages, peak, average: per_second * size as f64 / MIB, mpps: per_second / 1e6 }
    }
}

/// Times of single messages.
#[derive(Debug, Default)]
pub(super) struct Samples {
    nanos: Vec<u64>,
    count: u64,
    sum: u128,
    ways: u32,
}

impl Samples {
    /// Of round trips, or of one way: half of each.
    pub(super) fn new(is_ping_pong: bool) -> Samples {
        Samples { ways: if is_ping_pong { 2 } else { 1 }, ..Samples::default() }
    }

    /// Adds one.
    pub(super) fn add(&mut self, time: Duration) {
        self.count += 1;
        self.sum += time.as_nanos();
        if self.nanos.len() < MAX_SAMPLES {
            self.nanos.push(time.as_nanos() as u64);
        }
    }

    /// The distribution; none if nothing was measured.
    pub(super) fn latency(&self) -> Option<Latency> {
        let mut sorted = self.nanos.clone();
        sorted.sort_unstable();
        let us = |nanos: f64| nanos / 1000.0 / f64::from(self.ways);
        let at = |share: f64| {
            let place = (sorted.len() as f64 * share).ceil() as usize;
            sorted.get(place.clamp(1, sorted.len()) - 1).map(|nanos| us(*nanos as f64))
        };
        let average = self.sum as f64 / self.count as f64;
        let variance = sorted.iter().map(|nanos| (*nanos as f64 - average).powi(2)).sum::<f64>() / sorted.len() as f64;
        Some(Latency {
            messages: self.count,
            least: us(*sorted.first()? as f64),
            most: us(*sorted.last()? as f64),
            typical: at(0.5)?,
            average: us(average),
            deviation: us(variance.sqrt()),
            p99: at(0.99)?,
            p999: at(0.999)?,
        })
    }
}

/// The distribution of latencies, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub(super) struct Latency {
    pub(super) messages: u64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) typical: f64,
    pub(super) average: f64,
    pub(super) deviation: f64,
    pub p99: f64,
    pub p999: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_the_best_stretch() {
        let mut times = Times::of(Some(4));
        let ns = Duration::from_nanos;
        for (posted, completed) in [(0, 1000), (100, 1100), (200, 1200), (300, 9000)] {
            times.posted(1, ns(posted));
            times.completed(1, ns(completed));
        }
        // The first three from 0 to 1200: 400 ns each.
        assert_eq!(times.shortest(), Some(400.0));
        let rate = Rate::new(1 << 20, 4, Duration::from_secs(2), &times);
        assert_eq!((rate.average, rate.mpps, rate.peak), (2.0, 2e-6, Some(1e9 / 400.0)));
        assert_eq!(Rate::new(1, 4, Duration::from_secs(2), &Times::of(None)).peak, None);
        assert!(!Times::of(Some(PEAK_OF + 1)).are_recorded());
    }

    #[test]
    fn one_way_is_half_of_a_round_trip() {
        for (is_ping_pong, ways) in [(false, 1.0), (true, 2.0)] {
            let mut samples = Samples::new(is_ping_pong);
            (1..=1000).rev().for_each(|us| samples.add(Duration::from_micros(us)));
            let latency = samples.latency().unwrap();
            let scaled = [latency.least, latency.typical, latency.p99, latency.p999, latency.most].map(|us| us * ways);
            assert_eq!(scaled, [1.0, 500.0, 990.0, 999.0, 1000.0]);
            assert_eq!((latency.messages, latency.average * ways), (1000, 500.5));
            assert!((latency.deviation * ways - 288.675).abs() < 0.01);
        }
        assert_eq!(Samples::new(true).latency(), None);
    }
}
