//! Tests of boards: which versions they show, when they are withdrawn, and when their ranges return.

use super::pair::{Pair, Worker, bytes, key};
use crate::op::{Answer, Command, OpId, Reply, Request, TakeBack};
use crate::protocol::{HostAction, Tenant};
use crate::tensor::{Life, Retention, Select, Until, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

const PLACES: usize = 2;

/// Makes a worker that pushes and a worker that reads, at a sidecar whose workers have a board.
fn scene() -> (Pair, Worker, Worker) {
    let mut pair = Pair::new();
    pair.nodes[0].node.add_board(Tenant::User(0), PLACES);
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    (pair, w, r)
}

impl Pair {
    /// Returns the version that the board of the first node shows.
    fn shows(&self, text: &str) -> Option<u64> {
        self.board.find(Tenant::User(0), text).map(|s| s.version.0)
    }

    fn fetch_and_release(&mut self, r: Worker, text: &str) -> u64 {
        self.fetch(r, text, Select::Latest);
        self.settle();
        let (lease, version, ..) = self.fetched(r);
        self.release(r, lease);
        self.settle();
        version
    }

    /// Sets a hazard pointer to the shown version, like a reader that found it. Returns the ticket.
    fn mark(&mut self, text: &str) -> u64 {
        let ticket = self.board.find(Tenant::User(0), text).unwrap().ticket;
        self.board.mark(ticket);
        ticket
    }

    fn unmark(&mut self, ticket: u64) {
        if self.board.unmark(ticket) {
            self.nodes[0].node.withdrawn(ticket);
        }
        self.settle();
    }

    /// Returns the number of ranges that have returned to this worker since the last call.
    fn returned(&mut self, w: Worker) -> usize {
        self.replies(w).iter().filter(|r| matches!(r, Reply::Returned { .. })).count()
    }

    /// Returns the actions of the first node, in order. It releases at once what `r` fetches. Withdrawn entries have no
    /// hazard pointers.
    fn order(&mut self, r: Worker) -> Vec<String> {
        let (now, mut order) = (self.world.now(), Vec::new());
        let mut actions = VecDeque::from(self.host_actions(0));
        while let Some(action) = actions.pop_front() {
            match action {
                HostAction::Show(shown) => {
                    order.push(format!("show {}", shown.version.0));
                    self.board.show(shown);
                }
                HostAction::Withdraw { ticket, .. } => {
                    order.push("withdraw".into());
                    if self.board.withdraw(ticket) {
                        self.nodes[0].node.withdrawn(ticket);
                    }
                }
                HostAction::Reply { reply: Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }, .. } => {
                    order.push("fetched".into());
                    self.nodes[0].node.request(now, r.session, Request::Release { lease });
                }
                HostAction::Reply { reply: Reply::Answer { answer: Answer::Pushed { .. }, .. }, .. } => {
                    order.push("pushed".into())
                }
                HostAction::Reply { reply: Reply::Returned { .. }, .. } => order.push("returned".into()),
                other => panic!("{other:?}"),
            }
            if actions.is_empty() {
                actions.extend(self.host_actions(0));
            }
        }
        order
    }

    /// Publishes version 1 of `k` and makes the board show it.
    fn shown(&mut self, w: Worker, r: Worker) {
        self.push(w, "k", bytes(100), 1, None);
        self.settle();
        assert_eq!(self.shows("k"), None, "nobody has asked for it yet");
        assert_eq!(self.fetch_and_release(r, "k"), 1);
        assert_eq!(self.shows("k"), Some(1));
        self.replies(w);
    }
}

// Promise: board-lookups, seen to fail
#[test]
fn fetched_key_is_shown_and_its_newer_versions_before_any_reply() {
    let (mut pair, w, r) = scene();
    pair.shown(w, r);
    let shown = pair.board.find(Tenant::User(0), "k").unwrap().clone();
    assert_eq!((shown.meta.clone(), shown.slice.len), (bytes(100), 100));
    // A waiter asks the sidecar, so the new version is not shown. The version before is withdrawn before any reply.
    pair.fetch(r, "k", Select::AtLeast(Version(2)));
    pair.push(w, "k", bytes(100), 2, None);
    assert_eq!(pair.order(r), ["withdraw", "fetched", "pushed", "returned"]);
    // A later fetch makes the board show it.
    assert_eq!(pair.fetch_and_release(r, "k"), 2);
    assert_eq!(pair.shows("k"), Some(2));
    // Without a waiter, the next version is shown before any reply.
    pair.push(w, "k", bytes(100), 3, None);
    assert_eq!(pair.order(r), ["show 3", "withdraw", "pushed", "returned"]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: board-lookups, seen to fail
#[test]
fn range_returns_when_the_last_hazard_pointer_is_cleared() {
    let (mut pair, w, r) = scene();
    pair.shown(w, r);
    let first = pair.mark("k");
    pair.board.mark(first);
    for version in 2..=4 {
        pair.push(w, "k", bytes(100), version, None);
        pair.settle();
        assert_eq!(pair.shows("k"), Some(version.into()));
    }
    assert_eq!(pair.returned(w), 2, "2 and 3, which nobody has found");
    pair.unmark(first);
    assert_eq!(pair.returned(w), 0, "another still reads it");
    pair.unmark(first);
    assert_eq!(pair.returned(w), 1);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// Ends version 1 by `how`. Checks that its entry is withdrawn, and that the version stays until its hazard pointer is
/// cleared.
fn ends_by(how: impl FnOnce(&mut Pair, Worker, Worker)) {
    let (mut pair, w, r) = scene();
    pair.shown(w, r);
    let ticket = pair.mark("k");
    how(&mut pair, w, r);
    pair.settle();
    assert_eq!(pair.shows("k"), None);
    let held = |pair: &Pair| pair.nodes[0].node.state().snapshot(Time(0)).blobs;
    let blobs = held(&pair);
    assert!(pair.returned(w) == 0 && blobs > 0, "it is marked as read");
    pair.unmark(ticket);
    assert_eq!(held(&pair), blobs - 1);
}

#[test]
fn a_deleted_key_is_withdrawn() {
    ends_by(|pair, w, _| pair.command(w, OpId(900), Command::Delete { key: key("k") }));
}

#[test]
fn a_key_that_an_operator_deletes_is_withdrawn() {
    ends_by(|pair, _, _| {
        let deleted = pair.nodes[0].node.delete_key(Time(0), &key("k"), None).unwrap();
        assert_eq!((deleted.versions, deleted.still_read), (1, 0));
    });
}

#[test]
fn versions_of_a_dead_worker_are_withdrawn_and_its_arena_stays_for_readers() {
    ends_by(|pair, w, _| {
        pair.leave(w, "w");
        pair.settle();
        assert_eq!(pair.unused, []);
    });
}

#[test]
fn a_key_that_is_taken_over_is_withdrawn() {
    ends_by(|pair, _, r| {
        pair.takeover = true;
        pair.push(r, "k", bytes(50), 9, None);
        pair.settle();
        // The key is still wanted. The new owner's version replaces the old one on the board.
        assert_eq!(pair.shows("k"), Some(1));
        assert_eq!(pair.board.find(Tenant::User(0), "k").unwrap().meta, bytes(50));
        pair.replies(r);
        pair.command(r, OpId(901), Command::Delete { key: key("k") });
    });
}

#[test]
fn a_key_that_goes_to_another_node_is_withdrawn() {
    ends_by(|pair, _, _| {
        let far = pair.worker(1, "far");
        pair.takeover = true;
        pair.push(far, "k", bytes(50), 9, None);
    });
}

#[test]
fn a_draining_node_shows_nothing() {
    let (mut pair, w, r) = scene();
    pair.shown(w, r);
    let ticket = pair.mark("k");
    pair.nodes[0].node.drain(Time(0));
    pair.settle();
    assert_eq!(pair.shows("k"), None);
    pair.unmark(ticket);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn take_back_waits_for_hazard_pointers_and_restores_the_entry_on_timeout() {
    let (mut pair, w, r) = scene();
    pair.shown(w, r);
    let take_back = |pair: &mut Pair, op| {
        let (key, timeout) = (key("k"), Duration::from_secs(1));
        pair.command(w, OpId(op), Command::TakeBack(TakeBack { key, version: None, timeout }));
        pair.settle();
    };
    let first = pair.mark("k");
    take_back(&mut pair, 900);
    assert_eq!(pair.shows("k"), None);
    pair.wait(Duration::from_secs(1));
    let failure = pair.failed(w);
    assert!(failure.text.contains("1 places"), "{failure}");
    assert_eq!(pair.shows("k"), Some(1));
    let second = pair.mark("k");
    assert_ne!(first, second, "a ticket is never used again");
    take_back(&mut pair, 901);
    pair.unmark(second);
    assert_eq!(pair.replies(w), [], "the first mark is there still");
    pair.unmark(first);
    assert!(matches!(
        pair.replies(w)[..],
        [Reply::Answer { answer: Answer::TakenBack { version: Version(1), .. }, .. }]
    ));
    // This time no hazard pointer holds the version.
    pair.push(w, "k", bytes(100), 2, None);
    pair.settle();
    assert_eq!(pair.shows("k"), Some(2));
    pair.replies(w);
    take_back(&mut pair, 902);
    assert!(matches!(
        pair.replies(w)[..],
        [Reply::Answer { answer: Answer::TakenBack { version: Version(2), .. }, .. }]
    ));
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn versions_that_need_the_sidecar_are_not_shown() {
    let (mut pair, w, r) = scene();
    pair.shown(w, r);
    // Versions whose fetches are counted are not shown.
    let twice = Until::Fetched(NonZeroU32::new(2).unwrap());
    pair.retention = Retention { until: twice, life: Life::Session, ..Retention::default() };
    pair.push(w, "k", bytes(100), 2, None);
    pair.settle();
    assert_eq!(pair.shows("k"), None);
    pair.retention = Retention::default();
    pair.push(w, "k", bytes(100), 3, None);
    pair.settle();
    assert_eq!(pair.shows("k"), Some(3));
    // A version with a trace context is not shown, because a fetch must return the context.
    pair.trace = TraceContext::new([1; 16], [2; 8], 1).ok();
    pair.push(w, "k", bytes(100), 4, None);
    pair.settle();
    assert_eq!(pair.shows("k"), None);
    pair.trace = None;
    // A version that outlives its worker must be fetched from the sidecar once the worker is gone.
    pair.retention = Retention { until: Until::Replaced, life: Life::Sidecar, ..Retention::default() };
    pair.push(w, "k", bytes(100), 5, None);
    pair.settle();
    assert_eq!(pair.shows("k"), Some(5));
    pair.leave(w, "w");
    pair.settle();
    assert_eq!(pair.shows("k"), None);
    assert_eq!(pair.fetch_and_release(r, "k"), 5);
    assert_eq!(pair.shows("k"), None);
    // A version that landed from another node is not shown.
    let far = pair.worker(1, "far");
    pair.retention = Retention::default();
    pair.push(far, "landed", bytes(100), 1, Some("r"));
    pair.settle();
    assert_eq!(pair.fetch_and_release(r, "landed"), 1);
    assert_eq!(pair.shows("landed"), None);
}

#[test]
fn full_board_shows_no_other_key_until_a_place_is_free() {
    let (mut pair, w, r) = scene();
    for text in ["a", "b", "c"] {
        pair.push(w, text, bytes(100), 1, None);
        pair.settle();
        pair.fetch_and_release(r, text);
    }
    assert_eq!(["a", "b", "c"].map(|k| pair.shows(k)), [Some(1), Some(1), None]);
    // A new version takes the place of its own key. It needs no other place and frees none.
    pair.push(w, "b", bytes(100), 2, None);
    pair.settle();
    pair.fetch_and_release(r, "c");
    assert_eq!(pair.shows("c"), None);
    pair.command(w, OpId(900), Command::Delete { key: key("a") });
    pair.push(w, "c", bytes(100), 2, None);
    pair.settle();
    assert_eq!(["a", "b", "c"].map(|k| pair.shows(k)), [None, Some(2), Some(2)]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn refused_entry_is_not_tried_again() {
    let (mut pair, w, r) = scene();
    pair.push(w, "k", bytes(100), 1, None);
    pair.settle();
    pair.fetch(r, "k", Select::Latest);
    let mut shown = 0;
    for version in 2..4 {
        for action in pair.host_actions(0) {
            if let HostAction::Show(s) = action {
                shown += 1;
                pair.nodes[0].node.not_shown(s.ticket);
            }
        }
        pair.nodes[0].node.check().unwrap();
        pair.push(w, "k", bytes(100), version, None);
    }
    pair.settle();
    assert_eq!((shown, pair.shows("k")), (1, None));
    // The place is free for another key.
    for text in ["a", "b"] {
        pair.push(w, text, bytes(10), 1, None);
        pair.settle();
        pair.replies(r);
        pair.fetch_and_release(r, text);
        assert_eq!(pair.shows(text), Some(1));
    }
}

#[test]
fn listings_count_the_known_readers() {
    let (mut pair, w, r) = scene();
    pair.shown(w, r);
    let readers = |pair: &Pair| pair.nodes[0].node.state().tensors(&Default::default(), 0, 10).entries[0].readers;
    assert_eq!(readers(&pair), 0);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    assert_eq!(readers(&pair), 1);
}
