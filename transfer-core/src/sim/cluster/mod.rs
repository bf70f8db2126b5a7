//! Whole clusters of sidecars under random schedules: a few nodes, their workers, a directory, one simulated world.
//!
//! # Layout
//! - `play`: the kind of a schedule.
//! - `script`: the cluster of a seed, and the actions of its workers.
//! - `worker`: a worker's own view: its operations and its leases; every reply is checked against it.
//! - `board`: a model of the boards.
//! - `content`: bytes that identify the push that they came from.
//! - `counting`: counters and barriers, and the checks of their results.
//! - `directory`: a small model of the directory, with delays.
//! - `rosters`: sharded states, and the checks of what their rosters say.
//! - `peering`: how links are made.
//! - `into`: fetches into the memory of workers.
//! - `disk`: the ends of writes and reads of disks. `deltas`: deltas that are lent and applied. `bases`: bases that are lent. `spreads`: digests of versions, and damage.
//! - `end`: the checks after all workers have gone.
//! - `references`: which node keeps which segment of a peer.
//! - `tally`: what a schedule has done.
//! - `faults`: restarts of sidecars and of the directory, clocks that jump, links that are made twice.
//!
//! [`run`] plays one seed. It ends with the first error.

mod bases;
mod board;
mod calls;
mod content;
mod counting;
mod deltas;
mod directory;
mod disk;
mod end;
mod faults;
mod into;
mod notices;
mod peering;
mod play;
mod references;
mod rosters;
mod script;
mod spreads;
mod tally;
mod worker;

use super::{Endpoint, MemoryId, SimDisk, SimFabric, SimMemory, World};
use crate::drive::Driver;
use crate::fabric::{Fabric, LinkId};
use crate::memory::{LocalSlice, RailKeys, SegmentId};
use crate::protocol::HostDone;
use crate::protocol::{Action, Broken, BufferAsk, Control, DirectoryRequest, HostAction, Node, NodeConfig, Tenant};
use crate::rails::{MultiRail, RailsConfig};
use crate::tensor::{Name, Version};
use crate::time::Time;
pub(crate) use board::Board;
use calls::Call;
use content::Pushed;
use deltas::Apply;
use directory::Directory;
use disk::Done;
use peering::Dial;
pub(crate) use play::Play;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use spreads::Digested;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
pub(crate) use tally::Tally;
use worker::Worker;

/// The number of keys that a board takes. A cluster may have more keys.
const PLACES: usize = 3;

/// An event outside of the world of fabrics.
#[derive(Debug)]
enum Happening {
    /// A worker begins an operation.
    Act(usize),
    /// A worker releases a lease: the worker, and the lease's number in its list.
    Release(usize, u64),
    /// A worker uses the memory again into which it has fetched: the worker, and the number of the fetch in its list.
    Reuse(usize, u64),
    Die(usize),
    /// The sidecar takes the requests in a worker's ring.
    TakeRing(usize),
    /// A worker connects, under its old name.
    Connect(usize),
    /// A connection breaks.
    Break,
    /// A rail breaks, but never the last one of its link.
    BreakRail,
    Directory(directory::Letter),
    Peering(Dial),
    Calling(Call),
    /// A sleeping node wakes up.
    WakeUp,
    /// A sidecar dies and is started again.
    Restart(usize),
    /// The directory forgets all keys, and the nodes enter theirs again.
    NewDirectory,
    /// The directory's host dies. All nodes are cut off until it is back.
    DirectoryDown,
    /// A node is cut off from the directory.
    CutOff(usize),
    /// A node is attached to the directory again.
    Attach(usize),
    /// A node's clock jumps.
    Jump(usize),
    /// A node makes a second link to a peer.
    Redial(usize),
    /// The disk of a node is done.
    Disk(usize, Done),
    /// A node applies a delta.
    Apply(usize, Apply),
    /// A node has computed a digest.
    Digest(usize, Digested),
}

/// A sidecar.
struct Sidecar {
    name: Name,
    driver: Driver<MemoryId>,
    memory: SimMemory,
    disk: SimDisk,
    board: Board,
    /// The memory and the tenant of each segment of this node.
    segments: BTreeMap<SegmentId, (MemoryId, Tenant)>,
    /// The segments that belong to peers, and for each the mark of the link over which it came.
    kept: BTreeMap<SegmentId, u64>,
    next_segment: u32,
    /// The configuration with which the sidecar is started, its number of header cells, and its pools.
    config: NodeConfig,
    cells: u64,
    pools: Vec<(Tenant, u64)>,
    endpoint: Endpoint,
    /// The amount by which the sidecar's clock is ahead.
    ahead: Duration,
    asleep_until: Time,
    links: BTreeMap<LinkId, Name>,
    dialing: BTreeMap<Name, u64>,
    /// The peers whose calls were accepted.
    accepted: BTreeSet<Name>,
    receive_slots: u32,
}

struct Cluster {
    world: World,
    rng: SmallRng,
    play: Play,
    now: Time,
    agenda: BTreeMap<(Time, u64), Happening>,
    next_number: u64,
    next_session: u64,
    nodes: Vec<Sidecar>,
    /// For a node and its link: the peer, and the peer's id of the link.
    pairs: BTreeMap<(usize, LinkId), (usize, LinkId)>,
    /// Calls for landing slots that are being answered: the caller, its link, and its requests.
    calls: BTreeMap<u64, (usize, LinkId, Vec<BufferAsk>)>,
    workers: Vec<Worker>,
    directory: Directory,
    pushed: Vec<Pushed>,
    /// For each key the newest version that any worker has found on a board. A later fetch must not get an older one.
    found: BTreeMap<String, Version>,
    keys: Vec<crate::tensor::Key>,
    delay: Duration,
    sizes: Vec<u64>,
    /// The number of rails of each link in calm schedules.
    rails: usize,
    few_names: bool,
    ending: bool,
    tally: Tally,
    counting: counting::Counting,
    rosters: rosters::Rosters,
}

/// Plays one seed. The error says what went wrong.
pub(crate) fn run(seed: u64, play: Play, world_out: &mut Option<World>, record: bool) -> Result<Tally, String> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x7472_616e_7366_6572);
    let mut cluster = script::cluster(seed, &mut rng, play);
    if record {
        cluster.world.record();
    }
    *world_out = Some(cluster.world.clone());
    cluster.play_out()?;
    Ok(cluster.tally)
}

impl Cluster {
    fn add_node(&mut self, config: NodeConfig, cells: u64) -> usize {
        let (sidecar, words) = self.start_node(config, cells);
        self.counting.words.push(words);
        self.nodes.push(sidecar);
        self.nodes.len() - 1
    }

    fn start_node(&mut self, config: NodeConfig, cells: u64) -> (Sidecar, Option<MemoryId>) {
        let (endpoint, fabric) = self.fabric();
        let receive_slots = fabric.capabilities().receive_slots;
        let memory = self.world.memory(usize::try_from(cells * 64).unwrap());
        let headers = LocalSlice { segment: SegmentId(0), offset: 0, len: cells * 64 };
        let name = config.name.clone();
        let node = Node::new(config.clone(), headers);
        let mut driver = Driver::new(node, vec![fabric]);
        driver.register(SegmentId(0), &memory).unwrap();
        let words = driver.atomic_fabric().map(|kind| {
            let words = self.world.memory(usize::try_from(counting::WORDS.len).unwrap());
            driver.register(counting::WORDS.segment, &words).unwrap();
            driver.node.use_words(counting::WORDS, kind);
            words
        });
        let sidecar = Sidecar {
            name,
            driver,
            memory: SimMemory::new(&self.world, endpoint),
            disk: SimDisk::default(),
            board: Board::default(),
            segments: BTreeMap::new(),
            kept: BTreeMap::new(),
            next_segment: 1,
            config,
            cells,
            pools: Vec::new(),
            endpoint,
            ahead: Duration::ZERO,
            asleep_until: Time(0),
            links: BTreeMap::new(),
            dialing: BTreeMap::new(),
            accepted: BTreeSet::new(),
            receive_slots,
        };
        (sidecar, words)
    }

    /// Creates a node's fabric, and the endpoint at which its memory is registered.
    fn fabric(&mut self) -> (Endpoint, Box<dyn Fabric<Memory = MemoryId>>) {
        let endpoint = self.world.endpoint();
        let first = Box::new(SimFabric::new(&self.world, endpoint).with_mistake(self.play.broken));
        if !self.play.rails {
            return (endpoint, first);
        }
        let mut inner: Vec<Box<dyn Fabric<Memory = MemoryId>>> = vec![first];
        if self.rng.random() {
            inner.push(Box::new(SimFabric::new(&self.world, self.world.endpoint())));
        }
        let count = if self.play.calm { self.rails } else { self.rng.random_range(1..=RailKeys::MAX_RAILS) };
        let rails = (0..count).map(|_| self.rng.random_range(0..inner.len())).collect();
        let stripe_bytes = [1, 64, 500][self.rng.random_range(0..3)];
        let mut fabric = MultiRail::new(inner, RailsConfig { rails, stripe_bytes, align_bytes: 64 }).unwrap();
        fabric.set_broken(self.play.broken_rails);
        (endpoint, Box::new(fabric))
    }

    /// Adds a registered segment to a node.
    fn add_segment(&mut self, node: usize, domain: Tenant, len: u64) -> (SegmentId, MemoryId) {
        let memory = self.world.memory(usize::try_from(len).unwrap());
        let n = &mut self.nodes[node];
        let segment = SegmentId(n.next_segment);
        n.next_segment += 1;
        n.driver.register(segment, &memory).unwrap();
        n.segments.insert(segment, (memory, domain));
        (segment, memory)
    }

    fn add_pool(&mut self, node: usize, domain: Tenant, len: u64) {
        let (segment, _) = self.add_segment(node, domain, len);
        let n = &mut self.nodes[node];
        n.driver.node.add_pool(domain, segment, len);
        n.driver.node.add_board(domain, PLACES);
        n.pools.push((domain, len));
    }

    fn later(&mut self, at: Time, what: Happening) {
        self.next_number += 1;
        self.agenda.insert((at.max(self.now), self.next_number), what);
    }

    fn soon(&mut self) -> Time {
        let longest = u64::try_from(self.delay.as_nanos()).unwrap().max(2);
        let n = self.rng.random_range(0..longest);
        Time(self.now.0 + n)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn node_named(&self, name: &Name) -> usize {
        self.nodes.iter().position(|n| n.name == *name).unwrap()
    }

    fn play_out(&mut self) -> Result<(), String> {
        let mut rounds = 0u64;
        loop {
            let awake = |n: &Sidecar| n.driver.node.next_deadline().map(|at| (at - n.ahead).max(n.asleep_until));
            let deadline = self.nodes.iter().filter_map(awake).min();
            let mine = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let next = [deadline, mine, self.world.next_time()].into_iter().flatten().min();
            let Some(next) = next else {
                if self.ending {
                    break;
                }
                self.ending = true;
                self.close_everybody()?;
                continue;
            };
            self.now = self.now.max(next);
            if self.world.next_time() == Some(next) && self.rng.random() {
                self.world.step();
            } else {
                self.world.advance(self.now);
                if self.agenda.first_key_value().is_some_and(|((at, _), _)| *at <= self.now)
                    && let Some((_, what)) = self.agenda.pop_first()
                {
                    self.happen(what)?;
                }
            }
            self.poll_all()?;
            if self.directory.is_news {
                self.check_owners()?;
            }
            rounds += 1;
            if rounds > 400_000 {
                return Err(format!("no end after {rounds} rounds"));
            }
        }
        self.check_end()
    }

    fn happen(&mut self, what: Happening) -> Result<(), String> {
        match what {
            Happening::Act(worker) => self.act(worker)?,
            Happening::Release(worker, lease) => self.release(worker, lease)?,
            Happening::Reuse(worker, number) => self.reuse(worker, number)?,
            Happening::Die(worker) => self.die(worker, "it died"),
            Happening::Connect(worker) => self.ask_to_connect(worker),
            Happening::Break => {
                let count = self.world.connections();
                if count > 0 && !self.ending {
                    let which = self.rng.random_range(0..count);
                    self.world.break_connection(which, "the cable was pulled");
                }
            }
            Happening::BreakRail => {
                let count = self.world.connections();
                if count > 0 && !self.ending {
                    let which = self.rng.random_range(0..count);
                    // The connections of a link were begun one after the other. One of them is spared, a different one
                    // for each link.
                    if which % self.rails != (which / self.rails) % self.rails {
                        self.world.break_connection(which, "a cable was pulled");
                    }
                }
            }
            Happening::Directory(letter) => self.letter(letter)?,
            Happening::Peering(dial) => self.dialing(dial),
            Happening::Calling(call) => self.called(call),
            Happening::TakeRing(worker) => self.take_ring(worker),
            Happening::WakeUp => {}
            Happening::Restart(node) => self.restart(node),
            Happening::NewDirectory => self.new_directory(),
            Happening::DirectoryDown => (0..self.nodes.len()).for_each(|node| self.cut_off(node)),
            Happening::CutOff(node) => self.cut_off(node),
            Happening::Attach(node) => self.attach(node),
            Happening::Jump(node) => self.jump(node),
            Happening::Redial(node) => self.redial(node),
            Happening::Disk(node, done) => self.disk_done(node, done),
            Happening::Apply(node, apply) => return self.apply(node, apply),
            Happening::Digest(node, of) => self.digest(node, of),
        }
        Ok(())
    }

    fn poll_all(&mut self) -> Result<(), String> {
        let first = self.rng.random_range(0..self.nodes.len());
        for i in 0..self.nodes.len() {
            let node = (first + i) % self.nodes.len();
            if self.nodes[node].asleep_until > self.now {
                continue;
            }
            self.poll(node)?;
            if !self.play.calm && !self.ending && self.rng.random_range(0..200) == 0 {
                let until = self.soon() + self.delay;
                self.nodes[node].asleep_until = until;
                self.later(until, Happening::WakeUp);
            }
        }
        self.world.faults().first().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    fn poll(&mut self, node: usize) -> Result<(), String> {
        let now = self.clock(node);
        for _ in 0..1000 {
            let n = &mut self.nodes[node];
            if n.driver.node.next_deadline().is_some_and(|at| at <= now) {
                n.driver.timeout(now);
            }
            let mut actions = VecDeque::new();
            while {
                let n = &mut self.nodes[node];
                n.driver.take_actions(now, &mut n.memory, &mut actions)
            } {
                for action in actions.drain(..) {
                    self.carry_out(node, action)?;
                }
            }
            // The fabrics are polled last, because the actions that were just posted may already be done.
            let n = &mut self.nodes[node];
            let active = n.driver.poll_fabrics(now, &n.memory);
            if !self.answer_asked(node) && !active {
                let n = &mut self.nodes[node];
                return n.driver.node.check().map_err(|e| format!("node {}: {e}", n.name));
            }
        }
        Err(format!("node {} finds no rest", self.nodes[node].name))
    }

    fn carry_out(&mut self, node: usize, mut action: Action) -> Result<(), String> {
        let n = &mut self.nodes[node];
        if let (Some(Broken::ForgetsMarks), Action::Host(HostAction::Withdraw { ticket, .. })) =
            (self.play.broken, &action)
        {
            n.driver.node.withdrawn(*ticket);
        }
        if let Some((segment, memory)) = n.driver.act(&mut action, &mut n.memory) {
            self.segment_kept(node, segment, memory);
        }
        match action {
            Action::Host(action) => self.carry_out_as_host(node, action),
            _ => Ok(()),
        }
    }

    fn carry_out_as_host(&mut self, node: usize, action: HostAction) -> Result<(), String> {
        match action {
            HostAction::Reply { session, reply } => self.reply(node, session, reply),
            HostAction::CloseSession { session, why } => Err(format!("{session:?} is thrown out: {why}")),
            HostAction::SegmentUnused { segment } => self.arena_unused(node, segment),
            HostAction::Show(shown) => {
                self.world.note(|| format!("{node} shows {shown:?}"));
                self.nodes[node].board.show(shown);
                Ok(())
            }
            HostAction::Withdraw { ticket, .. } => {
                self.world.note(|| format!("{node} withdraws {ticket}"));
                let n = &mut self.nodes[node];
                if n.board.withdraw(ticket) {
                    n.driver.node.withdrawn(ticket);
                }
                Ok(())
            }
            HostAction::Prepared { token, answers } => self.answered(token, answers),
            // No schedule has an operator who measures round trips.
            HostAction::Ponged { .. } => Ok(()),
            HostAction::Copy { from, packing, to, tag } => {
                if !self.nodes[node].memory.pack(&from, *packing, to) {
                    return Err(format!("node {node} copies {from:?}, which is not there"));
                }
                let now = self.clock(node);
                self.nodes[node].driver.node.host_done(now, tag, HostDone::Copied);
                Ok(())
            }
            HostAction::Apply { base, delta, to, len, tag } => {
                self.apply_later(node, Apply { base, delta, to, len, tag });
                Ok(())
            }
            HostAction::Digest { of, tag } => self.digest_later(node, Digested { of, tag }),
            HostAction::SpillWrite { id, from, .. } => {
                let well = self.play.calm || self.rng.random_range(0..10) > 0;
                let n = &mut self.nodes[node];
                if well && !n.disk.write(&n.memory, id, &from) {
                    return Err(format!("node {node} writes {from:?}, which is not there"));
                }
                self.tally.spilled += u64::from(well);
                self.after_disk(node, Done::Written(id, well));
                Ok(())
            }
            HostAction::SpillRead { id, packing, to, tag } => {
                let n = &mut self.nodes[node];
                if !n.disk.read(&n.memory, id, *packing, to) {
                    return Err(format!("node {node} reads {id:?} into {to}, one of which is not there"));
                }
                self.tally.read_back += 1;
                self.after_disk(node, Done::Read(tag));
                Ok(())
            }
            HostAction::SpillFree { id } => match self.nodes[node].disk.free(id) {
                true => Ok(()),
                false => Err(format!("node {node} frees {id:?}, which is not there")),
            },
            HostAction::AskReaders { segment, mark } => {
                let read = self.is_referenced(node, segment, mark);
                self.nodes[node].driver.node.readers_answered(segment, mark, read);
                Ok(())
            }
            HostAction::Control(control) => self.control(node, control),
        }
    }

    fn control(&mut self, node: usize, control: Control) -> Result<(), String> {
        self.world.note(|| format!("{node} says {control:?}"));
        match control {
            Control::Connect { peer } => self.dial(node, &peer),
            Control::PrepareBuffers { link, peer, asks } => {
                let to = self.node_named(&peer);
                self.call_for_slots(node, link, to, asks);
            }
            Control::LinkUp { link, peer } => {
                self.tally.links += 1;
                self.nodes[node].dialing.remove(&peer);
                self.nodes[node].links.insert(link, peer);
            }
            Control::LinkFailed { peer, why, .. } => {
                let now = self.clock(node);
                self.nodes[node].driver.node.connect_failed(now, &peer, &why);
            }
            Control::RailDown { link, peer, left, .. } => {
                self.tally.rails_lost += 1;
                if self.nodes[node].links.get(&link) != Some(&peer) || left == 0 {
                    return Err(format!("a rail of {link} is down, {left} are left, and it was not up"));
                }
            }
            Control::LinkDown { link, peer, why } => {
                self.tally.links_lost += 1;
                if self.nodes[node].links.remove(&link) != Some(peer) {
                    return Err(format!("{link} is down and was not up"));
                }
                let honest = self.play.late_packets + self.play.lies == 0;
                if honest && (why.contains("contract") || why.contains("refused by")) {
                    return Err(format!("node {}: {link}: {why}", self.nodes[node].name));
                }
            }
            Control::Event(_) => {}
            Control::SessionClosed { worker, session, .. } => {
                self.workers
                    .iter_mut()
                    .for_each(|w| w.closing = w.closing.filter(|closing| *closing != (node, session)));
                self.tell_directory(node, directory::Said::WorkerDown(worker));
            }
            Control::Claim(claim) => self.tell_directory(node, directory::Said::Claim(claim)),
            Control::Directory(request) => {
                match &request {
                    DirectoryRequest::Resolve { key, newer_than } => self.directory.watch(node, key, *newer_than),
                    DirectoryRequest::StopResolve { key } => self.directory.unwatch(node, key),
                    DirectoryRequest::Unclaim { .. }
                    | DirectoryRequest::Recited
                    | DirectoryRequest::ResolveWorker { .. } => {}
                }
                self.tell_directory(node, directory::Said::Request(request));
            }
        }
        Ok(())
    }
}
