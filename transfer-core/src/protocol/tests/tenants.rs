//! Tests of workers of two tenants, on one node and on two: a tenant cannot use the things of another.

use super::pair::{Pair, Worker, bytes, key, name};
use super::solo::{KEY, LINK, OTHERS, Solo};
use crate::fabric::AtomicOp;
use crate::op::{
    Answer, Command, CounterAsk, CounterCommand, Failure, FailureCode, FetchedTensor, OpId, Reply, Request,
};
use crate::protocol::{Tenant, Tenants, Vouches};
use crate::tensor::{Life, Name, Retention, Select, Until, Version};
use crate::wire::message::{Body, Role};
use std::num::NonZeroU32;
use std::time::Duration;

const OURS: Tenant = Tenant::User(0);
const THEIRS: Tenant = Tenant::User(1);

/// Makes an owner of a key at node 0, and another worker of its tenant and a worker of another tenant at `node`.
fn strangers(node: usize) -> (Pair, Worker, Worker, Worker) {
    let mut pair = Pair::new();
    let owner = pair.worker_of(OURS, 0, "owner");
    let friend = pair.worker_of(OURS, node, "friend");
    let stranger = pair.worker_of(THEIRS, node, "stranger");
    pair.push(owner, "k", bytes(100), 1, None);
    pair.settle();
    pair.replies(owner);
    (pair, owner, friend, stranger)
}

#[track_caller]
fn denied(pair: &mut Pair, who: Worker) -> Failure {
    pair.settle();
    let failure = pair.failed(who);
    assert_eq!(failure.code, FailureCode::PermissionDenied, "{failure}");
    failure
}

/// Checks that the key is as its owner left it.
fn is_untouched(mut pair: Pair, (owner, friend, stranger): (Worker, Worker, Worker)) {
    pair.fetch(friend, "k", Select::Latest);
    pair.settle();
    let (lease, version, _, got) = pair.fetched(friend);
    assert_eq!((version, got), (1, vec![1; 100]));
    pair.release(friend, lease);
    pair.takeover = false;
    pair.push(owner, "k", bytes(100), 2, None);
    pair.settle();
    let replies = pair.replies(owner);
    assert!(
        replies.iter().any(|reply| matches!(reply, Reply::Answer { answer: Answer::Pushed { .. }, .. })),
        "{replies:?}"
    );
    assert_eq!(pair.downs, [""; 0]);
    pair.ends_clean(&[(owner, "owner"), (friend, "friend"), (stranger, "stranger")]);
}

// Promise: other-tenants, seen to fail
#[test]
fn a_fetch_of_another_tenant_s_tensor_is_denied() {
    for node in [0, 1] {
        for select in [Select::Latest, Select::AtLeast(Version(1)), Select::Exactly(Version(1))] {
            let (mut pair, owner, friend, stranger) = strangers(node);
            pair.fetch(stranger, "k", select);
            let why = denied(&mut pair, stranger);
            assert!(why.text.contains("user id 0") && why.text.contains("user id 1"), "{why}");
            is_untouched(pair, (owner, friend, stranger));
        }
    }
}

#[test]
fn a_fetch_that_waits_is_denied_when_another_tenant_pushes() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let (owner, stranger) = (pair.worker_of(OURS, 0, "owner"), pair.worker_of(THEIRS, node, "stranger"));
        pair.fetch(stranger, "k", Select::Latest);
        pair.settle();
        assert_eq!(pair.replies(stranger), []);
        pair.push(owner, "k", bytes(100), 1, None);
        denied(&mut pair, stranger);
        // A fetch for a later version is denied in the same way.
        pair.fetch(stranger, "k", Select::AtLeast(Version(2)));
        pair.settle();
        assert_eq!(pair.replies(stranger), []);
        pair.push(owner, "k", bytes(100), 1, None);
        denied(&mut pair, stranger);
        pair.ends_clean(&[(owner, "owner"), (stranger, "stranger")]);
    }
}

#[test]
fn denial_does_not_tell_the_version_of_another_tenants_key() {
    for node in [0, 1] {
        let (mut pair, owner, friend, stranger) = strangers(node);
        pair.fetch(stranger, "k", Select::Exactly(Version(0)));
        let why = denied(&mut pair, stranger);
        assert!(!why.text.contains("v1"), "{why}");
        is_untouched(pair, (owner, friend, stranger));
    }
}

#[test]
fn time_out_does_not_tell_the_version_of_another_tenants_key() {
    for node in [0, 1] {
        let (mut pair, owner, friend, stranger) = strangers(node);
        for (reader, hears) in [(friend, true), (stranger, false)] {
            pair.fetch(reader, "k", Select::AtLeast(Version(1000)));
            pair.settle();
            pair.wait(Duration::from_secs(3600));
            let failure = pair.failed(reader);
            assert_eq!(failure.text.contains("v1 ") || failure.text.contains("v1;"), hears, "{failure}");
        }
        is_untouched(pair, (owner, friend, stranger));
    }
}

#[test]
fn denied_fetch_is_not_counted() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let owner = pair.worker_of(OURS, 0, "owner");
        let (friend, stranger) = (pair.worker_of(OURS, node, "friend"), pair.worker_of(THEIRS, node, "stranger"));
        pair.retention =
            Retention { until: Until::Fetched(NonZeroU32::MIN), life: Life::Session, ..Retention::default() };
        pair.push(owner, "k", bytes(100), 1, None);
        pair.settle();
        pair.fetch(stranger, "k", Select::Latest);
        denied(&mut pair, stranger);
        pair.fetch(friend, "k", Select::Latest);
        pair.settle();
        let (lease, ..) = pair.fetched(friend);
        pair.release(friend, lease);
        pair.ends_clean(&[(owner, "owner"), (friend, "friend"), (stranger, "stranger")]);
    }
}

// Promise: other-tenants
#[test]
fn another_tenant_s_key_is_not_taken_over() {
    for node in [0, 1] {
        let (mut pair, owner, friend, stranger) = strangers(node);
        pair.takeover = true;
        pair.push(stranger, "k", bytes(100), 9, None);
        denied(&mut pair, stranger);
        is_untouched(pair, (owner, friend, stranger));
    }
}

#[test]
fn version_that_outlives_its_worker_belongs_to_its_tenant() {
    let mut pair = Pair::new();
    let owner = pair.worker_of(OURS, 0, "owner");
    pair.retention = Retention { until: Until::Deleted, life: Life::Sidecar, ..Retention::default() };
    pair.push(owner, "k", bytes(100), 1, None);
    pair.settle();
    pair.leave(owner, "owner");
    // A worker of the same name and of another tenant.
    let namesake = pair.worker_of(THEIRS, 0, "owner");
    pair.push(namesake, "k", bytes(100), 2, None);
    pair.settle();
    assert_eq!(pair.failed(namesake).code, FailureCode::KeyOwned);
    pair.takeover = true;
    pair.push(namesake, "k", bytes(100), 2, None);
    denied(&mut pair, namesake);
    pair.command(namesake, OpId(77), Command::Delete { key: key("k") });
    denied(&mut pair, namesake);
}

#[test]
fn another_tenant_s_key_is_not_deleted() {
    let (mut pair, owner, friend, stranger) = strangers(0);
    pair.command(stranger, OpId(77), Command::Delete { key: key("k") });
    denied(&mut pair, stranger);
    is_untouched(pair, (owner, friend, stranger));
    // A worker of another node cannot delete the key, even if it is of the owner's tenant.
    let (mut pair, owner, friend, stranger) = strangers(1);
    for who in [friend, stranger] {
        pair.command(who, OpId(77), Command::Delete { key: key("k") });
        pair.settle();
        assert_eq!(pair.failed(who).code, FailureCode::NotOwner);
    }
    is_untouched(pair, (owner, friend, stranger));
}

#[test]
fn push_and_prepare_for_another_tenants_worker_are_denied() {
    for node in [0, 1] {
        for reserves in [false, true] {
            let (mut pair, owner, friend, stranger) = strangers(node);
            match reserves {
                true => pair.reserve(stranger, "theirs", bytes(100), "owner"),
                false => pair.push(stranger, "theirs", bytes(100), 9, Some("owner")),
            };
            let why = denied(&mut pair, stranger);
            assert!(why.text.contains("\"owner\""), "{why}");
            // The refused push takes no room and no key.
            let used: Vec<u64> =
                pair.nodes[0].node.state().snapshot(pair.world.now()).pools.iter().map(|p| p.used).collect();
            assert_eq!(used, [0, 0]);
            assert!(!pair.is_entered("theirs"));
            is_untouched(pair, (owner, friend, stranger));
        }
    }
}

fn count(pair: &mut Pair, who: Worker, ask: CounterAsk) {
    let timeout = Duration::from_secs(1);
    pair.command(who, OpId(500), Command::Counter(CounterCommand { name: name("x"), ask, timeout }));
    pair.settle();
}

fn open(pair: &mut Pair, who: Worker) -> (Name, u64) {
    count(pair, who, CounterAsk::Open);
    let replies = pair.replies(who);
    let [Reply::Answer { answer: Answer::CounterOpened { home, identity }, .. }] = &replies[..] else {
        panic!("{replies:?}")
    };
    (home.clone(), *identity)
}

// Promise: other-tenants, seen to fail
#[test]
fn counters_and_barriers_belong_to_their_tenant() {
    for node in [0, 1] {
        let (mut pair, owner, friend, stranger) = strangers(node);
        let (home, identity) = open(&mut pair, owner);
        let add = CounterAsk::Operate { home: home.clone(), identity, op: AtomicOp::FetchAdd(1) };
        let wait = CounterAsk::Wait { members: 2 };
        count(&mut pair, owner, wait.clone());
        // The second round is after a worker of the owner's tenant has opened the counter at that node.
        for _ in 0..2 {
            for ask in [CounterAsk::Open, add.clone(), wait.clone()] {
                count(&mut pair, stranger, ask);
                denied(&mut pair, stranger);
            }
            assert_eq!(open(&mut pair, friend), (home.clone(), identity));
        }
        count(&mut pair, friend, add);
        assert!(matches!(pair.replies(friend)[..], [Reply::Answer { answer: Answer::Counted { old: 0, .. }, .. }]));
        count(&mut pair, friend, wait);
        assert!(matches!(
            pair.replies(friend)[..],
            [Reply::Answer { answer: Answer::Released { leader: true, .. }, .. }]
        ));
        assert!(matches!(pair.replies(owner)[..], [Reply::Answer { answer: Answer::Released { .. }, .. }]));
        is_untouched(pair, (owner, friend, stranger));
    }
}

#[test]
fn name_with_a_reserved_prefix_is_denied_to_other_tenants() {
    for node in [0, 1] {
        let mut pair = Pair::with(|config| {
            let mut tenants = Tenants::default();
            tenants.reserve("prod/", vec![THEIRS]);
            config.tenants = tenants;
        });
        let (ours, theirs) = (pair.worker_of(OURS, node, "ours"), pair.worker_of(THEIRS, node, "theirs"));
        let there = pair.worker_of(OURS, 1 - node, "there");
        for to in [None, Some("there")] {
            pair.push(ours, "prod/k", bytes(8), 1, to);
            denied(&mut pair, ours);
            let other = format!("prod {node} {to:?}");
            pair.push(ours, &other, bytes(8), 1, to);
            pair.settle();
            let replies = pair.replies(ours);
            assert!(
                replies.iter().any(|reply| matches!(reply, Reply::Answer { answer: Answer::Pushed { .. }, .. })),
                "{replies:?}"
            );
        }
        for ask in [CounterAsk::Open, CounterAsk::Wait { members: 1 }] {
            let timeout = Duration::from_secs(1);
            let of = || CounterCommand { name: name("prod/x"), ask: ask.clone(), timeout };
            pair.command(ours, OpId(600), Command::Counter(of()));
            denied(&mut pair, ours);
            pair.command(theirs, OpId(601), Command::Counter(of()));
            pair.settle();
            assert!(!matches!(pair.replies(theirs)[..], [Reply::Answer { answer: Answer::Failed { .. }, .. }]));
        }
        pair.push(theirs, "prod/k", bytes(8), 1, None);
        pair.settle();
        assert!(matches!(pair.replies(theirs)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
        pair.ends_clean(&[(ours, "ours"), (theirs, "theirs"), (there, "there")]);
    }
}

/// A peer may neither request for a tenant that it may not speak for, nor be asked for that tenant.
// Promise: tenants-of-a-sidecar, seen to fail
#[test]
fn peer_speaks_only_for_the_tenants_it_may_speak_for() {
    let only = |who: &[Tenant]| Vouches::For(who.into(), "it is a test".into());
    for (vouches, may) in [(Vouches::ForAll, true), (only(&[OURS]), true), (only(&[THEIRS]), false), (only(&[]), false)]
    {
        let linked = || {
            let mut solo = Solo::new(|_| {});
            solo.node.links.set_vouches(LINK, vouches.clone());
            solo
        };
        let mut solo = linked();
        solo.push(None, Duration::from_secs(1));
        let (select, slot) = (Select::Latest, None);
        let body = Body::TensorRequest {
            key: KEY,
            tenant: super::solo::OURS,
            select,
            metadata_id: 0,
            excerpt: None,
            slot,
            held: None,
            direct: false,
            trace: None,
        };
        solo.hear(Role::Pull, 5, body);
        let answer = solo.sent.last().map(|m| m.body.clone());
        match answer {
            Some(Body::MetaDataUpdate { .. }) => assert!(may),
            Some(Body::ErrorStatus(failure)) => {
                assert!(!may && failure.code == FailureCode::PermissionDenied, "{failure}");
                assert!(
                    ["\"there\"", "tenant 0", "it is a test"].iter().all(|w| failure.text.contains(w)),
                    "{failure}"
                );
            }
            other => panic!("{other:?}"),
        }
        // This node does not send its own workers' requests to the peer either.
        let mut solo = linked();
        solo.fetch(Select::Latest);
        assert_eq!(solo.sent.iter().any(|m| m.body.name() == "TENSOR_REQUEST"), may);
        assert_eq!(
            matches!(solo.replies[..], [Reply::Answer { answer: Answer::Failed { .. }, .. }]),
            !may,
            "{:?}",
            solo.replies
        );
        assert!(solo.ended.is_none());
    }
}

#[test]
fn a_tenant_that_this_node_does_not_know_is_refused_by_its_name() {
    let mut solo = Solo::new(|_| {});
    solo.push(None, Duration::from_secs(1));
    let body = Body::Name { name: crate::wire::message::NameRef { id: 5, generation: 0 }, text: name("train") };
    solo.hear(Role::Pull, 0, body);
    let tenant = crate::wire::message::NameRef { id: 5, generation: 0 };
    let (select, slot) = (Select::Latest, None);
    solo.hear(
        Role::Pull,
        6,
        Body::TensorRequest {
            key: KEY,
            tenant,
            select,
            metadata_id: 0,
            excerpt: None,
            slot,
            held: None,
            direct: false,
            trace: None,
        },
    );
    let Some(Body::ErrorStatus(failure)) = solo.sent.last().map(|m| &m.body) else { panic!("{:?}", solo.sent) };
    assert!(failure.code == FailureCode::PermissionDenied && failure.text.contains("\"train\""), "{failure}");
    assert!(solo.ended.is_none());
    let body = Body::TensorRequest {
        key: KEY,
        tenant: OTHERS,
        select,
        metadata_id: 0,
        excerpt: None,
        slot: None,
        held: None,
        direct: false,
        trace: None,
    };
    solo.hear(Role::Pull, 7, body);
    let Some(Body::ErrorStatus(failure)) = solo.sent.last().map(|m| &m.body) else { panic!("{:?}", solo.sent) };
    assert!(failure.text.contains("user id 1"), "{failure}");
}

/// A tenant in a push's list of readers fetches a copy, in its own memory. Any other tenant is denied.
#[test]
fn shared_version_is_copied_for_the_tenants_that_may_read_it() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let owner = pair.worker_of(OURS, 0, "owner");
        let (reader, stranger) =
            (pair.worker_of(THEIRS, node, "reader"), pair.worker_of(Tenant::User(2), node, "stranger"));
        pair.readable_by = vec![name("1")];
        pair.push(owner, "k", bytes(100), 1, None);
        pair.settle();
        pair.fetch(stranger, "k", Select::Latest);
        denied(&mut pair, stranger);
        for _ in 0..2 {
            pair.fetch(reader, "k", Select::Latest);
            pair.settle();
            let replies = pair.replies(reader);
            let [
                Reply::Answer {
                    answer: Answer::Fetched { lease, tensor: FetchedTensor { version: Version(1), slice, report, .. } },
                    ..
                },
            ] = &replies[..]
            else {
                panic!("{replies:?}")
            };
            assert_eq!(pair.memories[node].read(*slice).unwrap(), [1; 100]);
            // The copy is in the pool of the reader's tenant, which is the second.
            assert_eq!(slice.segment, crate::memory::SegmentId(2));
            // Between nodes the device moves the bytes, so no CPU copies them.
            assert_eq!(report.copied, if node == 0 { 100 } else { 0 }, "{report:?}");
            let lease = *lease;
            pair.release(reader, lease);
            pair.settle();
        }
        // A waiting fetch gets the next version. The version after that is not shared.
        pair.fetch(reader, "k", Select::AtLeast(Version(2)));
        pair.settle();
        pair.push(owner, "k", bytes(100), 2, None);
        pair.settle();
        let (lease, version, _, got) = pair.fetched(reader);
        assert_eq!((version, got), (2, vec![2; 100]));
        pair.release(reader, lease);
        pair.readable_by.clear();
        pair.push(owner, "k", bytes(100), 3, None);
        pair.settle();
        pair.fetch(reader, "k", Select::Latest);
        denied(&mut pair, reader);
        // The right to read does not include the right to take the key over.
        pair.takeover = true;
        pair.push(reader, "k", bytes(100), 9, None);
        denied(&mut pair, reader);
        pair.takeover = false;
        pair.ends_clean(&[(owner, "owner"), (reader, "reader"), (stranger, "stranger")]);
    }
}

#[test]
fn sharing_rule_applies_to_keys_with_its_prefix() {
    for node in [0, 1] {
        let mut pair = Pair::with(|config| {
            let mut tenants = Tenants::default();
            tenants.share("models/", vec![THEIRS]);
            config.tenants = tenants;
        });
        let (owner, reader) = (pair.worker_of(OURS, 0, "owner"), pair.worker_of(THEIRS, node, "reader"));
        for key in ["models/w", "model"] {
            pair.push(owner, key, bytes(100), 1, None);
        }
        pair.settle();
        pair.fetch(reader, "model", Select::Latest);
        denied(&mut pair, reader);
        pair.fetch(reader, "models/w", Select::Latest);
        pair.settle();
        let (lease, ..) = pair.fetched(reader);
        pair.release(reader, lease);
        pair.ends_clean(&[(owner, "owner"), (reader, "reader")]);
    }
}

/// The owner's range stays unchanged until the copy is made. A copy for a cancelled fetch is freed.
// Promise: shared-with-a-tenant, seen to fail
#[test]
fn copy_holds_its_source_and_leaves_nothing() {
    for given_up in [false, true] {
        let mut pair = Pair::new();
        let (owner, reader) = (pair.worker_of(OURS, 0, "owner"), pair.worker_of(THEIRS, 0, "reader"));
        pair.readable_by = vec![name("1")];
        pair.hold_copies = true;
        pair.push(owner, "k", bytes(100), 1, None);
        let op = pair.fetch(reader, "k", Select::Latest);
        pair.settle();
        pair.replies(owner);
        pair.push(owner, "k", bytes(100), 2, None);
        pair.settle();
        assert!(
            matches!(pair.replies(owner)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]),
            "it is not given back"
        );
        if given_up {
            pair.request(reader, Request::Cancel { op });
            pair.settle();
            assert_eq!(pair.failed(reader).code, FailureCode::Cancelled);
        }
        pair.copy_all();
        pair.settle();
        assert!(matches!(pair.replies(owner)[..], [Reply::Returned { .. }]));
        if !given_up {
            let (lease, version, _, got) = pair.fetched(reader);
            assert_eq!((version, got), (1, vec![1; 100]));
            pair.release(reader, lease);
        }
        pair.ends_clean(&[(owner, "owner"), (reader, "reader")]);
    }
}

#[test]
fn a_copy_waits_for_room_in_its_turn() {
    let mut pair = Pair::new();
    let (owner, reader) = (pair.worker_of(OURS, 0, "owner"), pair.worker_of(THEIRS, 0, "reader"));
    pair.readable_by = vec![name("1")];
    let half = super::pair::POOL_BYTES / 2;
    pair.push(owner, "k", bytes(half), 1, None);
    for _ in 0..3 {
        pair.fetch(reader, "k", Select::Latest);
    }
    pair.settle();
    let replies = pair.replies(reader);
    let leases: Vec<_> =
        replies
            .iter()
            .map(|r| {
                if let Reply::Answer { answer: Answer::Fetched { lease, .. }, .. } = r {
                    *lease
                } else {
                    panic!("{r:?}")
                }
            })
            .collect();
    assert_eq!(leases.len(), 2, "there is room for two");
    pair.release(reader, leases[0]);
    pair.settle();
    let (third, ..) = pair.fetched(reader);
    pair.fetch(reader, "k", Select::Latest);
    pair.wait(Duration::from_secs(2));
    assert_eq!(pair.failed(reader).code, FailureCode::PoolFull);
    for lease in [leases[1], third] {
        pair.release(reader, lease);
    }
    pair.push(owner, "large", bytes(2 * half + 64), 1, None);
    pair.fetch(reader, "large", Select::Latest);
    pair.settle();
    assert_eq!(pair.failed(reader).code, FailureCode::TooLarge);
    pair.ends_clean(&[(owner, "owner"), (reader, "reader")]);
}

#[test]
fn invalid_tenant_of_a_push_is_named_in_the_error() {
    let mut pair = Pair::new();
    let owner = pair.worker_of(OURS, 0, "owner");
    pair.readable_by = vec![name("evil")];
    pair.push(owner, "k", bytes(8), 1, None);
    pair.settle();
    let failure = pair.failed(owner);
    assert!(failure.code == FailureCode::Invalid && failure.text.contains("\"evil\""), "{failure}");
    pair.ends_clean(&[(owner, "owner")]);
}
