//! Tests of the transfers alone.

use super::*;
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::{BlobId, OperationId};
use crate::protocol::slab::Id;
use crate::protocol::tenant::Tenant;
use crate::tensor::{DType, Name, Retention, Select, TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::{Header, SlotGrant, SlotNumber};
use calls::CallStep;

const LINK: LinkId = LinkId(1);
const OTHER: LinkId = LinkId(2);
const NOW: Time = Time(1000);
const SESSION: SessionId = SessionId(1);
const READER: Tenant = Tenant::User(0);

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn meta(len: u64) -> TensorMeta {
    TensorMeta::of(DType::U8, &[len]).unwrap()
}

fn op(n: u64) -> OperationId {
    Id::from_u64(n)
}

fn grant(capacity: u64) -> SlotGrant {
    SlotGrant {
        number: SlotNumber::new(3, 1),
        capacity,
        remote: RemoteSlice::new(0, capacity + 64, RemoteKey(9)),
        body: Vec::new(),
    }
}

fn transfers() -> Transfers {
    let mut transfers = Transfers::default();
    transfers.link_up(LINK);
    transfers.link_up(OTHER);
    transfers
}

fn pull() -> Pull {
    Pull::new(
        NOW,
        smallvec::smallvec![op(1)],
        (key("k"), Select::AtLeast(Version(2)), None),
        READER,
        Some((4, meta(8))),
        0,
    )
}

#[test]
fn pull_takes_a_version_only_while_the_peer_is_asked() {
    let mut pull = pull();
    assert!(!pull.takes(Version(2)), "the peer knows nothing of it");
    pull.ask(NOW);
    assert_eq!((pull.takes(Version(2)), pull.takes(Version(1))), (true, false));
    pull.state = PullState::Cancelling;
    assert!(!pull.takes(Version(2)));
}

#[test]
fn pull_checks_a_landed_header_against_the_request() {
    let mut transfers = transfers();
    let id = transfers.begin_pull(LINK, pull()).unwrap();
    assert_eq!(transfers.pull_named(LINK, id.short()), Some(id));
    assert_eq!(transfers.pull_named(OTHER, id.short()), None, "a request belongs to its link");
    let header = |version, metadata_id| Header {
        slot: SlotNumber::new(3, 1),
        index: id.short(),
        metadata_id,
        version: Version(version),
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
    };
    let check = |transfers: &Transfers, header| transfers.pull(LINK, id).unwrap().check_landing(id, &header);
    assert_eq!(check(&transfers, header(2, 4)), Ok(Some(meta(8))));
    assert!(check(&transfers, header(1, 4)).unwrap_err().contains("asked was"));
    assert!(check(&transfers, header(2, 5)).unwrap_err().contains("description 5"));
    transfers.pull_mut(LINK, id).unwrap().state = PullState::Cancelling;
    assert_eq!(check(&transfers, header(1, 5)), Ok(None), "a request that was given up takes anything");
}

#[test]
fn serve_writes_once_and_cancel_waits_for_the_write() {
    let mut serve = Serve::new(NOW, (key("k"), 7), READER, (4, None), Some(grant(8)), None);
    assert!(serve.fits(8, Some(4)) && !serve.fits(9, Some(4)) && !serve.fits(8, Some(5)) && !serve.fits(8, None));
    assert!(serve.write(Time(0)).is_none(), "its version is not there");
    let blob: BlobId = Id::from_u64(1);
    let mut serve = Serve::new(NOW, (key("k"), 7), READER, (4, None), None, None);
    assert!(!serve.cancel());
    serve.publish(NOW + std::time::Duration::from_micros(5), blob);
    assert_eq!((serve.waited_us, serve.waits_for_slot()), (5, Some(blob)));
    serve.grant(grant(8));
    assert_eq!(serve.waits_for_slot(), None);
    assert!(serve.write(Time(0)).is_some() && serve.write(Time(0)).is_none());
    assert!(serve.cancel() && serve.is_cancelled());
}

#[test]
fn serves_that_wait_for_a_version_are_listed_by_index() {
    let mut transfers = transfers();
    for index in [9, 3, 5] {
        transfers.begin_serve(LINK, index, Serve::new(NOW, (key("k"), 7), READER, (0, None), None, None));
    }
    transfers.serve_mut(LINK, 5).unwrap().publish(NOW, Id::from_u64(1));
    assert_eq!(transfers.waiting_serves(LINK), [(3, key("k")), (9, key("k"))]);
    let mut lost = transfers.link_down(LINK);
    assert_eq!(lost.serve_indices(), [3, 5, 9]);
    assert!(lost.take_serve(5).is_some() && lost.take_serve(5).is_none());
    assert_eq!(transfers.waiting_serves(LINK), []);
}

#[test]
fn flow_takes_only_requested_slots_of_sufficient_capacity() {
    let mut flow = OutFlow::new((SESSION, key("k")), Name::new("you").unwrap(), meta(8), 0);
    assert_eq!(flow.grant(vec![grant(8)]), Err(None), "nothing was asked for");
    assert_eq!(flow.request(meta(8)), (1, true));
    assert_eq!(flow.grant(vec![grant(8), grant(7)]), Err(Some(7)));
    assert_eq!(flow.grant(vec![grant(8)]), Ok(()));
    assert!(flow.give_back(grant(9)) && !flow.give_back(grant(7)));
    let (_, description, is_new) = flow.write(3, &meta(8)).unwrap();
    assert_eq!((description, is_new, flow.next_version), (1, false, 4));
    let (_, description, is_new) = flow.write(4, &meta(4)).unwrap();
    assert_eq!((description, is_new), (2, true));
    assert_eq!(flow.request(meta(16)), (3, false));
    assert!(!flow.give_back(grant(8)), "it crossed the request for larger ones");
}

#[test]
fn long_flow_queue_drops_ended_operations() {
    let mut flow = OutFlow::new((SESSION, key("k")), Name::new("you").unwrap(), meta(8), 0);
    for n in 0..1000 {
        flow.enqueue(op(n), |id| id.to_u64() % 100 == 0);
    }
    assert!(flow.queue().len() < 100, "{}", flow.queue().len());
    assert_eq!(flow.next(), Some(op(0)));
    flow.request(meta(8));
    assert_eq!(flow.next(), None, "the peer has to answer first");
    assert!(!flow.refuse().is_empty() && flow.queue().is_empty());
}

#[test]
fn flow_is_found_by_its_worker_until_it_ends() {
    let mut transfers = transfers();
    let of = (SESSION, key("k"));
    let flow = |of: &(SessionId, Key)| OutFlow::new(of.clone(), Name::new("you").unwrap(), meta(8), 0);
    let here = transfers.begin_flow(LINK, flow(&of)).unwrap();
    let there = transfers.begin_flow(OTHER, flow(&of)).unwrap();
    assert_eq!(transfers.flows_of(SESSION), [(LINK, here), (OTHER, there)]);
    assert!(transfers.end_flow(LINK, here) && !transfers.end_flow(LINK, here));
    assert_eq!((transfers.flow_of(LINK, &of), transfers.flow_of(OTHER, &of)), (None, Some(there)));
    assert_eq!(transfers.begin_flow(LinkId(3), flow(&of)), None, "there is no such link");
}

#[test]
fn call_waits_for_all_flows_and_for_a_ping_after_grants() {
    let mut transfers = transfers();
    let busy = || Err(Failure::new(FailureCode::Busy, "a test"));
    transfers.begin_call(LINK, 7, 2);
    assert!(transfers.call_flow(LINK, 1, 7) && !transfers.call_flow(LINK, 1, 8), "one call concerns a flow");
    assert_eq!((transfers.take_call_of(LINK, 1), transfers.take_call_of(LINK, 1)), (Some(7), None));
    assert_eq!(transfers.answer_call(7, (1, Ok(vec![grant(8)]))), CallStep::Waits);
    assert_eq!(transfers.call_of_ping(LINK, 7), None, "not all flows are answered");
    assert_eq!(transfers.answer_call(7, (2, busy())), CallStep::Ping(LINK, 7));
    assert_eq!((transfers.call_of_ping(OTHER, 7), transfers.call_of_ping(LINK, 7)), (None, Some(7)));
    assert_eq!(transfers.end_call(7).unwrap().len(), 2);
    transfers.begin_call(LINK, 8, 1);
    assert_eq!((transfers.calls_of(LINK), transfers.calls_lost(OTHER)), (1, vec![]));
    assert_eq!(transfers.answer_call(8, (1, busy())), CallStep::Ends);
}
