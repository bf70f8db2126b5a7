//! The world of hosts with the Leases of Kubernetes.

use super::fake::{FakeApi, LEADER, NODES};
use super::lease::{Lease, of_host};
use super::translator::{Call, Now, Reply, Step, Translator};
use crate::directory::election::Members;
use crate::directory::election::coordinator::claimant::{Answer, Request};
use crate::directory::election::coordinator::record::Record;
use crate::directory::election::coordinator::world::{Fake, Letter, TTL, World, name, play_at_random, record};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

type Leases = World<FakeApi>;

// Promise: one-leading-host, seen to fail
#[test]
fn two_hosts_never_lead_whatever_is_late_or_lost() {
    let elected = play_at_random::<FakeApi>();
    assert!(elected > 300, "{elected}");
}

// Promise: directory-by-kubernetes, seen to fail
#[test]
fn another_host_leads_when_one_has_died_and_not_before_its_lease_has_lasted() {
    let mut world = Leases::new(2, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    world.hosts[first].stopped_until = u64::MAX;
    world.calm(1400);
    assert_eq!(world.leader(), Some(first));
    world.hosts[first].leads = None;
    world.calm(1600);
    assert_eq!(world.leader(), Some(1 - first));
    let until = world.now + 3000;
    world.calm(until - world.now);
    assert!(world.grants(1 - first));
}

// Promise: directory-by-kubernetes, seen to fail
#[test]
fn heir_leads_at_once_and_a_host_that_ends_leaves_no_lease() {
    let mut world = Leases::new(1, 3);
    world.calm(6000);
    let first = world.leader().expect("a host leads");
    let heir = (first + 2) % 3;
    let before = world.hosts[first].claimant.term();
    world.hosts[first].claimant.give_up(Some(name(heir)));
    world.calm(400);
    assert_eq!((world.leader(), world.grants(heir)), (Some(heir), true));
    assert!(world.hosts[heir].claimant.term() > before);
    world.calm(2500);
    assert_eq!(world.hosts[first].claimant.leader(), Some(&name(heir)));
    assert_eq!(world.hosts[first].claimant.hosts().cloned().collect::<Vec<_>>(), [0, 1, 2].map(name));
    world.hosts[heir].claimant.end();
    world.calm(600);
    assert!(world.hosts[heir].claimant.has_ended());
    assert!(!world.coordinator.leases.contains_key(&of_host(LEADER, &name(heir))));
    assert!(world.leader().is_some_and(|leader| leader != heir));
}

// Promise: one-leading-host, seen to fail
#[test]
fn renewal_that_comes_late_does_not_bring_a_host_back() {
    let mut world = Leases::new(5, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    // Its next renewal is under way while it is stopped.
    let is_renewal = |letter: &Letter<FakeApi>| matches!(letter, Letter::Ask { from, call: Call::Update(lease), .. } if *from == first && lease.name == LEADER);
    while !world.letters.values().any(is_renewal) {
        world.step();
    }
    let at = *world.letters.iter().find(|(_, letter)| is_renewal(letter)).expect("it is there").0;
    let late = world.letters.remove(&at).expect("it is there");
    world.hosts[first].stopped_until = world.now + 8000;
    world.calm(6000);
    assert_eq!((world.leads(first), world.leads(1 - first)), (false, true));
    let term = world.hosts[1 - first].claimant.term();
    world.letters.insert((world.now + 1, 0), late);
    world.calm(4000);
    assert_eq!((world.leads(1 - first), world.hosts[1 - first].claimant.term()), (true, term));
}

// Promise: directory-by-kubernetes, seen to fail
#[test]
fn nodes_that_an_earlier_host_has_sent_late_are_not_written() {
    let mut world = Leases::new(7, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    world.attach(first, name(3));
    world.calm(200);
    assert!(world.attached.contains(&name(3)));
    // It has sent that a node has gone, and is stopped.
    world.detach(first, &name(3));
    world.step();
    let is_write = |letter: &Letter<FakeApi>| matches!(letter, Letter::Ask { call: Call::Update(lease), .. } if lease.name == NODES);
    let at = *world.letters.iter().find(|(_, letter)| is_write(letter)).expect("it writes").0;
    let late = world.letters.remove(&at).expect("it is there");
    world.hosts[first].stopped_until = world.now + 8000;
    world.calm(6000);
    assert!(world.leads(1 - first));
    // The node has attached to the next host.
    world.attach(1 - first, name(3));
    world.calm(200);
    assert!(world.attached.contains(&name(3)));
    world.letters.insert((world.now + 1, 0), late);
    world.calm(200);
    assert!(world.coordinator.nodes().contains(&name(3)), "the next host awaits it");
}

// Promise: directory-by-kubernetes, seen to fail
#[test]
fn node_stands_there_where_an_answer_was_lost() {
    let mut world = Leases::new(7, 1);
    world.calm(6000);
    for node in [0, 1].map(name) {
        world.attach(0, node.clone());
        world.calm(100);
        assert!(world.attached.contains(&node));
        world.detach(0, &node);
        // The second time, that of its new claim, too.
        world.loses = if node == name(1) { 2 } else { 1 };
        world.calm(20);
        world.attach(0, node.clone());
        world.calm(3000);
        assert!(world.attached.contains(&node) && world.coordinator.nodes().contains(&node));
    }
    assert_eq!(world.elected, 1, "it leads all the time");
}

// Promise: directory-by-kubernetes, seen to fail
#[test]
fn host_awaits_its_last_nodes_where_objects_were_deleted_by_hand() {
    for deleted in [&[LEADER, NODES][..], &[NODES], &[LEADER]] {
        let mut world = Leases::new(9, 1);
        world.calm(5000);
        assert!(world.attached.contains(&name(7)));
        let term = world.hosts[0].claimant.term();
        for name in deleted {
            world.coordinator.leases.remove(*name);
        }
        world.attach(0, name(6));
        world.calm(6000);
        assert_eq!(world.elected, 2, "{deleted:?}");
        assert!(world.hosts[0].claimant.term() > term && world.coordinator.nodes().contains(&name(7)), "{deleted:?}");
    }
}

// Promise: directory-by-kubernetes
#[test]
fn lease_of_another_program_is_named_and_not_taken() {
    let mut world = Leases::new(3, 1);
    let other = serde_json::json!({"metadata": {"name": LEADER, "resourceVersion": "1"}, "spec": {"holderIdentity": "scheduler-7"}});
    world.coordinator.leases.insert(LEADER.to_owned(), Lease::parse(&other).expect("a Lease"));
    world.calm(8000);
    assert_eq!((world.leader(), world.hosts[0].claimant.leader()), (None, None));
    assert_eq!(world.coordinator.leases[LEADER].record(), Some(Err("held by scheduler-7".to_owned())));
    world.coordinator.leases.remove(LEADER);
    world.calm(1000);
    assert_eq!(world.leader(), Some(0));
}

#[test]
fn nodes_are_written_in_batches_and_known_when_all_are() {
    let mut world = Leases::new(4, 1);
    world.calm(5000);
    let names: Vec<_> = (0..250).map(name).collect();
    world.hosts[0].members = Members { version: 90, names: names.clone(), newest: 1 << 32 };
    world.calm(100);
    assert_eq!(world.coordinator.nodes(), names.into_iter().collect::<BTreeSet<_>>());
    world.hosts[0].members = Members { version: 91, names: vec![name(3)], newest: 7 << 32 };
    world.calm(100);
    assert_eq!((world.coordinator.nodes().len(), world.coordinator.newest()), (1, 7 << 32));
}

/// The calls of one request, which all are answered.
fn ask(translator: &mut Translator, api: &mut FakeApi, now: Instant, request: &Request) -> (Answer, Vec<Call>) {
    let now = Now { instant: now, unix_ms: 5 };
    let (mut step, mut calls) = (translator.begin(now, request), Vec::new());
    loop {
        match step {
            Step::Answer(answer) => return (answer, calls),
            Step::Call(call) => {
                let reply = api.answer(&call);
                calls.push(call);
                step = translator.answered(now, reply);
            }
        }
    }
}

#[test]
fn node_that_hosts_nothing_only_reads() {
    let (mut translator, mut api, now) = (Translator::new(LEADER.to_owned(), TTL), FakeApi::default(), Instant::now());
    let (answer, calls) = ask(&mut translator, &mut api, now, &Request::Look);
    assert!(matches!(answer, Answer::Seen(seen) if seen.held.is_none() && seen.hosts.is_empty()));
    assert_eq!(calls, [Call::Get(LEADER.to_owned()), Call::ListHosts]);
    // Hosts are listed now and then.
    let mut calls_at = |after| ask(&mut translator, &mut api, now + after, &Request::Look).1.len();
    assert_eq!([calls_at(TTL), calls_at(TTL * 10), calls_at(TTL * 11)], [1, 2, 1]);
}

#[test]
fn host_that_says_nothing_for_three_promises_is_none() {
    let (mut api, now) = (FakeApi::default(), Instant::now());
    let mut host = Translator::new(LEADER.to_owned(), TTL);
    let mut other = Translator::new(LEADER.to_owned(), TTL);
    let register = |i| Request::Register { me: record(i, 1), lease: 1 };
    assert_eq!(ask(&mut host, &mut api, now, &register(1)).0, Answer::Done);
    assert_eq!(ask(&mut other, &mut api, now, &register(2)).0, Answer::Done);
    let mut hosts_at = |after: Duration, api: &mut FakeApi| {
        let Answer::Seen(seen) = ask(&mut other, api, now + after, &Request::Look).0 else { panic!("it looks") };
        seen.hosts.iter().filter(|(host, _)| host.node == name(1)).count()
    };
    assert_eq!([hosts_at(TTL / 2, &mut api), hosts_at(TTL * 3, &mut api), hosts_at(TTL * 5, &mut api)], [1, 1, 0]);
    // It renews once in a promise.
    let renew = Request::Renew { lease: 1, leads: false };
    assert_eq!(ask(&mut host, &mut api, now + TTL / 2, &renew).1.len(), 0);
    assert_eq!(ask(&mut host, &mut api, now + TTL * 6, &renew).1.len(), 1);
    assert_eq!(hosts_at(TTL * 7, &mut api), 1);
    assert!(matches!(api.answer(&Call::Delete(of_host(LEADER, &name(1)))), Reply::Deleted));
    assert_eq!(hosts_at(TTL * 9, &mut api), 0);
}

// Promise: one-leading-host, seen to fail
#[test]
fn renewal_over_what_another_host_has_written_is_none() {
    let (mut api, now) = (FakeApi::default(), Instant::now());
    let [mut host, mut other] = [(); 2].map(|()| Translator::new(LEADER.to_owned(), TTL));
    let leads = |translator: &mut Translator, api: &mut FakeApi, i, over| {
        ask(translator, api, now, &Request::Look);
        ask(translator, api, now, &Request::Register { me: record(i, 1), lease: 1 });
        let me = Record { leads: true, ..record(i, 1) };
        ask(translator, api, now, &Request::Claim { me, lease: 1, over }).0
    };
    assert!(matches!(leads(&mut host, &mut api, 1, 0), Answer::Claimed { .. }));
    let renew = Request::Renew { lease: 1, leads: true };
    assert!(matches!(ask(&mut host, &mut api, now, &renew).0, Answer::Renewed { .. }));
    // While it lasts, another host does not take it.
    assert_eq!(leads(&mut other, &mut api, 2, 0), Answer::Outdated);
    api.leases.remove(LEADER);
    assert!(matches!(leads(&mut other, &mut api, 2, 0), Answer::Claimed { .. }));
    assert_eq!(ask(&mut host, &mut api, now, &renew).0, Answer::Outdated);
    // Nor after an answer that was lost.
    host.begin(Now { instant: now, unix_ms: 5 }, &renew);
    assert_eq!(ask(&mut host, &mut api, now, &renew).0, Answer::Outdated);
}

#[test]
fn host_that_takes_the_lead_later_is_not_overwritten_in_the_nodes() {
    let (mut api, now) = (FakeApi::default(), Instant::now());
    let [mut host, mut other] = [(); 2].map(|()| Translator::new(LEADER.to_owned(), TTL));
    for (translator, i) in [(&mut host, 1), (&mut other, 2)] {
        ask(translator, &mut api, now, &Request::Look);
        ask(translator, &mut api, now, &Request::Register { me: record(i, 1), lease: 1 });
    }
    let claim = |i| Request::Claim { me: Record { leads: true, ..record(i, 1) }, lease: 1, over: 0 };
    // It has written that it leads, and not yet into the nodes.
    let time = Now { instant: now, unix_ms: 5 };
    let Step::Call(get) = host.begin(time, &claim(1)) else { panic!("it reads the nodes") };
    let reply = api.answer(&get);
    let Step::Call(lead) = host.answered(time, reply) else { panic!("it takes the lead") };
    let reply = api.answer(&lead);
    let Step::Call(nodes) = host.answered(time, reply) else { panic!("it writes the nodes") };
    api.leases.remove(LEADER);
    ask(&mut other, &mut api, now, &Request::Look);
    let later = Now { instant: now, unix_ms: 50 };
    let Step::Call(mut call) = other.begin(later, &claim(2)) else { panic!("it reads the nodes") };
    while let Step::Call(next) = {
        let reply = api.answer(&call);
        other.answered(later, reply)
    } {
        call = next;
    }
    let reply = api.answer(&nodes);
    assert_eq!(reply, Reply::Conflict);
    let Step::Call(again) = host.answered(time, reply) else { panic!("it reads the nodes again") };
    let reply = api.answer(&again);
    assert_eq!(host.answered(time, reply), Step::Answer(Answer::Outdated));
    assert_eq!(api.leases[NODES].term(), 50);
}

#[test]
fn renewal_that_has_changed_nothing_counts_as_none() {
    let (mut api, now) = (FakeApi::default(), Instant::now());
    let mut host = Translator::new(LEADER.to_owned(), TTL);
    ask(&mut host, &mut api, now, &Request::Look);
    ask(&mut host, &mut api, now, &Request::Register { me: record(1, 1), lease: 1 });
    let claim = Request::Claim { me: Record { leads: true, ..record(1, 1) }, lease: 1, over: 0 };
    assert!(matches!(ask(&mut host, &mut api, now, &claim).0, Answer::Claimed { .. }));
    let time = Now { instant: now, unix_ms: 5 };
    let Step::Call(Call::Update(sent)) = host.begin(time, &Request::Renew { lease: 1, leads: true }) else {
        panic!("it renews")
    };
    let step = host.answered(time, Reply::Lease(sent));
    assert!(matches!(&step, Step::Answer(Answer::Failed(why)) if why.contains("changed nothing")), "{step:?}");
}

#[test]
fn looks_that_fail_are_further_and_further_apart() {
    let pauses = [0, 1, 2, 4, 5, 6, u32::MAX].map(|failures| super::look_pause(failures).as_secs());
    assert_eq!(pauses, [1, 2, 4, 16, 30, 30, 30]);
}
