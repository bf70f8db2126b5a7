//! The world of hosts with an etcd.

use super::fake::FakeEtcd;
use crate::directory::election::Members;
use crate::directory::election::coordinator::claimant::Request;
use crate::directory::election::coordinator::world::{Letter, World, name, play_at_random, record};
use std::collections::BTreeSet;

// Promise: one-leading-host, seen to fail
#[test]
fn two_hosts_never_lead_whatever_is_late_or_lost() {
    let elected = play_at_random::<FakeEtcd>();
    assert!(elected > 300, "{elected}");
}

// Promise: one-leading-host, seen to fail
#[test]
fn host_whose_lease_ended_too_early_grants_nothing_beside_the_next_one() {
    let mut world = World::<FakeEtcd>::new(5, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    world.hosts[first].stopped_until = world.now + 700;
    world.calm(100);
    world.revoke();
    world.calm(550);
    assert!(world.leads(first) && world.leads(1 - first) && world.grants(first), "both lead for a while");
    world.calm(3000);
    assert!(world.grants(1 - first));
    // Who has not waited yet hands over to nobody that would not wait.
    for ends in [false, true] {
        let mut world = World::<FakeEtcd>::new(5, 3);
        world.calm(5000);
        let first = world.leader().expect("a host leads");
        world.hosts[first].stopped_until = world.now + 2000;
        world.revoke();
        world.calm(300);
        let next = (0..3).find(|i| *i != first && world.leads(*i)).expect("another host leads");
        assert!(!world.grants(next));
        match ends {
            true => world.hosts[next].claimant.end(),
            false => world.hosts[next].claimant.give_up(Some(name(3 - first - next))),
        }
        world.calm(5000);
        assert!(world.grants(3 - first - next) || ends && !world.leads(next));
    }
    // Nor does it where its claim had no answer.
    let mut world = World::<FakeEtcd>::new(5, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    let lasts =
        |world: &World<FakeEtcd>| world.hosts[first].leads.map(|until| until - world.clock(world.hosts[first].rate));
    let mut longest = lasts(&world);
    for _ in 0..1000 {
        world.step();
        longest = longest.max(lasts(&world));
    }
    while lasts(&world) < longest {
        world.step();
    }
    world.hosts[first].stopped_until = world.now + 2000;
    world.revoke();
    world.loses = 1;
    world.calm(5000);
    assert!(world.grants(1 - first));
}

// Promise: one-leading-host, seen to fail
#[test]
fn host_leads_no_longer_than_most_members_of_etcd_agree() {
    let mut world = World::<FakeEtcd>::new(6, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    world.cut_off(first);
    world.calm(3000);
    assert_eq!((world.leader(), world.leads(first)), (Some(1 - first), false));
}

// Promise: directory-by-etcd, seen to fail
#[test]
fn node_stands_in_etcd_where_an_answer_was_lost_and_a_request_came_late() {
    let mut world = World::<FakeEtcd>::new(7, 1);
    world.calm(5000);
    for node in [0, 1, 2].map(name) {
        world.attach(0, node.clone());
        world.calm(100);
        assert!(world.attached.contains(&node));
        // The answer to its end is lost, or the request comes late, and it attaches again meanwhile.
        world.detach(0, &node);
        match node == name(2) {
            true => {
                world.step();
                let late = world.letters.pop_last();
                let Some((_, late @ Letter::Ask { call: Request::Write { .. }, .. })) = late else {
                    panic!("it writes");
                };
                world.letters.insert((world.now + 1500, 0), late);
            }
            // The second time, that of its new claim, too.
            false => world.loses = if node == name(1) { 2 } else { 1 },
        }
        world.calm(20);
        world.attach(0, node.clone());
        world.calm(2000);
        assert!(
            world.attached.contains(&node) && world.coordinator.nodes.contains(&node),
            "{:?}",
            world.coordinator.nodes
        );
    }
    assert_eq!(world.elected, 1, "it leads all the time");
}

// Promise: directory-by-etcd, seen to fail
#[test]
fn node_is_attached_while_others_come_and_go_all_the_time() {
    let mut world = World::<FakeEtcd>::new(8, 1);
    world.calm(5000);
    world.attach(0, name(1));
    let version = world.hosts[0].members.version;
    for i in 0..100 {
        let node = name(2 + i % 5);
        if world.hosts[0].members.names.contains(&node) {
            world.detach(0, &node)
        } else {
            world.attach(0, node)
        }
        world.step();
    }
    assert!(world.hosts[0].known >= version && world.attached.contains(&name(1)));
}

// Promise: directory-by-etcd, seen to fail
#[test]
fn host_awaits_its_last_nodes_where_an_older_state_of_etcd_was_restored() {
    let mut world = World::<FakeEtcd>::new(9, 1);
    world.calm(5000);
    assert!(world.attached.contains(&name(7)));
    world.coordinator.nodes.clear();
    world.coordinator.leader = None;
    world.calm(5000);
    assert_eq!((world.elected, world.coordinator.nodes.contains(&name(7))), (2, true));
}

// Promise: directory-by-etcd, seen to fail
#[test]
fn heir_leads_at_once_and_a_host_that_ends_leaves_no_lease() {
    let mut world = World::<FakeEtcd>::new(1, 3);
    world.calm(2000);
    let first = world.leader().expect("a host leads");
    let heir = (first + 2) % 3;
    let before = world.hosts[first].claimant.term();
    world.hosts[first].claimant.give_up(Some(name(heir)));
    world.calm(400);
    assert_eq!(world.leader(), Some(heir));
    assert!(world.hosts[heir].claimant.term() > before);
    world.calm(500);
    assert_eq!(world.hosts[first].claimant.leader(), Some(&name(heir)));
    assert_eq!(world.hosts[first].claimant.hosts().count(), 3);
    world.hosts[heir].claimant.end();
    world.calm(600);
    assert!(world.hosts[heir].claimant.has_ended() && world.coordinator.leases.len() == 2);
    assert!(world.leader().is_some_and(|leader| leader != heir));
}

// Promise: directory-by-etcd
#[test]
fn another_host_leads_when_one_has_died_and_not_before_its_lease_has_ended() {
    let mut world = World::<FakeEtcd>::new(2, 2);
    world.calm(3000);
    let first = world.leader().expect("a host leads");
    world.hosts[first].stopped_until = u64::MAX;
    world.calm(1400);
    assert_eq!(world.leader(), Some(first));
    world.hosts[first].leads = None;
    world.calm(1100);
    assert_eq!(world.leader(), Some(1 - first));
}

// Promise: directory-by-etcd
#[test]
fn host_gives_up_when_another_program_changes_the_key() {
    for deletes in [true, false] {
        let mut world = World::<FakeEtcd>::new(3, 1);
        world.calm(2000);
        assert_eq!(world.leader(), Some(0));
        world.coordinator.leader = match deletes {
            true => None,
            false => Some((record(5, 5), 1, 1 << 20)),
        };
        let (elected, mut gave_up) = (world.elected, false);
        for _ in 0..1000 {
            world.step();
            gave_up |= world.leader().is_none();
        }
        assert!(gave_up);
        assert_eq!((world.leader(), world.elected), if deletes { (Some(0), elected + 1) } else { (None, elected) });
    }
}

#[test]
fn nodes_are_written_in_batches_and_known_when_all_are() {
    let mut world = World::<FakeEtcd>::new(4, 1);
    world.calm(2000);
    let names: Vec<_> = (0..250).map(name).collect();
    world.hosts[0].members = Members { version: 90, names: names.clone(), newest: 1 << 32 };
    world.calm(100);
    assert_eq!(world.coordinator.nodes.iter().cloned().collect::<BTreeSet<_>>(), names.into_iter().collect());
    world.hosts[0].members = Members { version: 91, names: vec![name(3)], newest: 7 << 32 };
    world.calm(100);
    assert_eq!((world.coordinator.nodes.len(), world.coordinator.newest), (1, 7 << 32));
}
