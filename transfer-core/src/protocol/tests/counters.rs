//! Tests of counters and barriers over a link.

use super::pair::{Pair, Worker, name};
use crate::fabric::{AtomicOp, FabricEvent};
use crate::op::{Answer, Command, CounterAsk, CounterCommand, FailureCode, OpId, Reply, Request};
use crate::protocol::Tenant;
use crate::tensor::{Key, Name};
use crate::wire::message::{Body, Message, NameRef, Role};
use std::time::Duration;

fn ask(pair: &mut Pair, w: Worker, op: u64, text: &str, ask: CounterAsk) {
    let timeout = Duration::from_secs(1);
    pair.command(w, OpId(op), Command::Counter(CounterCommand { name: name(text), ask, timeout }));
    pair.settle();
}

/// Opens a counter. Returns its home and identity.
fn open(pair: &mut Pair, w: Worker, text: &str) -> (Name, u64) {
    ask(pair, w, 1, text, CounterAsk::Open);
    let replies = pair.replies(w);
    let [Reply::Answer { answer: Answer::CounterOpened { home, identity }, .. }] = &replies[..] else {
        panic!("{replies:?}")
    };
    (home.clone(), *identity)
}

fn add(home: &Name, identity: u64) -> CounterAsk {
    CounterAsk::Operate { home: home.clone(), identity, op: AtomicOp::FetchAdd(1) }
}

#[test]
fn an_operation_is_one_message_and_its_answer() {
    let mut pair = Pair::new();
    let (here, there) = (pair.worker(0, "here"), pair.worker(1, "there"));
    let (home, identity) = open(&mut pair, here, "x");
    assert_eq!(open(&mut pair, there, "x"), (home.clone(), identity));
    pair.posted();
    ask(&mut pair, there, 2, "x", add(&home, identity));
    assert_eq!(pair.posted(), ["COUNTER_OP", "COUNTER_RESULT"]);
    assert!(matches!(pair.replies(there)[..], [Reply::Answer { answer: Answer::Counted { old: 0, .. }, .. }]));
    ask(&mut pair, here, 2, "x", add(&home, identity));
    assert!(matches!(pair.replies(here)[..], [Reply::Answer { answer: Answer::Counted { old: 1, .. }, .. }]));
    ask(&mut pair, there, 3, "x", add(&home, identity + 1));
    assert_eq!(pair.failed_with(there), FailureCode::CounterLost);
    pair.ends_clean(&[(here, "here"), (there, "there")]);
}

/// A place is used only once. A tenant that took all places would keep the others from counting until the sidecar ends.
// Promise: bounded-directory, seen to fail
#[test]
fn one_tenant_leaves_counters_to_others() {
    let mut pair = Pair::new();
    let (greedy, other) = (pair.worker_of(Tenant::User(1), 0, "greedy"), pair.worker_of(Tenant::User(2), 0, "other"));
    let mut made = 0;
    let failure = loop {
        ask(&mut pair, greedy, 1, &format!("x{made}"), CounterAsk::Open);
        match &pair.replies(greedy)[..] {
            [Reply::Answer { answer: Answer::CounterOpened { .. }, .. }] => made += 1,
            [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] => break failure.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((made, failure.code), (3072, FailureCode::Busy));
    assert!(failure.text.contains("3072") && failure.text.contains("user id 1"), "{}", failure.text);
    open(&mut pair, other, "y");
    pair.ends_clean(&[(greedy, "greedy"), (other, "other")]);
}

#[test]
fn a_wait_that_is_given_up_is_withdrawn() {
    let mut pair = Pair::new();
    let (here, there) = (pair.worker(0, "here"), pair.worker(1, "there"));
    let wait = CounterAsk::Wait { members: 2 };
    ask(&mut pair, here, 1, "x", wait.clone());
    pair.wait(Duration::from_secs(2));
    assert_eq!(pair.failed_with(here), FailureCode::Deadline);
    ask(&mut pair, there, 1, "x", wait.clone());
    pair.request(there, Request::Cancel { op: OpId(1) });
    pair.settle();
    assert_eq!(pair.failed_with(there), FailureCode::Cancelled);
    ask(&mut pair, here, 2, "x", wait.clone());
    assert_eq!(pair.replies(here), []);
    ask(&mut pair, there, 2, "x", wait);
    assert!(matches!(
        pair.replies(here)[..],
        [Reply::Answer { answer: Answer::Released { round: 0, leader: false, .. }, .. }]
    ));
    assert!(matches!(
        pair.replies(there)[..],
        [Reply::Answer { answer: Answer::Released { round: 0, leader: true, .. }, .. }]
    ));
    pair.ends_clean(&[(here, "here"), (there, "there")]);
}

/// Makes a pair with a counter at node 0 that node 1 has opened. Node `to` then receives these messages from the other
/// node.
fn hears(to: usize, messages: &[Message]) -> Pair {
    let mut pair = Pair::new();
    let (here, there) = (pair.worker(0, "here"), pair.worker(1, "there"));
    open(&mut pair, here, "x");
    open(&mut pair, there, "x");
    let (now, link) = (pair.world.now(), pair.links[to].unwrap());
    for message in messages {
        let bytes = message.encode();
        pair.nodes[to].node.fabric_event(now, FabricEvent::Message { link, bytes: &bytes }, None);
    }
    pair.settle();
    // Both nodes still work.
    assert_eq!(open(&mut pair, here, "x").0, name("a"));
    pair
}

#[test]
fn a_peer_that_lies_about_counters_loses_its_link() {
    let message = |index, body| Message::new(Role::Counter, index, body);
    // The earlier names are those of the opened counter and of its tenant.
    let [ours, of] = [1, 2].map(|id| NameRef { id, generation: 0 });
    let name_is = |text: Name| message(0, Body::Name { name: of, text });
    let (counter, barrier) = (Key::of_counter(&name("x")).unwrap(), Key::of_barrier(&name("x")).unwrap());
    let op = Body::CounterOp { name: of, tenant: of, identity: 1, op: AtomicOp::Load };
    let lies: Vec<(usize, Vec<Message>)> = vec![
        (0, vec![message(1, op)]),
        (0, vec![name_is(name("x")), message(1, Body::CounterOpen { name: of, tenant: ours, wants_grant: true })]),
        (0, vec![name_is(counter.into()), message(1, Body::BarrierWait { name: of, tenant: ours, members: 2 })]),
        (
            0,
            vec![name_is(barrier.clone().into()), message(1, Body::BarrierWait { name: of, tenant: ours, members: 0 })],
        ),
        (
            0,
            vec![name_is(barrier.into()), message(1, Body::CounterOpen { name: of, tenant: ours, wants_grant: false })],
        ),
        (1, vec![message(77, Body::CounterResult { old: 1 })]),
        (1, vec![message(77, Body::CounterOpened { identity: 1, word: None })]),
        (1, vec![message(77, Body::BarrierReleased { round: 0, leader: true })]),
        (1, vec![message(77, Body::Cancelled)]),
        (1, vec![message(77, Body::ErrorStatus(crate::op::Failure::new(FailureCode::Busy, "")))]),
        (1, vec![message(0, Body::CounterEnded { name: of })]),
    ];
    for (i, (to, messages)) in lies.into_iter().enumerate() {
        let pair = hears(to, &messages);
        assert!(pair.downs.iter().any(|why| why.contains("broke the contract")), "lie {i}: {:?}", pair.downs);
    }
}
