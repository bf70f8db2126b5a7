//! Two nodes over a calm simulated fabric, with a directory that answers at once.

use crate::drive::Driver;
use crate::fabric::{FabricKind, LinkId};
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{
    Answer, Command, Deltas, Failure, FailureCode, Fetch, FetchedTensor, LeaseId, OpId, Push, Reply, Request, Reserve,
};
use crate::plan::GatherList;
use crate::protocol::HostDone;
use crate::protocol::{
    Action, Claim, ClaimRefused, Control, DirectoryRequest, HostAction, Node, NodeConfig, NodeEvent, PassedOver,
    PeerInfo, PushRead, SessionId, Tenant, Vouches,
};
use crate::sim::cluster::Board;
use crate::sim::{Conditions, MemoryId, SimDisk, SimFabric, SimMemory, World};
use crate::tensor::{DType, Excerpt, Key, Name, Packing, Retention, Select, TensorMeta, Version};
use crate::time::Time;
use crate::wire::ranges::ArenaRange;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(super) const ARENA_BYTES: u64 = 1 << 17;
pub(super) const POOL_BYTES: u64 = 1 << 14;

pub(super) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn bytes(n: u64) -> TensorMeta {
    TensorMeta::of(DType::U8, &[n]).unwrap()
}

/// A worker of one of the two nodes.
#[derive(Clone, Copy)]
pub(super) struct Worker {
    pub(super) session: SessionId,
    pub(super) node: usize,
    pub(super) arena: MemoryId,
}

pub(super) struct Pair {
    pub(super) world: World,
    pub(super) nodes: [Driver<MemoryId>; 2],
    pub(super) memories: [SimMemory; 2],
    next: u64,
    sequence: u64,
    owners: BTreeMap<String, (Name, usize, u64)>,
    /// For each key, the tenant that claimed it first.
    tenants: BTreeMap<String, Name>,
    workers: BTreeMap<String, usize>,
    watches: Vec<(usize, Key, u64)>,
    replies: Vec<(SessionId, Reply)>,
    /// Whether copies are kept in `copies` until [`Pair::copy_all`].
    pub(super) hold_copies: bool,
    copies: Vec<(usize, GatherList, Packing, LocalSlice, u64)>,
    /// The current link of each node.
    pub(super) links: [Option<LinkId>; 2],
    pub(super) downs: Vec<String>,
    pub(super) events: [Vec<NodeEvent>; 2],
    /// The board of both nodes. A test that needs one calls `add_board`.
    pub(super) board: Board,
    /// The segments that are reported as unused.
    pub(super) unused: Vec<SegmentId>,
    read: usize,
    /// The retention of later pushes.
    pub(super) retention: Retention,
    pub(super) takeover: bool,
    /// How long later fetches may take.
    pub(super) timeout: Duration,
    pub(super) more_follow: bool,
    pub(super) deltas: Deltas,
    pub(super) readable_by: Vec<Name>,
    /// The trace context of later pushes and fetches.
    pub(super) trace: Option<crate::trace::TraceContext>,
    /// The peer's segments that each node keeps.
    pub(super) kept: [Vec<(SegmentId, MemoryId)>; 2],
    /// Whether a question about the readers of a segment is answered with yes, and below it the number of such
    /// questions.
    pub(super) still_reads: bool,
    pub(super) asked: u32,
    /// The answered and lost pings of operators, each with its node and token.
    pub(super) ponged: Vec<(usize, u64, Option<String>)>,
    /// The disk of each node, whether it is full, and whether it returns wrong bytes.
    pub(super) disks: [SimDisk; 2],
    pub(super) disk_is_full: bool,
    pub(super) disk_is_damaged: bool,
}

impl Pair {
    pub(super) fn new() -> Pair {
        Pair::with(|_| {})
    }

    /// Makes a pair whose links have references.
    pub(super) fn with_references(configure: impl Fn(&mut NodeConfig)) -> Pair {
        Pair::in_world(Conditions { references: true, ..Conditions::calm() }, configure)
    }

    pub(super) fn with(configure: impl Fn(&mut NodeConfig)) -> Pair {
        Pair::in_world(Conditions::calm(), configure)
    }

    fn in_world(conditions: Conditions, configure: impl Fn(&mut NodeConfig)) -> Pair {
        let world = World::new(1, conditions);
        world.record();
        let make = |i: usize| {
            let endpoint = world.endpoint();
            let headers = LocalSlice { segment: SegmentId(0), offset: 0, len: 64 * 16 };
            let mut config = NodeConfig::new(name(["a", "b"][i]), 1);
            config.speculative_percent = 50;
            configure(&mut config);
            let mut node = Node::new(config, headers);
            for (user, segment) in [(0, 1), (1, 2)] {
                node.add_pool(Tenant::User(user), SegmentId(segment), POOL_BYTES);
            }
            let mut driver = Driver::new(node, vec![Box::new(SimFabric::new(&world, endpoint))]);
            driver.register(SegmentId(0), &world.memory(64 * 16)).unwrap();
            for segment in [1, 2] {
                driver.register(SegmentId(segment), &world.memory(POOL_BYTES as usize)).unwrap();
            }
            (driver, SimMemory::new(&world, endpoint))
        };
        let ((a, memory_a), (b, memory_b)) = (make(0), make(1));
        Pair {
            world,
            nodes: [a, b],
            memories: [memory_a, memory_b],
            next: 2,
            sequence: 0,
            owners: BTreeMap::new(),
            tenants: BTreeMap::new(),
            workers: BTreeMap::new(),
            watches: Vec::new(),
            replies: Vec::new(),
            hold_copies: false,
            copies: Vec::new(),
            links: [None; 2],
            downs: Vec::new(),
            events: Default::default(),
            board: Board::default(),
            unused: Vec::new(),
            read: 0,
            retention: Retention::default(),
            takeover: false,
            timeout: Duration::from_secs(1),
            more_follow: false,
            deltas: Deltas::None,
            readable_by: Vec::new(),
            trace: None,
            kept: Default::default(),
            still_reads: false,
            asked: 0,
            ponged: Vec::new(),
            disks: Default::default(),
            disk_is_full: false,
            disk_is_damaged: false,
        }
    }

    pub(super) fn worker(&mut self, node: usize, text: &str) -> Worker {
        self.worker_of(Tenant::User(0), node, text)
    }

    pub(super) fn worker_of(&mut self, tenant: Tenant, node: usize, text: &str) -> Worker {
        self.next += 1;
        let (session, segment) = (SessionId(self.next), SegmentId(u32::try_from(self.next).unwrap()));
        let arena = self.world.memory(ARENA_BYTES as usize);
        self.nodes[node].register(segment, &arena).unwrap();
        self.nodes[node].node.session_opened(session, name(text), tenant, segment, ARENA_BYTES);
        self.workers.insert(text.into(), node);
        Worker { session, node, arena }
    }

    /// Removes the key from the directory, like a new directory.
    pub(super) fn forget(&mut self, key: &str) {
        self.owners.remove(key);
    }

    /// Enters the key in the directory, for a worker of that node.
    pub(super) fn enter(&mut self, key: &str, owner: &str, node: usize) {
        self.owners.insert(key.to_owned(), (name(owner), node, 0));
    }

    /// Returns whether the directory has an owner for the key.
    pub(super) fn is_entered(&self, key: &str) -> bool {
        self.owners.contains_key(key)
    }

    pub(super) fn leave(&mut self, worker: Worker, text: &str) {
        self.workers.remove(text);
        let now = self.world.now();
        self.nodes[worker.node].node.session_closed(now, worker.session, "it left");
    }

    pub(super) fn request(&mut self, worker: Worker, request: Request) {
        let now = self.world.now();
        self.nodes[worker.node].node.request(now, worker.session, request);
    }

    pub(super) fn command(&mut self, worker: Worker, op: OpId, command: Command) {
        self.request(worker, Request::Command { op, command });
    }

    /// Pushes a body that consists of these ranges.
    pub(super) fn push_ranges(&mut self, worker: Worker, op: u64, push: Push, ranges: &[ArenaRange]) {
        let now = self.world.now();
        self.nodes[worker.node].node.push_read(
            now,
            worker.session,
            OpId(op),
            push,
            PushRead { ranges, ..PushRead::default() },
        );
    }

    /// Pushes a tensor whose bytes are all `fill`.
    pub(super) fn push(&mut self, w: Worker, text: &str, meta: TensorMeta, fill: u8, to: Option<&str>) -> OpId {
        self.push_version(w, text, None, meta, fill, to)
    }

    pub(super) fn push_version(
        &mut self,
        w: Worker,
        text: &str,
        version: Option<u64>,
        meta: TensorMeta,
        fill: u8,
        to: Option<&str>,
    ) -> OpId {
        self.next += 1;
        let op = OpId(self.next);
        let offset = (self.next % 8) * (ARENA_BYTES / 8);
        self.world.write(w.arena, offset, &vec![fill; meta.len_bytes() as usize]);
        let (to, timeout) = (to.map(name), Duration::from_secs(1));
        let version = version.map(Version);
        let push = Push {
            version,
            to,
            timeout,
            retention: self.retention,
            takeover: self.takeover,
            readable_by: self.readable_by.clone(),
            trace: self.trace,
            more_follow: self.more_follow,
            deltas: self.deltas.clone(),
            ..Push::new(key(text), meta, offset)
        };
        self.command(w, op, Command::Push(push));
        op
    }

    pub(super) fn fetch(&mut self, w: Worker, text: &str, select: Select) -> OpId {
        self.fetch_part(w, text, select, None)
    }

    pub(super) fn fetch_part(&mut self, w: Worker, text: &str, select: Select, excerpt: Option<Box<Excerpt>>) -> OpId {
        self.next += 1;
        let op = OpId(self.next);
        let fetch = Fetch {
            key: key(text),
            select,
            timeout: self.timeout,
            require: None,
            trace: self.trace,
            watches: false,
            excerpt,
            base: None,
        };
        self.command(w, op, Command::Fetch(fetch));
        op
    }

    pub(super) fn reserve(&mut self, w: Worker, text: &str, meta: TensorMeta, to: &str) -> OpId {
        self.next += 1;
        let op = OpId(self.next);
        let reserve = Reserve { key: key(text), meta, to: name(to), timeout: Duration::from_secs(1) };
        self.command(w, op, Command::Reserve(reserve));
        op
    }

    pub(super) fn release(&mut self, w: Worker, lease: LeaseId) {
        self.request(w, Request::Release { lease });
    }

    /// Lets the nodes and the world run until nothing is left to do. No deadline passes.
    pub(super) fn settle(&mut self) {
        loop {
            self.poll();
            if !self.world.step() {
                return;
            }
        }
    }

    /// Settles, lets the time pass, and then handles the deadlines.
    pub(super) fn wait(&mut self, long: Duration) {
        self.settle();
        let at = self.world.now() + long;
        self.world.advance(at);
        for n in &mut self.nodes {
            n.node.timeout(at);
        }
        self.settle();
    }

    /// Lets the nodes do everything that is possible now.
    pub(super) fn poll(&mut self) {
        let now = self.world.now();
        loop {
            let mut active = false;
            for i in 0..2 {
                if self.nodes[i].node.is_ending() {
                    self.nodes[i].node.timeout(now);
                    active = true;
                }
                let mut actions = VecDeque::new();
                while self.nodes[i].take_actions(now, &mut self.memories[i], &mut actions) {
                    for action in actions.drain(..) {
                        active |= self.act(i, now, action);
                    }
                }
                // The fabrics are polled last, because the actions that were just posted may already be done.
                active |= self.nodes[i].poll_fabrics(now, &self.memories[i]);
            }
            if !active {
                for n in &mut self.nodes {
                    n.node.check().unwrap();
                }
                return;
            }
        }
    }

    /// Does an action of a node. Returns whether it was one for the host.
    fn act(&mut self, i: usize, now: Time, mut action: Action) -> bool {
        self.kept[i].extend(self.nodes[i].act(&mut action, &mut self.memories[i]));
        let Action::Host(action) = action else { return false };
        match action {
            HostAction::Reply { session, reply } => self.replies.push((session, reply)),
            HostAction::CloseSession { why, .. } => panic!("{why}"),
            HostAction::SegmentUnused { segment } => {
                self.kept[i].retain(|(kept, _)| *kept != segment);
                self.unused.push(segment);
            }
            HostAction::Show(shown) => self.board.show(shown),
            HostAction::Withdraw { ticket, .. } => {
                if self.board.withdraw(ticket) {
                    self.nodes[i].node.withdrawn(ticket);
                }
            }
            HostAction::Copy { from, packing, to, tag } => match self.hold_copies {
                true => self.copies.push((i, from, *packing, to, tag)),
                false => self.copy(i, &from, *packing, to, tag),
            },
            HostAction::Apply { base, delta, to, tag, .. } => {
                let made = self.memories[i].apply(&base, delta, to);
                self.nodes[i].node.host_done(now, tag, HostDone::Applied(made));
            }
            HostAction::Digest { of, tag, .. } => {
                let digest = self.memories[i].digest(&of);
                self.nodes[i].node.host_done(now, tag, HostDone::Digest(digest));
            }
            HostAction::SpillWrite { id, from, .. } => {
                assert!(self.disk_is_full || self.disks[i].write(&self.memories[i], id, &from), "{from:?}");
                self.nodes[i].node.spill_written(now, id, !self.disk_is_full);
            }
            HostAction::SpillRead { id, packing, to, tag } => {
                assert!(self.disks[i].read(&self.memories[i], id, *packing, to), "{to}");
                let result = if self.disk_is_damaged { Err("flipped bits") } else { Ok(()) };
                self.nodes[i].node.spill_read(now, tag, result);
            }
            HostAction::SpillFree { id } => assert!(self.disks[i].free(id), "{id:?}"),
            HostAction::AskReaders { segment, mark } => {
                self.asked += 1;
                let read = self.still_reads;
                self.nodes[i].node.readers_answered(segment, mark, read);
            }
            HostAction::Prepared { token: _, answers } => {
                let link = self.links[1 - i].unwrap();
                self.nodes[1 - i].node.buffers_prepared(now, link, answers);
            }
            HostAction::Ponged { token, lost } => self.ponged.push((i, token, lost)),
            HostAction::Control(control) => self.control(i, now, control),
        }
        true
    }

    /// Does the actions of a node that concern fabrics, and returns the others.
    pub(super) fn host_actions(&mut self, i: usize) -> Vec<HostAction> {
        let (now, mut actions) = (self.world.now(), VecDeque::new());
        let _ = self.nodes[i].take_actions(now, &mut self.memories[i], &mut actions);
        let mut left = Vec::new();
        for mut action in actions {
            self.kept[i].extend(self.nodes[i].act(&mut action, &mut self.memories[i]));
            left.extend(match action {
                Action::Host(action) => Some(action),
                _ => None,
            });
        }
        left
    }

    fn copy(&mut self, i: usize, from: &[LocalSlice], packing: Packing, to: LocalSlice, tag: u64) {
        assert!(self.memories[i].pack(from, packing, to), "{from:?}");
        let now = self.world.now();
        self.nodes[i].node.host_done(now, tag, HostDone::Copied);
    }

    /// Returns the number of copies that are held back.
    pub(super) fn held_copies(&self) -> usize {
        self.copies.len()
    }

    /// Makes the copies that were held back.
    pub(super) fn copy_all(&mut self) {
        for (i, from, packing, to, tag) in std::mem::take(&mut self.copies) {
            self.copy(i, &from, packing, to, tag);
        }
    }

    fn directory_request(&mut self, i: usize, now: Time, request: DirectoryRequest) {
        let node_name = |i: usize| name(["a", "b"][i]);
        match request {
            DirectoryRequest::Unclaim { key } => {
                if self.owners.get(key.as_str()).is_some_and(|(_, node, _)| *node == i) {
                    self.owners.remove(key.as_str());
                }
            }
            DirectoryRequest::Resolve { key, newer_than } => match self.owners.get(key.as_str()) {
                Some((_, node, sequence)) if *sequence > newer_than => {
                    self.nodes[i].node.located(now, &key, &node_name(*node), *sequence);
                }
                _ => self.watches.push((i, key, newer_than)),
            },
            DirectoryRequest::Recited => {}
            DirectoryRequest::StopResolve { key } => self.watches.retain(|(node, k, _)| (*node, k) != (i, &key)),
            DirectoryRequest::ResolveWorker { worker, tenant } => {
                let node = self.workers.get(worker.as_str()).map(|n| node_name(*n));
                self.nodes[i].node.worker_located(now, (&worker, &tenant), node.as_ref());
            }
        }
    }

    fn control(&mut self, i: usize, now: Time, control: Control) {
        let node_name = |i: usize| name(["a", "b"][i]);
        match control {
            Control::Claim(Claim { key, owner, tenant, takeover, .. }) => {
                let others = self.tenants.get(key.as_str()).is_some_and(|other| *other != tenant);
                if takeover && others && self.owners.contains_key(key.as_str()) {
                    let refused = ClaimRefused::Denied("it is another tenant's".into());
                    return self.nodes[i].node.claimed(now, &key, Err(refused));
                }
                self.tenants.entry(key.to_string()).or_insert(tenant);
                let found = self.owners.get(key.as_str()).filter(|(other, _, _)| *other != owner).cloned();
                if let Some((owner, node, _)) = found.filter(|_| !takeover) {
                    let node = node_name(node);
                    return self.nodes[i].node.claimed(now, &key, Err(ClaimRefused::Owned { owner, node }));
                }
                self.sequence += 1;
                let before = self.owners.insert(key.to_string(), (owner.clone(), i, self.sequence));
                self.nodes[i].node.claimed(now, &key, Ok(self.sequence));
                if let Some((_, node, _)) = before.filter(|(_, node, _)| *node != i) {
                    self.nodes[node].node.key_lost(now, &key, &owner);
                }
                let (found, rest) = std::mem::take(&mut self.watches).into_iter().partition(|(_, k, _)| *k == key);
                self.watches = rest;
                let found: Vec<(usize, Key, u64)> = found;
                for (node, key, _) in found {
                    self.nodes[node].node.located(now, &key, &node_name(i), self.sequence);
                }
            }
            Control::Directory(request) => self.directory_request(i, now, request),
            Control::Connect { peer } => {
                let info = |i| PeerInfo {
                    name: node_name(i),
                    incarnation: 1,
                    receive_slots: 256,
                    vouches: Vouches::ForAll,
                    passed_over: vec![PassedOver { fabric: FabricKind::Verbs, why: "it is a test".into() }],
                };
                let (link, offer, _) = self.nodes[i].begin_link(&peer, FabricKind::Sim).unwrap();
                let (_, answer, _) = self.nodes[1 - i].accept_link(info(i), FabricKind::Sim, &offer).unwrap();
                self.nodes[i].finish_link(link, info(1 - i), &answer).unwrap();
            }
            Control::PrepareBuffers { asks, .. } => {
                let link = self.links[1 - i].unwrap();
                self.nodes[1 - i].node.prepare_buffers(link, 1, asks);
            }
            Control::LinkUp { link, .. } => self.links[i] = Some(link),
            Control::LinkFailed { peer, why, .. } => self.nodes[i].node.connect_failed(now, &peer, &why),
            Control::LinkDown { why, .. } => {
                self.links[i] = None;
                self.downs.push(why);
            }
            Control::RailDown { .. } | Control::SessionClosed { .. } => {}
            Control::Event(event) => self.events[i].push(event),
        }
    }

    /// Returns the replies to that worker since the last call.
    pub(super) fn replies(&mut self, w: Worker) -> Vec<Reply> {
        let (mine, rest) =
            std::mem::take(&mut self.replies).into_iter().partition(|(session, _)| *session == w.session);
        self.replies = rest;
        let mine: Vec<(SessionId, Reply)> = mine;
        mine.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Returns the one tensor that this worker got: its lease, version, shape and bytes.
    pub(super) fn fetched(&mut self, w: Worker) -> (LeaseId, u64, TensorMeta, Vec<u8>) {
        let replies = self.replies(w);
        let [
            Reply::Answer {
                answer: Answer::Fetched { lease, tensor: FetchedTensor { version, meta, slice, .. } }, ..
            },
        ] = &replies[..]
        else {
            panic!("{replies:?}")
        };
        let kept = self.kept[w.node].iter().find(|(segment, _)| *segment == slice.segment);
        let got = match kept {
            Some((_, memory)) => self.world.read(*memory, slice.offset, slice.len),
            None => self.memories[w.node].read(*slice).unwrap(),
        };
        (*lease, version.0, meta.clone(), got)
    }

    /// Returns the one failure that this worker got.
    pub(super) fn failed(&mut self, w: Worker) -> Failure {
        let replies = self.replies(w);
        let [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        failure.clone()
    }

    pub(super) fn failed_with(&mut self, w: Worker) -> FailureCode {
        self.failed(w).code
    }

    /// Returns the posts of both sides since the last call, in order: the name of each message, and WRITE for each
    /// transfer. ACKs are left out.
    pub(super) fn posted(&mut self) -> Vec<String> {
        let trace = self.world.trace();
        let new = trace[self.read..].to_vec();
        self.read = trace.len();
        let words = new.iter().filter_map(|line| {
            let mut words = line.split_whitespace().skip(2);
            match words.next()? {
                "sends" => words.nth(2).map(str::to_owned),
                "writes" if !line.ends_with("None") => Some("WRITE".to_owned()),
                _ => None,
            }
        });
        words.filter(|word| word != "ACK").collect()
    }

    /// Lets all workers leave, and checks that nothing is left.
    pub(super) fn ends_clean(mut self, workers: &[(Worker, &str)]) {
        for (worker, text) in workers {
            self.leave(*worker, text);
        }
        self.settle();
        for n in &self.nodes {
            let s = n.node.state().snapshot(Time(0));
            assert_eq!((s.tensors, s.blobs, s.leases, s.operations, s.slots), (0, 0, 0, 0, 0), "{s:?}");
            assert!(s.pools.iter().all(|p| p.used == 0 && p.waiting == 0), "{s:?}");
            assert_eq!(s.spilled.bytes, 0);
            n.node.check_idle().unwrap();
        }
        assert!(self.disks.iter().all(SimDisk::is_empty));
        assert_eq!(self.world.faults(), [""; 0]);
    }
}
