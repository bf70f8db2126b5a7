//! Tests of the links alone.

use super::*;
use crate::fabric::{Capabilities, DownReason, FabricKind, WorkId};
use crate::memory::{RemoteKey, RemoteSlice, SegmentId};
use crate::plan::GatherList;
use crate::protocol::action::{Action, Actions, FabricAction, HostAction, Post};
use crate::protocol::control::{Control, PeerInfo};
use crate::protocol::ids::OperationId;
use crate::protocol::meters::PathId;
use crate::protocol::slab::Id;
use crate::protocol::tenant::Vouches;
use crate::tensor::{DType, Key, Retention, TensorMeta, Version};
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant, SlotNumber};
use crate::wire::message::{Body, Message, Role};

const LINK: LinkId = LinkId(1);
const OTHER: LinkId = LinkId(2);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn op(n: u64) -> OperationId {
    Id::from_u64(n)
}

fn up(links: &mut Links, link: LinkId, peer: &str) -> Before {
    let (name, vouches) = (name(peer), Vouches::ForAll);
    let peer = PeerInfo { name, incarnation: 1, receive_slots: 8, vouches, passed_over: Vec::new() };
    let mut limits = Capabilities::new();
    limits.receive_slots = 8;
    links.up(link, peer, (FabricKind::Tcp, limits), PathId::HERE)
}

/// Returns the links of a node with `cells` header cells. One link is up.
fn links(cells: u64, change: impl FnOnce(&mut NodeConfig)) -> (Links, Actions) {
    let mut config = NodeConfig::new(name("n"), 1);
    change(&mut config);
    let mut links = Links::new(&config, LocalSlice { segment: SegmentId(0), offset: 0, len: cells * HEADER_BYTES });
    up(&mut links, LINK, "there");
    (links, Actions::default())
}

fn ping() -> Out {
    Out::Message(Message::new(Role::Pull, 0, Body::Ping))
}

fn write(n: u64) -> Out {
    let slot = SlotGrant {
        number: SlotNumber::new(3, 1),
        capacity: 64,
        remote: RemoteSlice::new(0, 128, RemoteKey(9)),
        body: Vec::new(),
    };
    let header = Header {
        slot: slot.number,
        index: 0,
        metadata_id: 1,
        version: Version(1),
        body_len: 0,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
        packed: false,
        deltas_follow: false,
        is_delta: false,
        spreads: false,
        identity: None,
    };
    Out::Write(OutWrite { blob: Id::from_u64(n), body: GatherList::new(), slot, header, purpose: Purpose::Push(op(n)) })
}

/// Posts everything that may be posted. Returns the number of messages, and the writes.
fn flush(links: &mut Links, actions: &mut Actions) -> (usize, Vec<WorkId>) {
    links.flush(actions);
    let (mut messages, mut writes) = (0, Vec::new());
    while let Some(action) = actions.pop() {
        match action {
            Action::Post(Post::Send { .. }) => messages += 1,
            Action::Post(Post::Write(write)) => writes.push(write.work),
            other => panic!("{other:?}"),
        }
    }
    (messages, writes)
}

#[test]
fn operations_wait_for_one_link_and_are_all_returned() {
    let (mut links, mut actions) = links(1, |_| {});
    assert_eq!(links.connect(op(1), &name("there"), &mut actions), Some(LINK));
    assert_eq!([2, 3].map(|n| links.connect(op(n), &name("b"), &mut actions)), [None, None]);
    assert!(matches!(actions.pop(), Some(Action::Host(HostAction::Control(Control::Connect { .. })))));
    assert!(actions.is_empty(), "the control plane is asked once");
    assert_eq!(up(&mut links, OTHER, "b"), Before::Waiting(vec![op(2), op(3)]));
    assert_eq!(up(&mut links, LinkId(3), "b"), Before::Link(OTHER));
    links.connect(op(4), &name("c"), &mut actions);
    assert_eq!((links.connect_failed(&name("c")), links.connect_failed(&name("b"))), (vec![op(4)], vec![]));
}

#[test]
fn a_later_link_to_a_node_stays_when_the_earlier_one_goes() {
    let (mut links, mut actions) = links(1, |_| {});
    up(&mut links, OTHER, "there");
    assert_eq!(links.down(LINK).map(|lost| lost.peer), Some(name("there")));
    assert!(links.down(LINK).is_none() && links.get(LINK).is_none());
    assert_eq!(links.connect(op(1), &name("there"), &mut actions), Some(OTHER));
}

#[test]
fn messages_wait_for_credits() {
    let (mut links, mut actions) = links(1, |_| {});
    (0..20).for_each(|_| links.post(LINK, ping(), &mut actions));
    let first = flush(&mut links, &mut actions).0;
    assert!(first < 8, "some credits are kept for an ACK: {first}");
    assert_eq!((flush(&mut links, &mut actions).0, links.get(LINK).unwrap().queued()), (0, 20 - first));
    assert!(links.given_back(LINK, 1, &mut actions));
    assert_eq!(flush(&mut links, &mut actions).0, 1);
    assert!(!links.given_back(LINK, 100, &mut actions), "it has 8");
    assert!(matches!(actions.pop(), Some(Action::Fabric(FabricAction::Disconnect { .. }))));
}

#[test]
fn writes_wait_for_header_cells_and_go_on_when_one_is_free() {
    let (mut links, mut actions) = links(2, |_| {});
    (1..=2).for_each(|n| links.post(LINK, write(n), &mut actions));
    let (_, writes) = flush(&mut links, &mut actions);
    assert_eq!((writes.len(), links.in_use()), (1, (1, 1)), "a part is left for the next link");
    assert!(links.write_done(LINK, writes[0]).is_some_and(|(blob, _)| blob == Id::from_u64(1)));
    assert!(links.write_done(LINK, writes[0]).is_none());
    let (_, writes) = flush(&mut links, &mut actions);
    assert_eq!((writes.len(), links.in_use()), (1, (1, 1)));
    links.post(LINK, write(3), &mut actions);
    let lost = links.down(LINK).unwrap();
    assert_eq!((lost.in_flight.len(), lost.unsent.len(), links.in_use()), (1, 1, (0, 0)));
}

#[test]
fn peer_that_takes_nothing_or_breaks_the_contract_is_disconnected_once() {
    let (mut links, mut actions) = links(1, |config| config.max_queued_per_link = 4);
    (0..6).for_each(|_| links.post(LINK, ping(), &mut actions));
    assert!(links.get(LINK).unwrap().is_ending());
    links.violation(LINK, "a test", &mut actions);
    let Some(Action::Fabric(FabricAction::Disconnect { reason: DownReason::Violation(what), .. })) = actions.pop()
    else {
        panic!("it is left")
    };
    assert!(what.contains("it takes nothing") && actions.is_empty(), "{what}");
    assert!(!links.slot_used(LINK, &mut actions), "what it says does not count");
}

#[test]
fn names_are_told_before_they_are_used_and_looked_up_by_number() {
    let (mut links, mut actions) = links(1, |_| {});
    let [a, b, again] = links.number(LINK, [&name("a"), &name("b"), &name("a")], &mut actions);
    assert!(a == again && a != b);
    assert_eq!(flush(&mut links, &mut actions).0, 2, "each is told once");
    assert!(links.look_up(LINK, a).unwrap_err().contains("never told"), "the directions know nothing of each other");
    links.name_told(LINK, a, name("x")).unwrap();
    assert_eq!(links.look_up(LINK, a), Ok(&name("x")));
    assert!(links.name_told(LINK, a, name("y")).is_err());
}

#[test]
fn descriptions_belong_to_their_link() {
    let (mut links, _) = links(1, |_| {});
    up(&mut links, OTHER, "b");
    let (key, meta) = (Key::new("k").unwrap(), TensorMeta::of(DType::U8, &[8]).unwrap());
    let id = links.tell(LINK, &key, &meta).unwrap();
    assert_eq!((links.told(LINK, &key, &meta), links.told(OTHER, &key, &meta)), (Some(id), None));
    links.hear(LINK, &key, 5, meta.clone());
    assert_eq!((links.heard(LINK, &key), links.heard(OTHER, &key)), (Some(&(5, meta)), None));
    links.forget_heard(LINK, &key);
    assert_eq!(links.heard(LINK, &key), None);
}
