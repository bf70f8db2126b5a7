//! Tests of keys that go from one owner to another.

use super::pair::{Pair, Worker, bytes, key, name};
use super::solo::{KEY, OURS, SESSION, Solo};
use crate::memory::SegmentId;
use crate::op::{Answer, Command, Failure, FailureCode, Fetch, OpId, Push, Reply, Request};
use crate::protocol::{ClaimRefused, SessionId, Tenant};
use crate::tensor::{Key, Life, Retention, Select, Until, Version};
use crate::wire::landing::Header;
use crate::wire::message::{Body, Role};
use std::num::NonZeroU32;
use std::time::Duration;

fn newest(pair: &mut Pair, r: Worker) -> (u64, Vec<u8>) {
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (lease, version, _, got) = pair.fetched(r);
    pair.release(r, lease);
    pair.settle();
    (version, got)
}

#[test]
fn a_key_that_is_taken_over_is_the_new_owners_on_one_node_and_across_two() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(0, "old"), pair.worker(node, "new"));
        let (near, far) = (pair.worker(0, "near"), pair.worker(1, "far"));
        pair.push_version(old, "k", Some(9), bytes(100), 1, None);
        pair.settle();
        assert_eq!((newest(&mut pair, near).0, newest(&mut pair, far).0), (9, 9));
        pair.push(new, "k", bytes(100), 2, None);
        pair.settle();
        let failure = pair.failed(new);
        assert_eq!(failure.code, FailureCode::KeyOwned);
        assert!(failure.text.contains("\"old\"") && failure.text.contains("\"a\""), "{failure}");

        pair.replies(old);
        pair.takeover = true;
        pair.push(new, "k", bytes(100), 3, None);
        pair.settle();
        let replies = pair.replies(new);
        assert!(
            matches!(replies[..], [Reply::Answer { answer: Answer::Pushed { version: Version(1), .. }, .. }]),
            "{replies:?}"
        );
        assert!(matches!(pair.replies(old)[..], [Reply::Returned { .. }]));
        pair.takeover = false;
        assert_eq!(newest(&mut pair, near), (1, vec![3; 100]));
        assert_eq!(newest(&mut pair, far), (1, vec![3; 100]));
        pair.push_version(old, "k", Some(10), bytes(100), 4, None);
        pair.settle();
        assert!(pair.failed(old).text.contains("\"new\""));
        // The old owner takes the key over again.
        pair.takeover = true;
        pair.push(old, "k", bytes(100), 5, None);
        pair.settle();
        assert!(matches!(pair.replies(old)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
        pair.takeover = false;
        assert_eq!(newest(&mut pair, far), (1, vec![5; 100]));
        pair.ends_clean(&[(old, "old"), (new, "new"), (near, "near"), (far, "far")]);
    }
}

/// Who follows a stream waits for no version of another owner.
// Promise: writer-of-a-stream, seen to fail
#[test]
fn a_stream_ends_for_its_readers_when_its_key_is_taken_over() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(0, "old"), pair.worker(node, "new"));
        let (near, far) = (pair.worker(0, "near"), pair.worker(1, "far"));
        pair.retention = Retention { until: Until::Fetched(NonZeroU32::MIN), ..Retention::default() };
        pair.push_version(old, "k", Some(1), bytes(8), 1, None);
        pair.settle();
        for reader in [near, far] {
            pair.fetch(reader, "k", Select::Following(Version(2)));
        }
        pair.settle();
        pair.takeover = true;
        pair.push_version(new, "k", Some(1), bytes(8), 2, None);
        pair.settle();
        for reader in [near, far] {
            let failure = pair.failed(reader);
            assert_eq!(failure.code, FailureCode::VersionGone);
            assert!(failure.text.contains("\"old\"") && failure.text.contains("v1 was the last"), "{failure}");
        }
        pair.ends_clean(&[(old, "old"), (new, "new"), (near, "near"), (far, "far")]);
    }
}

/// A reader has the first batch of a stream. Before it asks for the next one, a worker of its own node takes the key over, and
/// publishes batches of the same numbers: the reader gets none of them.
// Promise: writer-of-a-stream, seen to fail
#[test]
fn a_reader_that_asks_after_a_takeover_gets_no_batch_of_another_stream() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(node, "old"), pair.worker(0, "new"));
        let (reader, next) = (pair.worker(0, "reader"), pair.worker(0, "next"));
        pair.retention = Retention { until: Until::Fetched(NonZeroU32::MIN), ..Retention::default() };
        let read = |pair: &mut Pair, reader, select| {
            pair.fetch(reader, "k", select);
            pair.settle();
            let (lease, version, _, got) = pair.fetched(reader);
            pair.release(reader, lease);
            pair.settle();
            (version, got[0])
        };
        pair.push_version(old, "k", Some(1), bytes(8), 1, None);
        pair.push_version(old, "k", Some(2), bytes(8), 1, None);
        pair.settle();
        assert_eq!(read(&mut pair, reader, Select::Exactly(Version(1))), (1, 1));
        pair.takeover = true;
        for version in 1..=3 {
            pair.push_version(new, "k", Some(version), bytes(8), 2, None);
            pair.settle();
            pair.fetch(reader, "k", Select::Following(Version(2)));
            pair.settle();
            let failure = pair.failed(reader);
            assert_eq!(failure.code, FailureCode::VersionGone);
            let before = if node == 0 { "worker \"old\"" } else { "node \"b\"" };
            assert!(failure.text.contains(before) && failure.text.contains("worker \"new\""), "{failure}");
        }
        assert_eq!(read(&mut pair, next, Select::Exactly(Version(1))), (1, 2));
        assert_eq!(read(&mut pair, next, Select::Following(Version(2))), (2, 2));
        // The first reader reads the other stream from its beginning.
        assert_eq!(read(&mut pair, reader, Select::Exactly(Version(3))), (3, 2));
        pair.ends_clean(&[(old, "old"), (new, "new"), (reader, "reader"), (next, "next")]);
    }
}

/// Another worker of node `here`, and what it does. The directory answers nothing.
impl Solo {
    fn takes_over(&mut self, session: SessionId) {
        let retention = Retention { until: Until::Fetched(NonZeroU32::MIN), ..Retention::default() };
        let push = Push {
            version: Some(Version(1)),
            timeout: Duration::from_secs(1),
            retention,
            takeover: true,
            ..Push::new(key("k"), bytes(8), 0)
        };
        let op = self.op();
        self.node.request(self.now, session, Request::Command { op, command: Command::Push(push) });
        self.drain();
    }

    /// Fetches the version that follows, for that worker and by this request of the peer.
    fn follow(&mut self, session: SessionId, index: u32) -> OpId {
        let (op, select, timeout) = (self.op(), Select::Following(Version(2)), Duration::from_secs(9));
        let (key, require, trace, excerpt) = (key("k"), None, None, None);
        let command =
            Command::Fetch(Fetch { key, select, timeout, require, trace, watches: false, excerpt, base: None });
        self.node.request(self.now, session, Request::Command { op, command });
        let (key, metadata_id, tenant, slot) = (KEY, 0, OURS, None);
        let excerpt = None;
        self.hear(
            Role::Pull,
            index,
            Body::TensorRequest { key, select, metadata_id, tenant, excerpt, slot, held: None, direct: false, trace },
        );
        op
    }

    /// Returns the failures of both.
    fn ended(&self, op: OpId, index: u32) -> [Option<Failure>; 2] {
        let local = self.replies.iter().find_map(|reply| match reply {
            Reply::Answer { op: of, answer: Answer::Failed { failure, .. } } if *of == op => Some(failure.clone()),
            _ => None,
        });
        let remote = self.sent.iter().find_map(|message| match &message.body {
            Body::ErrorStatus(failure) if message.index == index => Some(failure.clone()),
            _ => None,
        });
        [local, remote]
    }
}

/// A takeover waits for the directory. Meanwhile the writer of the stream leaves, loses its name, or loses the key to a worker
/// of a third node. Its readers hear of it at once, and so do those that ask before the directory has answered, and after it
/// has refused.
// Promise: writer-of-a-stream, seen to fail
#[test]
fn a_stream_that_ends_during_a_takeover_ends_for_its_readers() {
    type End = fn(&mut Solo);
    let ends: [(&str, End); 3] = [
        ("the writer leaves", |solo| solo.node.session_closed(solo.now, SESSION, "it is gone")),
        ("its name is lost", |solo| solo.node.name_lost(solo.now, SESSION, &name("elsewhere"))),
        ("the key is lost", |solo| solo.node.key_lost(solo.now, &key("k"), &name("third"))),
    ];
    for (what, end) in ends {
        let mut solo = Solo::new(|_| {});
        let [other, reader] = [SessionId(8), SessionId(9)];
        for (session, text, arena) in [(other, "other", 8), (reader, "reader", 9)] {
            solo.node.session_opened(session, name(text), Tenant::User(0), SegmentId(arena), 1 << 20);
        }
        solo.takes_over(SESSION);
        solo.answer();
        solo.takes_over(other);
        let waiting = solo.follow(reader, 1);
        assert_eq!(solo.ended(waiting, 1), [None, None], "{what}");
        end(&mut solo);
        solo.drain();
        let late = solo.follow(reader, 2);
        let refused = ClaimRefused::Owned { owner: name("third"), node: name("there") };
        solo.node.claimed(solo.now, &key("k"), Err(refused));
        solo.drain();
        let later = solo.follow(reader, 3);
        for (op, index) in [(waiting, 1), (late, 2), (later, 3)] {
            let [Some(local), Some(remote)] = solo.ended(op, index) else { panic!("{what}: request {index} waits") };
            for failure in [local, remote] {
                assert_eq!(failure.code, FailureCode::VersionGone, "{what}: {failure}");
                assert!(
                    failure.text.contains("\"me\"") && failure.text.contains("v1 was the last"),
                    "{what}: {failure}"
                );
            }
        }
    }
}

/// A reader has the first batch from another node. It asks for the next one while a worker of its own node takes the key over,
/// and hears that the stream has ended once the directory has granted that.
// Promise: writer-of-a-stream
#[test]
fn a_reader_that_asks_during_a_takeover_hears_of_its_end() {
    let mut solo = Solo::new(|_| {});
    let other = SessionId(8);
    solo.node.session_opened(other, name("other"), Tenant::User(0), SegmentId(8), 1 << 20);
    solo.fetch(Select::Exactly(Version(1)));
    let index = solo.last("TENSOR_REQUEST").index;
    let (version, metadata_id) = (Version(1), 1);
    solo.hear(Role::Pull, index, Body::MetaDataUpdate { version, metadata_id, meta: bytes(8) });
    solo.grant();
    let Body::TensorReRequest { slot } = &solo.last("TENSOR_RE_REQUEST").body else { unreachable!() };
    solo.land(&Header {
        slot: slot.number,
        index,
        metadata_id,
        version,
        body_len: 8,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
        packed: false,
        deltas_follow: false,
        is_delta: false,
        spreads: false,
        identity: None,
    });
    solo.revoke();
    solo.takes_over(other);
    let op = solo.fetch(Select::Following(Version(2)));
    assert_eq!(solo.ended(op, index)[0], None, "the directory may refuse it");
    solo.answer();
    let failure = solo.ended(op, index)[0].clone().expect("the fetch waits");
    assert_eq!(failure.code, FailureCode::VersionGone);
    assert!(failure.text.contains("node \"there\"") && failure.text.contains("worker \"other\""), "{failure}");
}

#[test]
fn outlived_and_landed_keys_can_be_taken_over() {
    for landed in [false, true] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(0, "old"), pair.worker(1, "new"));
        pair.retention = Retention { until: Until::Deleted, life: Life::Sidecar, ..Retention::default() };
        pair.push(old, "k", bytes(100), 1, landed.then_some("new"));
        pair.settle();
        if !landed {
            pair.leave(old, "old");
            pair.settle();
        }
        pair.takeover = true;
        pair.push(new, "k", bytes(100), 2, None);
        pair.settle();
        let replies = pair.replies(new);
        assert!(
            matches!(replies[..], [Reply::Answer { answer: Answer::Pushed { version: Version(1), .. }, .. }]),
            "{replies:?}"
        );
        pair.fetch(new, "k", Select::Exactly(Version(1)));
        pair.settle();
        assert_eq!(pair.fetched(new).3, [2; 100], "of the old owner's nothing is left");
        pair.command(new, OpId(1), Command::Delete { key: Key::new("k").unwrap() });
        pair.settle();
        let mut left = vec![(new, "new")];
        left.extend(landed.then_some((old, "old")));
        pair.ends_clean(&left);
    }
}

/// The directory repeatedly names a node that does not own the key. The fetch ends before its deadline, with
/// `NotOwner`.
#[test]
fn repeatedly_misdirected_fetch_ends_before_its_deadline() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "other", bytes(8), 1, None);
    pair.fetch(r, "other", Select::Latest);
    pair.settle();
    pair.fetched(r);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let mut times = 0;
    let k = Key::new("k").unwrap();
    let replies = loop {
        let replies = pair.replies(r);
        if !replies.is_empty() {
            break replies;
        }
        times += 1;
        let now = pair.world.now();
        pair.nodes[1].node.located(now, &k, &name("a"), times);
        pair.settle();
        assert!(times < 100);
    };
    let [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((failure.code, times), (FailureCode::NotOwner, 17), "{failure}");
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}
