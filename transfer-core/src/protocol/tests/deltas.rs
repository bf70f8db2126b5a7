//! Tests of versions that come as deltas.

use super::pair::{ARENA_BYTES, POOL_BYTES, Pair, Worker, bytes, key};
use crate::delta::encode_bytes;
use crate::op::{Answer, Command, DeltaOf, Deltas, FetchedTensor, LeaseId, OpId, Reply, Request};
use crate::protocol::rules::{Broken, Rules};
use crate::protocol::{DeltaMeter, NodeConfig, NodeEvent, TransferFilter, WhyWhole};
use crate::tensor::{Select, Version};

const LEN: u64 = 2000;

/// A worker whose versions have deltas, a reader at another node, and the offset and the bytes of the last version.
struct Deltaic {
    pair: Pair,
    w: Worker,
    r: Worker,
    base: (u64, u64, Vec<u8>),
    pushes: u64,
    /// Where the deltas of the pushes lie, and how many earlier ones each keeps.
    deltas: Vec<(u64, u64)>,
    keep_chain: usize,
    key_of: fn(u64) -> String,
}

impl Deltaic {
    fn new(configure: impl Fn(&mut NodeConfig)) -> Deltaic {
        let mut pair = Pair::with(configure);
        let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
        Deltaic {
            pair,
            w,
            r,
            base: (0, 0, vec![0; LEN as usize]),
            pushes: 0,
            deltas: Vec::new(),
            keep_chain: 0,
            key_of: |_| "k".to_owned(),
        }
    }

    /// Pushes a version in which the byte at `place` has changed, or all of a first one. `damage` is done to its delta.
    fn push(&mut self, version: u64, place: usize, damage: impl Fn(&mut Vec<u8>)) {
        let (old_version, base_offset, old) = self.base.clone();
        let mut new = old.clone();
        new[place] = version as u8;
        let mut delta = encode_bytes(&old, &new, u64::MAX).unwrap().bytes;
        damage(&mut delta);
        self.pushes += 1;
        let (part, room) = (ARENA_BYTES / 8, ARENA_BYTES / 16);
        // As the pair places its pushes.
        let at = self.pushes % 8 * part;
        self.pair.world.write(self.w.arena, at + room, &delta);
        let earlier = self.deltas[self.deltas.len().saturating_sub(self.keep_chain)..].into();
        let (offset, len) = (at + room, delta.len() as u64);
        let of = DeltaOf { base: Version(old_version), base_offset, offset, len, earlier };
        self.pair.deltas = if old_version == 0 {
            Deltas::Follow
        } else {
            self.deltas.push((offset, len));
            Deltas::Of(of)
        };
        let op = self.pair.push_version(self.w, &(self.key_of)(version), Some(version), bytes(LEN), 0, None);
        let at = op.0 % 8 * part;
        self.pair.world.write(self.w.arena, at, &new);
        self.base = (version, at, new);
        self.pair.settle();
        self.pair.replies(self.w);
    }

    /// Fetches the newest version, which has to have the bytes that were pushed.
    #[track_caller]
    fn fetch(&mut self) -> (LeaseId, FetchedTensor) {
        self.pair.fetch(self.r, &(self.key_of)(self.base.0), Select::Latest);
        self.pair.settle();
        let replies = self.pair.replies(self.r);
        let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert!(self.pair.memories[1].read(tensor.slice).unwrap() == self.base.2, "{tensor:?}");
        (*lease, tensor.clone())
    }

    /// Fetches the newest version and gives it back. Returns the length of the delta as which it came.
    #[track_caller]
    fn fetched_delta(&mut self) -> u64 {
        let (lease, tensor) = self.fetch();
        self.pair.request(self.r, Request::Release { lease });
        tensor.report.delta
    }

    fn meter(&self) -> DeltaMeter {
        self.pair.nodes[1].node.state().meters().deltas()
    }

    fn given_up(&self, why: WhyWhole) -> u64 {
        self.meter().given_up[why as usize]
    }

    fn end(self) {
        self.pair.ends_clean(&[(self.w, "w"), (self.r, "r")]);
    }
}

// Promise: deltas, seen to fail
#[test]
fn version_comes_as_a_delta_of_the_one_that_the_node_has() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    let (first, base) = d.fetch();
    assert_eq!(base.report.delta, 0, "there was nothing to make it of");
    for version in 2..6 {
        d.push(version, 100 * version as usize, |_| {});
        let (lease, tensor) = d.fetch();
        let report = tensor.report;
        assert!((1..100).contains(&report.delta), "{report}");
        assert_eq!((tensor.version, report.bytes), (Version(version), LEN));
        assert!(report.copied >= LEN, "the result was written by a processor: {report}");
        assert_ne!(tensor.slice, base.slice, "it lies beside its base");
        d.pair.request(d.r, Request::Release { lease });
    }
    let mut old = vec![0; LEN as usize];
    old[5] = 1;
    assert!(d.pair.memories[1].read(base.slice).unwrap() == old, "what a worker reads stays as it was");
    d.pair.request(d.r, Request::Release { lease: first });
    assert_eq!((d.meter().versions, d.meter().given_up), (4, [0; WhyWhole::ALL.len()]));
    assert!(d.meter().saved > 4 * (LEN - 100), "{:?}", d.meter());
    d.end();
}

/// Publishes versions under these keys. Returns which of them have come as deltas.
fn deltas_under(key_of: fn(u64) -> String) -> [bool; 4] {
    let mut d = Deltaic { key_of, ..Deltaic::new(|_| {}) };
    let came = [1, 2, 3, 4].map(|version| {
        d.push(version, 100 * version as usize, |_| {});
        d.fetched_delta() > 0
    });
    d.end();
    came
}

// Promise: deltas, seen to fail
#[test]
fn base_may_lie_under_another_key_of_its_series() {
    assert_eq!(deltas_under(|version| format!("s/rank-3/{:016x}", 0xa0 | version)), [false, true, true, true]);
    // Another rank, and a rank that has begun again.
    assert_eq!(
        deltas_under(|version| format!("s/rank-{}/{:016x}", version / 3, 0xa0 | version)),
        [false, true, false, true]
    );
    assert_eq!(deltas_under(|version| format!("s/rank-3/{:016x}", (version / 3) << 4)), [false, true, false, true]);
    assert_eq!(deltas_under(|version| format!("k{version}")), [false; 4]);
}

// Promise: deltas, seen to fail
#[test]
fn node_that_has_missed_versions_gets_the_deltas_that_are_kept() {
    for keep_chain in 0..4 {
        let mut d = Deltaic { keep_chain, ..Deltaic::new(|_| {}) };
        d.push(1, 5, |_| {});
        d.fetched_delta();
        for version in 2..=5 {
            d.push(version, 100 * version as usize, |_| {});
        }
        let last = |d: &Deltaic, count| d.deltas.iter().rev().take(count).map(|(_, len)| len).sum::<u64>();
        // It has missed three versions, so it needs four deltas.
        let four = if keep_chain == 3 { last(&d, 4) } else { 0 };
        assert_eq!(d.fetched_delta(), four, "a chain of {keep_chain}");
        d.push(6, 600, |_| {});
        d.push(7, 700, |_| {});
        let two = if keep_chain > 0 { last(&d, 2) } else { 0 };
        assert_eq!(d.fetched_delta(), two, "a chain of {keep_chain}");
        d.end();
    }
}

// Promise: deltas, seen to fail
#[test]
fn earlier_deltas_that_are_not_those_of_the_base_are_not_sent() {
    let mut d = Deltaic { keep_chain: 2, ..Deltaic::new(|_| {}) };
    d.push(1, 5, |_| {});
    d.fetched_delta();
    for version in 2..=3 {
        d.push(version, 100 * version as usize, |_| {});
    }
    // The worker names another place for the delta of version 3, and the right one for what is before it.
    d.deltas.last_mut().unwrap().0 += 64;
    d.push(4, 400, |_| {});
    assert_eq!(d.fetched_delta(), 0);
    // A chain over a version that has no delta: version 5 was not pushed with one.
    let earlier = d.deltas.clone();
    d.base.0 = 0;
    d.push(5, 500, |_| {});
    d.base.0 = 5;
    d.deltas = earlier;
    d.push(6, 600, |_| {});
    assert_eq!((d.fetched_delta(), d.meter()), (0, DeltaMeter::default()));
    d.end();
}

#[test]
fn nothing_comes_twice() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    d.fetched_delta();
    d.pair.posted();
    d.fetched_delta();
    let posted = d.pair.posted();
    assert!(posted.iter().all(|what| what != "WRITE"), "{posted:?}");
    d.end();
}

/// Begins a key again with the same numbers, and pushes a version whose delta is one of a version of before. Returns what has come
/// of the deltas.
fn deltas_after_a_key_has_begun_again(configure: impl Fn(&mut NodeConfig)) -> DeltaMeter {
    let mut d = Deltaic::new(configure);
    d.push(1, 5, |_| {});
    d.push(2, 6, |_| {});
    let (lease, _) = d.fetch();
    // The same numbers, other bytes. The memory of the first ones is still lent.
    let stale = d.base.clone();
    let (op, command) = (OpId(1000), Command::Delete { key: key("k") });
    d.pair.request(d.w, Request::Command { op, command });
    d.pair.settle();
    d.pair.replies(d.w);
    d.base = (0, 0, vec![7; LEN as usize]);
    d.push(2, 8, |_| {});
    d.pair.request(d.r, Request::Release { lease });
    assert_eq!(d.fetched_delta(), 0, "the node has version 2, but of the epoch before");
    // A worker that has not noticed that its key was deleted.
    let newest = std::mem::replace(&mut d.base, stale).2;
    d.push(3, 9, |_| {});
    assert_eq!(d.fetched_delta(), 0);
    assert_ne!(newest, d.base.2);
    let meter = d.meter();
    d.end();
    meter
}

// Promise: deltas, seen to fail
#[test]
fn delta_of_a_version_that_has_begun_again_is_not_sent() {
    assert_eq!(deltas_after_a_key_has_begun_again(|_| {}), DeltaMeter::default());
    let broken = |config: &mut NodeConfig| config.rules = Rules::but(Some(Broken::ProvesBasesByNumber));
    let meter = deltas_after_a_key_has_begun_again(broken);
    assert_eq!(meter.given_up[WhyWhole::OtherBytes as usize], 1, "the mistake is noticed: {meter:?}");
}

// Promise: deltas, seen to fail
#[test]
fn version_comes_as_a_whole_where_its_delta_does_not_make_it() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(Damage, WhyWhole); 3] = [
        (|delta| delta[20] ^= 1, WhyWhole::OtherBytes),
        (|delta| *delta.last_mut().unwrap() ^= 1, WhyWhole::OtherBytes),
        (|delta| delta[4] = 9, WhyWhole::Malformed),
    ];
    for (damage, why) in damages {
        let mut d = Deltaic::new(|_| {});
        d.push(1, 5, |_| {});
        d.fetched_delta();
        d.push(2, 6, damage);
        assert_eq!(d.fetched_delta(), 0);
        assert_eq!((d.given_up(why), d.meter().versions), (1, 0));
        assert!(matches!(d.pair.events[1][..], [NodeEvent::DeltaRefused { .. }]), "{:?}", d.pair.events[1]);
        d.push(3, 7, |_| {});
        assert!(d.fetched_delta() > 0, "the whole version is the next base");
        d.end();
    }
}

// Promise: deltas, seen to fail
#[test]
fn base_is_given_up_before_anybody_waits_for_room() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    d.fetched_delta();
    assert!(d.pair.nodes[1].node.state().snapshot(d.pair.world.now()).base_bytes >= LEN);
    // This needs all of the pool but the base's room.
    d.pair.deltas = Deltas::None;
    let large = POOL_BYTES - LEN;
    d.pair.push_version(d.w, "large", Some(1), bytes(large), 1, None);
    d.pair.fetch(d.r, "large", Select::Latest);
    d.pair.settle();
    let replies = d.pair.replies(d.r);
    let [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let lease = *lease;
    assert_eq!(d.pair.nodes[1].node.state().snapshot(d.pair.world.now()).base_bytes, 0);
    d.pair.request(d.r, Request::Release { lease });
    d.push(2, 6, |_| {});
    assert_eq!(d.fetched_delta(), 0);
    d.end();
}

/// What is free of the pool beside a base and a version of this length, in bytes.
const fn rest(len: u64) -> u64 {
    POOL_BYTES - slot_of(LEN) - slot_of(len)
}

const fn slot_of(len: u64) -> u64 {
    len.next_multiple_of(64) + 64
}

// Promise: deltas, seen to fail
#[test]
fn delta_that_has_lost_its_base_is_not_fetched() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    d.fetched_delta();
    // Of the pool this leaves too little for a delta.
    let large = POOL_BYTES - slot_of(LEN) - 128;
    d.pair.deltas = Deltas::None;
    d.pair.push_version(d.w, "large", Some(1), bytes(large), 1, None);
    d.pair.fetch(d.r, "large", Select::Latest);
    d.pair.settle();
    assert_eq!((rest(large), d.pair.replies(d.r).len()), (64, 1));
    d.push(2, 6, |_| {});
    d.pair.posted();
    assert_eq!(d.fetched_delta(), 0);
    let posted = d.pair.posted();
    assert_eq!(posted.iter().filter(|what| *what == "WRITE").count(), 1, "{posted:?}");
    assert_eq!((d.given_up(WhyWhole::BaseGone), d.meter().versions), (1, 0));
    d.end();
}

// Promise: deltas, seen to fail
#[test]
fn delta_that_has_room_keeps_its_base() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    d.fetched_delta();
    d.push(2, 6, |_| {});
    d.pair.deltas = Deltas::None;
    d.pair.push_version(d.w, "large", Some(1), bytes(POOL_BYTES - 512), 1, None);
    d.pair.settle();
    // Both are described at the same time. The second one needs all room, also that of the base.
    d.pair.fetch(d.r, "k", Select::Latest);
    d.pair.fetch(d.r, "large", Select::Latest);
    d.pair.settle();
    assert_eq!((d.meter().versions, d.meter().given_up), (1, [0; WhyWhole::ALL.len()]));
    let replies = d.pair.replies(d.r);
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else { panic!("{replies:?}") };
    assert!(d.pair.memories[1].read(tensor.slice).unwrap() == d.base.2);
    let lease = *lease;
    d.pair.request(d.r, Request::Release { lease });
    d.pair.settle();
    assert_eq!(d.pair.replies(d.r).len(), 1, "the other one has its room");
    d.end();
}

// Promise: deltas, seen to fail
#[test]
fn idle_bases_are_given_up_before_one_of_a_request_that_waits() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    d.fetched_delta();
    // Another base, for which nobody waits.
    let idle = POOL_BYTES / 4;
    d.pair.deltas = Deltas::Follow;
    d.pair.push_version(d.w, "idle", Some(1), bytes(idle), 1, None);
    d.pair.fetch(d.r, "idle", Select::Latest);
    d.pair.settle();
    let replies = d.pair.replies(d.r);
    let [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    d.pair.request(d.r, Request::Release { lease: *lease });
    d.pair.settle();
    // What is left has too little room for a delta.
    d.pair.deltas = Deltas::None;
    let large = POOL_BYTES - slot_of(LEN) - slot_of(idle) - 128;
    d.pair.push_version(d.w, "large", Some(1), bytes(large), 1, None);
    d.pair.fetch(d.r, "large", Select::Latest);
    d.pair.settle();
    let replies = d.pair.replies(d.r);
    let [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let large = *lease;
    d.push(2, 6, |_| {});
    assert!(d.fetched_delta() > 0);
    assert_eq!((d.given_up(WhyWhole::BaseGone), d.meter().versions), (0, 1));
    d.pair.request(d.r, Request::Release { lease: large });
    d.end();
}

// Promise: spreading, seen to fail
#[test]
fn version_is_made_of_its_delta_in_the_room_of_what_is_kept_for_other_nodes() {
    let mut d = Deltaic::new(|config| (config.fan_out, config.spreads_from) = (4, 1));
    d.push(1, 5, |_| {});
    d.fetched_delta();
    // Two versions that are kept for other nodes leave room for a delta, and too little for its result.
    d.pair.deltas = Deltas::None;
    for (key, len) in [("first", 6000), ("second", 7000)] {
        d.pair.push_version(d.w, key, Some(1), bytes(len), 1, None);
        d.pair.fetch(d.r, key, Select::Latest);
        d.pair.settle();
        let (lease, ..) = d.pair.fetched(d.r);
        d.pair.request(d.r, Request::Release { lease });
        d.pair.settle();
    }
    let free = |d: &Deltaic| POOL_BYTES - d.pair.nodes[1].node.state().snapshot(d.pair.world.now()).pools[0].used;
    assert!(free(&d) < LEN, "{}", free(&d));
    d.push(2, 6, |_| {});
    assert!(d.fetched_delta() > 0);
    assert_eq!((d.meter().versions, d.meter().given_up), (1, [0; WhyWhole::ALL.len()]));
    d.end();
}

#[test]
fn fetch_says_that_it_waits_for_a_delta() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    d.fetched_delta();
    d.push(2, 6, |_| {});
    d.pair.fetch(d.r, "k", Select::Latest);
    let mut words = Vec::new();
    loop {
        d.pair.poll();
        let shown =
            d.pair.nodes[1].node.state().transfers(d.pair.world.now(), &TransferFilter::default(), 0, 10).entries;
        words.extend(shown.into_iter().map(|t| (t.waits_for, t.len_bytes)));
        if !d.pair.world.step() {
            break;
        }
    }
    words.dedup();
    let replies = d.pair.replies(d.r);
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let delta = format!("a delta of {} bytes", tensor.report.delta);
    assert!(words.contains(&(format!("node \"a\" to send {delta}"), Some(LEN))), "{words:?}");
    let lease = *lease;
    d.pair.request(d.r, Request::Release { lease });
    d.end();
}

#[test]
fn base_is_kept_only_where_a_delta_could_be_applied() {
    for (len, kept) in [(POOL_BYTES / 2 - 128, POOL_BYTES / 2 - 128), (POOL_BYTES / 2, 0)] {
        let mut d = Deltaic::new(|_| {});
        d.pair.deltas = Deltas::Follow;
        d.pair.push_version(d.w, "k", Some(1), bytes(len), 1, None);
        d.pair.fetch(d.r, "k", Select::Latest);
        d.pair.settle();
        assert_eq!(d.pair.replies(d.r).len(), 1);
        assert_eq!(d.pair.nodes[1].node.state().snapshot(d.pair.world.now()).base_bytes, kept);
    }
}

#[test]
fn no_base_is_kept_beyond_the_limit_or_without_workers() {
    let mut d = Deltaic::new(|config| config.base_bytes = LEN - 1);
    d.push(1, 5, |_| {});
    d.fetched_delta();
    d.push(2, 6, |_| {});
    assert_eq!((d.fetched_delta(), d.meter()), (0, DeltaMeter::default()));
    d.end();
}

// Promise: deltas, seen to fail
#[test]
fn deltas_tell_nothing_of_a_version_that_some_readers_may_not_read() {
    let mut d = Deltaic { keep_chain: 2, ..Deltaic::new(|_| {}) };
    let came: Vec<bool> = [(1, true), (2, true), (3, false), (4, true), (5, true)]
        .map(|(version, is_shared)| {
            d.pair.readable_by = if is_shared { vec![super::pair::name("1")] } else { Vec::new() };
            d.push(version, 100 * version as usize, |_| {});
            d.fetched_delta() > 0
        })
        .into();
    // A reader of version 4 alone would learn what version 3 was.
    assert_eq!(came, [false, true, true, false, true]);
    d.pair.readable_by.clear();
    d.end();
}

// Promise: hostile-workers
#[test]
fn deltas_that_come_to_more_than_their_version_are_refused() {
    let mut d = Deltaic::new(|_| {});
    d.push(1, 5, |_| {});
    let (version, base_offset, _) = d.base;
    let (offset, len) = (ARENA_BYTES / 2, LEN);
    let earlier = [(offset, len); 8].into();
    d.pair.deltas = Deltas::Of(DeltaOf { base: Version(version), base_offset, offset, len, earlier });
    d.pair.push_version(d.w, "k", Some(2), bytes(LEN), 0, None);
    d.pair.settle();
    let replies = format!("{:?}", d.pair.replies(d.w));
    assert!(["9 deltas", "18000", "2000 bytes"].iter().all(|part| replies.contains(part)), "{replies}");
    d.end();
}
