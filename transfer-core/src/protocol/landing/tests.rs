//! Tests of the landing memory alone: there is no node and no session, and a key is only a name.

use super::*;
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice};
use crate::protocol::action::Actions;
use crate::protocol::action::{Action, Post};
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{CopyId, FlowAt, PullId};
use crate::tensor::{DType, Key, Name, Retention, Shape, TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::{HEADER_BYTES, Header, SlotNumber};
use crate::wire::message::Recall;

const USER: Tenant = Tenant::User(1);
const LINK: LinkId = LinkId(3);
const NOW: Time = Time(0);

/// Returns landing memory with room for `slots` slots with bodies of 64 bytes, and one link.
fn landing(slots: u64) -> (Landing, Actions) {
    let mut landing = Landing::new(&NodeConfig::new(Name::new("node").unwrap(), 1));
    landing.add_pool(USER, SegmentId(1), slots * 128);
    landing.link_up(LINK);
    (landing, Actions::default())
}

/// Adds a flow of tensors of 64 bytes.
fn flow(landing: &mut Landing, index: u32) -> FlowAt {
    let meta = TensorMeta::new(DType::U8, Shape::new(&[64]).unwrap()).unwrap();
    let flow = InFlow::new(NOW, index, Key::new("k").unwrap(), (SessionId(1), USER), (1, meta));
    (LINK, landing.insert_flow(LINK, flow).unwrap())
}

/// Grants and revokes as a fabric would. Returns what the peer is told.
fn run(landing: &mut Landing, actions: &mut Actions) -> Vec<Granted> {
    let mut told = Vec::new();
    while let Some(action) = actions.pop() {
        match action {
            Action::Post(Post::Grant { range, tag, .. }) => {
                let remote = RemoteSlice::new(range.offset, range.len, RemoteKey(7));
                let granted = landing.granted(LINK, GrantTag::from_u64(tag), remote, actions);
                if let Some((slot, SlotUser::Flow(flow, round))) = granted {
                    told.push(landing.flow_granted(NOW, (LINK, flow), round, slot, actions));
                }
            }
            Action::Post(Post::Revoke { tag, .. }) => drop(landing.revoked(LINK, GrantTag::from_u64(tag), actions)),
            other => panic!("{other:?}"),
        }
    }
    landing.settle();
    landing.check_all().unwrap();
    told
}

/// Adds a flow with all its slots. Returns the flow and the numbers of the slots.
fn ready(landing: &mut Landing, actions: &mut Actions, index: u32) -> (FlowAt, Vec<u32>) {
    let at = flow(landing, index);
    landing.wants_slots(at);
    assert!(landing.try_slots(NOW, USER, at, actions));
    let told = run(landing, actions);
    let Some(Granted::All(_, slots)) = told.into_iter().last() else { panic!("the answer is the last grant's") };
    (at, slots.iter().map(|slot| slot.number.0).collect())
}

fn header(slot: u32, index: u32, version: u64) -> [u8; HEADER_BYTES as usize] {
    let header = Header {
        slot: SlotNumber(slot),
        index,
        metadata_id: 1,
        version: Version(version),
        body_len: 64,
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
    header.encode()
}

fn used(landing: &Landing) -> u64 {
    landing.pools()[&USER].alloc().used_bytes()
}

#[test]
fn a_flow_gets_all_its_slots_or_none() {
    let (mut landing, mut actions) = landing(3);
    ready(&mut landing, &mut actions, 1);
    let second = flow(&mut landing, 2);
    landing.wants_slots(second);
    assert!(!landing.try_slots(NOW, USER, second, &mut actions), "there is room for one");
    assert_eq!(used(&landing), 2 * 128);
}

#[test]
fn landed_tensors_are_checked_against_their_grant_and_published_in_order() {
    let (mut landing, mut actions) = landing(2);
    let (at, slots) = ready(&mut landing, &mut actions, 9);
    let land = |landing: &mut Landing, actions: &mut Actions, slot: u32, version| {
        let (id, key, _, header) = landing.check(LINK, slot, Some(&header(slot, 9, version)))?;
        let meta = landing.check_flow(at, &header)?.unwrap();
        landing.landed(NOW, LINK, (id, key), Some(LandedTensor { header, meta, copied: 0, trace: None }), actions);
        Ok::<_, String>(id)
    };
    assert!(landing.check(LINK, slots[0], Some(&header(slots[1], 9, 1))).is_err(), "it names another slot");
    let first = land(&mut landing, &mut actions, slots[0], 1).unwrap();
    let second = land(&mut landing, &mut actions, slots[1], 2).unwrap();
    assert!(landing.check(LINK, slots[0], Some(&header(slots[0], 9, 3))).is_err(), "it is being closed");
    assert!(matches!(landing.revoked(LINK, GrantTag::of(second), &mut actions), Revoked::Flow(_)));
    assert_eq!(landing.next_landed(at), None, "what landed before it is not closed yet");
    assert!(matches!(landing.revoked(LINK, GrantTag::of(first), &mut actions), Revoked::Flow(_)));
    assert_eq!([landing.next_landed(at), landing.next_landed(at)], [Some(first), Some(second)]);
}

#[test]
fn recalled_slot_is_freed_only_after_its_sender_has_answered() {
    let (mut landing, mut actions) = landing(2);
    let (at, _) = ready(&mut landing, &mut actions, 1);
    assert_eq!(landing.to_ask(USER, None), [at]);
    assert!(landing.idle_would_do(USER, 256, None) && !landing.idle_would_do(USER, 257, None));
    let (_, round) = landing.recall_room(NOW, at).unwrap();
    run(&mut landing, &mut actions);
    assert_eq!(used(&landing), 2 * 128, "the sender may be writing");
    assert!(landing.to_ask(USER, None).is_empty(), "it was asked");
    assert!(matches!(landing.recalled(NOW, at, Recall::Ends, round, &mut actions), Recalled::Violation));
    landing.recalled(NOW, at, Recall::Room, round + 1, &mut actions);
    run(&mut landing, &mut actions);
    assert_eq!(used(&landing), 2 * 128, "another round's");
    landing.recalled(NOW, at, Recall::Room, round, &mut actions);
    run(&mut landing, &mut actions);
    assert_eq!(used(&landing), 0);
}

#[test]
fn dropped_slot_is_closed_once_it_is_open() {
    let (mut landing, mut actions) = landing(1);
    let range = landing.room_for_slot(USER, 64).unwrap();
    let pull = PullId::from_u64(1);
    let slot = landing.open_slot(NOW, LINK, (USER, 64, range), &[], SlotUser::Pull(pull), &mut actions).unwrap();
    landing.drop_slot(NOW, LINK, slot, &mut actions);
    assert_eq!(used(&landing), 128, "the fabric was asked to open it");
    let remote = RemoteSlice::new(0, 128, RemoteKey(7));
    let granted = landing.granted(LINK, GrantTag::of(slot), remote, &mut actions);
    assert_eq!(granted, Some((slot, SlotUser::Nobody)));
    landing.drop_slot(NOW, LINK, slot, &mut actions);
    assert!(matches!(landing.revoked(LINK, GrantTag::of(slot), &mut actions), Revoked::Nothing));
    assert_eq!(used(&landing), 0);
}

#[test]
fn body_in_memory_of_a_worker_is_opened_first_and_closed_last() {
    let (mut landing, mut actions) = landing(1);
    let range = landing.room_for_slot(USER, 0).unwrap();
    let memory = [(100, 40), (300, 24)].map(|(offset, len)| LocalSlice { segment: SegmentId(3), offset, len });
    let pull = PullId::from_u64(1);
    let slot = landing.open_slot(NOW, LINK, (USER, 64, range), &memory, SlotUser::Pull(pull), &mut actions).unwrap();
    landing.drop_slot(NOW, LINK, slot, &mut actions);
    let mut closed = None;
    let mut seen = Vec::new();
    while let Some(action) = actions.pop() {
        match action {
            Action::Post(Post::Grant { range, tag, .. }) => {
                seen.push(("opens", range.len));
                let (tag, remote) = (GrantTag::from_u64(tag), RemoteSlice::new(range.offset, range.len, RemoteKey(7)));
                if let Some((slot, user)) = landing.granted(LINK, tag, remote, &mut actions) {
                    assert_eq!(user, SlotUser::Pull(pull), "it has to know when its memory is closed");
                    assert_eq!(landing.grant_of(LINK, slot).unwrap().body.iter().map(|r| r.len).sum::<u64>(), 64);
                    landing.drop_slot(NOW, LINK, slot, &mut actions);
                }
            }
            Action::Post(Post::Revoke { tag, .. }) => {
                assert!(closed.is_none());
                seen.push(("closes", GrantTag::from_u64(tag).part as u64));
                if let Revoked::Destination(of) = landing.revoked(LINK, GrantTag::from_u64(tag), &mut actions) {
                    closed = Some(of);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [("opens", 40), ("opens", 24), ("opens", 64), ("closes", 0), ("closes", 1), ("closes", 2)]);
    assert_eq!((closed, used(&landing)), (Some(pull), 0));
}

#[test]
fn full_pool_is_reported_once_and_served_in_order() {
    let (mut landing, mut actions) = landing(2);
    let (at, _) = ready(&mut landing, &mut actions, 1);
    let wants = [1, 2].map(|n| Want::Copy(CopyId::from_u64(n)));
    let told = wants.map(|want| {
        landing.want(NOW, USER, (None, want), |_| true);
        landing.is_full(NOW, USER)
    });
    assert_eq!(told, [Some(256), None]);
    landing.take_to_serve();
    landing.end_flow(NOW, at, &mut actions);
    run(&mut landing, &mut actions);
    assert_eq!(landing.take_to_serve(), [USER]);
    for want in wants {
        assert_eq!(landing.first(USER), Some(want));
        assert_eq!(landing.served(Time(5), USER), None, "somebody waits");
        landing.pop_first(USER);
    }
    assert_eq!(landing.served(Time(5), USER), Some(std::time::Duration::from_nanos(5)));
}

#[test]
fn a_lost_link_gives_its_slots_back() {
    let (mut landing, mut actions) = landing(2);
    ready(&mut landing, &mut actions, 1);
    let (slots, flows) = landing.link_down(LINK);
    assert_eq!((slots.len(), flows.len()), (2, 1));
    let (mut slots, mut from) = (slots, 0);
    while let Some((_, slot)) = slots.take_first(&mut from) {
        landing.free(slot.domain, slot.range);
    }
    landing.settle();
    landing.check_all().unwrap();
    assert_eq!(used(&landing), 0);
}
