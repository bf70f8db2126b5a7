//! Tests of the sessions alone.

use super::*;
use crate::op::OpId;
use crate::protocol::ids::BlobId;
use crate::protocol::slab::Id;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Select};
use std::time::Duration;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const ARENA: SegmentId = SegmentId(7);
const NOW: Time = Time(1000);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn blob(n: u64) -> BlobId {
    Id::from_u64(n)
}

fn sessions() -> Sessions {
    let mut sessions = Sessions::default();
    sessions.open(A, name("a"), Tenant::User(0), ARENA, 4096);
    sessions
}

fn fetch(session: SessionId, id: u64, after: Duration) -> Op {
    let kind = OpKind::Fetch(FetchOp {
        base: None,
        select: Select::Latest,
        stage: FetchStage::Waiting,
        redirects: 0,
        trace: None,
        excerpt: None,
        gathered: None,
        to: None,
    });
    let (key, since, deadline) = (Key::new("k").unwrap(), NOW, NOW + after);
    Op { session, id: OpId(id), key, since, deadline, require: None, kind }
}

#[test]
fn operations_are_due_once_in_the_order_of_their_deadlines() {
    let mut sessions = sessions();
    let [late, first, ended] =
        [(1, 30), (2, 10), (3, 5)].map(|(id, ms)| sessions.begin(fetch(A, id, Duration::from_millis(ms))));
    assert_eq!(sessions.finish(ended).map(|op| op.id), Some(OpId(3)));
    assert_eq!(sessions.next_deadline(), Some(NOW + Duration::from_millis(10)));
    assert_eq!(sessions.take_due(NOW), None);
    let later = NOW + Duration::from_secs(1);
    assert_eq!([sessions.take_due(later), sessions.take_due(later)], [Some(first), Some(late)]);
    assert_eq!((sessions.take_due(later), sessions.deadlines()), (None, 0));
    assert!(sessions.op(first).is_some(), "it still has to end");
}

#[test]
fn waiting_operation_is_found_by_its_workers_number() {
    let mut sessions = sessions();
    let id = sessions.begin(fetch(A, 9, Duration::from_secs(1)));
    assert_eq!(sessions.get(A).unwrap().op(OpId(9)), Some(id));
    sessions.set_push_stage(id, PushStage::Claiming);
    sessions.set_fetch_stage(id, FetchStage::Connecting(name("n")));
    let stage =
        sessions.op(id).map(|op| matches!(op.kind, OpKind::Fetch(FetchOp { stage: FetchStage::Connecting(_), .. })));
    assert_eq!(stage, Some(true));
    sessions.finish(id);
    assert_eq!((sessions.get(A).unwrap().op(OpId(9)), sessions.get(A).unwrap().waiting()), (None, 0));
}

#[test]
fn leases_are_counted_and_outlive_an_evicted_session() {
    let mut sessions = sessions();
    for n in [2, 1, 2] {
        sessions.lend(A, blob(n));
    }
    assert!(sessions.give_back(A, blob(2)) && !sessions.give_back(A, blob(3)));
    sessions.lend(A, blob(2));
    sessions.begin(fetch(A, 1, Duration::from_secs(1)));
    let closed = sessions.evict(A).unwrap();
    assert_eq!((closed.name, closed.arena, closed.ops.len()), (name("a"), ARENA, 1));
    assert_eq!((sessions.lent(), sessions.evicted()), (3, vec![A]));
    assert!(sessions.get(A).unwrap().is_leaving() && sessions.evict(A).is_none());
    sessions.forget(A);
    let leases: Vec<_> = std::iter::from_fn(|| sessions.take_lease(A)).collect();
    assert_eq!(leases, [blob(1), blob(2), blob(2)]);
    assert_eq!((sessions.lent(), sessions.evicted()), (0, vec![]));
}

#[test]
fn name_belongs_to_the_latest_session_that_took_it() {
    let mut sessions = sessions();
    assert!(sessions.lose_name(A, &name("there")) && !sessions.lose_name(B, &name("there")));
    assert_eq!((sessions.named(&name("a")), sessions.get(A).unwrap().name_at()), (None, Some(&name("there"))));
    sessions.open(B, name("a"), Tenant::User(0), SegmentId(8), 4096);
    sessions.evict(A);
    assert_eq!(sessions.named(&name("a")), Some(B), "the name of a later session stays");
}

#[test]
fn arena_ends_with_its_worker_and_its_last_version() {
    let mut sessions = sessions();
    sessions.occupy(ARENA, 3);
    sessions.occupy(ARENA, 0);
    assert_eq!(sessions.ranges_in(ARENA), Some(3));
    assert!(!sessions.vacate(ARENA, 3) && !sessions.abandon(ARENA));
    assert_eq!(sessions.arena(ARENA), Some((1, true)));
    assert!(sessions.vacate(ARENA, 0));
    assert_eq!(sessions.arena(ARENA), None);
    assert!(!sessions.vacate(ARENA, 0), "it is told once");
}

#[test]
fn announcements_and_versions_are_kept_with_the_session() {
    let mut sessions = sessions();
    sessions.announce(A, 3);
    assert_eq!(sessions.get(A).unwrap().announced(), 3);
    let way = (Key::new("k").unwrap(), name("b"));
    assert_eq!(sessions.get(A).unwrap().next_version(&way), 0);
    sessions.keep_version(A, way.clone(), 5);
    // That of a flow which had begun before, and ends later.
    sessions.keep_version(A, way.clone(), 4);
    assert_eq!(sessions.get(A).unwrap().next_version(&way), 5);
}

#[test]
fn directory_is_asked_once_for_a_worker() {
    const OURS: Tenant = Tenant::User(7);
    let mut sessions = sessions();
    let [x, y] = [1, 2].map(|id| sessions.begin(fetch(A, id, Duration::from_secs(1))));
    assert!(sessions.wait_for_node_of(OURS, &name("b"), x) && !sessions.wait_for_node_of(OURS, &name("b"), y));
    assert_eq!(sessions.located(OURS, &name("b"), Some(&name("n"))), [x, y]);
    assert_eq!(sessions.node_of(OURS, &name("b")), Some(&name("n")));
    // Another tenant's worker of that name may be elsewhere.
    assert_eq!(sessions.node_of(Tenant::User(8), &name("b")), None);
    sessions.forget_node_of(OURS, &name("b"));
    assert_eq!(sessions.node_of(OURS, &name("b")), None);
    assert_eq!(sessions.located(OURS, &name("b"), None), [], "each hears of it once");
}
