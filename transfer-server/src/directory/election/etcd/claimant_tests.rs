//! Hosts with virtual clocks that run fast or slow, and an etcd: hosts that stop and restart, requests and answers that are late or
//! lost, an etcd that is away, a member of it that is cut off, a lease that it ends too early, a key that another program deletes.

use super::claimant::{Answer, Claimant, Request};
use super::fake::{FakeEtcd, TTL};
use super::record::Record;
use crate::directory::election::{Effect, Members};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// How much faster or slower than etcd's a clock may run, in parts of a thousand: two differ by twice that.
const DRIFT: u64 = 60;

fn name(i: usize) -> Name {
    Name::new(&format!("n{i}")).unwrap()
}

fn record(i: usize, incarnation: u64) -> Record {
    Record { node: name(i), address: format!("h{i}:1"), incarnation, leads: false }
}

struct Host {
    claimant: Claimant,
    rate: u64,
    stopped_until: u64,
    /// The request under way by its number, and when it is given up.
    asks: Option<(u64, Instant)>,
    leads: Option<Instant>,
    /// Before this it grants nothing new, though it leads.
    grants_from: Option<Instant>,
    members: Members,
    /// The version that the next host will know.
    known: u64,
    /// The nodes that attach, each with the version that has it.
    attaching: Vec<(Name, u64)>,
    /// The member of etcd that it asks is cut off: it renews leases, which the others do not hear, and does nothing else.
    is_cut_off: bool,
}

enum Letter {
    Ask { from: usize, number: u64, request: Request },
    Answer { to: usize, number: u64, answer: Answer },
}

struct World {
    rng: Rng,
    start: Instant,
    /// In ms of etcd's time.
    now: u64,
    etcd: FakeEtcd,
    hosts: Vec<Host>,
    letters: BTreeMap<(u64, u64), Letter>,
    numbers: u64,
    incarnations: u64,
    away_until: u64,
    is_calm: bool,
    elected: u64,
    /// The nodes that some host has attached.
    attached: BTreeSet<Name>,
    /// etcd has ended a lease too early, so two hosts may lead, of which one grants nothing.
    has_revoked: bool,
    /// How many answers to requests to write nodes, or to lead, are to be lost.
    loses: u32,
}

impl World {
    fn new(seed: u64, count: usize) -> World {
        let rng = Rng::with_seed(seed);
        let mut world = World {
            rng,
            start: Instant::now(),
            now: 0,
            etcd: FakeEtcd::default(),
            hosts: Vec::new(),
            letters: BTreeMap::new(),
            numbers: 0,
            incarnations: 0,
            away_until: 0,
            is_calm: false,
            elected: 0,
            attached: BTreeSet::new(),
            has_revoked: false,
            loses: 0,
        };
        for i in 0..count {
            let rate = 1000 - DRIFT + world.rng.u64(0..=2 * DRIFT);
            let host = world.host(i, rate);
            world.hosts.push(host);
        }
        world
    }

    fn clock(&self, rate: u64) -> Instant {
        self.start + Duration::from_micros(self.now * rate)
    }

    fn host(&mut self, i: usize, rate: u64) -> Host {
        self.incarnations += 1;
        let claimant = Claimant::new(self.clock(rate), record(i, self.incarnations), TTL);
        Host {
            claimant,
            rate,
            stopped_until: 0,
            asks: None,
            leads: None,
            grants_from: None,
            members: Members::default(),
            known: 0,
            attaching: Vec::new(),
            is_cut_off: false,
        }
    }

    fn send(&mut self, letter: Letter) {
        let late = match self.rng.u32(0..20) {
            _ if self.is_calm => 1,
            0 => self.rng.u64(0..6000),
            1..3 => self.rng.u64(0..400),
            _ => self.rng.u64(0..5),
        };
        self.numbers += 1;
        if self.is_calm || self.rng.u32(0..30) > 0 {
            self.letters.insert((self.now + 1 + late, self.numbers), letter);
        }
    }

    fn act(&mut self, i: usize, effects: Vec<Effect<Request>>) {
        for effect in effects {
            match effect {
                Effect::Ask(request) => {
                    self.numbers += 1;
                    let (number, now) = (self.numbers, self.clock(self.hosts[i].rate));
                    self.hosts[i].asks = Some((number, now + self.hosts[i].claimant.request_timeout()));
                    self.send(Letter::Ask { from: i, number, request });
                }
                Effect::Lead { until, grants_from, awaited, newest } => {
                    assert!(
                        self.attached.is_subset(&awaited),
                        "{:?} are attached, and only {awaited:?} awaited",
                        self.attached
                    );
                    self.elected += 1;
                    let host = &mut self.hosts[i];
                    (host.leads, host.grants_from, host.known) = (Some(until), grants_from, 0);
                    // As the directory does: it has whom it awaits, numbers go on, and a node attaches.
                    host.members.names = awaited.into_iter().collect();
                    host.members.newest = newest + (1 << 32);
                    self.attach(i, name(7));
                }
                Effect::Renew { until, known } => {
                    let host = &mut self.hosts[i];
                    (host.leads, host.known) = (Some(until), known);
                    let is_known = |(_, version): &mut (Name, u64)| *version <= known;
                    self.attached.extend(host.attaching.extract_if(.., is_known).map(|(node, _)| node));
                    if known > 0 && known == host.members.version {
                        let newest = host.members.newest;
                        assert!(
                            self.etcd.newest + (1 << 31) >= newest || !self.etcd.is_at(self.hosts[i].claimant.term())
                        );
                    }
                }
                Effect::StandBy => {
                    self.hosts[i].leads = None;
                    self.hosts[i].attaching.clear();
                }
            }
        }
    }

    /// A node asks this host to attach it.
    fn attach(&mut self, i: usize, node: Name) {
        let host = &mut self.hosts[i];
        if !host.members.names.contains(&node) {
            host.members.names.push(node.clone());
        }
        host.members.version += 1;
        host.attaching.push((node, host.members.version));
    }

    /// A node leaves.
    fn detach(&mut self, i: usize, node: &Name) {
        let host = &mut self.hosts[i];
        host.members.names.retain(|name| name != node);
        host.members.version += 1;
        host.attaching.retain(|(name, _)| name != node);
        self.attached.remove(node);
    }

    /// Whether a host leads.
    fn leads(&self, i: usize) -> bool {
        self.hosts[i].leads.is_some_and(|until| self.clock(self.hosts[i].rate) < until)
    }

    /// Whether a host grants something new.
    fn grants(&self, i: usize) -> bool {
        self.leads(i) && self.hosts[i].grants_from.is_none_or(|from| self.clock(self.hosts[i].rate) >= from)
    }

    /// etcd ends the lease of the host that leads, which is alive.
    fn revoke(&mut self) {
        if let Some((_, lease, _)) = &self.etcd.leader {
            self.etcd.leases.remove(lease);
            self.has_revoked = true;
        }
    }

    /// The member that a host asks is cut off. Another one leads, and lets all leases last for their whole time again.
    fn cut_off(&mut self, i: usize) {
        self.hosts[i].is_cut_off = true;
        let until = self.now + TTL.as_millis() as u64;
        self.etcd.leases.values_mut().for_each(|ends| *ends = until);
    }

    fn step(&mut self) {
        self.now += 1;
        self.etcd.expire(self.now);
        while let Some(entry) = self.letters.first_entry().filter(|entry| entry.key().0 <= self.now) {
            match entry.remove() {
                // Nobody hears it.
                Letter::Ask { .. } if self.now < self.away_until => {}
                Letter::Ask { from, number, request } if self.hosts[from].is_cut_off => {
                    if matches!(request, Request::Renew { .. }) {
                        self.send(Letter::Answer { to: from, number, answer: Answer::Renewed { ttl: TTL } });
                    }
                }
                Letter::Ask { from, number, request } => {
                    let answer = self.etcd.done(&request, self.now);
                    if self.loses > 0 && matches!(request, Request::Write { .. } | Request::Claim { .. }) {
                        self.loses -= 1;
                        continue;
                    }
                    self.send(Letter::Answer { to: from, number, answer });
                }
                Letter::Answer { to, number, answer } => self.answer(to, Some(number), answer),
            }
        }
        for i in 0..self.hosts.len() {
            let host = &mut self.hosts[i];
            if self.now < host.stopped_until {
                continue;
            }
            let now = self.clock(self.hosts[i].rate);
            if self.hosts[i].asks.is_some_and(|(_, until)| now >= until) {
                // It asks another member next, which may be cut off, too.
                if !self.is_calm && self.rng.bool() {
                    self.hosts[i].is_cut_off = false;
                }
                self.answer(i, None, Answer::Failed("no answer".to_owned()));
            }
            let (mut effects, members) = (Vec::new(), self.hosts[i].members.clone());
            self.hosts[i].claimant.poll(now, &members, &mut effects);
            self.act(i, effects);
        }
        let hosts = 0..self.hosts.len();
        assert!(hosts.clone().filter(|i| self.grants(*i)).count() <= 1, "two hosts grant at {}", self.now);
        let lead = hosts.filter(|i| self.leads(*i)).count();
        assert!(lead <= 1 || self.has_revoked, "two hosts lead at {}", self.now);
    }

    fn answer(&mut self, i: usize, number: Option<u64>, answer: Answer) {
        let is_awaited = self.hosts[i].asks.is_some_and(|(asked, _)| number.is_none_or(|number| number == asked));
        if !is_awaited {
            return;
        }
        // A stopped process reads it when it goes on.
        if let Some(number) = number.filter(|_| self.now < self.hosts[i].stopped_until) {
            let at = self.hosts[i].stopped_until;
            self.numbers += 1;
            self.letters.insert((at, self.numbers), Letter::Answer { to: i, number, answer });
            return;
        }
        self.hosts[i].asks = None;
        let (mut effects, now) = (Vec::new(), self.clock(self.hosts[i].rate));
        self.hosts[i].claimant.answered(now, answer, &mut effects);
        self.act(i, effects);
    }

    fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| host.leads.is_some())
    }

    fn calm(&mut self, ms: u64) {
        self.is_calm = true;
        (0..ms).for_each(|_| self.step());
    }
}

// Promise: one-leading-host, seen to fail
#[test]
fn two_hosts_never_lead_whatever_is_late_or_lost() {
    let mut elected = 0;
    for seed in 0..60 {
        let mut world = World::new(seed, 3);
        for _ in 0..60_000 {
            let i = world.rng.usize(0..3);
            // Nodes come and go.
            if world.rng.u32(0..200) == 0 && world.grants(i) {
                let node = name(world.rng.usize(0..7));
                if world.attached.contains(&node) { world.detach(i, &node) } else { world.attach(i, node) }
            }
            match world.rng.u32(0..12_000) {
                0 => world.hosts[i].stopped_until = world.now + world.rng.u64(0..8000),
                1 => {
                    let rate = world.hosts[i].rate;
                    world.hosts[i] = world.host(i, rate);
                }
                2 => world.away_until = world.now + world.rng.u64(0..6000),
                3 => world.hosts[i].claimant.give_up(None),
                4 => world.hosts[i].claimant.give_up(Some(name((i + 1) % 3))),
                5 => world.cut_off(i),
                6 if seed % 2 == 0 => world.revoke(),
                _ => {}
            }
            world.step();
        }
        world.away_until = 0;
        for host in &mut world.hosts {
            (host.stopped_until, host.is_cut_off) = (0, false);
        }
        world.calm(12_000);
        assert!(world.leader().is_some(), "seed {seed}: nobody leads in the end");
        elected += world.elected;
    }
    assert!(elected > 300, "{elected}");
}

// Promise: one-leading-host, seen to fail
#[test]
fn host_whose_lease_ended_too_early_grants_nothing_beside_the_next_one() {
    let mut world = World::new(5, 2);
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
        let mut world = World::new(5, 3);
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
    let mut world = World::new(5, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    let lasts = |world: &World| world.hosts[first].leads.map(|until| until - world.clock(world.hosts[first].rate));
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
    let mut world = World::new(6, 2);
    world.calm(5000);
    let first = world.leader().expect("a host leads");
    world.cut_off(first);
    world.calm(3000);
    assert_eq!((world.leader(), world.leads(first)), (Some(1 - first), false));
}

// Promise: directory-by-etcd, seen to fail
#[test]
fn node_stands_in_etcd_where_an_answer_was_lost_and_a_request_came_late() {
    let mut world = World::new(7, 1);
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
                let Some((_, late @ Letter::Ask { request: Request::Write { .. }, .. })) = late else {
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
        assert!(world.attached.contains(&node) && world.etcd.nodes.contains(&node), "{:?}", world.etcd.nodes);
    }
    assert_eq!(world.elected, 1, "it leads all the time");
}

// Promise: directory-by-etcd, seen to fail
#[test]
fn node_is_attached_while_others_come_and_go_all_the_time() {
    let mut world = World::new(8, 1);
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
    let mut world = World::new(9, 1);
    world.calm(5000);
    assert!(world.attached.contains(&name(7)));
    world.etcd.nodes.clear();
    world.etcd.leader = None;
    world.calm(5000);
    assert_eq!((world.elected, world.etcd.nodes.contains(&name(7))), (2, true));
}

// Promise: directory-by-etcd, seen to fail
#[test]
fn heir_leads_at_once_and_a_host_that_ends_leaves_no_lease() {
    let mut world = World::new(1, 3);
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
    assert!(world.hosts[heir].claimant.has_ended() && world.etcd.leases.len() == 2);
    assert!(world.leader().is_some_and(|leader| leader != heir));
}

// Promise: directory-by-etcd
#[test]
fn another_host_leads_when_one_has_died_and_not_before_its_lease_has_ended() {
    let mut world = World::new(2, 2);
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
        let mut world = World::new(3, 1);
        world.calm(2000);
        assert_eq!(world.leader(), Some(0));
        world.etcd.leader = match deletes {
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
    let mut world = World::new(4, 1);
    world.calm(2000);
    let names: Vec<_> = (0..250).map(name).collect();
    world.hosts[0].members = Members { version: 90, names: names.clone(), newest: 1 << 32 };
    world.calm(100);
    assert_eq!(world.etcd.nodes.iter().cloned().collect::<BTreeSet<_>>(), names.into_iter().collect());
    world.hosts[0].members = Members { version: 91, names: vec![name(3)], newest: 7 << 32 };
    world.calm(100);
    assert_eq!((world.etcd.nodes.len(), world.etcd.newest), (1, 7 << 32));
}
