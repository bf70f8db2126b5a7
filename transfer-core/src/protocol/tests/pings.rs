//! Round trips that an operator measures.

use super::pair::{Pair, bytes};
use super::solo::{LINK, Solo};
use crate::fabric::LinkId;
use crate::protocol::NotPinged;
use crate::wire::message::{Body, Role};

/// A pair with a link.
fn linked() -> Pair {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    pair.worker(1, "ps");
    pair.reserve(w, "k", bytes(100), "ps");
    pair.settle();
    pair.posted();
    pair
}

#[test]
fn ping_is_answered_by_one_message() {
    let mut pair = linked();
    let link = pair.links[0].unwrap();
    pair.nodes[0].node.ping(link, 7).unwrap();
    pair.nodes[0].node.ping(link, 8).unwrap();
    pair.settle();
    assert_eq!(pair.posted(), ["PING", "PING", "PONG", "PONG"]);
    assert_eq!(pair.ponged, [(0, 7, None), (0, 8, None)]);
}

#[test]
fn ping_is_lost_with_its_link() {
    let mut pair = linked();
    let link = pair.links[0].unwrap();
    pair.nodes[0].node.ping(link, 7).unwrap();
    pair.world.break_connection(0, "the cable was pulled");
    pair.settle();
    let [(0, 7, Some(why))] = &pair.ponged[..] else { panic!("{:?}", pair.ponged) };
    assert!(why.contains("the cable was pulled"), "{why}");
    assert_eq!(pair.nodes[0].node.ping(link, 8), Err(NotPinged::NoLink(link)));
    assert_eq!(pair.nodes[0].node.ping(LinkId(99), 9), Err(NotPinged::NoLink(LinkId(99))));
}

/// A peer that answers what was not asked, or twice, changes nothing; and the PONG of a call for slots is another one.
// Promise: ping
#[test]
fn foreign_pongs_are_ignored() {
    let mut solo = Solo::new(|_| {});
    solo.node.ping(LINK, 7).unwrap();
    solo.drain();
    let index = solo.last("PING").index;
    for (role, index) in [(Role::Pull, index + 1), (Role::Push, index), (Role::Pull, u32::MAX)] {
        solo.hear(role, index, Body::Pong);
        assert!(solo.ponged.is_empty());
    }
    solo.hear(Role::Pull, index, Body::Pong);
    solo.hear(Role::Pull, index, Body::Pong);
    assert_eq!(solo.ponged, [(7, None)]);
    assert!(solo.node.state().peer_of(LINK).is_some(), "the link stays");
}

// Promise: ping
#[test]
fn peer_that_answers_nothing_gets_a_bounded_number_of_pings() {
    let mut solo = Solo::new(|_| {});
    let sent = (0..1000).take_while(|token| solo.node.ping(LINK, *token).is_ok()).count();
    assert_eq!(sent, 64);
    assert!(matches!(solo.node.ping(LINK, 0), Err(NotPinged::Unanswered { peer }) if peer == "there"));
    solo.lose_link();
    assert_eq!(solo.ponged.len(), 64, "every one is told");
}
