//! An honest job of root, and attackers of another user beside it: two sidecars, a worker of the job at each, and no error in it, whatever the
//! others do.

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

/// Whose the attackers are.
pub const UID: u32 = 54_321;

/// What the names of the job begin with.
const JOB: &str = "job";

/// The tensors of a round, in bytes, each way.
const LENS: [u64; 3] = [1000, 64 << 10, 300_000];

/// How many rounds are ordered at once.
const BATCH: u64 = 5;

/// How many keys and versions a worker and a user may have: few enough to come there in a moment.
const KEYS_PER_WORKER: u64 = 60;
const KEYS_PER_USER: u64 = 100;
const VERSIONS_PER_WORKER: u64 = 150;
const VERSIONS_PER_USER: u64 = 250;
const DIRECTORY_KEYS_PER_NODE: u64 = 5000;
/// All pinned memory of a sidecar.
const PINNED_BYTES: u64 = 192 << 20;
/// Operations that one worker may have waiting.
const OPERATIONS_PER_WORKER: u64 = 1 << 14;
/// Requests that one peer may have waiting.
const REQUESTS_PER_PEER: u64 = 1 << 16;
/// What the job itself may have of keys and versions at any time, counters and barriers included.
const OF_THE_JOB: u64 = 64;

/// An attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Part {
    Worker,
    Peer,
    Stranger,
}

/// All of them.
pub const PARTS: [Part; 3] = [Part::Worker, Part::Peer, Part::Stranger];

impl Part {
    /// As the program is told.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Worker => "worker",
            Part::Peer => "peer",
            Part::Stranger => "stranger",
        }
    }
}

/// Two sidecars with the job.
#[derive(Debug)]
pub struct Beside {
    /// Dropped before the sidecars.
    leader: Worker,
    follower: Worker,
    scene: Scene,
    /// What the sidecars count while the job holds still.
    still: Vec<Counts>,
    /// What they had of the system after the attacks before the last one: tables and queues have grown once by then.
    young: Vec<Holdings>,
    /// How many attacks there were.
    attacks: usize,
    /// The next round.
    next: u64,
    /// Programs that every user can run: the leash, and the attacker.
    leash: PathBuf,
    program: PathBuf,
    half: HalfCore,
    seed: u64,
}

impl Beside {
    /// Starts it. The attackers do what follows from the seed.
    ///
    /// # Panics
    /// Where anything does not start; it has to be run as root.
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
            // The other user's landing pool stays, too.
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

    /// What holds the attackers, in words.
    #[must_use]
    pub fn how_held(&self) -> &'static str {
        self.half.in_words()
    }

    /// Some rounds of the job, of which every byte is right; and no limit is passed. What each took, in microseconds.
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

    /// The job by itself, for that long. What each round took, in microseconds.
    pub fn alone(&mut self, lasts: Duration) -> Vec<u64> {
        let until = Instant::now() + lasts;
        let mut times = self.rounds();
        while Instant::now() < until {
            times.extend(self.rounds());
        }
        times
    }

    /// The job with these beside it, one of each at each sidecar. What each round took, in microseconds, and what the attackers tell.
    ///
    /// # Panics
    /// Where the job has any trouble, a limit is passed, or an attacker fails.
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

    /// Everybody but the job is gone: the sidecars count what they did before.
    fn hold_to_still(&self) {
        // Counters stay for as long as the sidecar, and so do their names in the directory, which is at the first one. Two are the job's own.
        let named = |node: &Sidecar| node.status().status.counters.unwrap_or_default().named;
        let named = self.scene.nodes.iter().map(named).sum::<u64>() - 2;
        for (at, (node, still)) in self.scene.nodes.iter().zip(&self.still).enumerate() {
            let keys = still.keys + if at == 0 { named } else { 0 };
            node.until_counts(&Counts { keys, ..still.clone() });
        }
    }

    /// Everybody but the job is gone: the sidecars count what they did before the first attack, and have what they had at most after those
    /// before the last one. The job can still make what is new. Then all ends.
    ///
    /// # Panics
    /// Where that is not so.
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

/// The counts once the job's last messages have come.
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

/// No limit is passed.
fn hold_to_limits(name: &str, seen: &Seen) {
    let counters = seen.counters.clone().unwrap_or_default();
    let at_most =
        |what: &str, has: u64, most: u64| assert!(has <= most, "{name}: {has} {what}, {most} may be: {seen:#?}");
    at_most("keys", counters.tensors, KEYS_PER_USER + OF_THE_JOB);
    // What a reply names is counted for its reader, too, and is the same range.
    at_most("versions", counters.blobs, VERSIONS_PER_USER + OF_THE_JOB);
    at_most("bytes of pinned memory", seen.pinned_bytes, PINNED_BYTES);
    let directory = seen.directory.clone().unwrap_or_default();
    // Two sidecars, and the attackers: those of the moment, and those whose stream is about to end.
    at_most("keys in the directory", directory.keys, 6 * DIRECTORY_KEYS_PER_NODE);
    for session in &seen.sessions {
        at_most("operations of a worker", session.operations, OPERATIONS_PER_WORKER);
    }
    for link in &seen.links {
        at_most("requests of a peer", link.serves, REQUESTS_PER_PEER);
        at_most("keys that a peer pushes", link.flows_in, REQUESTS_PER_PEER);
    }
}

/// One of the programs.
struct Attacker {
    process: Process,
    told: Option<std::thread::JoinHandle<String>>,
}

impl Attacker {
    /// It is held, and begins.
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

    /// It tells as the last thing that it does.
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

/// The median, in microseconds.
fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Prints what a round of the job takes by itself, with each attacker, and with all of them; and by itself again, as a measure of the machine.
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
