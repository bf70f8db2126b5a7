//! Counters and barriers: the operations of the workers, and the checks of their results.
//!
//! Counters only rise here, so each value that is returned has bounds: at least what was known to be added before the
//! question, at most what was ever added or may have been. A failure that says "not done" removes its addition from the
//! upper bound, so a false failure is detected.

use super::Cluster;
use super::worker::What;
use crate::fabric::AtomicOp;
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Command, CounterAsk, CounterCommand, CounterPath, CounterReport, Failure, FailureCode, OpId};
use crate::protocol::COUNTER_WORDS_BYTES;
use crate::sim::MemoryId;
use crate::tensor::{Key, Name};
use rand::Rng;
use std::collections::BTreeMap;

/// The memory of a node's counter words.
pub(super) const WORDS: LocalSlice = LocalSlice { segment: SegmentId(u32::MAX), offset: 0, len: COUNTER_WORDS_BYTES };

/// The known state of all counters and barriers.
#[derive(Default)]
pub(super) struct Counting {
    counters: BTreeMap<usize, Counter>,
    /// The barriers, by their number and by the number of members that the workers named.
    barriers: BTreeMap<(u32, u32), Barrier>,
    /// The memory of each node's counter words, if its device operates on words.
    pub(super) words: Vec<Option<MemoryId>>,
}

#[derive(Default)]
struct Counter {
    /// The counter's home and identity.
    is: Option<(Name, u64)>,
    /// The sum of the additions that are certainly done.
    done: u64,
    /// The sum of the additions that may be done or are in flight.
    perhaps: u64,
}

#[derive(Default)]
struct Barrier {
    asked: u64,
    /// Arrivals that ended without a report whether they were counted.
    unsure: u64,
    released: BTreeMap<u64, Round>,
}

#[derive(Default)]
struct Round {
    members: u64,
    leaders: u64,
}

/// The operation of a worker on a counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Added {
    counter: usize,
    /// The addition. It is done by a compare-and-swap if `expected` is set.
    n: u64,
    expected: Option<u64>,
    floor: u64,
}

fn name(kind: &str, n: impl std::fmt::Display) -> Name {
    Name::new(&format!("{kind}{n}")).unwrap()
}

impl Cluster {
    fn counter_command(&mut self, worker: usize, what: What, name: Name, ask: CounterAsk) {
        let timeout = self.timeout();
        let op = self.ask(worker, what, timeout);
        self.command(worker, op, Command::Counter(CounterCommand { name, ask, timeout }));
    }

    /// Opens a counter, or operates on one that is open.
    pub(super) fn count(&mut self, worker: usize) {
        let counter = self.rng.random_range(0..3);
        let open = self.workers[worker].counters.get(&counter).cloned();
        let Some((home, identity)) = open.filter(|_| !self.chance(10)) else {
            let what = What::OpenCounter(counter);
            return self.counter_command(worker, what, name("counter", counter), CounterAsk::Open);
        };
        let known = self.counting.counters.entry(counter).or_default();
        let floor = known.done;
        let (n, expected, op) = match self.rng.random_range(0..4) {
            0 => (0, None, AtomicOp::Load),
            1 => {
                let guess = floor + self.rng.random_range(0..2);
                (1, Some(guess), AtomicOp::CompareSwap { expected: guess, new: guess + 1 })
            }
            _ => {
                let n = self.rng.random_range(1..5);
                (n, None, AtomicOp::FetchAdd(n))
            }
        };
        known.perhaps += n;
        let what = What::Count(Added { counter, n, expected, floor });
        let ask = CounterAsk::Operate { home, identity, op };
        self.counter_command(worker, what, name("counter", counter), ask);
    }

    /// Arrives at the barrier for `barrier` members, and sometimes names one member more.
    pub(super) fn meet(&mut self, worker: usize, barrier: u32) {
        let members = barrier + u32::from(!self.play.calm && self.chance(3));
        let mut released =
            self.counting.barriers.range((barrier, 0)..(barrier + 1, 0)).flat_map(|(_, b)| b.released.keys());
        let floor = released.next_back().map_or(0, |round| round + 1);
        self.counting.barriers.entry((barrier, members)).or_default().asked += 1;
        let what = What::Meet { barrier, members, floor };
        self.counter_command(worker, what, name("barrier", barrier), CounterAsk::Wait { members });
    }

    pub(super) fn counter_opened(&mut self, worker: usize, op: OpId, home: Name, identity: u64) -> Result<(), String> {
        let What::OpenCounter(counter) = self.ended(worker, op)? else {
            return Err(format!("{op:?} is opened, but was no opening"));
        };
        let known = self.counting.counters.entry(counter).or_default();
        let is = known.is.get_or_insert((home.clone(), identity));
        if *is != (home.clone(), identity) {
            return Err(format!("counter {counter} is {is:?}, and also {identity:#x} at {home}"));
        }
        self.workers[worker].counters.insert(counter, (home, identity));
        Ok(())
    }

    pub(super) fn counted(&mut self, worker: usize, op: OpId, old: u64, report: &CounterReport) -> Result<(), String> {
        let What::Count(Added { counter, n, expected, floor }) = self.ended(worker, op)? else {
            return Err(format!("{op:?} is counted, but was no operation on a counter"));
        };
        let known = self.counting.counters.entry(counter).or_default();
        // The returned value does not include the operation's own addition.
        let most = known.done + known.perhaps - n;
        if old < floor || old > most {
            return Err(format!("counter {counter} was {old}, which is not within {floor} and {most}"));
        }
        known.perhaps -= n;
        if expected.is_none_or(|expected| expected == old) {
            known.done += n;
        }
        *match report.path {
            CounterPath::OneSided => &mut self.tally.one_sided,
            CounterPath::Message => &mut self.tally.by_message,
            CounterPath::Here | CounterPath::Device => &mut self.tally.at_home,
        } += 1;
        Ok(())
    }

    pub(super) fn met(&mut self, worker: usize, op: OpId, round: u64, leader: bool) -> Result<(), String> {
        let What::Meet { barrier: number, members, floor } = self.ended(worker, op)? else {
            return Err(format!("{op:?} is released, but was at no barrier"));
        };
        let other = |((n, m), b): (&(u32, u32), &Barrier)| *n == number && *m != members && !b.released.is_empty();
        if self.counting.barriers.iter().any(other) {
            return Err(format!("barrier {number} is for {members}, and for another number too"));
        }
        let barrier = self.counting.barriers.entry((number, members)).or_default();
        if barrier.asked < (round + 1) * u64::from(members) {
            return Err(format!("round {round} of {members} is over after {} arrivals", barrier.asked));
        }
        if round < floor {
            return Err(format!("{op:?} came after round {} of {members} and is released from {round}", floor - 1));
        }
        let r = barrier.released.entry(round).or_default();
        r.members += 1;
        r.leaders += u64::from(leader);
        if r.members > u64::from(members) || r.leaders > 1 {
            return Err(format!("round {round} of {members} let {} go, {} of them last", r.members, r.leaders));
        }
        self.tally.met += 1;
        Ok(())
    }

    /// Handles a counter or barrier operation that failed or whose worker died.
    pub(super) fn counting_failed(&mut self, what: &What, failure: Option<&Failure>) {
        match what {
            What::Count(added) => {
                let unknown =
                    failure.is_none_or(|f| matches!(f.code, FailureCode::OutcomeUnknown | FailureCode::Cancelled));
                if !unknown {
                    self.counting.counters.entry(added.counter).or_default().perhaps -= added.n;
                }
            }
            What::Meet { barrier, members, .. } => {
                self.counting.barriers.entry((*barrier, *members)).or_default().unsure += 1;
            }
            _ => {}
        }
    }

    /// Checks the final values of the counters and the rounds of the barriers.
    pub(super) fn check_counting(&self) -> Result<(), String> {
        let mut entered = 0;
        for (i, n) in self.nodes.iter().enumerate() {
            let here = n.driver.node.state().snapshot(crate::time::Time(0)).counters;
            entered += here;
            for (key, place, value) in n.driver.node.counter_values() {
                let value = match self.counting.words[i] {
                    Some(memory) => {
                        let bytes = self.world.read(memory, u64::from(place) * 8, 8);
                        u64::from_ne_bytes(bytes.try_into().map_err(|_| "a word is missing")?)
                    }
                    None => value,
                };
                let known = self
                    .counting
                    .counters
                    .iter()
                    .find(|(c, _)| Key::of_counter(&name("counter", c)).is_ok_and(|k| k == key));
                let Some((counter, known)) = known else { continue };
                if value < known.done || value > known.done + known.perhaps {
                    let most = known.done + known.perhaps;
                    return Err(format!("counter {counter} ends at {value}, not within {} and {most}", known.done));
                }
                if self.play.calm && known.perhaps > 0 {
                    return Err(format!("counter {counter} is not settled"));
                }
            }
        }
        if entered != self.directory.reserved() {
            return Err(format!("{entered} counters live, the directory has {}", self.directory.reserved()));
        }
        for ((_, members), barrier) in &self.counting.barriers {
            let missing: u64 = barrier.released.values().map(|r| u64::from(*members) - r.members).sum();
            if missing > barrier.unsure {
                return Err(format!("{missing} arrivals of rounds of {members} were nobody's"));
            }
        }
        Ok(())
    }
}
