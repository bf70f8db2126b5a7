//! Where the parts of a version land that is fetched into the caller's memory.
//!
//! Long runs land in the caller's memory, each in a range of the arena of its own. What lies between them lands beside: short
//! tensors, padding, the table, and the runs for which one landing has too few ranges.

use std::collections::BTreeMap;
use transfer_core::memory::ALIGNMENT;
use transfer_core::op::MAX_LANDING_RANGES;
use transfer_core::wire::ranges::ArenaRange;

/// The shortest run that lands in place, in bytes. A shorter one is copied in less time than its grant takes.
pub(crate) const MIN_RUN_BYTES: u64 = 64 << 10;

/// Bytes of a version that lie beside each other in the caller's memory, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where it begins in the version, with what lies in front of the body.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Where it begins in the arena.
    pub(crate) to: u64,
}

impl Run {
    fn end(&self) -> u64 {
        self.at + self.len
    }

    /// Whether another run continues it, in the version and in the arena.
    fn goes_on_in(&self, next: &Run) -> bool {
        self.end() == next.at && self.to + self.len == next.to
    }
}

/// The ranges in which a version lands, in its order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scatter {
    parts: Vec<VersionPart>,
    /// The starts and the ends of the runs that land in place.
    in_place: Vec<(u64, u64)>,
    /// The length of what lands beside, in bytes.
    pub(crate) beside_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VersionPart {
    at: u64,
    len: u64,
    to: RunTarget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunTarget {
    /// At this place of the arena.
    InPlace(u64),
    /// At this place of the memory for what lands beside.
    Beside(u64),
}

impl Scatter {
    /// Chooses among the runs of a version of `len` bytes those that land in place: the longest ones, as many as one landing has
    /// ranges for. Those that continue each other, in the version and in the arena, are one, however short each is. One that is all of the version lands in place however short it is. `None` if nothing lands in place, or two runs are
    /// the same bytes of the version.
    pub(crate) fn new(len: u64, runs: &[Run]) -> Option<Scatter> {
        if let [run @ Run { at: 0, len: 1.., .. }] = runs
            && run.len == len
        {
            return Some(Scatter::of(len, &BTreeMap::from([(0, *run)])));
        }
        let joined = joined(runs);
        let mut longest: Vec<&Run> = joined.iter().filter(|run| run.len >= MIN_RUN_BYTES).collect();
        longest.sort_unstable_by_key(|run| (std::cmp::Reverse(run.len), run.at));
        let mut chosen = BTreeMap::<u64, Run>::new();
        // So far all of it lands beside, in one range.
        let mut count = 1;
        for run in longest {
            let before = chosen.range(..=run.at).next_back().map(|(_, run)| *run);
            let behind = chosen.range(run.at..).next().map(|(_, run)| *run);
            if run.end() > behind.map_or(len, |next| next.at) || before.is_some_and(|last| last.end() > run.at) {
                return None;
            }
            // The gap in which it lies becomes up to two, and the run is a range, unless it continues another one.
            let gap_before = run.at > before.map_or(0, |last| last.end());
            let gap_behind = run.end() < behind.map_or(len, |next| next.at);
            let joins_before = before.is_some_and(|last| last.goes_on_in(run));
            let joins_behind = behind.is_some_and(|next| run.goes_on_in(&next));
            let more = usize::from(gap_before) + usize::from(gap_behind) + 1;
            let less = 1 + usize::from(joins_before) + usize::from(joins_behind);
            if count + more - less <= MAX_LANDING_RANGES {
                count = count + more - less;
                chosen.insert(run.at, *run);
            }
        }
        (!chosen.is_empty()).then(|| Scatter::of(len, &chosen))
    }

    /// Whether all long runs of a version of `len` bytes land in place by one landing.
    pub(crate) fn holds_all(len: u64, runs: &[Run]) -> bool {
        let long = |run: &Run| run.len >= MIN_RUN_BYTES;
        Scatter::new(len, runs)
            .is_none_or(|found| joined(runs).iter().filter(|run| long(run)).all(|run| found.is_in_place(run.at)))
    }

    fn of(len: u64, chosen: &BTreeMap<u64, Run>) -> Scatter {
        let mut scatter = Scatter {
            parts: Vec::new(),
            in_place: chosen.values().map(|run| (run.at, run.end())).collect(),
            beside_bytes: 0,
        };
        let mut at = 0;
        for run in chosen.values() {
            scatter.add_beside(at, run.at);
            match scatter.parts.last_mut() {
                Some(VersionPart { at, len, to: RunTarget::InPlace(to) })
                    if (Run { at: *at, len: *len, to: *to }).goes_on_in(run) =>
                {
                    *len += run.len;
                }
                _ => scatter.parts.push(VersionPart { at: run.at, len: run.len, to: RunTarget::InPlace(run.to) }),
            }
            at = run.end();
        }
        scatter.add_beside(at, len);
        scatter
    }

    /// Lets what lies between two places of the version land beside.
    fn add_beside(&mut self, at: u64, end: u64) {
        if end > at {
            // What is aligned in the version is aligned there, too.
            let from = self.beside_bytes + (at.wrapping_sub(self.beside_bytes)) % ALIGNMENT;
            self.parts.push(VersionPart { at, len: end - at, to: RunTarget::Beside(from) });
            self.beside_bytes = from + end - at;
        }
    }

    /// Whether the run that begins there in the version lands in place. It is one of those that were given.
    pub(crate) fn is_in_place(&self, at: u64) -> bool {
        let last = self.in_place.partition_point(|(start, _)| *start <= at).checked_sub(1);
        last.is_some_and(|last| at < self.in_place[last].1)
    }

    /// The ranges, if what lands beside does so at this place of the arena.
    pub(crate) fn ranges(&self, beside: u64) -> Vec<ArenaRange> {
        let range = |part: &VersionPart| match part.to {
            RunTarget::InPlace(offset) => ArenaRange { offset, len: part.len },
            RunTarget::Beside(at) => ArenaRange { offset: beside + at, len: part.len },
        };
        self.parts.iter().map(range).collect()
    }

    /// Where a part of the version lies in what has landed beside. `None` if not all of it is there.
    pub(crate) fn beside(&self, at: u64, len: u64) -> Option<u64> {
        let last = self.parts.partition_point(|part| part.at <= at).checked_sub(1)?;
        let part = self.parts.get(last)?;
        match part.to {
            RunTarget::Beside(beside) if at + len <= part.at + part.len => Some(beside + at - part.at),
            _ => None,
        }
    }
}

/// The runs in the order of the version. Those that continue each other are one.
fn joined(runs: &[Run]) -> Vec<Run> {
    let mut sorted: Vec<Run> = runs.iter().filter(|run| run.len > 0).copied().collect();
    sorted.sort_unstable_by_key(|run| run.at);
    sorted.dedup_by(|next, last| {
        let goes_on = last.goes_on_in(next);
        if goes_on {
            last.len += next.len;
        }
        goes_on
    });
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const K64: u64 = MIN_RUN_BYTES;

    fn run(at: u64, len: u64, to: u64) -> Run {
        Run { at, len, to }
    }

    fn ranges(scatter: &Scatter) -> Vec<(u64, u64)> {
        scatter.ranges(1 << 40).iter().map(|range| (range.offset, range.len)).collect()
    }

    #[test]
    fn long_runs_land_in_place_and_what_lies_between_them_beside() {
        let beside = 1 << 40;
        // A table of 128 bytes, 1 MiB, 4 KiB, 64 KiB and 64 bytes.
        let runs = [run(128, 1 << 20, 7 << 20), run(128 + (1 << 20), 4096, 0), run(4224 + (1 << 20), K64, 64)];
        let scatter = Scatter::new((1 << 20) + 4224 + K64 + 64, &runs).unwrap();
        let expected = [(beside, 128), (7 << 20, 1 << 20), (beside + 128, 4096), (64, K64), (beside + 4224, 64)];
        assert_eq!((ranges(&scatter), scatter.beside_bytes), (expected.to_vec(), 4288));
        assert_eq!(runs.map(|run| scatter.is_in_place(run.at)), [true, false, true]);
        assert_eq!((scatter.beside(0, 128), scatter.beside(runs[1].at, 4096)), (Some(0), Some(128)));
        assert_eq!(
            (scatter.beside(0, 129), scatter.beside(128, 1), scatter.beside(runs[1].at, 4097)),
            (None, None, None)
        );
        assert_eq!(Scatter::new(1 << 20, &[run(64, K64 - 1, 0)]), None, "nothing is long enough");
        assert_eq!(Scatter::new(1 << 20, &[run(64, K64, 0), run(64, K64, 1 << 20)]), None, "the same bytes twice");
        assert_eq!(Scatter::new(K64, &[run(64, K64, 0)]), None, "it leaves the version");
        let all = Scatter::new(8, &[run(0, 8, 64)]).unwrap();
        assert_eq!((ranges(&all), all.beside_bytes), (vec![(64, 8)], 0), "it is all of it");
    }

    #[test]
    fn runs_beside_each_other_are_one_range() {
        // 100 tensors in one piece of the arena, in the order of the version.
        let runs: Vec<_> = (0..100).map(|n| run(64 + n * K64, K64, n * K64)).collect();
        let scatter = Scatter::new(64 + 100 * K64, &runs).unwrap();
        assert_eq!(ranges(&scatter), [(1 << 40, 64), (0, 100 * K64)]);
        assert!(runs.iter().all(|run| scatter.is_in_place(run.at)));
    }

    #[test]
    fn short_runs_that_continue_each_other_land_in_place() {
        // 100 tensors of 1 KiB in the order of the version, and one of 2 KiB apart from them.
        let mut runs: Vec<_> = (0..100).map(|n| run(64 + n * 1024, 1024, n * 1024)).collect();
        runs.push(run(64 + 100 * 1024, 2048, 1 << 30));
        runs.reverse();
        let scatter = Scatter::new(64 + 102 * 1024, &runs).unwrap();
        assert_eq!(ranges(&scatter), [(1 << 40, 64), (0, 100 * 1024), ((1 << 40) + 64, 2048)]);
        assert_eq!(runs.iter().filter(|run| scatter.is_in_place(run.at)).count(), 100);
        assert_eq!(scatter.beside(64 + 100 * 1024, 2048), Some(64));
    }

    #[test]
    fn of_too_many_runs_the_longest_land_in_place() {
        // No two of them are neighbours in the arena: the table is a range, and 23 runs and what is between them.
        let len = |n: u64| K64 * if n % 10 == 3 { 9 } else { 1 };
        let mut at = 64;
        let runs: Vec<_> = (0..100)
            .map(|n| {
                at += len(n);
                run(at - len(n), len(n), n << 30)
            })
            .collect();
        let scatter = Scatter::new(at, &runs).unwrap();
        assert!(ranges(&scatter).len() <= MAX_LANDING_RANGES);
        assert!(runs.iter().filter(|run| run.len > K64).all(|run| scatter.is_in_place(run.at)));
        assert!(!Scatter::holds_all(at, &runs) && Scatter::holds_all(at, &runs[..20]) && Scatter::holds_all(at, &[]));
    }

    proptest! {
        #[test]
        fn each_byte_lands_once_and_runs_land_where_they_belong(
            lens in proptest::collection::vec((0u64..3 * K64, 0u64..200, proptest::bool::ANY), 1..60), head in 1u64..300
        ) {
            let (mut at, mut to, mut runs) = (head, 0, Vec::new());
            for (len, gap, is_apart) in &lens {
                to += if *is_apart { 64 } else { *gap };
                runs.push(run(at, *len, to));
                (at, to) = (at + len + gap, to + len);
            }
            let Some(scatter) = Scatter::new(at, &runs) else {
                prop_assert!(joined(&runs).iter().all(|run| run.len < K64));
                return Ok(());
            };
            let beside = 1 << 40;
            let landed = scatter.ranges(beside);
            prop_assert!(landed.len() <= MAX_LANDING_RANGES && landed.iter().all(|range| range.len > 0));
            prop_assert_eq!(landed.iter().map(|range| range.len).sum::<u64>(), at);
            let place_of = |at: u64| {
                let mut start = 0;
                landed.iter().find_map(|range| {
                    start += range.len;
                    (at < start).then(|| range.offset + range.len - (start - at))
                }).unwrap()
            };
            for run in runs.iter().filter(|run| run.len > 0) {
                let (first, last) = match (scatter.is_in_place(run.at), scatter.beside(run.at, run.len)) {
                    (true, None) => (run.to, run.to + run.len - 1),
                    (false, Some(at)) => {
                        prop_assert_eq!(at % ALIGNMENT, run.at % ALIGNMENT);
                        (beside + at, beside + at + run.len - 1)
                    }
                    other => panic!("{run:?}: {other:?}"),
                };
                prop_assert_eq!((place_of(run.at), place_of(run.at + run.len - 1)), (first, last));
            }
            let mut all: Vec<_> = landed.iter().map(|range| (range.offset, range.offset + range.len)).collect();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
    }
}
