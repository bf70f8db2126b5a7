//! A worker, from the side of the test that gives it orders.

use crate::calls::{FetchCall, Pending, PushCall, done, number, sum};
use crate::container::{self, Container, SHARED};
use crate::order::{
    Answer, Change, CountOrder, Counted, FetchOrder, Keep, Line, MeetOrder, Met, Order, PushMode, PushOrder, Reply,
    Select, Spec, Trouble,
};
use crate::process::{Process, Start};
use crate::{Sidecar, WAIT_LIMIT, programs};
use rustix::process::Signal;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The parameters of a worker.
#[derive(Debug)]
pub struct WorkerStart {
    name: String,
    socket: PathBuf,
    log: PathBuf,
    program: PathBuf,
    arena_bytes: u64,
    is_async: bool,
    comes_back: bool,
    uid: Option<u32>,
    container: Option<Container>,
}

type Waiting = Arc<Mutex<HashMap<u64, Sender<Result<Answer, Trouble>>>>>;

/// A connected worker. Killed when dropped; [`Worker::close`] lets it end by itself.
#[derive(Debug)]
pub struct Worker {
    name: String,
    incarnation: u64,
    process: Process,
    is_contained: bool,
    stdin: Option<ChildStdin>,
    waiting: Waiting,
    next_id: u64,
}

impl WorkerStart {
    /// Sets the size of the arena.
    #[must_use]
    pub fn arena_bytes(mut self, bytes: u64) -> Self {
        self.arena_bytes = bytes;
        self
    }

    /// Makes the worker's exchange use the async client. Everything else uses the blocking client of the same
    /// session.
    #[must_use]
    pub fn with_async_client(mut self) -> Self {
        self.is_async = true;
        self
    }

    /// Makes the worker connect again by itself when its sidecar is restarted. Without this, its session ends then.
    #[must_use]
    pub fn that_comes_back(mut self) -> Self {
        self.comes_back = true;
        self
    }

    /// Runs the worker as this user. `program` is a copy of the worker's program that this user can execute.
    #[must_use]
    pub fn user(mut self, uid: u32, program: PathBuf) -> Self {
        (self.uid, self.program) = (Some(uid), program);
        self
    }

    /// Runs the worker in this container, which shares the folder of the sidecar's socket.
    #[must_use]
    pub fn contained(mut self, container: Container) -> Self {
        self.container = Some(container);
        self
    }

    /// Starts the worker, which has to connect.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    pub fn start(self) -> Worker {
        let name = self.name.clone();
        self.try_start().unwrap_or_else(|trouble| panic!("worker {name} cannot connect: {trouble}"))
    }

    /// Starts the worker.
    ///
    /// # Errors
    /// The reason why it cannot connect.
    ///
    /// # Panics
    /// If the program fails.
    pub fn try_start(self) -> Result<Worker, Trouble> {
        let arena = self.arena_bytes.to_string();
        let face = if self.is_async { "async" } else { "blocking" };
        let after = if self.comes_back { "comes-back" } else { "ends" };
        let words: [&OsStr; 5] =
            [self.socket.as_ref(), self.name.as_ref(), arena.as_ref(), face.as_ref(), after.as_ref()];
        let start = |arguments, mode| {
            Process::start(Start { leash: &self.program, arguments, mode, log: self.log.clone(), uid: self.uid })
        };
        let mut process = match self.container {
            None => start(words.to_vec(), "work"),
            Some(container) => {
                let shared = self.socket.parent().expect("a socket lies in a folder");
                let socket = Path::new(SHARED).join(self.socket.file_name().expect("a socket has a name"));
                // The first process of a container cannot see its parent, so its parent's process id is 0.
                let [_, name, arena, face, after] = words;
                let inside = ["work".as_ref(), "0".as_ref(), socket.as_os_str(), name, arena, face, after];
                let words = container.words(shared, &container.worker(shared), &inside);
                start(words.iter().map(AsRef::as_ref).collect(), "tied")
            }
        };
        let (stdin, stdout) = process.pipes();
        let (tell, told) = channel();
        let waiting: Waiting = Arc::new(Mutex::new(HashMap::from([(0, tell)])));
        let answers = waiting.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                let Reply { id, result } = serde_json::from_str(&line).expect("a worker answers as it should");
                if let Some(waiter) = lock(&answers).remove(&id) {
                    // The caller may no longer wait for the answer.
                    let _ = waiter.send(result);
                }
            }
            // All callers that still wait learn that there is no answer.
            lock(&answers).clear();
        });
        let first = Pending::new(format!("{} connects", self.name), told, Some);
        match first.outcome().unwrap_or_else(|| panic!("worker {}:\n{}", self.name, process.last_words()))? {
            Answer::Connected { incarnation, .. } => {
                let is_contained = self.container.is_some();
                let (name, stdin) = (self.name, Some(stdin));
                Ok(Worker { name, incarnation, process, is_contained, stdin, waiting, next_id: 1 })
            }
            other => panic!("a worker begins with {other:?}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Returns the parameters of a worker of `sidecar`.
    #[must_use]
    pub fn of(sidecar: &Sidecar, name: &str) -> WorkerStart {
        WorkerStart {
            name: name.to_owned(),
            socket: sidecar.socket(),
            log: sidecar.folder().join(format!("{}-workers.log", sidecar.name())),
            program: programs::worker(),
            arena_bytes: 16 << 20,
            is_async: false,
            comes_back: false,
            uid: None,
            container: None,
        }
    }

    /// Returns the worker's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the incarnation of the sidecar that the worker is connected to.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns the process id, as seen by the test.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        if self.is_contained { container::first_process(self.process.id()) } else { self.process.id() }
    }

    /// Gives an order.
    ///
    /// # Panics
    /// If the worker is gone.
    pub fn order<T>(&mut self, order: Order, take: fn(Answer) -> Option<T>) -> Pending<T> {
        let id = self.next_id;
        self.next_id += 1;
        let (tell, answer) = channel();
        lock(&self.waiting).insert(id, tell);
        let what = format!("{}: {order:?}", self.name);
        let line = serde_json::to_string(&Line { id, order }).expect("orders are plain values");
        let stdin = self.stdin.as_mut().expect("the worker is not closed");
        if let Err(e) = writeln!(stdin, "{line}") {
            panic!("{what}: the worker is gone: {e}\n{}", self.process.last_words());
        }
        Pending::new(what, answer, take)
    }

    /// Pushes a tensor.
    pub fn push(&mut self, key: &str, tensor: Spec) -> PushCall<'_> {
        let (key, timeout) = (key.to_owned(), WAIT_LIMIT / 2);
        let keep = Keep::default();
        let order = PushOrder {
            key,
            tensor,
            way: PushMode::Owned,
            version: None,
            to: None,
            timeout,
            require: None,
            keep,
            takeover: false,
            readable_by: Vec::new(),
        };
        PushCall::new(self, order)
    }

    /// Fetches a tensor.
    pub fn fetch(&mut self, key: &str) -> FetchCall<'_> {
        let (key, timeout) = (key.to_owned(), WAIT_LIMIT / 2);
        let order = FetchOrder { key, select: Select::Latest, timeout, require: None, hold: None };
        FetchCall::new(self, order)
    }

    /// Reads a held tensor again, and returns its checksum.
    pub fn read(&mut self, hold: &str) -> u64 {
        self.order(Order::Read(hold.to_owned()), sum).get()
    }

    /// Drops a held tensor.
    pub fn release(&mut self, hold: &str) {
        self.order(Order::Release(hold.to_owned()), done).get();
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// The client's error.
    pub fn delete(&mut self, key: &str) -> Result<(), Trouble> {
        self.order(Order::Delete(key.to_owned()), done).wait()
    }

    /// Opens a counter. The answer is the name of its home.
    pub fn open(&mut self, name: &str) -> Pending<String> {
        self.order(Order::Open(name.to_owned()), |a| if let Answer::Home(home) = a { Some(home) } else { None })
    }

    /// Operates on a counter, `times` times.
    pub fn count(&mut self, name: &str, change: Change, times: u64) -> Pending<Counted> {
        let order = CountOrder { name: name.to_owned(), change, times, timeout: WAIT_LIMIT / 2 };
        self.order(Order::Count(order), |a| if let Answer::Counted(c) = a { Some(c) } else { None })
    }

    /// Arrives at a barrier, for `times` rounds.
    pub fn meet(&mut self, name: &str, members: u32, times: u64, timeout: Duration) -> Pending<Met> {
        let order = MeetOrder { name: name.to_owned(), members, times, timeout };
        self.order(Order::Meet(order), |a| if let Answer::Met(m) = a { Some(m) } else { None })
    }

    /// Returns how much of the arena is free, in bytes.
    pub fn arena_free(&mut self) -> u64 {
        self.order(Order::ArenaFree, number).get()
    }

    /// Ends the worker with SIGKILL, whatever it does.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Stops the worker's process, as a debugger does; [`Worker::go_on`] lets it run again.
    pub fn freeze(&self) {
        self.process.stop();
    }

    /// See [`Worker::freeze`].
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Lets the worker end by itself, and returns its exit status.
    pub fn close(mut self) -> ExitStatus {
        self.stdin = None;
        self.process.wait()
    }
}
