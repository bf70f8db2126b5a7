//! Hosts with virtual clocks that run fast or slow, and a coordinator: hosts that stop and restart, requests and answers that are late or
//! lost, a coordinator that is away, a member of it that is cut off, a lease that ends too early, a record that another program deletes.

use super::claimant::{Answer, Claimant, Request};
use super::record::Record;
use crate::directory::election::{Effect, Members};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// How long leases last.
pub(super) const TTL: Duration = Duration::from_secs(2);

/// When a world begins, in ms since 1970.
const BEGIN_MS: u64 = 1_700_000_000_000;

/// How far from each other the hosts' clocks may be, in ms.
const SKEW_MS: u64 = 3_600_000;

/// What comes next in a request: a call of the coordinator, or the answer.
pub(super) enum Step<Call> {
    Call(Call),
    Answer(Answer),
}

/// A coordinator in memory.
pub(super) trait Fake: Default {
    /// A host's end.
    type Client: Default;
    type Call;
    type Reply;

    /// `now_ms`: since 1970.
    fn begin(client: &mut Self::Client, now: Instant, now_ms: u64, request: &Request) -> Step<Self::Call>;
    fn answered(client: &mut Self::Client, now: Instant, now_ms: u64, reply: Self::Reply) -> Step<Self::Call>;
    /// Does what is due. `now` is in ms of its own time.
    fn expire(&mut self, now: u64);
    fn done(&mut self, call: &Self::Call, now: u64) -> Self::Reply;
    /// What a member answers that is cut off.
    fn answer_of_cut_off(call: &Self::Call) -> Option<Self::Reply>;
    /// Whether the call writes nodes, or who leads.
    fn is_of_lead(call: &Self::Call) -> bool;
    /// Another program ends the lead of the host that has it.
    fn revoke(&mut self) -> bool;
    /// A member is cut off, and another one leads.
    fn lose_member(&mut self, now: u64);
    fn nodes(&self) -> BTreeSet<Name>;
    fn newest(&self) -> u64;
    fn is_at(&self, term: u64) -> bool;
}

/// How much faster or slower than the coordinator's a clock may run, in parts of a thousand: two differ by twice that.
const DRIFT: u64 = 60;

pub(super) fn name(i: usize) -> Name {
    Name::new(&format!("n{i}")).unwrap()
}

pub(super) fn record(i: usize, incarnation: u64) -> Record {
    Record { node: name(i), address: format!("h{i}:1"), incarnation, leads: false }
}

pub(super) struct Host<F: Fake> {
    pub(super) claimant: Claimant,
    client: F::Client,
    /// How far its clock is ahead of the others, in ms.
    skew: u64,
    pub(super) rate: u64,
    pub(super) stopped_until: u64,
    /// The request under way by its number, and when it is given up.
    asks: Option<(u64, Instant)>,
    pub(super) leads: Option<Instant>,
    /// Before this it grants nothing new, though it leads.
    grants_from: Option<Instant>,
    pub(super) members: Members,
    /// The version that the next host will know.
    pub(super) known: u64,
    /// The nodes that attach, each with the version that has it.
    attaching: Vec<(Name, u64)>,
    /// The member of the coordinator that it asks is cut off.
    pub(super) is_cut_off: bool,
}

pub(super) enum Letter<F: Fake> {
    Ask { from: usize, number: u64, call: F::Call },
    Answer { to: usize, number: u64, reply: F::Reply },
}

pub(super) struct World<F: Fake> {
    pub(super) rng: Rng,
    start: Instant,
    /// In ms of the coordinator's time.
    pub(super) now: u64,
    pub(super) coordinator: F,
    pub(super) hosts: Vec<Host<F>>,
    pub(super) letters: BTreeMap<(u64, u64), Letter<F>>,
    numbers: u64,
    incarnations: u64,
    pub(super) away_until: u64,
    is_calm: bool,
    pub(super) elected: u64,
    /// The nodes that some host has attached.
    pub(super) attached: BTreeSet<Name>,
    /// Another program has ended a lead, so two hosts may lead, of which one grants nothing.
    pub(super) has_revoked: bool,
    /// How many answers to requests to write nodes, or to lead, are to be lost.
    pub(super) loses: u32,
}

impl<F: Fake> World<F> {
    pub(super) fn new(seed: u64, count: usize) -> Self {
        let rng = Rng::with_seed(seed);
        let mut world = World {
            rng,
            start: Instant::now(),
            now: 0,
            coordinator: F::default(),
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
            let skew = world.rng.u64(0..=SKEW_MS);
            let host = world.host(i, rate, skew);
            world.hosts.push(host);
        }
        world
    }

    pub(super) fn clock(&self, rate: u64) -> Instant {
        self.start + Duration::from_micros(self.now * rate)
    }

    fn host(&mut self, i: usize, rate: u64, skew: u64) -> Host<F> {
        self.incarnations += 1;
        let claimant = Claimant::new(self.clock(rate), record(i, self.incarnations), TTL);
        Host {
            claimant,
            client: F::Client::default(),
            skew,
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

    fn now_ms(&self, i: usize) -> u64 {
        BEGIN_MS + self.hosts[i].skew + self.now * self.hosts[i].rate / 1000
    }

    /// Sends the next call of a request, or has its answer.
    fn go_on(&mut self, i: usize, number: u64, step: Step<F::Call>) {
        match step {
            Step::Call(call) => self.send(Letter::Ask { from: i, number, call }),
            Step::Answer(answer) => self.answer(i, answer),
        }
    }

    fn send(&mut self, letter: Letter<F>) {
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
                    let now_ms = self.now_ms(i);
                    let step = F::begin(&mut self.hosts[i].client, now, now_ms, &request);
                    self.go_on(i, number, step);
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
                            self.coordinator.newest() + (1 << 31) >= newest
                                || !self.coordinator.is_at(self.hosts[i].claimant.term())
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
    pub(super) fn attach(&mut self, i: usize, node: Name) {
        let host = &mut self.hosts[i];
        if !host.members.names.contains(&node) {
            host.members.names.push(node.clone());
        }
        host.members.version += 1;
        host.attaching.push((node, host.members.version));
    }

    /// A node leaves.
    pub(super) fn detach(&mut self, i: usize, node: &Name) {
        let host = &mut self.hosts[i];
        host.members.names.retain(|name| name != node);
        host.members.version += 1;
        host.attaching.retain(|(name, _)| name != node);
        self.attached.remove(node);
    }

    /// Whether a host leads.
    pub(super) fn leads(&self, i: usize) -> bool {
        self.hosts[i].leads.is_some_and(|until| self.clock(self.hosts[i].rate) < until)
    }

    /// Whether a host grants something new.
    pub(super) fn grants(&self, i: usize) -> bool {
        self.leads(i) && self.hosts[i].grants_from.is_none_or(|from| self.clock(self.hosts[i].rate) >= from)
    }

    /// Another program ends the lead of the host that has it, which is alive.
    pub(super) fn revoke(&mut self) {
        self.has_revoked |= self.coordinator.revoke();
    }

    /// A host restarts.
    pub(super) fn restart(&mut self, i: usize) {
        let (rate, skew) = (self.hosts[i].rate, self.hosts[i].skew);
        self.hosts[i] = self.host(i, rate, skew);
    }

    /// The member that a host asks is cut off.
    pub(super) fn cut_off(&mut self, i: usize) {
        self.hosts[i].is_cut_off = true;
        self.coordinator.lose_member(self.now);
    }

    pub(super) fn step(&mut self) {
        self.now += 1;
        self.coordinator.expire(self.now);
        while let Some(entry) = self.letters.first_entry().filter(|entry| entry.key().0 <= self.now) {
            match entry.remove() {
                // Nobody hears it.
                Letter::Ask { .. } if self.now < self.away_until => {}
                Letter::Ask { from, number, call } if self.hosts[from].is_cut_off => {
                    if let Some(reply) = F::answer_of_cut_off(&call) {
                        self.send(Letter::Answer { to: from, number, reply });
                    }
                }
                Letter::Ask { from, number, call } => {
                    let reply = self.coordinator.done(&call, self.now);
                    if self.loses > 0 && F::is_of_lead(&call) {
                        self.loses -= 1;
                        continue;
                    }
                    self.send(Letter::Answer { to: from, number, reply });
                }
                Letter::Answer { to, number, reply } => self.take_reply(to, number, reply),
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
                self.answer(i, Answer::Failed("no answer".to_owned()));
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

    fn take_reply(&mut self, i: usize, number: u64, reply: F::Reply) {
        if self.hosts[i].asks.is_none_or(|(asked, _)| asked != number) {
            return;
        }
        // A stopped process reads it when it goes on.
        if self.now < self.hosts[i].stopped_until {
            let at = self.hosts[i].stopped_until;
            self.numbers += 1;
            self.letters.insert((at, self.numbers), Letter::Answer { to: i, number, reply });
            return;
        }
        let (now, now_ms) = (self.clock(self.hosts[i].rate), self.now_ms(i));
        let step = F::answered(&mut self.hosts[i].client, now, now_ms, reply);
        self.go_on(i, number, step);
    }

    fn answer(&mut self, i: usize, answer: Answer) {
        self.hosts[i].asks = None;
        let (mut effects, now) = (Vec::new(), self.clock(self.hosts[i].rate));
        self.hosts[i].claimant.answered(now, answer, &mut effects);
        self.act(i, effects);
    }

    pub(super) fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| host.leads.is_some())
    }

    pub(super) fn calm(&mut self, ms: u64) {
        self.is_calm = true;
        (0..ms).for_each(|_| self.step());
    }
}

/// Hosts and messages at random: no two hosts lead, and one does in the end. Returns how often one was elected.
pub(super) fn play_at_random<F: Fake>() -> u64 {
    let mut elected = 0;
    for seed in 0..60 {
        let mut world = World::<F>::new(seed, 3);
        for _ in 0..60_000 {
            let i = world.rng.usize(0..3);
            // Nodes come and go.
            if world.rng.u32(0..200) == 0 && world.grants(i) {
                let node = name(world.rng.usize(0..7));
                if world.attached.contains(&node) { world.detach(i, &node) } else { world.attach(i, node) }
            }
            match world.rng.u32(0..12_000) {
                0 => world.hosts[i].stopped_until = world.now + world.rng.u64(0..8000),
                1 => world.restart(i),
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
    elected
}
