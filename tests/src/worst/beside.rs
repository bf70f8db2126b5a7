//! An honest job of root beside attackers of another user: two sidecars, with one worker of the job at each. The job
//! must have no error, whatever the attackers do.

use super::Account;
use super::held::HalfCore;
use crate::order::{Answer, JobOrder, Order};
use crate::process::{Process, Start};
use crate::soak::leaks::Holdings;
use crate::status::{Counts, Seen};
use crate::{Carrier, Scene, Sidecar, Worker, programs};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The user id of the attackers.
pub const UID: u32 = 54_321;

/// The prefix of the job's names.
const JOB: &str = "job";

/// The sizes of a round's tensors in each direction, in bytes.
const LENS: [u64; 3] = [1000, 64 << 10, 300_000];

/// The number of rounds in one order.
const BATCH: u64 = 5;

/// Limits of keys and versions, per worker and per user. They are low, so that an attacker reaches them quickly.
const KEYS_PER_WORKER: u64 = 60;
const KEYS_PER_USER: u64 = 100;
const VERSIONS_PER_WORKER: u64 = 150;
const VERSIONS_PER_USER: u64 = 250;
const DIRECTORY_KEYS_PER_NODE: u64 = 5000;
/// The limit of a sidecar's pinned memory.
const PINNED_BYTES: u64 = 192 << 20;
/// The limit of one worker's waiting operations.
const OPERATIONS_PER_WORKER: u64 = 1 << 14;
/// The limit of one peer's waiting requests.
const REQUESTS_PER_PEER: u64 = 1 << 16;
/// How many keys, and how many versions, the job itself may have at any time, counters and barriers included.
const OF_THE_JOB: u64 = 64;

/// A kind of attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Part {
    Worker,
    Peer,
    Stranger,
}

/// All kinds of attackers.
pub const PARTS: [Part; 3] = [Part::Worker, Part::Peer, Part::Stranger];

impl Part {
    /// Returns the command of the attackers' program for this kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Worker => "worker",
            Part::Peer => "peer",
            Part::Stranger => "stranger",
        }
    }
}

/// Two sidecars with the honest job.
#[derive(Debug)]
pub struct Beside {
    /// The leader of the job. Both workers are dropped before the sidecars.
    leader: Worker,
    follower: Worker,
    scene: Scene,
    /// The counts of the sidecars while the job is idle.
    still: Vec<Counts>,
    /// The sidecars' system resources after the attacks before the last one: the descriptors after the first attack,
    /// and the most memory after any of them. Tables and queues have grown once by then.
    young: Vec<Holdings>,
    /// The number of finished attacks.
    attacks: usize,
    /// The number of the next round.
    next: u64,
    /// The leash and the attackers' program, as copies that every user can run.
    leash: PathBuf,
    program: PathBuf,
    half: HalfCore,
    seed: u64,
}

impl Beside {
    /// Starts the sidecars and the job. The deeds of the attackers follow from the seed.
    ///
    /// # Panics
    /// If anything does not start. It has to be run as root.
    #[must_use]
    pub fn start(seed: u64) -> Beside {
        let limits = format!(
            "keys_per_worker={KEYS_PER_WORKER},keys_per_user={KEYS_PER_USER},versions_per_worker={VERSIONS_PER_WORKER},\
             versions_per_user={VERSIONS_PER_USER},directory_keys_per_node={DIRECTORY_KEYS_PER_NODE}"
        );
        let pinned = PINNED_BYTES.to_string();
        let mut arguments = vec!["--socket-mode", "666", "--pool-bytes", "8MiB", "--listen", "127.0.0.1:0"];
        arguments.extend(["--http-listen", "127.0.0.1:0", "--pinned-limit", &pinned, "--limits", &limits]);
        let mut scene = Scene::over(Carrier::Tcp, &[&arguments, &arguments]);
        let leash = programs::worker_for_all(scene.folder());
        let program = programs::for_all(&programs::worst(), scene.folder(), "worst.log");
        for node in 0..scene.nodes.len() {
            // The other user's landing pool stays, too, and is part of the idle state.
            let first = Worker::of(&scene.nodes[node], "first").user(UID, leash.clone()).start();
            assert!(first.close().success());
            scene.note_idle_of(node);
        }
        let leader = scene.a().worker(&format!("{JOB}-leader"));
        let follower = scene.b().worker(&format!("{JOB}-follower"));
        let half = HalfCore::new();
        let mut beside = Beside {
            leader,
            follower,
            scene,
            still: Vec::new(),
            young: Vec::new(),
            attacks: 0,
            next: 1,
            leash,
            program,
            half,
            seed,
        };
        beside.rounds();
        beside.still = beside.scene.nodes.iter().map(settled).collect();
        beside
    }

    /// Describes how the attackers are limited.
    #[must_use]
    pub fn how_held(&self) -> &'static str {
        self.half.in_words()
    }

    /// Does some rounds of the job, which checks every byte. Returns the time of each round, in microseconds.
    fn rounds(&mut self) -> Vec<u64> {
        let (name, lens) = (JOB.to_owned(), LENS.to_vec());
        let to = Some(self.follower.name().to_owned());
        let leads = JobOrder { name, to, first: self.next, rounds: BATCH, lens };
        let follows = JobOrder { to: None, ..leads.clone() };
        self.next += BATCH;
        let times = |answer| if let Answer::Times(times) = answer { Some(times) } else { None };
        let follower = self.follower.order(Order::Job(follows), times);
        let times = self.leader.order(Order::Job(leads), times).get();
        follower.get();
        times
    }

    /// Does the job by itself for this time. Returns the time of each round, in microseconds.
    pub fn alone(&mut self, lasts: Duration) -> Vec<u64> {
        let until = Instant::now() + lasts;
        let mut times = self.rounds();
        while Instant::now() < until {
            times.extend(self.rounds());
        }
        times
    }

    /// Does the job beside one attacker of each of these kinds at each sidecar. Returns the time of each round, in
    /// microseconds, and the accounts of the attackers.
    ///
    /// # Panics
    /// If the job fails, a limit is exceeded, or an attacker fails.
    pub fn with(&mut self, parts: &[Part], lasts: Duration) -> (Vec<u64>, Vec<(Part, Account)>) {
        if self.attacks > 0 {
            self.hold_to_still();
            for (at, node) in self.scene.nodes.iter().enumerate() {
                let now = Holdings::of(node);
                match self.young.get_mut(at) {
                    Some(most) => *most = most.or_more_memory(now),
                    None => self.young.push(now),
                }
            }
        }
        let mut attackers = Vec::new();
        for (node, part) in [0, 1].into_iter().flat_map(|node| parts.iter().map(move |part| (node, *part))) {
            attackers.push((part, self.attacker(node, part, lasts)));
        }
        for (_, attacker) in &mut attackers {
            attacker.begin(&self.half);
        }
        let mut times = Vec::new();
        loop {
            times.extend(self.rounds());
            for node in &self.scene.nodes {
                hold_to_limits(node.name(), &node.status());
            }
            if attackers.iter_mut().all(|(_, attacker)| attacker.has_ended()) {
                break;
            }
        }
        let half = &self.half;
        let accounts = attackers.into_iter().map(|(part, attacker)| (part, attacker.account(half))).collect();
        self.attacks += 1;
        (times, accounts)
    }

    fn attacker(&mut self, node: usize, part: Part, lasts: Duration) -> Attacker {
        let sidecar = &self.scene.nodes[node];
        self.seed += 1;
        let (socket, seconds, seed) = (sidecar.socket(), lasts.as_secs().to_string(), self.seed.to_string());
        let (address, http, log) = (sidecar.address(), sidecar.http(), format!("worst-{}-{node}.log", part.name()));
        let words = [part.name(), "--address", &address, "--http", &http, "--seconds", &seconds, "--seed", &seed];
        let mut arguments = vec![self.program.as_os_str()];
        arguments.extend(words.map(OsStr::new));
        arguments.extend([
            "--victim".as_ref(),
            JOB.as_ref(),
            "--on-word".as_ref(),
            "--socket".as_ref(),
            socket.as_os_str(),
        ]);
        let log = self.scene.folder().join(log);
        let process = Process::start(Start { leash: &self.leash, arguments, mode: "tied", log, uid: Some(UID) });
        Attacker { process, told: None }
    }

    /// Waits until the sidecars have their idle counts again: only the job is left.
    fn hold_to_still(&self) {
        // Counters stay as long as their sidecar, and so do their names in the directory, which is at the first
        // sidecar. Two of the names are the job's own.
        let named = |node: &Sidecar| node.status().status.counters.unwrap_or_default().named;
        let named = self.scene.nodes.iter().map(named).sum::<u64>() - 2;
        for (at, (node, still)) in self.scene.nodes.iter().zip(&self.still).enumerate() {
            let keys = still.keys + if at == 0 { named } else { 0 };
            node.until_counts(&Counts { keys, ..still.clone() });
        }
    }

    /// Waits until the sidecars have the idle counts of before the first attack, and no more system resources than
    /// after the attacks before the last one. Checks that the job can still make new keys and counters. Then all
    /// processes end.
    ///
    /// # Panics
    /// If any of this does not hold.
    pub fn end(mut self) {
        self.hold_to_still();
        for (node, young) in self.scene.nodes.iter().zip(&self.young) {
            let now = young.until_again(node);
            println!("sidecar {}: {young} at most before the last attack, {now} after it", node.name());
            assert!(!node.log().contains("panicked"), "{}", node.log());
        }
        for worker in [&mut self.leader, &mut self.follower] {
            let name = format!("{}'s new one", worker.name());
            worker.push(&name, crate::Spec::bytes(1000, 1)).get();
            worker.open(&name).get();
        }
        self.rounds();
        for worker in [self.leader, self.follower] {
            assert!(worker.close().success());
        }
        self.scene.end();
    }
}

/// Returns the counts of a node once the job's last messages have come and the counts no longer change.
fn settled(node: &Sidecar) -> Counts {
    let (mut last, mut times) = (None, 0);
    let settled = crate::poll(|| {
        let counts = Counts::of(&node.status());
        times = if last.as_ref() == Some(&counts) { times + 1 } else { 0 };
        last = Some(counts.clone());
        if times >= 5 { Ok(counts) } else { Err(Box::new(counts)) }
    });
    settled.unwrap_or_else(|counts| panic!("{} does not settle: {counts:#?}", node.name()))
}

/// Checks that no limit is exceeded.
fn hold_to_limits(name: &str, seen: &Seen) {
    let counters = seen.counters.clone().unwrap_or_default();
    let at_most =
        |what: &str, has: u64, most: u64| assert!(has <= most, "{name}: {has} {what}, {most} may be: {seen:#?}");
    at_most("keys", counters.tensors, KEYS_PER_USER + OF_THE_JOB);
    // A version that a reply names is counted for its reader, too, although it is the same range.
    at_most("versions", counters.blobs, VERSIONS_PER_USER + OF_THE_JOB);
    at_most("bytes of pinned memory", seen.pinned_bytes, PINNED_BYTES);
    let directory = seen.directory.clone().unwrap_or_default();
    // The factor covers the two sidecars and the attackers' nodes: the present ones, and those whose stream is about
    // to end.
    at_most("keys in the directory", directory.keys, 6 * DIRECTORY_KEYS_PER_NODE);
    for session in &seen.sessions {
        at_most("operations of a worker", session.operations, OPERATIONS_PER_WORKER);
    }
    for link in &seen.links {
        at_most("requests of a peer", link.serves, REQUESTS_PER_PEER);
        at_most("keys that a peer pushes", link.flows_in, REQUESTS_PER_PEER);
    }
}

/// A running attacker.
struct Attacker {
    process: Process,
    told: Option<std::thread::JoinHandle<String>>,
}

impl Attacker {
    /// Limits the program, and lets it begin.
    fn begin(&mut self, half: &HalfCore) {
        half.take(self.process.id());
        let (mut stdin, mut stdout) = self.process.pipes();
        writeln!(stdin, "begin").expect("it listens");
        self.told = Some(std::thread::spawn(move || {
            let mut told = String::new();
            stdout.read_to_string(&mut told).expect("it tells in text");
            told
        }));
    }

    /// Returns whether the program has printed its account, which is the last thing that it does.
    fn has_ended(&mut self) -> bool {
        self.told.as_ref().is_some_and(std::thread::JoinHandle::is_finished)
    }

    fn account(mut self, half: &HalfCore) -> Account {
        half.let_go(self.process.id());
        let status = self.process.wait();
        assert!(status.success(), "an attacker ends with {status}:\n{}", self.process.last_words());
        let told = self.told.take().expect("it has begun").join().expect("it was read");
        serde_json::from_str(&told).unwrap_or_else(|e| panic!("{told:?} is no account: {e}"))
    }
}

/// Returns the median, in microseconds.
fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Prints how long a round of the job takes: alone, beside each kind of attacker and beside all of them, and alone
/// again after each of these, as a measure of the machine.
///
/// # Panics
/// As [`Beside::with`].
pub(super) fn measure(lasts: Duration, seed: Option<u64>) {
    let seed = seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let mut beside = Beside::start(seed);
    println!("attackers are {}; --seed {seed}", beside.how_held());
    let alone = median(beside.alone(lasts));
    println!("alone: {alone} µs a round");
    let each: Vec<&[Part]> = vec![&PARTS[..1], &PARTS[1..2], &PARTS[2..], &PARTS];
    for parts in each {
        let names: Vec<_> = parts.iter().map(|part| part.name()).collect();
        let (times, accounts) = beside.with(parts, lasts);
        let (rounds, with) = (times.len(), median(times));
        let ratio = with as f64 / alone as f64;
        println!("with {}: {with} µs a round, {ratio:.2} times as long; {rounds} rounds", names.join(", "));
        for (part, account) in accounts {
            println!("  {}: {}", part.name(), serde_json::to_string(&account).expect("an account is plain values"));
        }
        let again = median(beside.alone(lasts / 4));
        println!("alone again: {again} µs a round");
    }
    beside.end();
}
