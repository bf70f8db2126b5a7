//! Hosts with virtual clocks that run fast or slow, and an etcd: hosts that stop and restart, requests and answers that are late or
//! lost, an etcd that is away, a key that another program deletes.

use super::claimant::{Answer, Claimant, Request};
use super::outlook::{Held, Seen};
use super::record::Record;
use crate::directory::election::{Effect, Members};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

const TTL: Duration = Duration::from_secs(2);

/// How much faster or slower than etcd's a clock may run, in parts of a thousand.
const DRIFT: u64 = 50;

fn name(i: usize) -> Name {
    Name::new(&format!("n{i}")).unwrap()
}

fn record(i: usize, incarnation: u64) -> Record {
    Record { node: name(i), address: format!("h{i}:1"), incarnation, leads: false }
}

#[derive(Default)]
struct FakeEtcd {
    revision: u64,
    leases: BTreeMap<i64, u64>,
    next_lease: i64,
    leader: Option<(Record, i64, u64)>,
    hosts: BTreeMap<Name, (Record, i64)>,
    nodes: BTreeSet<Name>,
    newest: u64,
}

impl FakeEtcd {
    fn expire(&mut self, now: u64) {
        self.leases.retain(|_, until| now < *until);
        let leases = &self.leases;
        self.hosts.retain(|_, (_, lease)| leases.contains_key(lease));
        self.leader.take_if(|(_, lease, _)| !leases.contains_key(lease));
    }

    fn is_at(&self, term: u64) -> bool {
        self.leader.as_ref().map_or(0, |(.., revision)| *revision) == term
    }

    fn done(&mut self, request: &Request, now: u64) -> Answer {
        let until = now + TTL.as_millis() as u64;
        match request {
            Request::Grant { ttl } => {
                self.next_lease += 1;
                self.leases.insert(self.next_lease, until);
                Answer::Granted { lease: self.next_lease, ttl: *ttl }
            }
            Request::Renew { lease } => match self.leases.get_mut(lease) {
                Some(ends) => {
                    *ends = until;
                    Answer::Renewed { ttl: TTL }
                }
                None => Answer::LeaseGone,
            },
            Request::Revoke { lease } => {
                self.leases.remove(lease);
                self.expire(now);
                Answer::LeaseGone
            }
            Request::Look { register } => {
                if let Some((me, lease)) = register {
                    if !self.leases.contains_key(lease) {
                        return Answer::LeaseGone;
                    }
                    self.hosts.insert(me.node.clone(), (me.clone(), *lease));
                }
                let held = self.leader.as_ref().map(|(by, _, term)| Held { by: Ok(by.clone()), term: *term });
                Answer::Seen(Seen { held, hosts: self.hosts.values().cloned().collect() })
            }
            Request::Claim { lease, .. } if !self.leases.contains_key(lease) => Answer::LeaseGone,
            Request::Claim { over: term, .. } | Request::Write { term, .. } | Request::Release { term, .. }
                if !self.is_at(*term) =>
            {
                Answer::Outdated
            }
            Request::Claim { me, lease, .. } => {
                self.revision += 1;
                self.leader = Some((me.clone(), *lease, self.revision));
                let nodes = self.nodes.iter().cloned().collect();
                Answer::Claimed { term: self.revision, nodes, newest: self.newest }
            }
            Request::Write { puts, deletes, newest, .. } => {
                self.revision += 1;
                self.nodes.extend(puts.iter().cloned());
                self.nodes.retain(|node| !deletes.contains(node));
                self.newest = newest.unwrap_or(self.newest);
                Answer::Done
            }
            Request::Release { heir: Some((heir, lease)), .. } => {
                if self.hosts.get(&heir.node).is_none_or(|(_, has)| has != lease) {
                    return Answer::Outdated;
                }
                self.revision += 1;
                self.leader = Some((heir.clone(), *lease, self.revision));
                Answer::Done
            }
            Request::Release { heir: None, .. } => {
                self.revision += 1;
                self.leader = None;
                Answer::Done
            }
        }
    }
}

struct Host {
    claimant: Claimant,
    rate: u64,
    stopped_until: u64,
    /// The request under way by its number, and when it is given up.
    asks: Option<(u64, Instant)>,
    leads: Option<Instant>,
    members: Members,
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
    /// Some host has been told that the next one will know the node.
    is_known: bool,
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
            is_known: false,
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
        Host { claimant, rate, stopped_until: 0, asks: None, leads: None, members: Members::default() }
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
                Effect::Lead { until, awaited, newest } => {
                    assert!(!self.is_known || awaited.contains(&name(7)), "{awaited:?}");
                    self.hosts[i].leads = Some(until);
                    self.elected += 1;
                    // As the directory does: it has whom it awaits, numbers go on, and a node attaches.
                    let mut names = awaited;
                    names.insert(name(7));
                    let version = self.hosts[i].members.version + 1;
                    self.hosts[i].members =
                        Members { version, names: names.into_iter().collect(), newest: newest + (1 << 32) };
                }
                Effect::Renew { until, known } => {
                    self.hosts[i].leads = Some(until);
                    if known > 0 && known == self.hosts[i].members.version {
                        self.is_known = true;
                        let newest = self.hosts[i].members.newest;
                        assert!(
                            self.etcd.newest + (1 << 31) >= newest || !self.etcd.is_at(self.hosts[i].claimant.term())
                        );
                    }
                }
                Effect::StandBy => self.hosts[i].leads = None,
            }
        }
    }

    fn step(&mut self) {
        self.now += 1;
        self.etcd.expire(self.now);
        while let Some(entry) = self.letters.first_entry().filter(|entry| entry.key().0 <= self.now) {
            match entry.remove() {
                // Nobody hears it.
                Letter::Ask { .. } if self.now < self.away_until => {}
                Letter::Ask { from, number, request } => {
                    let answer = self.etcd.done(&request, self.now);
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
                self.answer(i, None, Answer::Failed("no answer".to_owned()));
            }
            let (mut effects, members) = (Vec::new(), self.hosts[i].members.clone());
            self.hosts[i].claimant.poll(now, &members, &mut effects);
            self.act(i, effects);
        }
        let leads = |host: &&Host| host.leads.is_some_and(|until| self.clock(host.rate) < until);
        assert!(self.hosts.iter().filter(leads).count() <= 1, "two hosts lead at {}", self.now);
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
            match world.rng.u32(0..12_000) {
                0 => world.hosts[i].stopped_until = world.now + world.rng.u64(0..8000),
                1 => {
                    let rate = world.hosts[i].rate;
                    world.hosts[i] = world.host(i, rate);
                }
                2 => world.away_until = world.now + world.rng.u64(0..6000),
                3 => world.hosts[i].claimant.give_up(None),
                4 => world.hosts[i].claimant.give_up(Some(name((i + 1) % 3))),
                _ => {}
            }
            world.step();
        }
        world.away_until = 0;
        world.hosts.iter_mut().for_each(|host| host.stopped_until = 0);
        world.calm(12_000);
        assert!(world.leader().is_some(), "seed {seed}: nobody leads in the end");
        elected += world.elected;
    }
    assert!(elected > 300, "{elected}");
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
