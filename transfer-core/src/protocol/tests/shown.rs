//! Tests of a node's status listings and events, and of an operator's actions.

use super::pair::{Pair, bytes, key, name};
use crate::op::{Answer, FailureCode, Reply};
use crate::protocol::{
    NodeEvent, NotDeleted, Page, QuarantineStatus, Tenant, TensorFilter, TensorStatus, TransferFilter, TransferStatus,
};
use crate::tensor::{Name, Select, Version};
use crate::time::Time;
use std::time::Duration;

fn tensors(pair: &Pair, node: usize, filter: &TensorFilter, limit: usize) -> (Vec<String>, usize) {
    let (mut keys, mut pages, mut from) = (Vec::new(), 0, 0);
    loop {
        let page: Page<TensorStatus> = pair.nodes[node].node.state().tensors(filter, from, limit);
        assert!(page.entries.len() <= limit.min(Page::<()>::MAX_ENTRIES));
        keys.extend(page.entries.iter().map(|t| t.key.as_str().to_owned()));
        pages += 1;
        match page.next {
            Some(next) => from = next,
            None => return (keys, pages),
        }
    }
}

fn transfers(pair: &Pair, node: usize, filter: &TransferFilter) -> Vec<TransferStatus> {
    let now = pair.world.now();
    pair.nodes[node].node.state().transfers(now, filter, 0, 100).entries
}

fn quarantine(pair: &Pair, node: usize) -> Vec<QuarantineStatus> {
    let now = pair.world.now();
    pair.nodes[node].node.state().quarantine(now, "", 0, 100).entries
}

#[test]
fn every_tensor_is_in_exactly_one_page_and_pages_are_bounded() {
    let mut pair = Pair::new();
    let (w, v) = (pair.worker(0, "w"), pair.worker(0, "v"));
    for i in 0..1500 {
        pair.push(if i % 3 == 0 { v } else { w }, &format!("{}/{i:04}", ["x", "y"][i % 2]), bytes(0), 0, None);
        pair.settle();
    }
    let all = TensorFilter::default();
    for limit in [1, 100, 5000] {
        let (mut keys, _) = tensors(&pair, 0, &all, limit);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 1500, "{limit}");
    }
    let (keys, pages) = tensors(&pair, 0, &TensorFilter { prefix: "x/".into(), ..all.clone() }, 5000);
    assert_eq!(keys.len(), 750);
    assert!(pages >= 6, "{pages} pages of at most 128");
    // A page may be short or empty before the last one. Each page has looked at the same number of places.
    let (keys, pages) = tensors(&pair, 0, &TensorFilter { prefix: "y/1499".into(), ..all.clone() }, 100);
    assert_eq!((keys.len(), pages), (1, 1500usize.div_ceil(Page::<()>::MAX_STEPS)));
    let (keys, _) = tensors(&pair, 0, &TensorFilter { owner: "v".into(), ..all.clone() }, 100);
    assert_eq!(keys.len(), 500);
    let node = &pair.nodes[0].node;
    assert_eq!(node.state().tensors(&all, u64::MAX, 10), Page { entries: vec![], next: None }, "a place that is none");

    let page = node.state().sessions("", 0, 1);
    assert_eq!((page.entries[0].name.as_str(), page.entries.len()), ("w", 1));
    let page = node.state().sessions("", page.next.unwrap(), 1);
    assert_eq!((page.entries[0].name.as_str(), page.next), ("v", None));
    assert_eq!(node.state().sessions("v", 0, 10).entries.len(), 1);
    // A key that is deleted during a listing is missing from it. Nothing else changes.
    let first = node.state().tensors(&all, 0, 100);
    let gone = first.entries[5].key.clone();
    let now = pair.world.now();
    pair.nodes[0].node.delete_key(now, &gone, None).unwrap();
    pair.settle();
    let (keys, _) = tensors(&pair, 0, &all, 100);
    assert_eq!(keys.len(), 1499);
    pair.ends_clean(&[(w, "w"), (v, "v")]);
}

/// A version that another node pushes is published where it lands.
#[test]
fn listing_says_when_the_newest_version_was_published_at_the_node() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let published = |pair: &Pair, node: usize| {
        let page = pair.nodes[node].node.state().tensors(&TensorFilter::default(), 0, 10);
        page.entries.iter().map(|t| (t.version, t.published_at)).collect::<Vec<_>>()
    };
    let mut expected = Time(0);
    for (version, wait) in [(1, 12_345), (2, 50), (3, 1000)] {
        pair.wait(Duration::from_millis(wait));
        pair.push(w, "here", bytes(8), 1, None);
        pair.push(w, "there", bytes(8), 1, Some("r"));
        pair.settle();
        expected = expected + Duration::from_millis(wait);
        let shown = Time(expected.0 / 100_000_000 * 100_000_000);
        for node in [0, 1] {
            assert_eq!(published(&pair, node), [(Version(version), shown)]);
        }
        pair.wait(Duration::from_secs(1));
        expected = expected + Duration::from_secs(1);
        assert_eq!(published(&pair, 0), [(Version(version), shown)], "it is not the time of the listing");
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn a_transfer_says_what_it_waits_for() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.fetch(r, "nobody", Select::Latest);
    pair.push(w, "k", bytes(100), 1, None);
    pair.settle();
    pair.fetch(r, "k", Select::AtLeast(Version(7)));
    pair.settle();
    let shown = transfers(&pair, 1, &TransferFilter::default());
    let words: Vec<_> = shown.iter().map(|t| (t.operation, t.key.as_str(), t.waits_for.as_str())).collect();
    assert_eq!(words[0].0, "fetch");
    assert!(words[0].1 == "nobody" && words[0].2.contains("the directory"), "{words:?}");
    assert!(words[1].1 == "k" && words[1].2.contains("node \"a\" to send"), "{words:?}");
    assert_eq!((shown[1].worker.as_str(), shown[1].peer.as_ref().map(|p| p.as_str())), ("r", Some("a")));
    assert_eq!(shown[0].age + shown[0].left, Duration::from_secs(1));
    let by_peer = TransferFilter { peer: "a".into(), ..TransferFilter::default() };
    assert_eq!(transfers(&pair, 1, &by_peer).len(), 1);
    let old = TransferFilter { older_than: Duration::from_millis(500), ..TransferFilter::default() };
    assert_eq!(transfers(&pair, 1, &old), []);
    let at = pair.world.now() + Duration::from_millis(600);
    pair.world.advance(at);
    assert_eq!(transfers(&pair, 1, &old).len(), 2);
    let link = &pair.nodes[1].links("a", 0, 10).entries[0];
    assert_eq!((link.peer.as_str(), link.incarnation, link.work.pulls), ("a", 1, 1));
    assert_eq!(pair.nodes[1].links("elsewhere", 0, 10).entries, []);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn traffic_of_a_link_is_counted_at_both_ends() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "pulled", bytes(100), 1, None);
    pair.push(w, "pushed", bytes(30), 2, Some("r"));
    pair.settle();
    pair.fetch(r, "pulled", Select::Latest);
    pair.settle();
    let carried = |node: usize| {
        let link = &pair.nodes[node].links("", 0, 1).entries[0];
        (link.outward.transfers, link.outward.bytes, link.inward.transfers, link.inward.bytes)
    };
    assert_eq!((carried(0), carried(1)), ((2, 130, 0, 0), (0, 0, 2, 130)));
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn slot_in_quarantine_names_the_peer_that_it_waits_for() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (lease, ..) = pair.fetched(r);
    pair.release(r, lease);
    pair.fetch(r, "k", Select::AtLeast(Version(2)));
    pair.settle();
    assert_eq!(quarantine(&pair, 1), [], "it waits for data");
    let at = pair.world.now() + Duration::from_secs(2);
    pair.world.advance(at);
    pair.nodes[1].node.timeout(at);
    pair.poll();
    let later = pair.world.now() + Duration::from_millis(5);
    let shown = pair.nodes[1].node.state().quarantine(later, "a", 0, 10).entries;
    let [slot] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!((slot.peer.as_str(), slot.domain, slot.key.as_ref().unwrap().as_str()), ("a", Tenant::User(0), "k"));
    assert!(slot.age >= Duration::from_millis(5) && slot.age < Duration::from_secs(1), "{slot:?}");
    assert!(slot.waits_for.contains("\"a\" to confirm"), "{slot:?}");
    assert_eq!(pair.nodes[1].node.state().quarantine(later, "elsewhere", 0, 10).entries, []);
    pair.settle();
    assert_eq!(quarantine(&pair, 1), []);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn wrong_digests_are_counted_and_reported() {
    let mut pair = Pair::new();
    let reader = pair.worker(0, "reader");
    pair.request(reader, crate::op::Request::WrongDigest { text: "chunk 2 of version 7 of key \"k\"".to_owned() });
    pair.settle();
    let [NodeEvent::Failed { worker, failure, untold: 0 }] = &pair.events[0][..] else { panic!("{:?}", pair.events) };
    assert_eq!((worker.as_str(), failure.code), ("reader", FailureCode::WrongDigest));
    assert_eq!(failure.text, "chunk 2 of version 7 of key \"k\"");
    let shown = pair.nodes[0].node.state().snapshot(Time(0));
    assert_eq!((shown.wrong_digests, shown.failed), (1, 1));
    pair.ends_clean(&[(reader, "reader")]);
}

#[test]
fn takeovers_and_failures_are_reported() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(0, "old"), pair.worker(node, "new"));
        pair.push(old, "k", bytes(8), 1, None);
        pair.settle();
        pair.push(new, "k", bytes(8), 2, None);
        pair.settle();
        let [NodeEvent::Failed { worker, failure, untold: 0 }] = &pair.events[node][..] else {
            panic!("{:?}", pair.events)
        };
        assert_eq!((worker.as_str(), failure.code), ("new", FailureCode::KeyOwned));
        pair.events[node].clear();
        pair.takeover = true;
        pair.push(new, "k", bytes(8), 2, None);
        pair.settle();
        let told: Vec<_> = pair.events.iter().flatten().cloned().collect();
        assert_eq!(told, [NodeEvent::KeyTakenOver { key: key("k"), from: name("old"), to: name("new") }]);
        pair.ends_clean(&[(old, "old"), (new, "new")]);
    }
}

#[test]
fn full_pool_is_reported_once_and_again_when_no_request_waits() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    // Each needs more than half of the pool.
    for k in ["k1", "k2"] {
        pair.push(w, k, bytes(10_000), 1, None);
        pair.settle();
        pair.fetch(r, k, Select::Latest);
        pair.settle();
    }
    assert_eq!(
        pair.events[1],
        [NodeEvent::PoolFull { domain: Tenant::User(0), tenant: Name::of_number(0), bytes: super::pair::POOL_BYTES }]
    );
    let later = pair.world.now() + Duration::from_millis(5);
    let pool = pair.nodes[1].node.state().snapshot(later).pools.remove(0);
    assert!(pool.waiting == 1 && pool.full_for.unwrap() >= Duration::from_millis(5), "{pool:?}");
    let shown = transfers(&pair, 1, &TransferFilter::default());
    assert_eq!((shown[0].waits_for.as_str(), shown[0].len_bytes), ("room in the landing pool", Some(10_000)));
    let (lease, ..) = pair.fetched(r);
    pair.release(r, lease);
    pair.settle();
    assert!(
        matches!(pair.events[1][..], [_, NodeEvent::PoolFree { domain: Tenant::User(0), .. }]),
        "{:?}",
        pair.events
    );
    assert_eq!(pair.nodes[1].node.state().snapshot(later).pools[0].full_for, None);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn operator_deletes_local_and_landed_keys() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.push(w, "there", bytes(8), 2, Some("r"));
    pair.settle();
    pair.fetch(r, "there", Select::Latest);
    pair.settle();
    let (lease, ..) = pair.fetched(r);
    let now = pair.world.now();
    let deleted = pair.nodes[0].node.delete_key(now, &key("k"), None).unwrap();
    assert_eq!((deleted.owner.as_str(), deleted.versions, deleted.bytes, deleted.still_read), ("w", 1, 8, 0));
    pair.settle();
    let replies = pair.replies(w);
    assert!(matches!(replies[..], [.., Reply::Returned { .. }]), "its owner has its memory back: {replies:?}");
    let deleted = pair.nodes[1].node.delete_key(now, &key("there"), None).unwrap();
    assert_eq!((deleted.owner.as_str(), deleted.still_read), ("w", 1));
    pair.settle();
    let failure = pair.nodes[0].node.delete_key(now, &key("k"), None).unwrap_err();
    assert_eq!(failure, NotDeleted::Unknown(key("k")));
    // The versions of both keys begin anew with the next push.
    for (k, to) in [("k", None), ("there", Some("r"))] {
        pair.push(w, k, bytes(8), 3, to);
        pair.settle();
        let replies = pair.replies(w);
        let pushed = |reply: &Reply| matches!(reply, Reply::Answer { answer: Answer::Pushed { .. }, .. });
        assert!(replies.iter().any(pushed), "{k}: {replies:?}");
    }
    pair.release(r, lease);
    pair.fetch(r, "there", Select::Latest);
    pair.settle();
    assert_eq!(pair.fetched(r).3, [3; 8]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn eviction_recalls_idle_slots_and_their_flow_continues() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, Some("r"));
    pair.settle();
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 2);
    assert_eq!(pair.nodes[1].node.evict(Some(Tenant::User(7)), 0), Page { entries: vec![], next: None });
    assert_eq!(pair.nodes[1].node.evict(None, 0), Page { entries: vec![8], next: None });
    pair.settle();
    // The slot of the published version stays.
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 1);
    pair.push(w, "k", bytes(8), 2, Some("r"));
    pair.settle();
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 2);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn draining_node_finishes_its_operations_and_accepts_no_new_ones() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.push(r, "back", bytes(8), 1, Some("w"));
    pair.settle();
    // A worker here and one at the other node wait for a version that will not be published.
    pair.fetch(w, "k", Select::AtLeast(Version(9)));
    pair.fetch(r, "k", Select::AtLeast(Version(9)));
    pair.settle();
    pair.replies(w);
    pair.replies(r);
    // In flight when the drain begins.
    pair.fetch(r, "k", Select::Latest);
    pair.push(r, "back", bytes(8), 2, Some("w"));
    let now = pair.world.now();
    pair.nodes[0].node.drain(now);
    assert!(!pair.nodes[0].node.state().unfinished().is_nothing());
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::Draining);
    let replies = pair.replies(r);
    let draining = |reply: &Reply| matches!(reply, Reply::Answer { answer: Answer::Failed { failure, .. }, .. } if failure.code == FailureCode::Draining);
    assert!(replies.iter().any(draining), "{replies:?}");
    let ended = |reply: &&Reply| {
        draining(reply)
            || matches!(
                reply,
                Reply::Answer { answer: Answer::Fetched { .. }, .. }
                    | Reply::Answer { answer: Answer::Pushed { .. }, .. }
            )
    };
    assert_eq!(replies.iter().filter(ended).count(), 3, "{replies:?}");
    let left = pair.nodes[0].node.state().unfinished();
    assert!(left.is_nothing(), "{left:?}");
    assert!(pair.nodes[0].node.state().snapshot(now).draining);

    // The node accepts nothing new, neither from its workers nor from peers.
    pair.push(w, "new", bytes(8), 1, None);
    pair.settle();
    let failure = pair.failed(w);
    assert!(failure.code == FailureCode::Draining && failure.code.can_retry(), "{failure:?}");
    assert!(failure.text.contains("\"a\" is draining"), "{failure}");
    for fetch in [true, false] {
        match fetch {
            true => drop(pair.fetch(r, "k", Select::Latest)),
            false => drop(pair.push(r, "back", bytes(8), 3, Some("w"))),
        }
        pair.settle();
        assert_eq!(pair.failed_with(r), FailureCode::Draining, "fetch: {fetch}");
    }
    // The leases can be released.
    for reply in replies {
        if let Reply::Answer { answer: Answer::Fetched { lease, .. }, .. } = reply {
            pair.release(r, lease);
        }
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}
