//! The cluster of a seed, and the actions of its workers.

use super::bases::content_of;
use super::content::{GATHERED_BYTES, Pushed, context_of};
use super::worker::{What, Worker};
use super::{Cluster, Directory, Happening, Play, Tally, World};
use crate::fabric::Isolation;
use crate::memory::RailKeys;
use crate::op::{Command, Fetch, Gather, OpId, Push, Request, Reserve};
use crate::protocol::{Broken, NodeConfig, Rules, SpillConfig, Tenant};
use crate::rails::inner_slots;
use crate::sim::Conditions;
use crate::tensor::{
    BodyRange, DType, Excerpt, Gathered, GatheredPart, Key, Name, Retention, Select, Slice, SliceDim, SliceRange,
    Spill, TensorMeta, Version,
};
use crate::time::Time;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::time::Duration;

/// Builds the cluster of this seed.
pub(super) fn cluster(seed: u64, rng: &mut SmallRng, play: Play) -> Cluster {
    let mut conditions = Conditions::random(rng);
    conditions.late_packets = play.late_packets;
    conditions.lies = play.lies;
    if play.one_key {
        conditions.capabilities.isolation = Isolation::Segment;
        conditions.capabilities.checks_bounds = false;
    }
    // Tight schedules have no references, so that all workers have to wait for room. A link with rails cannot have
    // them. A broken rule of references is tested only with references, and every other broken rule without.
    let wanted = match play.broken {
        Some(Broken::KeepsReferences | Broken::ForgetsReaders) => true,
        Some(_) => false,
        None => seed.is_multiple_of(3),
    };
    conditions.references = wanted && !play.tight && !play.rails && !play.spreads;
    if play.rails {
        let limits = &mut conditions.capabilities;
        limits.receive_slots = inner_slots(limits.receive_slots, RailKeys::MAX_RAILS);
        limits.max_message_bytes = 2048;
        // An atomic operation in flight when its rail dies takes the link with it, so calm schedules have none.
        limits.atomics &= !play.calm;
    }
    let delay = conditions.delay;
    let world = World::new(seed, conditions.clone());
    // In tight schedules all slots have the same size, so that fragmentation of a pool does not matter.
    let largest = if play.tight { 64 } else { [64, 1000, 4096][rng.random_range(0..3)] };
    let mut sizes: Vec<u64> = (0..rng.random_range(1..5)).map(|_| rng.random_range(0..=largest)).collect();
    if play.tight {
        sizes.retain(|size| *size > 0);
        sizes.push(64);
    } else {
        sizes.push(0);
    }
    sizes.sort_unstable();
    let node_count = if play.spreads { rng.random_range(4..8) } else { rng.random_range(2..4) };
    let worker_count = if play.tight { node_count } else { rng.random_range(2..=node_count * 3) };
    let key_count =
        if play.tight { rng.random_range(4..16) } else { rng.random_range(1..if play.spreads { 2 } else { 8 }) };
    let mut c = Cluster {
        world,
        rng: rng.clone(),
        play,
        now: Time(0),
        agenda: BTreeMap::new(),
        next_number: 0,
        pairs: BTreeMap::new(),
        next_session: 0,
        nodes: Vec::new(),
        workers: Vec::new(),
        directory: Directory::default(),
        pushed: Vec::new(),
        found: BTreeMap::new(),
        calls: BTreeMap::new(),
        keys: (0..key_count).map(|i| Key::new(&format!("key{i}")).unwrap()).collect(),
        delay,
        sizes,
        rails: 2 + usize::try_from(seed % 3).unwrap(),
        few_names: false,
        ending: false,
        tally: Tally::default(),
        counting: super::counting::Counting::default(),
        rosters: super::rosters::Rosters::new(seed),
    };
    let domains = if play.calm { 1 } else { c.rng.random_range(1..3) };
    for i in 0..node_count {
        let mut config = NodeConfig::new(Name::new(&format!("node{i}")).unwrap(), 1);
        config.slots_per_flow = c.rng.random_range(2..4);
        config.speculative_percent = [0, 12, if play.tight { 30 } else { 60 }][c.rng.random_range(0..3)];
        config.rules = Rules::but(play.broken);
        config.spill = play.spill.then_some(SPILL);
        config.watch_all = c.rng.random();
        if play.spreads {
            (config.fan_out, config.spreads_from) = ([1, 1, 2][c.rng.random_range(0..3)], 1);
            config.chunk_bytes = [64, 128, 4 << 20][c.rng.random_range(0..3)];
            config.base_bytes = [0, 4 << 30, 4 << 30][c.rng.random_range(0..3)];
        }
        if play.rosters {
            let most = c.rng.random_range(1..4);
            // What has no room at the next home is lost.
            config.limits.unfinished_versions = if play.restarts { 3 } else { most };
        }
        if !play.calm {
            config.max_names_per_link = c.names_per_link(i);
            config.max_requests_per_link = [2, 1 << 16][c.rng.random_range(0..2)];
            config.max_ops_per_session = [3, 1 << 16][c.rng.random_range(0..2)];
        }
        let slots = config.slots_per_flow as u64;
        let cells = if c.rng.random() { 1 } else { 64 };
        let node = c.add_node(config, cells);
        for domain in 0..domains {
            let slot = largest.next_multiple_of(64) + 64;
            let len = match c.rng.random_range(0..8) {
                // Room for one version of each key that lands here, for the slots of one flow, for one fetch, and for
                // the speculative part.
                _ if play.tight => {
                    let here = (0..key_count).filter(|k| (k + 1) % worker_count == i).count() as u64;
                    let percent = c.nodes[node].config.speculative_percent;
                    ((here + slots + 1) * 100).div_ceil(100 - percent) * slot
                }
                _ if play.calm => 1 << 20,
                // Too small for a flow of the largest tensor.
                0 => slot,
                1..4 => slot * (slots + c.rng.random_range(0..4)),
                _ => 1 << 20,
            };
            c.add_pool(node, Tenant::User(domain), len);
        }
    }
    // Sometimes worker 1 has the name of worker 0, which connects at another node.
    let namesake = if play.restarts && c.rng.random() { 1 } else { usize::MAX };
    for i in 0..worker_count {
        let worker = Worker {
            name: Name::new(&format!("worker{}", if i == namesake { 0 } else { i })).unwrap(),
            node: if i < node_count { i } else { c.rng.random_range(0..node_count) },
            domain: Tenant::User(c.rng.random_range(0..domains)),
            session: None,
            closing: None,
            arena: None,
            ops: BTreeMap::new(),
            leases: BTreeMap::new(),
            settled: BTreeMap::new(),
            next_op: 0,
            ring: std::collections::VecDeque::new(),
            notices: super::notices::Notices::default(),
            seen: BTreeMap::new(),
            refused: 0,
            acts_left: c.rng.random_range(5..40),
            counters: BTreeMap::new(),
            rank: super::rosters::Rank::default(),
        };
        c.workers.push(worker);
        let at = c.soon();
        c.later(at, Happening::Connect(i));
    }
    if !play.calm {
        c.schedule_faults();
    } else if play.rails {
        c.broken_cables();
    }
    c
}

/// Everything that says so is written to disk at once.
const SPILL: SpillConfig = SpillConfig { high_percent: 0, low_percent: 0, tenant_bytes: 10_000, total_bytes: 15_000 };

impl Cluster {
    /// Returns the limit of names per link. A low limit makes the tables of names reuse their numbers. Both ends of a
    /// link must have the same limit.
    fn names_per_link(&mut self, node: usize) -> usize {
        if node == 0 {
            self.few_names = self.rng.random();
        }
        if self.few_names { 4 } else { 1 << 16 }
    }

    fn schedule_faults(&mut self) {
        let long = self.delay * 200;
        let span = u64::try_from(long.as_nanos()).unwrap();
        let most = if self.play.rails { 16 } else { 4 };
        for _ in 0..self.rng.random_range(0..most) {
            let at = Time(self.rng.random_range(0..span));
            self.later(at, Happening::Break);
        }
        if self.play.restarts {
            self.inject_faults(span);
        }
        for _ in 0..self.rng.random_range(0..4) {
            let at = Time(self.rng.random_range(0..span));
            let who = self.rng.random_range(0..self.workers.len());
            self.later(at, Happening::Die(who));
        }
    }

    fn broken_cables(&mut self) {
        let span = u64::try_from((self.delay * 300).as_nanos()).unwrap();
        for _ in 0..self.rng.random_range(0..12) {
            let at = Time(self.rng.random_range(0..span));
            self.later(at, Happening::BreakRail);
        }
    }

    /// Lets a worker begin an operation, and schedules its next one.
    pub(super) fn act(&mut self, worker: usize) -> Result<(), String> {
        self.check_deadlines()?;
        if self.workers[worker].session.is_none() || self.workers[worker].acts_left == 0 {
            return Ok(());
        }
        if self.play.calm && self.workers.iter().any(|w| w.session.is_none()) {
            let at = self.now + self.delay;
            self.later(at, Happening::Act(worker));
            return Ok(());
        }
        self.workers[worker].acts_left -= 1;
        if self.play.rosters {
            self.check_rosters()?;
        }
        if self.play.rosters && self.play.calm && self.workers[worker].acts_left == 0 && !self.is_rank_done(worker) {
            self.workers[worker].acts_left = 1;
            self.act_as_rank(worker);
        } else if self.play.rosters && self.workers[worker].acts_left > 0 && self.chance(70) {
            self.act_as_rank(worker);
        } else if self.play.into && self.workers[worker].acts_left > 0 && self.chance(40) {
            self.fetch_into(worker);
        } else if self.play.deltas && !self.play.calm && self.workers[worker].acts_left > 0 && self.chance(60) {
            self.act_on_versions(worker)?;
        } else if self.play.calm {
            self.act_calmly(worker)?;
        } else {
            match self.rng.random_range(0..100) {
                0..4 => self.reserve(worker),
                4..28 if self.play.restarts => self.fetch(worker)?,
                4..20 => self.count(worker),
                20..28 => {
                    let members = self.rng.random_range(1..4);
                    self.meet(worker, members);
                }
                28..60 => self.push(worker),
                60..65 => self.gather(worker),
                65..88 => self.fetch(worker)?,
                88..94 => self.cancel(worker),
                _ => self.delete(worker),
            }
        }
        let pause = self.delay * [0, 1, 10][self.rng.random_range(0..3)];
        let at = self.soon() + pause;
        self.later(at, Happening::Act(worker));
        Ok(())
    }

    pub(super) fn timeout(&mut self) -> Duration {
        if self.play.calm {
            return Duration::from_secs(36_000);
        }
        self.delay * [0, 5, 30, 3000][self.rng.random_range(0..4)]
    }

    fn meta(&mut self) -> TensorMeta {
        let size = self.sizes[self.rng.random_range(0..self.sizes.len())];
        let (dtype, dims) = match self.rng.random_range(0..3) {
            0 if size.is_multiple_of(4) => (DType::F32, vec![size / 4]),
            1 if size.is_multiple_of(2) => (DType::U8, vec![2, size / 2]),
            _ => (DType::U8, vec![size]),
        };
        let meta = TensorMeta::of(dtype, &dims).unwrap();
        // Metadata is added only if it fits beside the body in a slot of the largest size.
        let room = self.sizes.last().map_or(0, |largest| largest.next_multiple_of(64) - size);
        match u32::try_from(room / 64 * 64).unwrap() {
            room if room > 0 && self.rng.random_range(0..4) == 0 => {
                let metadata = self.rng.random_range(1..=room);
                meta.with_metadata(metadata).unwrap()
            }
            _ => meta,
        }
    }

    pub(super) fn push_this(&mut self, worker: usize, key: Key, version: Option<Version>, to: Option<usize>) {
        let base = if self.play.deltas && to.is_none() { self.base(worker, &key) } else { None };
        let meta = match base {
            Some((_, base)) => self.pushed[base].meta.clone(),
            None => self.meta(),
        };
        let number = self.pushed.len();
        let Some(offset) = self.fill(worker, number, &meta) else { return };
        let tenant = self.workers[worker].domain;
        // There are at most two tenants. If there is only one, the push names a tenant without workers.
        let other = if tenant == Tenant::User(0) { 1 } else { 0 };
        let shares = to.is_none() && self.rng.random_range(0..4) == 0;
        let reader = shares.then_some(Tenant::User(other));
        self.pushed.push(Pushed { key: key.clone(), meta: meta.clone(), tenant, reader, version });
        let timeout = self.timeout();
        let what = What::Push { number, offset, version, remote: to.is_some(), is_announced: false };
        let op = self.ask(worker, what, timeout);
        let to = to.map(|w| self.workers[w].name.clone());
        let mut retention = Retention::default();
        if self.play.spill && to.is_none() && self.chance(50) {
            retention.spill = Spill::Now;
        }
        let mut push = Push {
            version,
            to,
            timeout,
            retention,
            readable_by: shares.then(|| Name::of_number(other)).into_iter().collect(),
            trace: context_of(number),
            ..Push::new(key, meta, offset)
        };
        if self.play.deltas {
            push.deltas = self.deltas(worker, base, &push);
            push.content = self.play.bases.then(|| content_of(number));
        }
        self.announce(worker, op, number, &mut push);
        self.command(worker, op, Command::Push(push));
    }

    fn push(&mut self, worker: usize) {
        let own = self.chance(80);
        let any = self.rng.random_range(0..self.keys.len());
        // Mostly a key that only this worker pushes.
        let mine: Vec<usize> = (0..self.keys.len()).filter(|k| k % self.workers.len() == worker).collect();
        let k = if own && !mine.is_empty() { mine[self.rng.random_range(0..mine.len())] } else { any };
        let key = self.keys[k].clone();
        let version = if self.rng.random() {
            None
        } else {
            let step = self.pushed.len() as u64;
            Some(Version(if self.chance(90) { step + 1 } else { self.rng.random_range(0..=step) }))
        };
        // Mostly the usual target of this key.
        let other = if self.chance(80) {
            (worker + k + 1) % self.workers.len()
        } else {
            self.rng.random_range(0..self.workers.len())
        };
        let to = self.chance(60).then_some(other).filter(|_| !self.stays_at_home(&key));
        self.push_this(worker, key, version, to);
    }

    /// Returns whether a key is published only at its owner's node. In schedules with restarts that is every second
    /// key. Only for these keys does the test know the owner while nodes run without the directory.
    pub(super) fn stays_at_home(&self, key: &Key) -> bool {
        self.play.restarts && self.keys.iter().step_by(2).any(|k| k == key)
    }

    fn reserve(&mut self, worker: usize) {
        let key = self.keys[self.rng.random_range(0..self.keys.len())].clone();
        if self.stays_at_home(&key) {
            return;
        }
        let to = self.workers[self.rng.random_range(0..self.workers.len())].name.clone();
        let (meta, timeout) = (self.meta(), self.timeout());
        let op = self.ask(worker, What::Reserve, timeout);
        self.command(worker, op, Command::Reserve(Reserve { key, meta, to, timeout }));
    }

    pub(super) fn fetch_this(&mut self, worker: usize, key: Key, select: Select) -> Result<(), String> {
        if self.look_up(worker, &key, select)? {
            return Ok(());
        }
        let timeout = self.timeout();
        let found = self.found.get(key.as_str()).copied();
        let floor = self.workers[worker].seen.get(key.as_str()).copied().max(found);
        let slice = self.chance(30).then(|| self.slice());
        let op = self.ask(worker, What::Fetch { key: key.clone(), select, floor, slice: slice.clone() }, timeout);
        let watches = self.rng.random();
        let base = if self.play.bases { self.named_base(worker) } else { None };
        self.command(
            worker,
            op,
            Command::Fetch(Fetch {
                base,
                key,
                select,
                timeout,
                require: None,
                trace: context_of(op.0 as usize),
                watches,
                excerpt: slice.map(|slice| Box::new(Excerpt::slice(slice).unwrap())),
            }),
        );
        Ok(())
    }

    /// Makes a slice that fits most tensors.
    pub(super) fn slice(&mut self) -> Slice {
        let step = self.rng.random_range(1..4);
        let range = |start, stop| SliceRange { start, stop, step };
        let dims: &[SliceDim] = match self.rng.random_range(0..8) {
            0 => &[range(None, None).into()],
            1 => &[range(Some(-1), None).into()],
            2 => &[SliceDim::Index(0)],
            3 => &[range(None, None).into(), range(Some(1), Some(-1)).into()],
            4 => &[SliceRange::ALL.into(), range(Some(3), None).into()],
            5 => &[range(Some(2), Some(1)).into()],
            6 => &[range(Some(0), Some(64)).into()],
            _ => &[],
        };
        Slice::new(dims.iter().copied())
    }

    fn fetch(&mut self, worker: usize) -> Result<(), String> {
        let key = self.keys[self.rng.random_range(0..self.keys.len())].clone();
        let newest = self.pushed.iter().rev().find(|p| p.key == key).and_then(|p| p.version).map_or(1, |v| v.0);
        let around = Version((newest + self.rng.random_range(0..3)).saturating_sub(1));
        let select = match self.rng.random_range(0..10) {
            0..5 => Select::Latest,
            5..7 => Select::AtLeast(around),
            7 => Select::After(around),
            8 => Select::Exactly(around),
            _ => Select::Following(around),
        };
        self.fetch_this(worker, key, select)
    }

    /// Fetches the first bytes of the newest versions of some keys together.
    fn gather(&mut self, worker: usize) {
        let count = self.rng.random_range(1..4);
        let keys: Vec<_> = (0..count).map(|_| self.keys[self.rng.random_range(0..self.keys.len())].clone()).collect();
        let part = |key: &Key| {
            let rest = key.as_str().strip_prefix("key").unwrap();
            GatheredPart::new(rest, BodyRange { offset: 0, len: GATHERED_BYTES }).unwrap()
        };
        let gathered = Gathered::new(Name::new("key").unwrap(), keys.iter().map(part).collect()).unwrap();
        let timeout = self.timeout();
        let op = self.ask(worker, What::Gather { keys }, timeout);
        let trace = context_of(op.0 as usize);
        self.command(worker, op, Command::Gather(Gather { gathered, timeout, require: None, trace }));
    }

    fn cancel(&mut self, worker: usize) {
        let ops: Vec<OpId> = self.workers[worker].ops.keys().copied().collect();
        if !ops.is_empty() {
            let op = ops[self.rng.random_range(0..ops.len())];
            self.request(worker, Request::Cancel { op });
        }
    }

    fn delete(&mut self, worker: usize) {
        let key = self.keys[self.rng.random_range(0..self.keys.len())].clone();
        let op = self.ask(worker, What::Delete, Duration::from_secs(1));
        self.end_notice(worker, &key);
        self.command(worker, op, Command::Delete { key });
    }

    /// Does an operation of a calm schedule. Each key has one owner and one target, and every version that is requested
    /// will be published.
    fn act_calmly(&mut self, worker: usize) -> Result<(), String> {
        if self.workers[worker].acts_left == 0 {
            // Each worker comes to this barrier once, and none leaves before all have come.
            self.meet(worker, u32::try_from(self.workers.len()).unwrap());
            return Ok(());
        }
        if self.chance(20) {
            self.count(worker);
            return Ok(());
        }
        let k = self.rng.random_range(0..self.keys.len());
        let key = self.keys[k].clone();
        if k % self.workers.len() == worker {
            let to = (k % 2 == 1 || self.play.tight).then(|| (worker + 1) % self.workers.len());
            // Sometimes two pushes, so that the second is announced before any worker has seen the first.
            if self.chance(30) {
                self.push_this(worker, key.clone(), None, to);
            }
            self.push_this(worker, key, None, to);
        } else if self.pushed.iter().any(|p| p.key == key) {
            self.fetch_this(worker, key, Select::Latest)?;
        }
        Ok(())
    }
}
