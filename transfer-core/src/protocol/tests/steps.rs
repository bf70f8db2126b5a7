//! Tests of the cost of an event: it depends on the things that the event concerns, and not on the number of others
//! that wait.

use super::pair::{bytes, key, name};
use super::solo::{KEY, LINK, ME, OURS, SESSION, Solo, YOU};
use crate::fabric::FabricEvent;
use crate::memory::SegmentId;
use crate::op::{Answer, Command, Fetch, OpId, Push, Reply, Request};
use crate::protocol::node::ENDS_PER_ROUND;
use crate::protocol::{Control, DirectoryRequest, SessionId, Tenant, TensorFilter};
use crate::tensor::{Life, Retention, Select, Until, Version};
use crate::time::Time;
use crate::wire::message::{Body, NameRef, Role};
use std::num::NonZeroU32;
use std::time::Duration;

/// The number of requests that wait while an unrelated event happens.
const WAITING: u32 = 2_000;

/// The number of keys, leases or requests that end over many rounds. The last round has less to do than the others.
const MANY: u32 = 9 * ENDS_PER_ROUND + ENDS_PER_ROUND / 2;

/// An upper bound for the steps of an event that concerns one request.
const FEW: u64 = 8;

impl Solo {
    /// Returns the number of steps that `what` takes.
    fn steps(&mut self, what: impl FnOnce(&mut Solo)) -> u64 {
        let taken = |solo: &Solo| solo.node.common.steps.get() + solo.node.landing.steps.get();
        let before = taken(self);
        what(self);
        taken(self) - before
    }

    fn ask(&mut self, index: u32, select: Select) {
        let body = Body::TensorRequest {
            key: KEY,
            select,
            metadata_id: 0,
            tenant: OURS,
            excerpt: None,
            slot: None,
            held: None,
            direct: false,
            trace: None,
        };
        self.hear(Role::Pull, index, body);
    }

    fn publish(&mut self, version: u64, until: Until) {
        self.publish_as(SESSION, "k", version, until);
    }

    fn publish_as(&mut self, session: SessionId, name: &str, version: u64, until: Until) {
        self.push_as(session, name, version, until);
        self.answer();
    }

    fn publish_for(&mut self, session: SessionId, name: &str, version: u64, retention: Retention) {
        self.push_this(session, name, version, retention, false);
        self.answer();
    }

    /// Pushes a version without an answer of the directory.
    fn push_as(&mut self, session: SessionId, name: &str, version: u64, until: Until) {
        let retention = Retention { until, life: Life::Session, ..Retention::default() };
        self.push_this(session, name, version, retention, false);
    }

    fn push_this(&mut self, session: SessionId, name: &str, version: u64, retention: Retention, takeover: bool) {
        let op = self.op();
        let command = Command::Push(Push {
            version: Some(Version(version)),
            timeout: Duration::from_secs(1),
            retention,
            takeover,
            ..Push::new(key(name), bytes(8), op.0 % 1000 * 64)
        });
        self.node.request(self.now, session, Request::Command { op, command });
        self.drain();
    }

    /// Returns the number of the peer's requests that have been answered.
    fn described(&self) -> usize {
        self.sent.iter().filter(|m| m.body.name() == "META_DATA_UPDATE").count()
    }
}

fn fetch(name: &str) -> Command {
    fetch_selected(name, Select::Latest, Duration::from_secs(1))
}

fn fetch_selected(name: &str, select: Select, timeout: Duration) -> Command {
    Command::Fetch(Fetch {
        key: key(name),
        select,
        timeout,
        require: None,
        trace: None,
        watches: false,
        excerpt: None,
        base: None,
    })
}

/// Makes a node with a key, and many requests of the peer for later versions of it.
fn awaited() -> Solo {
    let mut solo = Solo::new(|_| {});
    solo.publish(1, Until::Replaced);
    for index in 0..WAITING {
        let version = Version(1_000 + u64::from(index % 7));
        solo.ask(index, if index % 2 == 0 { Select::AtLeast(version) } else { Select::Exactly(version) });
    }
    solo
}

// Promise: cost-of-events, seen to fail
#[test]
fn a_request_and_its_end_cost_the_same_however_many_others_wait() {
    let mut solo = awaited();
    for n in 0..50 {
        let index = WAITING + n;
        let asked = solo.steps(|solo| solo.ask(index, Select::AtLeast(Version(500))));
        let ended = solo.steps(|solo| solo.hear(Role::Pull, index, Body::Cancel));
        assert!(asked <= FEW && ended <= FEW, "{asked} steps to ask, {ended} to end");
    }
}

// Promise: cost-of-events, seen to fail
#[test]
fn a_fetch_and_its_end_cost_the_same_however_many_others_wait() {
    let mut solo = awaited();
    for n in 0..50 {
        let op = OpId(10_000 + n);
        let fetch = fetch_selected("k", Select::AtLeast(Version(500)), Duration::from_nanos(10));
        let asked = solo.steps(|solo| solo.command(op, fetch));
        let ended = solo.steps(|solo| match n % 2 {
            0 => solo.request(Request::Cancel { op }),
            _ => {
                solo.now = Time(solo.now.0 + 100);
                solo.node.timeout(solo.now);
                solo.drain();
            }
        });
        assert!(asked <= FEW && ended <= FEW, "{asked} steps to ask, {ended} to end");
    }
    assert_eq!(solo.replies.len(), 51, "the push, and all of the fetches");
}

// Promise: cost-of-events, seen to fail
#[test]
fn publishing_costs_as_much_as_the_waiters_it_serves() {
    let mut solo = awaited();
    let version = solo.steps(|solo| solo.publish(2, Until::Replaced));
    assert!(version <= FEW, "{version} steps for a version that nobody waits for");
    assert_eq!(solo.described(), 0);
    let once = Until::Fetched(NonZeroU32::MIN);
    let version = solo.steps(|solo| solo.publish(1_000, once));
    assert!(version <= FEW, "{version} steps for a version that one of them gets");
    assert_eq!(solo.described(), 1);
    let all = solo.steps(|solo| solo.publish(5_000, Until::Replaced));
    for _ in 0..20 {
        // The peer gives credits back, so that the remaining messages can be sent.
        solo.hear(Role::Pull, 0, Body::Ping);
    }
    let answered = solo.described() + solo.sent.iter().filter(|m| m.body.name() == "ERROR_STATUS").count();
    // One request has been given version 1000, which becomes available again only if that request is cancelled.
    let wait_for_it = (0..WAITING).filter(|index| index % 14 == 7).count() - 1;
    assert_eq!(answered, 2_000 - wait_for_it);
    assert!(all <= u64::from(WAITING) * 2 + FEW, "{all} steps");
}

/// A version that may be fetched once is given to one request after the other, and each of them is cancelled.
#[test]
fn unused_version_costs_as_much_as_the_next_waiter_it_serves() {
    let mut solo = awaited();
    solo.publish(1_000, Until::Fetched(NonZeroU32::MIN));
    for n in 1..50 {
        assert_eq!(solo.described(), n);
        let index = solo.last("META_DATA_UPDATE").index;
        let back = solo.steps(|solo| solo.hear(Role::Pull, index, Body::Cancel));
        assert!(back <= FEW, "{back} steps");
    }
}

/// Requests for an exact version are served first, and the others in the order in which they were made.
#[test]
fn waiters_are_served_in_order() {
    let mut solo = Solo::new(|_| {});
    solo.publish(1, Until::Replaced);
    let selects = [Select::AtLeast(Version(2)), Select::AtLeast(Version(2)), Select::Exactly(Version(2))];
    for (index, select) in (0..).zip(selects) {
        solo.ask(index, select);
    }
    solo.publish(2, Until::Fetched(NonZeroU32::MIN));
    let mut order = Vec::new();
    for _ in 0..3 {
        let index = solo.last("META_DATA_UPDATE").index;
        order.push(index);
        solo.hear(Role::Pull, index, Body::Cancel);
    }
    assert_eq!(order, [2, 0, 1]);
}

/// Many flows have open slots. One more flow requests slots, requests other slots, and ends.
// Promise: cost-of-events, seen to fail
#[test]
fn a_flow_costs_the_same_however_many_others_have_slots() {
    let mut solo = Solo::new(|_| {});
    let request = |solo: &mut Solo, index: u32, metadata_id| {
        let key = NameRef { id: 5 + index, generation: 0 };
        if metadata_id == 1 {
            solo.hear(Role::Pull, 0, Body::Name { name: key, text: name(&format!("k{index}")) });
        }
        let body = Body::BufferRequest { key, target: ME, owner: YOU, tenant: OURS, metadata_id, meta: bytes(8) };
        solo.hear(Role::Push, index, body);
        solo.answer();
        solo.grant();
    };
    // Each flow takes two slots of 128 bytes.
    for index in 0..40 {
        request(&mut solo, index, 1);
    }
    let index = 40;
    let first = solo.steps(|solo| request(solo, index, 1));
    let again = solo.steps(|solo| request(solo, index, 2));
    let ended = solo.steps(|solo| solo.hear(Role::Push, index, Body::BufferRelease));
    assert!(first <= FEW && again <= FEW && ended <= FEW, "{first}, {again} and {ended} steps");
    assert_eq!(solo.ended, None);
}

/// A worker has thousands of versions that stay. It pushes one more, and the peer requests some of them.
// Promise: cost-of-events
#[test]
fn a_version_costs_the_same_however_many_stay_beside_it() {
    let mut solo = Solo::new(|_| {});
    for version in 1..=u64::from(WAITING) {
        solo.publish(version, Until::Deleted);
    }
    let pushed = solo.steps(|solo| solo.publish(5_000, Until::Deleted));
    let exactly = solo.steps(|solo| solo.ask(1, Select::Exactly(Version(7))));
    let once = Until::Fetched(NonZeroU32::MIN);
    let again = solo.steps(|solo| solo.publish(6_000, once));
    let latest = solo.steps(|solo| solo.ask(2, Select::Latest));
    let next = solo.steps(|solo| solo.ask(3, Select::Latest));
    assert_eq!(solo.described(), 3);
    assert!([pushed, exactly, again, latest, next].iter().all(|steps| *steps <= FEW));
}

/// One worker has hundreds of keys. Another worker, with a single key, leaves.
// Promise: cost-of-events
#[test]
fn session_end_costs_as_much_as_the_session_has() {
    let mut solo = Solo::new(|_| {});
    for n in 0..MANY {
        solo.publish_as(SESSION, &format!("k{n}"), 1, Until::Replaced);
    }
    let (session, arena) = (SessionId(9), SegmentId(9));
    solo.node.session_opened(session, name("other"), Tenant::User(0), arena, 1 << 20);
    solo.publish_as(session, "its", 1, Until::Replaced);
    let gone = solo.steps(|solo| {
        solo.node.session_closed(solo.now, session, "it is gone");
        solo.drain();
    });
    assert!(gone <= FEW, "{gone} steps for the end of a worker with one key");
}

/// A worker has hundreds of keys, and another one hundreds of leases on them. Both leave. Each round ends some of them, and
/// a third worker pushes meanwhile.
// Promise: cost-of-events
#[test]
fn a_session_that_has_much_ends_over_many_rounds() {
    let mut solo = Solo::new(|_| {});
    let [reader, third] = [SessionId(8), SessionId(9)];
    solo.node.session_opened(reader, name("reader"), Tenant::User(0), SegmentId(8), 1 << 20);
    solo.node.session_opened(third, name("third"), Tenant::User(0), SegmentId(9), 1 << 20);
    for n in 0..MANY {
        let key = format!("k{n}");
        solo.publish_as(SESSION, &key, 1, Until::Replaced);
        let op = solo.op();
        solo.node.request(solo.now, reader, Request::Command { op, command: fetch(&key) });
        solo.drain();
    }
    let share = u64::from(ENDS_PER_ROUND) + FEW;
    let is_closed = |solo: &Solo, of: &str| {
        let closed = |c: &&Control| matches!(c, Control::SessionClosed { worker, .. } if worker.as_str() == of);
        solo.controls.iter().any(|c| closed(&c))
    };
    let in_arena = |solo: &Solo| solo.node.state().arena_reach(SegmentId(2)).map_or(0, |(versions, _)| versions);
    for (session, own) in [(SESSION, "me"), (reader, "reader")] {
        let steps = solo.steps(|solo| {
            solo.node.session_closed(solo.now, session, "it is gone");
            solo.drain();
        });
        assert!(steps <= share, "{steps} steps for the end of {own}");
        let mut rounds = 0;
        while solo.node.is_ending() {
            assert!(solo.node.next_deadline().is_some_and(|at| at <= solo.now), "the node has something to do");
            assert!(in_arena(&solo) > 0);
            let steps = solo.steps(|solo| {
                solo.node.timeout(solo.now);
                solo.drain();
            });
            assert!(steps <= share, "{steps} steps in a round after the end of {own}");
            let before = solo.replies.len();
            solo.publish_as(third, "its", 2 + rounds, Until::Replaced);
            assert!(solo.replies.len() > before, "a push is answered at once");
            rounds += 1;
        }
        assert!(rounds >= u64::from(MANY / ENDS_PER_ROUND) - 1, "{rounds} rounds");
        assert!(is_closed(&solo, own));
    }
    assert_eq!(in_arena(&solo), 0, "all leases have ended");
}

/// The name of a worker is taken until all of its keys have ended. Those that end later can still be fetched.
// Promise: cost-of-events
#[test]
fn a_name_is_free_once_all_keys_of_its_session_have_ended() {
    let mut solo = Solo::new(|_| {});
    for n in 0..2 * ENDS_PER_ROUND {
        solo.publish_as(SESSION, &format!("k{n}"), 1, Until::Replaced);
    }
    let keys = |solo: &Solo| solo.node.state().tensors(&TensorFilter::default(), 0, 1000).entries.len();
    let closed = |solo: &Solo| solo.controls.iter().filter(|c| matches!(c, Control::SessionClosed { .. })).count();
    solo.node.session_closed(solo.now, SESSION, "it is gone");
    solo.drain();
    assert_eq!((keys(&solo), closed(&solo)), (ENDS_PER_ROUND as usize, 0));
    // The session is told to have ended once.
    solo.node.session_closed(solo.now, SESSION, "it is gone");
    for _ in 0..3 {
        solo.node.timeout(solo.now);
        solo.drain();
    }
    assert_eq!((keys(&solo), closed(&solo)), (0, 1));
}

/// A worker with thousands of keys ends, and behind it one with a single key: they take turns.
// Promise: cost-of-events
#[test]
fn a_session_with_little_does_not_wait_for_one_with_much() {
    let mut solo = Solo::new(|_| {});
    let little = SessionId(8);
    solo.node.session_opened(little, name("little"), Tenant::User(0), SegmentId(8), 1 << 20);
    for n in 0..10 * ENDS_PER_ROUND {
        solo.publish_as(SESSION, &format!("k{n}"), 1, Until::Replaced);
    }
    solo.publish_as(little, "its", 1, Until::Replaced);
    solo.node.session_closed(solo.now, SESSION, "it is gone");
    solo.node.session_closed(solo.now, little, "it is gone");
    solo.drain();
    solo.node.timeout(solo.now);
    solo.drain();
    let closed: Vec<_> = solo.controls.iter().filter(|c| matches!(c, Control::SessionClosed { .. })).collect();
    assert!(matches!(closed[..], [Control::SessionClosed { session, .. }] if *session == little), "{closed:?}");
}

/// A key has thousands of versions. It ends with its worker, it is deleted, its worker loses its name, or it has outlived its
/// worker and ends with its parent: each round ends some of them.
// Promise: cost-of-events
#[test]
fn a_key_that_has_much_ends_over_many_rounds() {
    const VERSIONS: u64 = 10 * ENDS_PER_ROUND as u64;
    let in_arena = |solo: &Solo| solo.node.state().arena_reach(SegmentId(2)).map_or(0, |(versions, _)| versions);
    type End = fn(&mut Solo);
    let ends: [(&str, End); 3] = [
        ("the worker leaves", |solo| solo.node.session_closed(solo.now, SESSION, "it is gone")),
        ("the key is deleted", |solo| {
            let (op, key) = (solo.op(), key("k"));
            solo.node.request(solo.now, SESSION, Request::Command { op, command: Command::Delete { key } });
        }),
        ("the name is lost", |solo| solo.node.name_lost(solo.now, SESSION, &name("elsewhere"))),
    ];
    for (what, end) in ends {
        let mut solo = Solo::new(|_| {});
        for version in 1..=VERSIONS {
            solo.publish_as(SESSION, "k", version, Until::Deleted);
        }
        let (mut left, mut rounds) = (in_arena(&solo), 0);
        assert_eq!(left, VERSIONS);
        end(&mut solo);
        solo.drain();
        loop {
            let now = in_arena(&solo);
            let most = u64::from(ENDS_PER_ROUND) + 1;
            assert!(left - now <= most, "{} versions in a round after {what}", left - now);
            left = now;
            if !solo.node.is_ending() {
                break;
            }
            rounds += 1;
            solo.node.timeout(solo.now);
            solo.drain();
        }
        assert_eq!(left, 0, "{what}");
        assert!(rounds >= 9, "{rounds} rounds after {what}");
        assert!(solo.node.state().tensors(&TensorFilter::default(), 0, 1000).entries.is_empty(), "{what}");
    }
}

/// A session ends over many rounds, and meanwhile the key that it has come to goes to another node: none of the next key's
/// versions stays.
#[test]
fn a_key_that_goes_between_two_rounds_leaves_no_version_of_the_next() {
    let mut solo = Solo::new(|_| {});
    for name in ["k1", "k2"] {
        for version in 1..=3 * u64::from(ENDS_PER_ROUND) {
            solo.publish_as(SESSION, name, version, Until::Deleted);
        }
    }
    solo.node.session_closed(solo.now, SESSION, "it is gone");
    solo.drain();
    let keys = solo.node.state().tensors(&TensorFilter::default(), 0, 10).entries;
    let going = keys.iter().find(|t| t.older + 1 < 3 * ENDS_PER_ROUND).unwrap().key.clone();
    solo.node.key_lost(solo.now, &going, &name("heir"));
    solo.drain();
    while solo.node.is_ending() {
        solo.node.timeout(solo.now);
        solo.drain();
    }
    let left = solo.node.state().tensors(&TensorFilter::default(), 0, 10).entries;
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(solo.node.state().arena_reach(SegmentId(2)).map_or(0, |(versions, _)| versions), 0);
}

/// A worker leaves while it takes over a key of another one, whose versions are none of its own.
#[test]
fn a_takeover_that_ends_with_its_worker_ends_no_version() {
    let mut solo = Solo::new(|_| {});
    let other = SessionId(8);
    solo.node.session_opened(other, name("other"), Tenant::User(0), SegmentId(8), 1 << 20);
    for version in 1..=3 {
        solo.publish_as(SESSION, "k", version, Until::Deleted);
    }
    solo.push_this(other, "k", 1, Retention::default(), true);
    solo.node.session_closed(solo.now, other, "it is gone");
    solo.drain();
    let listed = solo.node.state().tensors(&TensorFilter::default(), 0, 10).entries;
    assert_eq!((listed[0].version, listed[0].older), (Version(3), 2), "{listed:?}");
}

/// Versions that stay are no work for each round that ends the others of their key.
#[test]
fn versions_that_outlive_their_worker_stay_while_the_others_of_their_key_end() {
    let mut solo = Solo::new(|_| {});
    for version in 1..=4 * u64::from(ENDS_PER_ROUND) {
        let life = if version % 2 == 0 { Life::Sidecar } else { Life::Session };
        solo.publish_for(SESSION, "k", version, Retention { until: Until::Deleted, life, ..Retention::default() });
    }
    solo.node.session_closed(solo.now, SESSION, "it is gone");
    solo.drain();
    let mut rounds = 0;
    while solo.node.is_ending() {
        rounds += 1;
        solo.node.timeout(solo.now);
        solo.drain();
    }
    assert!((3..=6).contains(&rounds), "{rounds} rounds");
    let left: Vec<_> = solo.node.state().tensors(&TensorFilter::default(), 0, 10).entries;
    assert_eq!(left[0].older, 2 * ENDS_PER_ROUND - 1, "{left:?}");
}

/// A peer has hundreds of requests that wait and hundreds of versions by reference, and a worker of this node waits for hundreds of
/// fetches from it. The link is lost: each round ends some of all that, and another worker pushes meanwhile.
// Promise: cost-of-events, seen to fail
#[test]
fn a_link_that_has_much_ends_over_many_rounds() {
    let mut solo = Solo::new(|_| {});
    let [reader, third] = [SessionId(8), SessionId(9)];
    solo.node.session_opened(reader, name("reader"), Tenant::User(0), SegmentId(8), 1 << 20);
    solo.node.session_opened(third, name("third"), Tenant::User(0), SegmentId(9), 1 << 20);
    solo.node.fabric_event(solo.now, FabricEvent::References { link: LINK, mark: 5 }, None);
    solo.publish(1, Until::Deleted);
    for index in 0..MANY {
        solo.ask(index, Select::AtLeast(Version(1 + u64::from(index % 2))));
        solo.keep();
        let op = solo.op();
        let key = format!("there{index}");
        solo.node.request(solo.now, reader, Request::Command { op, command: fetch(&key) });
        solo.node.located(solo.now, &crate::tensor::Key::new(&key).unwrap(), &name("there"), 1);
        solo.drain();
    }
    let held = |solo: &Solo| solo.node.references.counts().1;
    assert_eq!((solo.ended.as_ref(), held(&solo)), (None, MANY as usize / 2));
    assert_eq!(solo.node.state().unfinished().operations, u64::from(MANY));
    let share = u64::from(ENDS_PER_ROUND) + FEW;
    let failed = |solo: &Solo| {
        let is = |r: &&Reply| matches!(r, Reply::Answer { answer: Answer::Failed { .. }, .. });
        solo.replies.iter().filter(is).count()
    };
    let steps = solo.steps(Solo::lose_link);
    assert!(steps <= share, "{steps} steps for the end of the link");
    let mut rounds = 0;
    while solo.node.is_ending() {
        let before = failed(&solo);
        let steps = solo.steps(|solo| {
            solo.node.timeout(solo.now);
            solo.drain();
        });
        assert!(steps <= share, "{steps} steps in a round after the end of the link");
        assert!(failed(&solo) - before <= ENDS_PER_ROUND as usize);
        let before = solo.replies.len();
        solo.publish_as(third, "its", 1 + rounds, Until::Replaced);
        assert!(solo.replies.len() > before, "a push is answered at once");
        rounds += 1;
    }
    assert!(rounds >= 19, "{rounds} rounds");
    assert_eq!(failed(&solo), MANY as usize);
    // What the peer read is kept until no process reads it, and is then released over rounds, too.
    assert_eq!(held(&solo), MANY as usize / 2);
    let steps = solo.steps(|solo| {
        solo.node.readers_answered(SegmentId(2), 5, false);
        solo.drain();
    });
    assert!((1..=share).contains(&steps) && solo.node.is_ending(), "{steps} steps");
    while solo.node.is_ending() {
        solo.node.timeout(solo.now);
        solo.drain();
    }
    assert_eq!(held(&solo), 0);
}

/// Many workers with some keys each leave at the same moment. They share one round.
// Promise: cost-of-events
#[test]
fn sessions_that_end_together_share_a_round() {
    let mut solo = Solo::new(|_| {});
    let sessions: Vec<_> = (10..70).map(SessionId).collect();
    for (session, n) in sessions.iter().zip(10..) {
        solo.node.session_opened(*session, name(&format!("w{n}")), Tenant::User(0), SegmentId(n), 1 << 20);
        for n in 0..10 {
            solo.publish_as(*session, &format!("k{}/{n}", session.0), 1, Until::Replaced);
        }
    }
    let steps = solo.steps(|solo| {
        for session in &sessions {
            solo.node.session_closed(solo.now, *session, "it is gone");
        }
        solo.drain();
    });
    assert!(steps <= u64::from(ENDS_PER_ROUND) + FEW, "{steps} steps");
}

/// Many flows have idle slots and the pool is full, so the next flow waits for room.
// Promise: cost-of-events
#[test]
fn waiting_for_room_costs_the_same_however_many_slots_lie_idle() {
    let mut solo = Solo::new(|_| {});
    let request = |solo: &mut Solo, index: u32| {
        let key = NameRef { id: 5 + index, generation: 0 };
        solo.hear(Role::Pull, 0, Body::Name { name: key, text: name(&format!("k{index}")) });
        let (metadata_id, meta) = (1, bytes(8));
        solo.hear(
            Role::Push,
            index,
            Body::BufferRequest { key, target: ME, owner: YOU, tenant: OURS, metadata_id, meta },
        );
        solo.answer();
        solo.grant();
    };
    let mut asked = Vec::new();
    for index in 0..200 {
        asked.push(solo.steps(|solo| request(solo, index)));
    }
    let recalls = solo.sent.iter().filter(|m| m.body.name() == "BUFFER_RECALL").count();
    assert!(recalls > 0, "the pool was full, and somebody was asked for room");
    assert!(asked.iter().all(|steps| *steps <= 2 * FEW), "{asked:?} steps");
}

/// A worker pushes and deletes while the directory does not answer.
// Promise: bounded-keys
#[test]
fn requests_to_a_silent_directory_are_bounded_by_the_number_of_keys() {
    let mut solo = Solo::new(|_| {});
    for n in 0..10 {
        solo.publish_as(SESSION, &format!("k{n}"), 1, Until::Replaced);
    }
    let directory =
        |c: &&Control| matches!(c, Control::Claim(_) | Control::Directory(DirectoryRequest::Unclaim { .. }));
    for round in 0..100 {
        for n in 0..10 {
            let op = solo.op();
            solo.command(op, Command::Delete { key: key(&format!("k{n}")) });
            solo.push_as(SESSION, &format!("k{n}"), 2 + round, Until::Replaced);
        }
    }
    // Each key was unclaimed once and claimed once. The claims have no answer.
    assert_eq!(solo.controls.iter().filter(directory).count(), 20);
}
