//! Tests of bases that workers lend.

use super::pair::{ARENA_BYTES, Pair, Worker, bytes, key, name};
use super::solo::Solo;
use crate::delta::encode_bytes;
use crate::op::{
    Answer, Command, Content, DeltaOf, Deltas, FailureCode, Fetch, FetchedTensor, OpId, Push, Reply, Request,
};
use crate::protocol::{NodeEvent, WhyWhole};
use crate::tensor::{Select, Version};
use crate::wire::message::{Body, Role};
use std::time::Duration;

const LEN: u64 = 2000;

/// A push of this number of operation that lends what was pushed as a version.
const LENDS: OpId = OpId(900);

fn content_of(version: u64) -> Content {
    Content::of_digest(version)
}

fn version(version: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    (1..=version).for_each(|v| bytes[100 * v as usize] = v as u8);
    bytes
}

/// A worker whose key is at version 4, with the deltas of versions 3 and 4, and a reader at another node that has got none of them.
fn published() -> (Pair, Worker, Worker) {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let part = ARENA_BYTES / 16;
    let (mut deltas, mut base_offset) = (Vec::new(), 0);
    for n in 1..=4 {
        let offset = 2 * n * part;
        pair.world.write(w.arena, offset, &version(n));
        let said = match n {
            1 | 2 => Deltas::Follow,
            _ => {
                let delta = encode_bytes(&version(n - 1), &version(n), u64::MAX).unwrap().bytes;
                let (at, len) = (offset + part, delta.len() as u64);
                pair.world.write(w.arena, at, &delta);
                let earlier = deltas.clone().into();
                deltas.push((at, len));
                Deltas::Of(DeltaOf { base: Version(n - 1), base_offset, offset: at, len, earlier })
            }
        };
        base_offset = offset;
        let push = Push {
            version: Some(Version(n)),
            deltas: said,
            content: Some(content_of(n)),
            ..Push::new(key("k"), bytes(LEN), offset)
        };
        pair.command(w, OpId(n), Command::Push(push));
        pair.settle();
        pair.replies(w);
    }
    (pair, w, r)
}

/// Lends bytes under a content.
fn lend(pair: &mut Pair, r: Worker, lent: &[u8], content: Content) {
    pair.world.write(r.arena, 0, lent);
    let timeout = Duration::from_secs(1000);
    let (deltas, content) = (Deltas::Base, Some(content));
    let push = Push { timeout, deltas, content, ..Push::new(key("k"), bytes(lent.len() as u64), 0) };
    pair.command(r, LENDS, Command::Push(push));
    pair.settle();
    assert_eq!(pair.replies(r), [], "it has no answer while it is lent");
}

fn ask(pair: &mut Pair, r: Worker, op: u64, base: Option<OpId>) {
    let (timeout, select) = (Duration::from_secs(1000), Select::Latest);
    let (require, trace, watches, excerpt) = (None, None, false, None);
    let fetch = Fetch { key: key("k"), select, timeout, require, trace, watches, excerpt, base };
    pair.command(r, OpId(op), Command::Fetch(fetch));
    pair.settle();
}

/// Fetches the newest version. Returns the length of the delta as which it came.
#[track_caller]
fn fetch(pair: &mut Pair, r: Worker, op: u64, base: Option<OpId>) -> u64 {
    ask(pair, r, op, base);
    let replies = pair.replies(r);
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let FetchedTensor { slice, version: found, report, .. } = tensor;
    assert!(pair.memories[1].read(*slice).unwrap() == version(found.0), "{tensor:?}");
    let delta = report.delta;
    pair.request(r, Request::Release { lease: *lease });
    delta
}

#[track_caller]
fn give_up(pair: &mut Pair, r: Worker) {
    pair.request(r, Request::Cancel { op: LENDS });
    pair.settle();
    match &pair.replies(r)[..] {
        [Reply::Answer { op: LENDS, answer: Answer::Failed { failure, kept: false } }] => {
            assert_eq!(failure.code, FailureCode::Cancelled);
        }
        other => panic!("{other:?}"),
    }
}

fn given_up(pair: &Pair, why: WhyWhole) -> u64 {
    pair.nodes[1].node.state().meters().deltas().given_up[why as usize]
}

// Promise: lent-bases, seen to fail
#[test]
fn version_comes_as_deltas_of_a_base_that_its_reader_lends() {
    // The deltas lead back to version 2.
    for (n, is_delta) in [(1, false), (2, true), (3, true), (4, false)] {
        let (mut pair, w, r) = published();
        lend(&mut pair, r, &version(n), content_of(n));
        assert_eq!(fetch(&mut pair, r, 1, Some(LENDS)) > 0, is_delta, "version {n}");
        assert_eq!(pair.nodes[1].node.state().meters().deltas().given_up, [0; WhyWhole::ALL.len()]);
        give_up(&mut pair, r);
        pair.ends_clean(&[(w, "w"), (r, "r")]);
    }
}

// Promise: lent-bases
#[test]
fn version_that_is_the_lent_base_is_sent_all_the_same() {
    let (mut pair, w, r) = published();
    // The bytes are others, and nothing would find that.
    lend(&mut pair, r, &version(1), content_of(4));
    assert_eq!(fetch(&mut pair, r, 1, Some(LENDS)), 0);
    give_up(&mut pair, r);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: lent-bases
#[test]
fn wrong_base_costs_a_whole_version() {
    let (mut pair, w, r) = published();
    let mut wrong = version(3);
    wrong[1999] ^= 1;
    lend(&mut pair, r, &wrong, content_of(3));
    assert_eq!(fetch(&mut pair, r, 1, Some(LENDS)), 0);
    assert_eq!(given_up(&pair, WhyWhole::OtherBytes), 1);
    assert!(pair.events[1].iter().any(|event| matches!(event, NodeEvent::DeltaRefused { .. })), "{:?}", pair.events[1]);
    give_up(&mut pair, r);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
    // One of another length than the version's.
    let (mut pair, w, r) = published();
    lend(&mut pair, r, &version(3)[..1000], content_of(3));
    assert_eq!(fetch(&mut pair, r, 1, Some(LENDS)), 0);
    assert_eq!(given_up(&pair, WhyWhole::Malformed), 1);
    give_up(&mut pair, r);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: lent-bases
#[test]
fn only_what_is_lent_by_the_same_worker_is_a_base() {
    let (mut pair, w, r) = published();
    let other = pair.worker(1, "other");
    lend(&mut pair, r, &version(3), content_of(3));
    // Of another worker, of its own before, and of a fetch.
    assert_eq!(fetch(&mut pair, other, 1, Some(LENDS)), 0);
    give_up(&mut pair, r);
    pair.ends_clean(&[(w, "w"), (r, "r"), (other, "other")]);
    let (mut pair, w, r) = published();
    lend(&mut pair, r, &version(3), content_of(3));
    give_up(&mut pair, r);
    assert_eq!(fetch(&mut pair, r, 1, Some(LENDS)), 0);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: lent-bases
#[test]
fn version_that_the_node_has_is_named_before_a_lent_one() {
    let (mut pair, w, r) = published();
    assert_eq!(fetch(&mut pair, r, 1, None), 0);
    lend(&mut pair, r, &version(1), content_of(3));
    // The version is the one that the node has, so nothing comes.
    assert_eq!(fetch(&mut pair, r, 2, Some(LENDS)), 0);
    assert_eq!(pair.nodes[1].node.state().meters().deltas().given_up, [0; WhyWhole::ALL.len()]);
    give_up(&mut pair, r);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: lent-bases
#[test]
fn base_without_a_content_and_one_that_is_to_be_published_are_refused() {
    let (mut pair, w, r) = published();
    let base = Push { deltas: Deltas::Base, ..Push::new(key("k"), bytes(LEN), 0) };
    let content = Some(content_of(1));
    for push in [base.clone(), Push { content, takeover: true, ..base.clone() }] {
        pair.command(r, LENDS, Command::Push(push));
        pair.settle();
        match &pair.replies(r)[..] {
            [Reply::Answer { answer: Answer::Failed { failure, kept: false }, .. }] => {
                assert_eq!(failure.code, FailureCode::Invalid, "{failure}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Its time is over like that of any other operation.
    let timeout = Duration::from_millis(1);
    pair.command(r, LENDS, Command::Push(Push { content, timeout, ..base }));
    pair.wait(Duration::from_secs(1));
    match &pair.replies(r)[..] {
        [Reply::Answer { answer: Answer::Failed { failure, kept: false }, .. }] => {
            assert_eq!(failure.code, FailureCode::Deadline, "{failure}");
        }
        other => panic!("{other:?}"),
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: lent-bases
#[test]
fn owner_that_calls_a_lent_base_unchanged_loses_its_link() {
    for lends in [false, true] {
        let mut solo = Solo::new(|_| {});
        let content = Some(content_of(7));
        let push = Push { deltas: Deltas::Base, content, ..Push::new(key("k"), bytes(8), 0) };
        if lends {
            solo.command(LENDS, Command::Push(push));
        }
        let (timeout, select) = (Duration::from_secs(1), Select::Latest);
        let (require, trace, watches, excerpt, base) = (None, None, false, None, Some(LENDS));
        let fetch = Fetch { key: key("k"), select, timeout, require, trace, watches, excerpt, base };
        solo.command(OpId(1), Command::Fetch(fetch));
        solo.controls.clear();
        solo.node.located(solo.now, &key("k"), &name("there"), 1);
        solo.drain();
        let asked = solo.last("TENSOR_REQUEST");
        let Body::TensorRequest { held, .. } = &asked.body else { panic!("{asked:?}") };
        assert_eq!(*held, content.filter(|_| lends).map(Content::number));
        let index = asked.index;
        // What was lent is proved by nothing but a delta.
        solo.hear(Role::Pull, index, Body::Unchanged { version: Version(1) });
        assert!(format!("{:?}", solo.ended).contains("UNCHANGED"), "{:?}", solo.ended);
    }
}

// Promise: lent-bases
#[test]
fn base_is_its_workers_again_while_others_wait_for_the_same() {
    for dies in [false, true] {
        let (mut pair, w, r) = published();
        let other = pair.worker(1, "other");
        lend(&mut pair, r, &version(3), content_of(3));
        let select = Select::AtLeast(Version(5));
        for (who, op, base) in [(r, 1, Some(LENDS)), (other, 2, None)] {
            let (timeout, require, trace, watches, excerpt) = (Duration::from_secs(1000), None, None, false, None);
            let fetch = Fetch { key: key("k"), select, timeout, require, trace, watches, excerpt, base };
            pair.command(who, OpId(op), Command::Fetch(fetch));
            pair.settle();
        }
        if dies {
            pair.leave(r, "r");
            pair.settle();
        } else {
            pair.request(r, Request::Cancel { op: OpId(1) });
            pair.settle();
            pair.replies(r);
            give_up(&mut pair, r);
        }
        // Its delta is one of version 4, and the request has named that of version 3.
        let part = ARENA_BYTES / 16;
        let delta = encode_bytes(&version(4), &version(5), u64::MAX).unwrap().bytes;
        pair.world.write(w.arena, 10 * part, &version(5));
        pair.world.write(w.arena, 11 * part, &delta);
        let (offset, len, base_offset) = (11 * part, delta.len() as u64, 8 * part);
        let earlier = [(9 * part, encode_bytes(&version(3), &version(4), u64::MAX).unwrap().bytes.len() as u64)].into();
        let deltas = Deltas::Of(DeltaOf { base: Version(4), base_offset, offset, len, earlier });
        let push = Push { version: Some(Version(5)), deltas, ..Push::new(key("k"), bytes(LEN), 10 * part) };
        pair.command(w, OpId(5), Command::Push(push));
        pair.settle();
        match &pair.replies(other)[..] {
            [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] => {
                assert_eq!((tensor.version, tensor.report.delta), (Version(5), 0));
                assert!(pair.memories[1].read(tensor.slice).unwrap() == version(5));
                pair.request(other, Request::Release { lease: *lease });
            }
            replies => panic!("{replies:?}"),
        }
        assert_eq!(given_up(&pair, WhyWhole::BaseGone), 1);
        let workers = [(w, "w"), (other, "other"), (r, "r")];
        pair.ends_clean(&workers[..if dies { 2 } else { 3 }]);
    }
}

// Promise: lent-bases
#[test]
fn drain_does_not_wait_for_bases() {
    let (mut pair, w, r) = published();
    lend(&mut pair, r, &version(3), content_of(3));
    let now = pair.world.now();
    pair.nodes[1].node.drain(now);
    pair.settle();
    match &pair.replies(r)[..] {
        [Reply::Answer { op: LENDS, answer: Answer::Failed { failure, kept: false } }] => {
            assert_eq!(failure.code, FailureCode::Draining);
        }
        other => panic!("{other:?}"),
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}
