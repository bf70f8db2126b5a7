//! Tests of versions that workers announce themselves: how the board names the notice, when the ranges return, and when
//! fetches are answered.

use super::pair::{Pair, Worker, bytes, key, name};
use crate::op::{
    Announced, Answer, Command, FailureCode, Fetch, FetchedTensor, OpId, Push, Reply, Request, announced_ticket,
};
use crate::protocol::Tenant;
use crate::tensor::{Select, Version};
use crate::time::Time;
use std::time::Duration;

/// Makes a worker that announces `k` and a worker that reads, at a sidecar whose workers have a board.
fn scene() -> (Pair, Worker, Worker) {
    let mut pair = Pair::new();
    pair.nodes[0].node.add_board(Tenant::User(0), 2);
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    (pair, w, r)
}

impl Pair {
    fn announce(&mut self, w: Worker, op: u64, change: impl FnOnce(&mut Push)) -> u64 {
        let mut push = Push {
            version: Some(Version(op)),
            timeout: Duration::from_secs(1),
            announced: Some(Announced { notice: 3, count: op }),
            ..Push::new(key("k"), bytes(100), op % 8 * 1024)
        };
        change(&mut push);
        self.command(w, OpId(op), Command::Push(push));
        announced_ticket(w.session.0, op).unwrap()
    }

    fn watch(&mut self, r: Worker, op: u64, select: Select) {
        let (key, timeout) = (key("k"), Duration::from_secs(1));
        let fetch =
            Fetch { key, select, timeout, require: None, trace: None, watches: true, excerpt: None, base: None };
        self.command(r, OpId(op), Command::Fetch(fetch));
    }

    fn unannounce(&mut self, w: Worker) {
        self.request(w, Request::Unannounce { key: key("k") });
        self.settle();
    }

    fn clear(&mut self, ticket: u64) {
        if self.board.unmark(ticket) {
            self.nodes[0].node.withdrawn(ticket);
        }
        self.settle();
    }

    /// Publishes version 1 by a push that is not announced, and version 2 by one that is. Returns the ticket of version
    /// 2.
    fn noticed(&mut self, w: Worker) -> u64 {
        self.announce(w, 1, |push| push.announced = None);
        self.settle();
        let ticket = self.announce(w, 2, |_| {});
        self.settle();
        self.replies(w);
        let shown = self.board.find(Tenant::User(0), "k").expect("its notice is named");
        assert_eq!(shown.notice.map(|at| (at.session, at.notice)), Some((w.session, 3)));
        ticket
    }
}

fn returned(replies: &[Reply]) -> Vec<u64> {
    let returned =
        replies.iter().filter_map(|r| if let Reply::Returned { pushed, .. } = r { Some(pushed.0) } else { None });
    returned.collect()
}

#[test]
fn watched_reply_follows_the_push_that_a_worker_waited_for() {
    let (mut pair, w, r) = scene();
    pair.announce(w, 1, |push| push.announced = None);
    pair.settle();
    assert!(!pair.replies(w).iter().any(|reply| matches!(reply, Reply::Watched { .. })), "nobody waits");
    pair.watch(r, 900, Select::AtLeast(Version(2)));
    pair.announce(w, 2, |push| push.announced = None);
    pair.settle();
    let replies = pair.replies(w);
    assert!(
        matches!(
            replies[..],
            [.., Reply::Answer { op: OpId(2), answer: Answer::Pushed { .. } }, Reply::Watched { pushed: OpId(2) }]
                | [
                    Reply::Answer { op: OpId(2), answer: Answer::Pushed { .. } },
                    Reply::Watched { pushed: OpId(2) },
                    ..
                ]
        ),
        "{replies:?}"
    );
    // A worker that announces its versions gets no further WATCHED.
    pair.announce(w, 3, |_| {});
    pair.settle();
    assert!(!pair.replies(w).iter().any(|reply| matches!(reply, Reply::Watched { .. })));
}

#[test]
fn board_entry_is_written_once_and_each_announced_version_waits_for_its_own_readers() {
    let (mut pair, w, r) = scene();
    let second = pair.noticed(w);
    let entry = pair.board.find(Tenant::User(0), "k").unwrap().ticket;
    pair.board.mark(second);
    for op in 3..6 {
        pair.announce(w, op, |_| {});
        pair.settle();
    }
    assert_eq!(pair.board.find(Tenant::User(0), "k").unwrap().ticket, entry, "it is written once");
    assert_eq!(returned(&pair.replies(w)), [3, 4], "the second is marked, the fifth is the newest");
    pair.clear(second);
    assert_eq!(returned(&pair.replies(w)), [2]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn unannounced_version_replaces_the_notice_on_the_board() {
    let (mut pair, w, r) = scene();
    let second = pair.noticed(w);
    pair.board.mark(second);
    pair.announce(w, 3, |push| push.announced = None);
    pair.settle();
    let shown = pair.board.find(Tenant::User(0), "k").unwrap();
    assert_eq!((shown.notice, shown.version), (None, Version(3)));
    assert_eq!(returned(&pair.replies(w)), []);
    pair.clear(second);
    assert_eq!(returned(&pair.replies(w)), [2]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// The worker wants to use the notice for another key. Those who read the version keep it. Others find the version on the board,
/// which no longer names the notice.
// Promise: reused-notices, seen to fail
#[test]
fn board_shows_the_version_itself_once_its_worker_lets_go_of_the_notice() {
    let (mut pair, w, r) = scene();
    let second = pair.noticed(w);
    pair.board.mark(second);
    pair.unannounce(r);
    let shown = pair.board.find(Tenant::User(0), "k").unwrap();
    assert!(shown.notice.is_some(), "only the owner can let go of it");
    pair.unannounce(w);
    let shown = pair.board.find(Tenant::User(0), "k").unwrap();
    assert_eq!((shown.notice, shown.version), (None, Version(2)));
    pair.unannounce(w);
    pair.announce(w, 3, |push| push.announced = None);
    pair.settle();
    assert_eq!(returned(&pair.replies(w)), [], "the second is marked");
    pair.clear(second);
    assert_eq!(returned(&pair.replies(w)), [2]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// Readers may have found an announced version, even if its push is refused later.
// Promise: versions-from-notices, seen to fail
#[test]
fn refused_announced_version_returns_with_its_last_hazard_pointer() {
    let (mut pair, w, r) = scene();
    pair.noticed(w);
    pair.takeover = true;
    pair.push(r, "k", bytes(50), 9, None);
    pair.settle();
    pair.replies(w);
    let late = announced_ticket(w.session.0, 7).unwrap();
    pair.board.mark(late);
    pair.announce(w, 7, |_| {});
    pair.settle();
    let replies = pair.replies(w);
    let [Reply::Answer { op: OpId(7), answer: Answer::Failed { failure, kept: true } }] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!(failure.code, FailureCode::KeyOwned);
    pair.clear(late);
    assert_eq!(returned(&pair.replies(w)), [7]);
    // A draining sidecar refuses an announced push in the same way.
    pair.nodes[0].node.drain(Time(0));
    pair.settle();
    let last = announced_ticket(w.session.0, 8).unwrap();
    pair.board.mark(last);
    pair.announce(w, 8, |_| {});
    pair.settle();
    let replies = pair.replies(w);
    assert!(
        matches!(&replies[..], [Reply::Answer { answer: Answer::Failed { failure, kept: true }, .. }] if failure.code == FailureCode::Draining)
    );
    pair.clear(last);
    assert_eq!(returned(&pair.replies(w)), [8]);
}

#[test]
fn announced_version_for_an_unknown_tenant_returns_with_its_last_hazard_pointer() {
    let (mut pair, w, _) = scene();
    pair.noticed(w);
    let ticket = announced_ticket(w.session.0, 7).unwrap();
    pair.board.mark(ticket);
    pair.announce(w, 7, |push| push.readable_by.push(name("strangers")));
    pair.settle();
    let replies = pair.replies(w);
    let [Reply::Answer { op: OpId(7), answer: Answer::Failed { failure, kept: true } }] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert!(failure.code == FailureCode::Invalid && failure.text.contains("strangers"), "{failure}");
    pair.clear(ticket);
    assert_eq!(returned(&pair.replies(w)), [7]);
}

/// The worker learns later that the push was refused. Until then the board no longer names its notice.
#[test]
fn board_stops_naming_the_notice_of_a_refused_version() {
    let (mut pair, w, _) = scene();
    pair.noticed(w);
    pair.announce(w, 7, |push| push.version = Some(Version(1)));
    pair.settle();
    assert!(pair.board.find(Tenant::User(0), "k").is_none_or(|shown| shown.notice.is_none()));
    let replies = pair.replies(w);
    assert!(
        matches!(&replies[..], [Reply::Answer { answer: Answer::Failed { failure, kept: true }, .. }, Reply::Returned { .. }]
            if failure.code == FailureCode::VersionNotRising),
        "{replies:?}"
    );
}

/// Two versions are announced, and the second may have been found. A waiter for the first or a newer one gets the
/// second.
#[test]
fn waiter_gets_no_version_older_than_the_rings_contain() {
    let (mut pair, w, r) = scene();
    pair.noticed(w);
    pair.watch(r, 900, Select::AtLeast(Version(3)));
    pair.nodes[0].node.answer_asked(Time(0), 1, |_| false);
    pair.announce(w, 3, |_| {});
    pair.settle();
    assert_eq!(pair.replies(r), [], "there may be another one");
    pair.announce(w, 4, |_| {});
    let asked = pair.nodes[0].node.asked();
    pair.nodes[0].node.answer_asked(Time(0), asked, |_| false);
    pair.settle();
    assert!(matches!(
        pair.replies(r)[..],
        [Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { version: Version(4), .. }, .. }, .. }]
    ));
}

/// A worker at its limit of operations cannot exceed it by announcing.
#[test]
fn busy_worker_cannot_announce_a_push_that_must_wait() {
    let (mut pair, w, _) = scene();
    pair.noticed(w);
    pair.nodes[0].node.config.max_ops_per_session = 0;
    pair.announce(w, 3, |_| {});
    pair.settle();
    assert!(
        pair.replies(w).iter().any(|reply| matches!(reply, Reply::Answer { answer: Answer::Pushed { .. }, .. })),
        "it does not have to wait"
    );
    pair.announce(w, 4, |push| push.key = key("another"));
    pair.settle();
    let replies = pair.replies(w);
    assert!(
        matches!(&replies[..], [Reply::Answer { answer: Answer::Failed { failure, kept: true }, .. }, Reply::Returned { .. }] if failure.code == FailureCode::Busy),
        "{replies:?}"
    );
}

/// The ring of a worker that is held was not read to its end, and may contain a newer version than the node knows.
// Promise: long-tables
#[test]
fn fetch_of_an_announced_key_waits_while_its_worker_is_held() {
    let (mut pair, w, r) = scene();
    pair.noticed(w);
    pair.watch(r, 900, Select::Latest);
    pair.nodes[0].node.answer_asked(Time(0), 1, |session| session == w.session);
    pair.settle();
    assert_eq!((pair.replies(r), pair.nodes[0].node.asked()), (vec![], 1));
    pair.announce(w, 3, |_| {});
    pair.nodes[0].node.answer_asked(Time(0), 1, |session| session == r.session);
    pair.settle();
    assert!(matches!(
        pair.replies(r)[..],
        [Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { version: Version(3), .. }, .. }, .. }]
    ));
}

// Promise: versions-from-notices, seen to fail
#[test]
fn fetch_of_an_announced_key_is_answered_after_a_look_at_the_rings() {
    let (mut pair, w, r) = scene();
    pair.noticed(w);
    pair.watch(r, 900, Select::Latest);
    pair.settle();
    assert_eq!(pair.replies(r), []);
    assert_eq!(pair.nodes[0].node.asked(), 1);
    // This push is in the owner's ring before the look at the rings.
    pair.announce(w, 3, |_| {});
    pair.nodes[0].node.answer_asked(Time(0), 1, |_| false);
    pair.settle();
    assert!(matches!(
        pair.replies(r)[..],
        [Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { version: Version(3), .. }, .. }, .. }]
    ));
    // The owner's own fetch follows its pushes in its ring, so it is answered at once.
    pair.watch(w, 901, Select::Latest);
    pair.settle();
    assert!(pair.replies(w).iter().any(|reply| matches!(
        reply,
        Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { version: Version(3), .. }, .. }, .. }
    )));
}

#[test]
fn invalid_announcements_are_refused_with_a_reason() {
    let (mut pair, w, _) = scene();
    pair.noticed(w);
    let mut refused = |op: u64, change: fn(&mut Push), words: &str| {
        pair.announce(w, op, change);
        pair.settle();
        let failure = pair.failed(w);
        assert!(failure.code == FailureCode::Invalid && failure.text.contains(words), "{failure}");
    };
    refused(
        3,
        |push| push.announced = Some(Announced { notice: 3, count: 2 }),
        "announcement 2 of this worker does not follow 2",
    );
    refused(4, |push| push.announced = Some(Announced { notice: 3, count: 1 << 40 }), "does not follow 2");
    refused(5, |push| push.announced = Some(Announced { notice: 4096, count: 5 }), "notice 4096 is none");
    refused(6, |push| push.to = Some(super::pair::name("r")), "stays at its own sidecar");
    let far = pair.worker(1, "far");
    pair.announce(far, 1, |_| {});
    pair.settle();
    assert!(pair.failed(far).text.contains("no board"));
}

#[test]
fn notice_without_a_place_is_not_named_and_its_versions_still_return() {
    let (mut pair, w, r) = scene();
    for text in ["a", "b"] {
        pair.push(w, text, bytes(10), 1, None);
        pair.settle();
        pair.fetch(r, text, Select::Latest);
        pair.settle();
        let (lease, ..) = pair.fetched(r);
        pair.release(r, lease);
    }
    pair.settle();
    pair.replies(w);
    let (first, _) = (pair.announce(w, 1001, |_| {}), pair.settle());
    assert!(pair.board.find(Tenant::User(0), "k").is_none());
    pair.announce(w, 1002, |_| {});
    pair.settle();
    assert_eq!(returned(&pair.replies(w)), [1001], "ticket {first:#x} holds nothing");
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn announced_version_of_a_dead_worker_stays_for_its_readers() {
    let (mut pair, w, r) = scene();
    let second = pair.noticed(w);
    pair.board.mark(second);
    pair.leave(w, "w");
    pair.settle();
    assert!(pair.board.find(Tenant::User(0), "k").is_none() && pair.unused.is_empty());
    pair.clear(second);
    assert_eq!(pair.unused.len(), 1, "its arena");
    pair.ends_clean(&[(r, "r")]);
}
