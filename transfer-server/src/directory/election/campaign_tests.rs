//! Elections with virtual clocks: hosts that stop, restart, run fast or slow, and messages that are late or lost.

use super::*;
use fastrand::Rng;
use std::collections::BTreeMap;

const LEASE: Duration = Duration::from_secs(2);

/// How much faster or slower a clock may run, in parts of a thousand. Promises allow for more.
const DRIFT: u64 = 50;

struct Host {
    campaign: Campaign,
    /// Its clock's rate, in parts of a thousand, and the moment at which its clock started, in real time.
    rate: u64,
    /// It does nothing before this, in real time.
    stopped_until: u64,
    due: Instant,
    /// Until when it believes to lead, by its clock.
    leads: Option<Instant>,
    /// What others know of the members.
    known: u64,
}

enum Letter {
    Ask { to: usize, from: usize, number: u64, ballot: Ballot },
    Answer { to: usize, from: usize, number: u64, vote: Vote },
}

struct World {
    rng: Rng,
    start: Instant,
    /// In ms of real time.
    now: u64,
    hosts: Vec<Host>,
    incarnation: u64,
    letters: BTreeMap<(u64, u64), Letter>,
    /// Hosts that reach nobody.
    cut: Vec<bool>,
    /// No letter is lost, and each takes this long, in ms.
    calm: Option<u64>,
    sent: u64,
    elected: u64,
    members: Members,
}

fn name(i: usize) -> Name {
    Name::new(&format!("n{i}")).unwrap()
}

impl World {
    fn new(seed: u64, count: usize) -> World {
        let (start, rng) = (Instant::now(), Rng::with_seed(seed));
        // Of the pauses of the hosts.
        fastrand::seed(seed);
        let members = Members { version: 1, names: vec![name(7)], newest: 5 };
        let mut world = World {
            rng,
            start,
            now: 0,
            hosts: Vec::new(),
            incarnation: 0,
            letters: BTreeMap::new(),
            cut: vec![false; count],
            calm: None,
            sent: 0,
            elected: 0,
            members,
        };
        for i in 0..count {
            let rate = 1000 - DRIFT + world.rng.u64(0..=2 * DRIFT);
            let campaign = world.campaign(i, rate, count);
            let due = world.clock(rate);
            world.hosts.push(Host { campaign, rate, stopped_until: 0, due, leads: None, known: 0 });
        }
        world
    }

    fn clock(&self, rate: u64) -> Instant {
        self.start + Duration::from_micros(self.now * rate)
    }

    fn campaign(&mut self, i: usize, rate: u64, count: usize) -> Campaign {
        self.incarnation += 1;
        let me = Candidate { node: name(i), incarnation: self.incarnation };
        Campaign::new(self.clock(rate), me, (i as u32, count), LEASE)
    }

    fn send(&mut self, letter: Letter) {
        let late = match self.rng.u32(0..20) {
            _ if self.calm.is_some() => self.calm.unwrap_or(0),
            0 => self.rng.u64(0..6000),
            1..4 => self.rng.u64(0..400),
            _ => self.rng.u64(0..5),
        };
        self.sent += 1;
        if self.calm.is_some() || self.rng.u32(0..30) > 0 {
            self.letters.insert((self.now + 1 + late, self.sent), letter);
        }
    }

    fn act(&mut self, i: usize, effects: Vec<BallotEffect>) {
        for effect in effects {
            match effect {
                Effect::Ask((number, ballot)) => {
                    for to in (0..self.hosts.len()).filter(|to| *to != i) {
                        self.send(Letter::Ask { to, from: i, number, ballot: ballot.clone() });
                    }
                }
                Effect::Lead { until, awaited, newest, .. } => {
                    self.hosts[i].leads = Some(until);
                    self.elected += 1;
                    // The host that led before has told more than half of the hosts. A restarted host has forgotten it.
                    let was_known = self.hosts.iter().any(|host| host.known > 0);
                    assert!(!was_known || awaited.contains(&name(7)) && newest >= 5, "{awaited:?} {newest}");
                }
                Effect::Renew { until, known } => {
                    self.hosts[i].leads = Some(until);
                    self.hosts[i].known = known;
                }
                Effect::StandBy => self.hosts[i].leads = None,
            }
        }
    }

    fn poll(&mut self, i: usize) {
        let mut effects = Vec::new();
        let (now, members) = (self.clock(self.hosts[i].rate), self.members.clone());
        self.hosts[i].due = self.hosts[i].campaign.poll(now, &members, &mut effects);
        self.act(i, effects);
    }

    /// Plays one ms.
    fn step(&mut self) {
        self.now += 1;
        while let Some(entry) = self.letters.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let letter = entry.remove();
            let (to, from) = match &letter {
                Letter::Ask { to, from, .. } => (*to, *from),
                Letter::Answer { to, from, .. } => (*to, *from),
            };
            if self.cut[to] || self.cut[from] {
                continue;
            }
            if self.hosts[to].stopped_until > self.now {
                let at = self.hosts[to].stopped_until;
                self.sent += 1;
                self.letters.insert((at, self.sent), letter);
                continue;
            }
            match letter {
                Letter::Ask { to, from, number, ballot } => {
                    let now = self.clock(self.hosts[to].rate);
                    let vote = self.hosts[to].campaign.vote(now, &ballot);
                    self.send(Letter::Answer { to: from, from: to, number, vote });
                    self.poll(to);
                }
                Letter::Answer { to, from, number, vote } => {
                    let mut effects = Vec::new();
                    self.hosts[to].campaign.answered(&name(from), number, vote, &mut effects);
                    self.act(to, effects);
                    self.poll(to);
                }
            }
        }
        for i in 0..self.hosts.len() {
            let host = &self.hosts[i];
            if host.stopped_until <= self.now && host.due <= self.clock(host.rate) {
                self.poll(i);
            }
        }
        let leading = |host: &&Host| host.leads.is_some_and(|until| self.clock(host.rate) < until);
        let leaders = self.hosts.iter().filter(leading).count();
        assert!(leaders <= 1, "{leaders} hosts lead at {} ms", self.now);
    }

    /// Returns the host that leads.
    fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| host.leads.is_some_and(|until| self.clock(host.rate) < until))
    }

    /// Stops, restarts, cuts off or heals a host, or has it give up.
    fn disturb(&mut self) {
        let i = self.rng.usize(0..self.hosts.len());
        match self.rng.u32(0..5) {
            0 => self.hosts[i].stopped_until = self.now + self.rng.u64(0..5000),
            1 => self.cut[i] = true,
            2 => self.cut.fill(false),
            3 => {
                let heir = Some(name(self.rng.usize(0..self.hosts.len()))).filter(|_| self.rng.bool());
                self.hosts[i].campaign.give_up(heir);
                self.poll(i);
            }
            _ => {
                let rate = self.hosts[i].rate;
                let campaign = self.campaign(i, rate, self.hosts.len());
                let (due, leads) = (self.clock(rate), None);
                self.hosts.iter_mut().for_each(|host| host.known = 0);
                self.hosts[i] = Host { campaign, rate, stopped_until: 0, due, leads, known: 0 };
                // What was on the way to it is lost; and what it has answered, because it has forgotten what it heard.
                self.letters
                    .retain(|_, letter| !matches!(letter, Letter::Answer { to, from, .. } if *to == i || *from == i));
            }
        }
    }
}

// Promise: one-leading-host, seen to fail
#[test]
fn at_most_one_host_leads_whatever_stops_restarts_or_is_cut_off() {
    let mut elected = 0;
    for seed in 0..400 {
        let mut world = World::new(seed, if seed % 2 == 0 { 3 } else { 5 });
        while world.now < 40_000 {
            if world.rng.u32(0..1500) == 0 {
                world.disturb();
            }
            world.step();
        }
        elected += world.elected;
    }
    assert!(elected > 1000, "{elected} elections are too few to say anything");
}

// Promise: directory-takeover
#[test]
fn another_host_leads_soon_after_one_has_died() {
    for seed in 0..200 {
        let mut world = World::new(seed, if seed % 2 == 0 { 3 } else { 5 });
        while world.leader().is_none() {
            world.step();
            assert!(world.now < 10_000, "seed {seed}: nobody leads");
        }
        for _ in 0..3000 {
            world.step();
        }
        let Some(first) = world.leader() else { continue };
        world.hosts[first].stopped_until = u64::MAX;
        let died = world.now;
        while world.leader().is_none_or(|at| at == first) {
            world.step();
            assert!(world.now < died + 20_000, "seed {seed}: nobody has taken over");
        }
    }
}

// Promise: directory-move, seen to fail
#[test]
fn a_host_that_gives_up_is_followed_at_once_and_by_the_heir_that_it_has_named() {
    for seed in 0..200 {
        let count = if seed % 2 == 0 { 3 } else { 5 };
        let (mut world, delay) = (World::new(seed, count), if seed % 4 < 2 { 5 } else { 60 });
        world.calm = Some(delay);
        for _ in 0..10_000 {
            world.step();
        }
        let first = world.leader().expect("it is calm");
        let heir = (first + 1 + world.rng.usize(0..count - 1)) % count;
        let named = seed % 3 > 0;
        world.hosts[first].campaign.give_up(named.then(|| name(heir)));
        world.poll(first);
        assert_eq!(world.hosts[first].leads, None, "it answers no more before it says so");
        let gave_up = world.now;
        while world.leader().is_none() {
            world.step();
            assert!(world.now < gave_up + 4 * delay + 30, "seed {seed}: nobody follows");
        }
        assert!(!named || world.leader() == Some(heir), "seed {seed}");
        let second = world.leader().expect("somebody follows");
        assert_ne!(second, first);
        // And back, before the first one has rested.
        for _ in 0..300 {
            world.step();
        }
        world.hosts[second].campaign.give_up(Some(name(first)));
        world.poll(second);
        let gave_up = world.now;
        while world.leader() != Some(first) {
            world.step();
            assert!(world.now < gave_up + 4 * delay + 30, "seed {seed}: it does not come back");
        }
    }
}

/// An heir that is dead delays the others by half a lease.
// Promise: directory-move
#[test]
fn another_host_leads_if_the_heir_is_dead() {
    let mut world = World::new(3, 3);
    world.calm = Some(5);
    for _ in 0..10_000 {
        world.step();
    }
    let first = world.leader().expect("it is calm");
    let heir = (first + 1) % 3;
    world.hosts[heir].stopped_until = u64::MAX;
    world.hosts[first].campaign.give_up(Some(name(heir)));
    world.poll(first);
    let gave_up = world.now;
    while world.leader().is_none() {
        world.step();
        assert!(world.now < gave_up + 3_000, "nobody follows");
    }
    assert_eq!(world.leader(), Some(3 - first - heir));
}

/// A host that has voted for itself follows the one that leads, so that it can name it, and be named by it.
#[test]
fn all_hosts_know_the_one_that_leads() {
    for seed in 0..100 {
        let mut world = World::new(seed, if seed % 2 == 0 { 3 } else { 5 });
        world.calm = Some(5);
        for _ in 0..15_000 {
            world.step();
        }
        let leader = name(world.leader().expect("it is calm"));
        for host in &world.hosts {
            assert_eq!(host.campaign.leads(world.clock(host.rate)), Some(&leader), "seed {seed}");
        }
    }
}

/// The members are known although one node after the other attaches, and a vote takes longer than the pause between two rounds.
#[test]
fn members_become_known_while_others_attach() {
    let mut world = World::new(1, 3);
    world.calm = Some(50);
    for _ in 0..10_000 {
        world.step();
    }
    let leader = world.leader().expect("it is calm");
    let before = world.hosts[leader].known;
    for _ in 0..2_000 {
        world.members.version += 1;
        world.step();
        world.poll(leader);
    }
    let known = world.hosts[leader].known;
    assert!(known > before + 1_000, "{known} of {} are known, {before} before", world.members.version);
}
