//! A soak test that does everything at once, for any length of time:
//! `transfer-test-soak --fabric verbs --seconds 600`, `transfer-test-soak --stops`.
//!
//! Two sidecars with two workers each. The workers push and fetch tensors of all sizes, with long and with short
//! deadlines, and some calls are dropped in the middle. Workers end, by SIGKILL or in order, and come back. Sidecars
//! are killed and come back. With `--stops`, workers and sidecars are stopped with SIGSTOP at random, for a moment or,
//! in the case of a sidecar, for longer than its peers wait for it.
//!
//! Every fetched byte is checked. A call with enough time, whose partners were not restarted, must succeed; a short
//! stop is no excuse. After each restart all workers must reach each other again. At the end nothing may be left: no
//! counter above zero, and no sidecar with more system resources than at its start.
//!
//! The actions follow from the seed, which the first line prints. Their timing follows from the machine.
//!
//! # Layout
//! - this file: the actions, and the results that they may have.
//! - `book`: all pushes. - `crew`: sidecars and workers. - `stops`: stopped processes. - `leaks`: descriptors and
//!   memory.

mod book;
mod crew;
pub(crate) mod leaks;
mod stops;

use crate::calls::{Ended, Pending};
use crate::order::{Answer, FetchOrder, Keep, Order, PushMode, PushOrder, Select, Trouble};
use crate::{Carrier, WAIT_LIMIT};
use book::{Book, LARGEST};
use crew::{Crew, NODES, WORKERS};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};
use stops::{COSTLY_STOP, Member};

/// The number of calls that are under way at a time.
const AT_ONCE: usize = 16;

/// The options of the program.
#[derive(Debug, clap::Parser)]
#[command(about = "Everything at once, through two sidecars, with checks of every byte and of what is left at the end")]
pub struct Options {
    /// The fabric that has to carry, by its name in TRANSFER_TEST_FABRIC
    #[arg(long, default_value = "tcp", value_parser = Carrier::from_name)]
    pub fabric: Carrier,
    /// How many seconds to run before the end, which is checked
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// The seed of the actions. Default: a random one
    #[arg(long)]
    pub seed: Option<u64>,
    /// Stop workers and sidecars with SIGSTOP, too
    #[arg(long)]
    pub stops: bool,
}

/// A call under way.
#[derive(Debug)]
struct Call {
    pending: Pending<Answer>,
    key: String,
    /// The worker that makes the call, and the workers that it depends on.
    worker: usize,
    partners: [usize; 2],
    /// Whether it pushes.
    pushes: bool,
    /// The version that it pushes or wants.
    version: u64,
    /// Whether it has as much time as any call needs.
    is_patient: bool,
    /// The state of the world when the call began.
    world: World,
}

/// How often the processes that matter to a call were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct World {
    worker: u64,
    partners: [u64; 2],
    sidecars: [u64; NODES],
    /// How many long stops of sidecars have begun, and whether one is under way.
    long_stops: u64,
    in_long_stop: bool,
}

/// A key with its owner and its target.
#[derive(Debug, Clone)]
struct Item {
    key: String,
    owner: usize,
    /// The worker that it is pushed to, if there is one.
    target: Option<usize>,
    largest: u64,
}

struct Soak {
    carrier: Carrier,
    random: SmallRng,
    crew: Crew,
    book: Book,
    items: Vec<Item>,
    calls: Vec<Call>,
    /// Keys with a push under way: the next push of such a key waits for its end.
    busy: HashSet<String>,
    /// The newest version of each key that is certainly published.
    there: HashMap<String, u64>,
    counts: BTreeMap<String, u64>,
}

/// Runs the soak.
///
/// # Panics
/// If any check fails.
pub fn run(options: &Options) {
    let started = Instant::now();
    let seed = options.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    println!("soak: {} s over {}, --seed {seed}", options.seconds, options.fabric.name());
    let mut soak = Soak::new(options.fabric, seed);
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let mut next_worker = soak.soon(2_000);
    let mut next_sidecar = soak.soon(8_000);
    let mut next_stop = soak.soon(3_000);
    let mut next_word = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if !soak.reap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        while soak.calls.len() < AT_ONCE {
            soak.begin_one();
        }
        soak.crew.let_go_on();
        // A restart would end a long stop early.
        let may_restart = !soak.crew.stops.has_long();
        if may_restart && Instant::now() >= next_worker {
            soak.restart_worker();
            next_worker = soak.soon(2_000);
        }
        if may_restart && Instant::now() >= next_sidecar {
            soak.restart_sidecar();
            next_sidecar = soak.soon(8_000);
        }
        if options.stops && Instant::now() >= next_stop {
            soak.stop_one();
            next_stop = soak.soon(3_000);
        }
        if Instant::now() >= next_word {
            println!("soak: {} s: {}", started.elapsed().as_secs(), soak.story());
            next_word += Duration::from_secs(10);
        }
    }
    soak.crew.let_all_go_on();
    // The calls that are under way still have their time.
    let patience = Instant::now() + 2 * WAIT_LIMIT;
    let mut again = HashSet::new();
    while !soak.calls.is_empty() {
        assert!(Instant::now() < patience, "these calls do not end: {:#?}", soak.calls);
        soak.reap();
        soak.push_what_is_lost(&mut again);
        std::thread::sleep(Duration::from_millis(1));
    }
    let story = soak.story();
    assert!(soak.counts.get("fetched").is_some_and(|n| *n > 0), "no fetch has succeeded: {story}");
    assert!(soak.counts.get("pushed").is_some_and(|n| *n > 0), "no push has succeeded: {story}");
    soak.crew.end();
    println!("soak: {} s: {story}", started.elapsed().as_secs());
    println!("soak passed: --seed {seed}");
}

impl Soak {
    fn new(carrier: Carrier, seed: u64) -> Soak {
        let crew = Crew::new(carrier);
        let mut items = Vec::new();
        for owner in 0..crew.len() {
            for largest in LARGEST {
                // The target has the same number on the other node.
                let target = (owner + WORKERS) % crew.len();
                items.push(Item { key: format!("w{owner}/own/{largest}"), owner, target: None, largest });
                items.push(Item { key: format!("w{owner}/to/{largest}"), owner, target: Some(target), largest });
            }
        }
        Soak {
            carrier,
            random: SmallRng::seed_from_u64(seed),
            crew,
            book: Book::default(),
            items,
            calls: Vec::new(),
            busy: HashSet::new(),
            there: HashMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Returns a moment about this many milliseconds from now.
    fn soon(&mut self, ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(self.random.random_range(ms / 4..2 * ms))
    }

    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn story(&self) -> String {
        self.counts.iter().map(|(what, n)| format!("{what} {n}")).collect::<Vec<_>>().join(", ")
    }

    fn world(&self, worker: usize, partners: [usize; 2]) -> World {
        let starts = &self.crew.starts;
        let stops = &self.crew.stops;
        World {
            worker: starts[worker],
            partners: partners.map(|partner| starts[partner]),
            sidecars: self.crew.restarts,
            long_stops: stops.long(),
            in_long_stop: stops.has_long(),
        }
    }

    /// Returns a random time from a microsecond to a quarter of a second. Each power of two is equally likely.
    fn moment(&mut self) -> Duration {
        Duration::from_micros(1 << self.random.random_range(0..=18))
    }

    fn begin_one(&mut self) {
        let item = self.items[self.random.random_range(0..self.items.len())].clone();
        // Large tensors take long, so most of them are left out.
        if item.largest > 1 << 20 && self.random.random_ratio(3, 4) {
            return;
        }
        let is_patient = self.random.random_ratio(4, 5);
        let timeout = if is_patient { WAIT_LIMIT } else { self.moment() };
        // A brief call is dropped after this time, whatever its deadline is.
        let brief = (self.random.random_ratio(1, 10)).then(|| self.moment());
        if self.random.random_bool(0.5) && !self.busy.contains(&item.key) {
            self.begin_push(&item, timeout, brief);
        } else {
            self.begin_fetch(&item, timeout, brief);
        }
    }

    fn begin_push(&mut self, item: &Item, timeout: Duration, brief: Option<Duration>) {
        let len = self.random.random_range(0..=item.largest);
        let (version, tensor) = self.book.next(&item.key, len);
        let order = PushOrder {
            key: item.key.clone(),
            tensor,
            way: PushMode::Owned,
            version: Some(version),
            to: item.target.map(Crew::name_of),
            timeout,
            require: None,
            keep: Keep::default(),
            takeover: false,
            readable_by: Vec::new(),
        };
        let order = match brief {
            Some(patience) => Order::PushBriefly(order, patience),
            None => Order::Push(order),
        };
        self.busy.insert(item.key.clone());
        self.begin(item, item.owner, true, version, timeout, order);
    }

    fn begin_fetch(&mut self, item: &Item, timeout: Duration, brief: Option<Duration>) {
        let worker = self.random.random_range(0..self.crew.len());
        let there = self.there.get(&item.key).copied();
        // A version that may never come is waited for only briefly.
        let timeout = if there.is_some() { timeout } else { timeout.min(Duration::from_millis(300)) };
        let select = there.map_or(Select::Latest, Select::AtLeast);
        let order = FetchOrder { key: item.key.clone(), select, timeout, require: None, hold: None };
        let order = match brief {
            Some(patience) => Order::FetchBriefly(order, patience),
            None => Order::Fetch(order),
        };
        self.begin(item, worker, false, there.unwrap_or(0), timeout, order);
    }

    fn begin(&mut self, item: &Item, worker: usize, pushes: bool, version: u64, timeout: Duration, order: Order) {
        // A tensor that was pushed to a worker exists as long as both this worker and its owner do.
        let partners = [item.owner, item.target.unwrap_or(item.owner)];
        let world = self.world(worker, partners);
        let pending = self.crew.worker(worker).order(order, Some);
        let (key, is_patient) = (item.key.clone(), timeout == WAIT_LIMIT);
        self.calls.push(Call { pending, key, worker, partners, pushes, version, is_patient, world });
    }

    /// Pushes the next version of each key whose last one may have ended with a process, if a fetch waits for it.
    /// Otherwise the fetch would wait in vain, for all its time. `again`: the keys for which this was done.
    fn push_what_is_lost(&mut self, again: &mut HashSet<String>) {
        let is_lost = |call: &&Call| !call.pushes && call.world != self.world(call.worker, call.partners);
        let lost: HashSet<String> = self.calls.iter().filter(is_lost).map(|call| call.key.clone()).collect();
        for item in self.items.clone() {
            if lost.contains(&item.key) && !self.busy.contains(&item.key) && again.insert(item.key.clone()) {
                self.begin_push(&item, WAIT_LIMIT, None);
            }
        }
    }

    /// Concludes the calls that have ended. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let mut ended = Vec::new();
        let mut at = 0;
        while at < self.calls.len() {
            match self.calls[at].pending.now() {
                Some(end) => ended.push((self.calls.swap_remove(at), end)),
                None => at += 1,
            }
        }
        let any = !ended.is_empty();
        for (call, end) in ended {
            self.conclude(&call, end);
        }
        any
    }

    fn conclude(&mut self, call: &Call, end: Ended<Answer>) {
        if call.pushes {
            self.busy.remove(&call.key);
        }
        let same_world = call.world == self.world(call.worker, call.partners) && !call.world.in_long_stop;
        match end {
            Ended::Well(Answer::Fetched(fetched)) => {
                assert!(fetched.version >= call.version, "{}: version {} is old", call.key, fetched.version);
                self.book.check(self.carrier, &call.key, &fetched);
                self.count("fetched");
            }
            Ended::Well(Answer::Pushed(pushed)) => {
                assert_eq!(pushed.version, call.version, "{}", call.key);
                if pushed.report.fabric != "local" {
                    self.carrier.carried(&pushed.report);
                }
                if same_world {
                    self.there.insert(call.key.clone(), pushed.version);
                }
                self.count("pushed");
            }
            Ended::Well(Answer::Done) => self.count("given up"),
            Ended::Well(other) => panic!("{}: answered with {other:?}", call.key),
            Ended::InTrouble(trouble) => self.trouble(call, &trouble, same_world),
            Ended::Gone => {
                assert!(!same_world, "worker {} has ended by itself", call.worker);
                self.count("gone with their workers");
            }
        }
    }

    fn trouble(&mut self, call: &Call, trouble: &Trouble, same_world: bool) {
        let late = ["Deadline", "PoolFull", "ArenaFull", "UnknownKey", "UnknownWorker", "PeerUnreachable"];
        let lost = ["PeerLost", "NoAnswer", "SidecarGone", "KeyOwned", "NotOwner", "VersionNotRising"];
        let kind = trouble.kind.as_str();
        let what = if call.pushes { "push" } else { "fetch" };
        let who = format!("{what} of {} by worker {}, version {}", call.key, call.worker, call.version);
        let is_known = kind == "DirectoryUnreachable" || late.contains(&kind) || (!same_world && lost.contains(&kind));
        assert!(is_known, "{who}, with nobody to blame: {trouble}");
        assert!(!(call.is_patient && same_world), "{who} had time, and nobody was in the way: {trouble}");
        self.count(if same_world { "too late" } else { "lost with restarts" });
    }

    fn restart_worker(&mut self) {
        let worker = self.random.random_range(0..self.crew.len());
        let kill = self.random.random_bool(0.7);
        // The versions that it had pushed are gone, and those that were pushed to it.
        for item in self.items.iter().filter(|item| item.owner == worker || item.target == Some(worker)) {
            self.there.remove(&item.key);
        }
        self.crew.restart_worker(worker, kill);
        self.count(if kill { "workers killed" } else { "workers closed" });
    }

    fn restart_sidecar(&mut self) {
        let node = self.random.random_range(0..NODES);
        // The versions that were pushed by this node's workers or had landed there are gone.
        for item in &self.items {
            if [Some(item.owner), item.target].into_iter().flatten().any(|w| Crew::node_of(w) == node) {
                self.there.remove(&item.key);
            }
        }
        self.crew.restart_sidecar(node);
        self.count("sidecars killed");
    }

    fn stop_one(&mut self) {
        let random = &mut self.random;
        let (member, what) = match random.random_range(0..24) {
            0 => (Member::Sidecar(random.random_range(0..NODES)), "sidecars stopped for long"),
            1..6 => (Member::Sidecar(random.random_range(0..NODES)), "sidecars stopped"),
            _ => (Member::Worker(random.random_range(0..NODES * WORKERS)), "workers stopped"),
        };
        let ms = match (member, what) {
            (Member::Sidecar(_), "sidecars stopped") => random.random_range(1..=COSTLY_STOP.as_millis() as u64),
            // The fabric and gRPC give up after 15 s.
            (Member::Sidecar(_), _) => random.random_range(5_000..20_000),
            (Member::Worker(_), _) => random.random_range(1..3_000),
        };
        self.crew.stop(member, Duration::from_millis(ms));
        self.count(what);
    }
}
