//! A hostile worker.

use super::account::Notes;
use super::bare::Bare;
use super::{Against, Attacker, Deed};
use crate::agent::vandal;
use crate::agent::work::trouble;
use crate::poll;
use rand::Rng;
use rand::rngs::SmallRng;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, Counter, Error, Socket, Until};

/// The errors of a worker at its limit. `ArenaFull` comes from a client that has pushed without end.
const LIMIT: &[&str] = &["Busy", "ArenaFull"];

/// How long a call of the client may take.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Worker {
    against: Against,
    random: SmallRng,
    name: String,
    /// A client that behaves well enough to stay connected.
    client: Option<BlockingClient>,
    counters: Vec<Counter<BlockingClient>>,
    /// Connections that send nothing, until the next ones replace them.
    silent: Vec<Socket>,
    /// Sessions that are kept open, with their waiting operations and their arenas.
    waiting: Vec<Bare>,
    /// The number of the last unused name that was given out.
    next: u64,
}

impl Attacker for Worker {
    const DEEDS: &'static [Deed<Worker>] = &[
        Deed { name: "claims keys without end", act: Worker::claim_keys },
        Deed { name: "pushes versions that stay", act: Worker::push_versions },
        Deed { name: "takes over, deletes and pushes what is another's", act: Worker::take },
        Deed { name: "fetches what is another's", act: Worker::fetch },
        Deed { name: "opens counters without end", act: Worker::open_counters },
        Deed { name: "waits for what nobody pushes", act: Worker::wait },
        Deed { name: "repeats operation numbers", act: Worker::repeat },
        Deed { name: "floods its doorbell", act: Worker::ring },
        Deed { name: "never takes a reply", act: Worker::never_read },
        Deed { name: "scribbles over what it shares", act: Worker::scribble },
        Deed { name: "connects and dies", act: Worker::come_and_go },
        Deed { name: "connects and says nothing", act: Worker::be_silent },
        Deed { name: "takes all memory that it can", act: Worker::take_memory },
    ];

    fn new(against: Against, mut random: SmallRng) -> Worker {
        let name = format!("worst-{}", random.random_range(0..u32::MAX));
        let (counters, silent, waiting) = (Vec::new(), Vec::new(), Vec::new());
        Worker { against, random, name, client: None, counters, silent, waiting, next: 0 }
    }
}

impl Worker {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns a name that was not used yet.
    fn fresh(&mut self, between: &str) -> String {
        let next = self.next();
        format!("{}{between}{next}", self.name)
    }

    fn client(&mut self) -> BlockingClient {
        if let Some(client) = self.client.as_ref().filter(|client| client.gone().is_none()) {
            return client.clone();
        }
        let connected = poll(|| {
            // For the sidecar, the previous session may not have ended yet.
            let name = self.fresh("-");
            let connect = BlockingClient::connect(&self.against.socket).name(&name).arena_bytes(1 << 20);
            let connected = connect.timeout(TIMEOUT).reconnect(false).call();
            if connected.is_err() {
                // This attacker, or another one, has taken all memory.
                self.waiting.clear();
            }
            connected
        });
        let client = connected.expect("it may come in");
        self.client = Some(client.clone());
        client
    }

    /// Opens another session. The sidecar may have no room for it.
    fn bare(&mut self, arena_bytes: u64, notes: &mut Notes<'_>) -> Option<Bare> {
        let name = self.fresh("-");
        match Bare::connect(&self.against.socket, &name, arena_bytes) {
            Ok(bare) => Some(bare),
            Err(error) => {
                let kind = format!("{error:?}");
                let kind = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
                // `Socket`: its user has too many silent connections, and the sidecar closes the oldest of them.
                notes.error(&kind, &error.to_string(), &["Refused", "Socket"]);
                None
            }
        }
    }

    fn note<T>(notes: &mut Notes<'_>, result: Result<T, Error>, may: &[&str]) -> Option<T> {
        match result {
            Ok(value) => {
                notes.done();
                Some(value)
            }
            Err(error) => {
                let trouble = trouble(&error);
                notes.error(&trouble.kind, &trouble.text, may);
                None
            }
        }
    }

    fn claim_keys(&mut self, notes: &mut Notes<'_>) {
        let client = self.client();
        for _ in 0..100 {
            let key = self.fresh("/");
            let pushed = client.push_slice(&key, [1], &[1_u8]).timeout(TIMEOUT).call().map_err(Error::from);
            if Self::note(notes, pushed, LIMIT).is_none() {
                break;
            }
        }
    }

    fn push_versions(&mut self, notes: &mut Notes<'_>) {
        let client = self.client();
        let key = format!("{}/versions", self.name);
        for _ in 0..100 {
            let push = client.push_slice(&key, [1], &[1_u8]).keep(Until::Deleted).timeout(TIMEOUT);
            if Self::note(notes, push.call().map_err(Error::from), LIMIT).is_none() {
                break;
            }
        }
        if self.random.random_ratio(1, 8) {
            Self::note(notes, client.delete(&key).call(), &["NotOwner"]);
            // Ends the session, and all its keys with it.
            self.client = None;
        }
    }

    fn take(&mut self, notes: &mut Notes<'_>) {
        let client = self.client();
        let victim = self.against.victim.clone();
        for key in ["there/0", "back/0"].map(|key| format!("{victim}/{key}")) {
            let push = || client.push_slice(&key, [1], &[1_u8]).timeout(TIMEOUT);
            let stolen = [
                (push().call().map_err(Error::from), &["KeyOwned"][..]),
                (push().takeover().call().map_err(Error::from), &["PermissionDenied"]),
            ];
            for (result, may) in stolen {
                // A worker at its limit is refused for that reason.
                if Self::note(notes, result, &[may, LIMIT].concat()).is_some() {
                    notes.strange(&format!("{key} can be taken"));
                }
            }
            if Self::note(notes, client.delete(&key).call(), &["PermissionDenied", "NotOwner"]).is_some() {
                notes.strange(&format!("{key} can be deleted"));
            }
        }
        for target in ["leader", "follower"].map(|target| format!("{victim}-{target}")) {
            let key = format!("{}/to/{target}", self.name);
            let pushed = client.push_slice(&key, [1], &[1_u8]).to(&target).timeout(TIMEOUT).call();
            let may = ["PermissionDenied", "Busy", "ArenaFull"];
            if Self::note(notes, pushed.map_err(Error::from), &may).is_some() {
                notes.strange(&format!("{target} can be pushed to"));
            }
        }
    }

    fn fetch(&mut self, notes: &mut Notes<'_>) {
        let client = self.client();
        for key in ["there/0", "there/1", "back/0", "back/1"].map(|key| format!("{}/{key}", self.against.victim)) {
            for _ in 0..10 {
                let fetched = client.fetch(&key).timeout(TIMEOUT).call();
                if Self::note(notes, fetched, &["PermissionDenied"]).is_some() {
                    notes.strange(&format!("{key} can be read"));
                }
            }
        }
        let counter = client.counter(&self.against.victim).timeout(TIMEOUT).call();
        if Self::note(notes, counter, &["PermissionDenied"]).is_some() {
            notes.strange("the counter can be opened");
        }
        let met = client.barrier(&self.against.victim, 2).wait().timeout(TIMEOUT).call();
        if Self::note(notes, met, &["PermissionDenied"]).is_some() {
            notes.strange("the barrier can be met at");
        }
    }

    fn open_counters(&mut self, notes: &mut Notes<'_>) {
        let client = self.client();
        for _ in 0..100 {
            let name = self.fresh("-");
            match Self::note(notes, client.counter(&name).timeout(TIMEOUT).call(), &["Busy"]) {
                Some(counter) => self.counters.push(counter),
                None => break,
            }
        }
        for counter in self.counters.iter().rev().take(10) {
            // A counter belongs to the sidecar, and not to the session that opened it.
            let counted = counter.add(1).timeout(TIMEOUT).call();
            Self::note(notes, counted, &["SidecarGone", "Busy"]);
        }
    }

    /// Sends thousands of fetches of keys that are never pushed, more than the sidecar lets one worker have waiting.
    fn wait(&mut self, notes: &mut Notes<'_>) {
        let Some(mut bare) = self.bare(64 << 10, notes) else { return };
        let until = Instant::now() + Duration::from_millis(300);
        let mut op = 0;
        while op < 20_000 && Instant::now() < until {
            op += 1;
            if !bare.fetch(op, &format!("{}/never/{op}", self.name)) {
                op -= 1;
            }
            if op % 64 == 0 {
                bare.publish();
                bare.drain();
            }
        }
        bare.publish();
        notes.done();
        self.waiting.push(bare);
        if self.waiting.len() > 4 {
            self.waiting.clear();
        }
    }

    fn repeat(&mut self, notes: &mut Notes<'_>) {
        let Some(mut bare) = self.bare(64 << 10, notes) else { return };
        for _ in 0..100 {
            bare.fetch(7, &format!("{}/never", self.name));
            bare.publish();
        }
        let until = Instant::now() + Duration::from_millis(200);
        while !bare.is_out() && Instant::now() < until {
            bare.drain();
            std::thread::sleep(Duration::from_millis(5));
        }
        notes.done();
    }

    fn ring(&mut self, notes: &mut Notes<'_>) {
        let Some(bare) = self.bare(64 << 10, notes) else { return };
        for _ in 0..20_000 {
            if bare.end.socket.ring().is_err() {
                return notes.strange("it is thrown out");
            }
        }
        notes.done();
    }

    /// Fetches its own tensor, so that each reply has a lease.
    fn never_read(&mut self, notes: &mut Notes<'_>) {
        let client = self.client();
        let key = format!("{}/lease", self.name);
        let pushed = client.push_slice(&key, [1], &[1_u8]).timeout(TIMEOUT).call().map_err(Error::from);
        // `KeyOwned`: the owner is its own previous session, which has not ended yet for the sidecar. The key is
        // there.
        Self::note(notes, pushed, &["Busy", "ArenaFull", "KeyOwned"]);
        let Some(mut bare) = self.bare(64 << 10, notes) else { return };
        let mut op = 0;
        for _ in 0..20_000 {
            op += 1;
            if !bare.fetch(op, &key) {
                break;
            }
            bare.publish();
        }
        notes.done();
        self.waiting.push(bare);
    }

    fn scribble(&mut self, notes: &mut Notes<'_>) {
        // Drops all shared memory that this program still needs.
        (self.client, self.counters) = (None, Vec::new());
        self.waiting.clear();
        let Some(mut bare) = self.bare(256 << 10, notes) else { return };
        for op in 1..100 {
            bare.fetch(op, &format!("{}/never/{op}", self.name));
        }
        bare.publish();
        for seed in 0..4 {
            vandal::scribble(self.random.random::<u64>() ^ seed).expect("a process can write its own memory");
            let _ = bare.end.socket.ring();
            std::thread::sleep(Duration::from_millis(10));
        }
        notes.done();
    }

    fn come_and_go(&mut self, notes: &mut Notes<'_>) {
        for _ in 0..10 {
            if let Some(bare) = self.bare(64 << 10, notes) {
                notes.done();
                drop(bare);
            }
        }
    }

    fn be_silent(&mut self, notes: &mut Notes<'_>) {
        self.silent.clear();
        for _ in 0..200 {
            match Socket::connect(&self.against.socket, Instant::now() + Duration::from_secs(1)) {
                Ok(socket) => self.silent.push(socket),
                // The socket's queue of connections is full.
                Err(_) => break,
            }
        }
        notes.done();
    }

    /// Opens sessions with large arenas until there is no memory for them, and closes them once there are more than 8.
    fn take_memory(&mut self, notes: &mut Notes<'_>) {
        for _ in 0..4 {
            match self.bare(16 << 20, notes) {
                Some(bare) => {
                    notes.done();
                    self.waiting.push(bare);
                }
                None => break,
            }
        }
        if self.waiting.len() > 8 {
            self.waiting.clear();
        }
    }
}
