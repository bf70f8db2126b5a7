//! Tests of trace contexts: the context of a push travels with the version, and the records of both nodes contain it.

use super::machines::{INDEX, ready};
use super::pair::{Pair, bytes, name};
use super::solo::Solo;
use crate::op::{Answer, FailureCode, FetchedTensor, Reply, Report};
use crate::protocol::landing::SlotState;
use crate::protocol::{EndedTransfer, Operation, PREPARED_METADATA_ID};
use crate::tensor::{Retention, Select, Version};
use crate::trace::TraceContext;
use crate::wire::landing::{Header, SlotNumber};
use crate::wire::message::{Body, Role};

fn context(span: u8) -> Option<TraceContext> {
    TraceContext::new([1; 16], [span; 8], 1).ok()
}

/// Makes a pair that records ended transfers.
fn traced() -> Pair {
    let mut pair = Pair::new();
    pair.nodes.iter_mut().for_each(|n| n.node.trace(true));
    pair
}

fn reports(replies: &[Reply]) -> Vec<Report> {
    let report = |reply: &Reply| match reply {
        Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { report, .. }, .. }, .. }
        | Reply::Answer { answer: Answer::Pushed { report, .. }, .. } => Some(*report),
        _ => None,
    };
    replies.iter().filter_map(report).collect()
}

fn ended(pair: &mut Pair, node: usize) -> Vec<EndedTransfer> {
    pair.nodes[node].node.take_ended().collect()
}

#[test]
fn reports_and_records_have_the_contexts_of_push_and_fetch() {
    let mut pair = traced();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    pair.trace = context(2);
    pair.push(w, "k", bytes(8), 1, None);
    pair.settle();
    pair.trace = context(3);
    pair.fetch(near, "k", Select::Latest);
    pair.settle();
    // The first pull needs the description, the second carries a slot.
    for _ in 0..2 {
        pair.posted();
        pair.fetch(far, "k", Select::Latest);
        pair.settle();
        let posted = pair.posted();
        assert!(posted.ends_with(&["TRACE".into(), "WRITE".into()]), "{posted:?}");
        assert_eq!(reports(&pair.replies(far))[0].origin, context(2));
    }
    assert_eq!(reports(&pair.replies(near))[0].origin, context(2));
    assert_eq!(reports(&pair.replies(w))[0].origin, None);

    let (here, there) = (ended(&mut pair, 0), ended(&mut pair, 1));
    let shown = |list: &[EndedTransfer]| {
        let one = |e: &EndedTransfer| (e.operation, e.trace, e.peer.clone(), e.outcome.unwrap().origin);
        list.iter().map(one).collect::<Vec<_>>()
    };
    let served = (Operation::Serve, context(3), Some(name("b")), context(2));
    let pushed = (Operation::Push, context(2), None, None);
    assert_eq!(shown(&here), [pushed, (Operation::Fetch, context(3), None, context(2)), served.clone(), served]);
    let fetched = (Operation::Fetch, context(3), Some(name("a")), context(2));
    assert_eq!(shown(&there), [fetched.clone(), fetched]);
    assert_eq!((here[2].worker.clone(), here[2].version), (None, Some(Version(1))));
    assert!(here[2].took <= there[0].took);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

#[test]
fn landed_push_is_recorded_only_if_it_has_a_context() {
    let mut pair = traced();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    for (version, trace) in [(1, context(2)), (2, None), (3, context(3))] {
        pair.trace = trace;
        pair.posted();
        pair.push(w, "k", bytes(8), version, Some("r"));
        pair.settle();
        let posted = pair.posted();
        assert_eq!(posted.iter().filter(|m| *m == "TRACE").count(), usize::from(trace.is_some()), "{posted:?}");
        pair.trace = None;
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
        let Some(Reply::Answer { answer: Answer::Fetched { lease, tensor: FetchedTensor { report, .. } }, .. }) =
            pair.replies(r).pop()
        else {
            panic!()
        };
        assert_eq!(report.origin, trace, "version {version}");
        pair.release(r, lease);
    }
    let lands: Vec<_> = ended(&mut pair, 1).into_iter().filter(|e| e.operation == Operation::Land).collect();
    assert_eq!(lands.iter().map(|e| e.trace).collect::<Vec<_>>(), [context(2), context(3)]);
    assert_eq!((lands[0].worker.clone(), lands[0].peer.clone()), (Some(name("w")), Some(name("a"))));
    assert_eq!(lands[1].version, Some(Version(3)));
    assert!(lands[1].took.as_nanos() > 0);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn failed_push_keeps_its_trace_and_pulls_without_a_context_are_not_recorded_by_the_owner() {
    let mut pair = traced();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.settle();
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    pair.trace = context(4);
    pair.push(w, "other", bytes(8), 1, Some("nobody"));
    pair.settle();
    let here: Vec<_> = ended(&mut pair, 0).into_iter().map(|e| (e.operation, e.trace, e.outcome.err())).collect();
    let failed = (Operation::Push, context(4), Some(FailureCode::UnknownWorker));
    assert_eq!(here, [(Operation::Push, None, None), failed]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// A TRACE applies only to the version that it names, and the last TRACE counts.
// Promise: traces, seen to fail
#[test]
fn trace_applies_only_to_the_version_that_it_names() {
    let told = |traces: &[(u64, u8)]| {
        let mut solo: Solo = ready();
        for (version, span) in traces {
            let body = Body::Trace { version: Version(*version), context: context(*span).unwrap() };
            solo.hear(Role::Push, INDEX, body);
        }
        let slots =
            solo.node.landing.slots_of(super::solo::LINK).unwrap().ids(|s| matches!(s.state, SlotState::Granted(_)));
        solo.land(&Header {
            slot: SlotNumber(slots[0].short()),
            index: INDEX,
            metadata_id: PREPARED_METADATA_ID,
            version: Version(1),
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
        solo.replies.clear();
        solo.fetch(Select::Latest);
        assert_eq!(solo.ended, None);
        reports(&solo.replies)[0].origin
    };
    // Applies the TRACEs to a pull.
    let brought = |traces: &[(u64, u8)]| {
        let mut solo = Solo::new(|_| {});
        solo.fetch(Select::Latest);
        let index = solo.last("TENSOR_REQUEST").index;
        let (version, metadata_id) = (Version(1), 1);
        solo.hear(Role::Pull, index, Body::MetaDataUpdate { version, metadata_id, meta: bytes(8) });
        solo.grant();
        for (version, span) in traces {
            let body = Body::Trace { version: Version(*version), context: context(*span).unwrap() };
            solo.hear(Role::Pull, index, body);
        }
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
        assert_eq!(solo.ended, None);
        reports(&solo.replies)[0].origin
    };
    for origin in [&told as &dyn Fn(&[(u64, u8)]) -> _, &brought] {
        assert_eq!(origin(&[]), None);
        assert_eq!(origin(&[(1, 5)]), context(5));
        assert_eq!(origin(&[(1, 5), (1, 6)]), context(6));
        assert_eq!(origin(&[(2, 5)]), None);
        assert_eq!(origin(&[(1, 5), (2, 6)]), None);
    }
}
