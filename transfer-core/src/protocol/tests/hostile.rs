//! Tests of peers that break the rules. Each violation ends the link and nothing else.

use super::pair::{Pair, Worker, bytes};
use crate::fabric::{FabricEvent, LinkId};
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Answer, FailureCode, Reply};
use crate::tensor::{Retention, Select, Version};
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant, SlotNumber};
use crate::wire::message::{Body, Message, NameRef, Recall, Role};

/// Makes two nodes with a link over which a tensor was sent. Node 1 then receives these bytes from node 0.
fn hears(bytes_of: &[u8]) -> Pair {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let now = pair.world.now();
    let link = pair.links[1].unwrap();
    pair.nodes[1].node.fabric_event(now, FabricEvent::Message { link, bytes: bytes_of }, None);
    pair.settle();
    // The node itself still works.
    pair.replies(r);
    pair.push(r, "own", bytes(8), 2, None);
    pair.settle();
    assert!(matches!(pair.replies(r)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
    pair
}

fn is_violation(bytes_of: &[u8]) {
    let pair = hears(bytes_of);
    assert!(pair.downs.iter().any(|why| why.contains("broke the contract")), "{:?}", pair.downs);
}

#[test]
fn messages_that_make_no_sense_end_the_link() {
    is_violation(b"no message");
    let message = |role, index, body| Message::new(role, index, body).encode();
    is_violation(&message(Role::Pull, 77, Body::Cancelled));
    is_violation(&message(Role::Pull, 77, Body::ErrorStatus(crate::op::Failure::new(FailureCode::Busy, ""))));
    let unknown = NameRef { id: 9, generation: 0 };
    let request = Body::TensorRequest {
        key: unknown,
        select: Select::Exactly(Version(1)),
        metadata_id: 0,
        tenant: unknown,
        excerpt: None,
        slot: None,
        trace: None,
    };
    is_violation(&message(Role::Pull, 1, request));
    let too_many = Message { credits: 300, ..Message::new(Role::Pull, 0, Body::Ack) };
    is_violation(&too_many.encode());
}

#[test]
fn late_messages_for_ended_flows_are_ignored() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let link = pair.links[0].unwrap();
    let grant = SlotGrant {
        number: SlotNumber::new(1, 1),
        capacity: 0,
        remote: RemoteSlice::new(0, HEADER_BYTES, RemoteKey(1)),
    };
    let idle = Body::BufferIdle { slot: grant };
    let answer = Body::BufferResponse { slots: vec![grant] };
    let (recall, recalled) =
        (Body::BufferRecall { why: Recall::Room, round: 0 }, Body::Recalled { why: Recall::Ends, round: 0 });
    for body in [Body::BufferRelease, recalled, recall, Body::Pong, idle, answer] {
        pair.nodes[0].node.send(link, Role::Push, 1234, body);
        pair.settle();
        assert_eq!(pair.downs, [""; 0]);
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// Makes a pull whose slot is open, and the header that may land in it.
fn a_slot_that_waits() -> (Pair, Worker, Worker, LinkId, Header) {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    // The description is known, so the request carries a slot.
    pair.fetch(r, "k", Select::AtLeast(Version(2)));
    pair.settle();
    pair.replies(r);
    let link = pair.links[1].unwrap();
    let places = 0..8u32;
    let slot = places
        .flat_map(|place| [place, place | 1 << 20])
        .find(|n| pair.nodes[1].node.landing_header(link, *n).is_some());
    let slot = SlotNumber(slot.unwrap());
    let header = Header {
        slot,
        index: 1 << 20,
        metadata_id: 1,
        version: Version(2),
        body_len: 8,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
    };
    (pair, w, r, link, header)
}

#[test]
fn false_landing_header_ends_the_link() {
    let lies: [fn(&mut Header); 7] = [
        |_| {},
        |h| h.slot = SlotNumber(h.slot.0 + 1),
        |h| h.index += 1,
        |h| h.metadata_id += 1,
        |h| h.body_len = 9,
        |h| h.body_len = 1 << 40,
        |h| h.version = Version(1),
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        let (mut pair, _, r, link, mut header) = a_slot_that_waits();
        let (now, slot) = (pair.world.now(), header.slot);
        lie(&mut header);
        let event = FabricEvent::Immediate { link, value: slot.0, len_bytes: 72, copied: 0 };
        pair.nodes[1].node.fabric_event(now, event, Some(&header.encode()));
        pair.settle();
        let replies = pair.replies(r);
        match i {
            0 => assert!(matches!(replies[..], [Reply::Answer { answer: Answer::Fetched { .. }, .. }]), "{replies:?}"),
            _ => {
                let code = |r: &Reply| matches!(r, Reply::Answer { answer: Answer::Failed { failure, .. }, .. } if failure.code == FailureCode::PeerLost);
                assert!(replies.iter().any(code), "lie {i}: {replies:?}");
                assert!(pair.downs.iter().any(|why| why.contains("broke the contract")), "lie {i}: {:?}", pair.downs);
            }
        }
        assert_eq!(pair.world.faults(), [""; 0]);
    }
}

/// A peer can raise an immediate with a write of zero bytes, which needs no grant. The header in the slot is then an
/// old one.
#[test]
fn an_immediate_without_a_header_ends_the_link() {
    let (mut pair, w, r, link, header) = a_slot_that_waits();
    let (now, slot) = (pair.world.now(), header.slot.0);
    let event = FabricEvent::Immediate { link, value: slot, len_bytes: 0, copied: 0 };
    pair.nodes[1].node.fabric_event(now, event, Some(&header.encode()));
    pair.settle();
    assert!(pair.downs.iter().any(|why| why.contains("without a header")), "{:?}", pair.downs);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn an_immediate_that_names_no_slot_ends_the_link() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (now, link) = (pair.world.now(), pair.links[1].unwrap());
    assert_eq!(pair.nodes[1].node.landing_header(link, 5), None);
    pair.nodes[1].node.fabric_event(now, FabricEvent::Immediate { link, value: 5, len_bytes: 72, copied: 0 }, None);
    pair.settle();
    assert!(pair.downs.iter().any(|why| why.contains("broke the contract")), "{:?}", pair.downs);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}
