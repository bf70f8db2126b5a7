//! A sidecar for tests: a thread at the other end of a session, which keeps pushes in a map, or answers by a script.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "shared by several test programs")]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transfer_client::{FabricKind, Failure, FailureCode, Report, Socket};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::op::{Answer, Command, Fetch, FetchedTensor, LeaseId, OpId, Push, Reply, Request};
use transfer_core::tensor::{Key, Name, TensorMeta, Version};
use transfer_core::wire::Writer;
use transfer_core::wire::session::{read_request, write_reply};
use transfer_memory::ring::{MAX_RECORD_BYTES, MIN_CAPACITY};
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment};
use transfer_memory::session::{Admission, FromWorker, SidecarEnd, SidecarPolicy};

pub const ARENA: SegmentId = SegmentId(7);

/// The answers of the sidecar to each request.
pub trait Script: Send + 'static {
    fn request(&mut self, wire: &mut Wire, request: Request);
}

impl<F: FnMut(&mut Wire, Request) + Send + 'static> Script for F {
    fn request(&mut self, wire: &mut Wire, request: Request) {
        self(wire, request);
    }
}

/// The sidecar's end of a session.
pub struct Wire {
    end: SidecarEnd,
    heard: Arc<Mutex<Heard>>,
}

/// The requests that the sidecar has received.
#[derive(Debug, Default, Clone)]
pub struct Heard {
    pub requests: u64,
    pub doorbells: u64,
    pub released: Vec<LeaseId>,
    pub cancelled: Vec<OpId>,
    /// Leases that were handed out and not released.
    pub leases: i64,
    /// Pushes that are not returned.
    pub pushed: i64,
    /// Whether the worker has left.
    pub left: bool,
    /// Whether the worker has closed its socket.
    pub closed: bool,
}

impl Wire {
    pub fn reply(&mut self, reply: &Reply) {
        if let Reply::Answer { answer: Answer::Fetched { .. }, .. } = reply {
            self.heard.lock().unwrap().leases += 1;
        }
        let mut writer = Writer::new();
        write_reply(&mut writer, reply);
        while !self.end.completion.try_push(writer.as_slice()).unwrap() {
            self.publish();
            std::thread::yield_now();
        }
    }

    pub fn publish(&mut self) {
        self.end.completion.publish();
        if self.end.completion.should_wake() {
            // The worker may be gone.
            let _ = self.end.socket.ring();
        }
    }

    pub fn pass(&mut self, id: SegmentId, segment: &Segment) {
        self.end.socket.pass_segment(id, segment, Instant::now() + Duration::from_secs(10)).unwrap();
    }
}

/// A sidecar that runs.
pub struct Sidecar {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
    heard: Arc<Mutex<Heard>>,
}

impl Sidecar {
    /// A sidecar, and the socket to connect to it over.
    pub fn start(script: impl Script) -> (Sidecar, Socket) {
        let (worker, socket) = Socket::pair().unwrap();
        let (stop, deaf) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let heard = Arc::new(Mutex::new(Heard::default()));
        let thread = std::thread::spawn({
            let (stop, deaf, heard) = (stop.clone(), deaf.clone(), heard.clone());
            move || run(socket, script, &stop, &deaf, heard)
        });
        (Sidecar { thread: Some(thread), stop, deaf, heard }, worker)
    }

    /// Stops reading requests, or continues.
    pub fn set_deaf(&self, deaf: bool) {
        self.deaf.store(deaf, Ordering::SeqCst);
    }

    pub fn heard(&self) -> Heard {
        self.heard.lock().unwrap().clone()
    }

    /// Waits until the received requests are as `expected`.
    pub fn wait_until(&self, expected: impl Fn(&Heard) -> bool) -> Heard {
        for _ in 0..2000 {
            let heard = self.heard();
            if expected(&heard) {
                return heard;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{:?}", self.heard());
    }

    /// Ends the sidecar as a crash does: the socket closes.
    pub fn kill(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.kill();
        }
    }
}

fn run(socket: Socket, mut script: impl Script, stop: &AtomicBool, deaf: &AtomicBool, heard: Arc<Mutex<Heard>>) {
    let policy = SidecarPolicy {
        node: Name::new("node-a").unwrap(),
        incarnation: 5,
        max_arena_bytes: 64 << 20,
        submission_capacity: MIN_CAPACITY,
        completion_capacity: MIN_CAPACITY,
        pages: Pages::Base,
        lock: Lock::No,
        budget: PinnedBudget::new(128 << 20),
        timeout: Duration::from_secs(10),
    };
    let welcome = |applicant: &transfer_memory::session::Applicant| {
        Ok(Admission {
            session: 1,
            arena: ARENA,
            arena_bytes: applicant.wanted_arena_bytes,
            board: None,
            notices: SegmentId(0),
        })
    };
    let end = SidecarEnd::accept(socket, &policy, welcome).unwrap();
    // The session is open.
    end.socket.ring().unwrap();
    let mut wire = Wire { end, heard };
    let mut buffer = [0; MAX_RECORD_BYTES];
    while !stop.load(Ordering::SeqCst) {
        if deaf.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        while let Some(record) = wire.end.submission.try_pop(&mut buffer).unwrap() {
            let request = read_request(record).unwrap();
            note(&mut wire.heard.lock().unwrap(), &request);
            script.request(&mut wire, request);
        }
        wire.publish();
        if wire.end.submission.should_wake() {
            let _ = wire.end.socket.ring();
        }
        if wire.end.submission.prepare_sleep() {
            wait(&wire.end);
            wire.end.submission.awake();
        }
        match wire.end.socket.try_receive() {
            Ok(Some(FromWorker::Leave)) => {
                wire.heard.lock().unwrap().left = true;
                wire.end.socket.hang_up();
            }
            Ok(Some(_)) => wire.heard.lock().unwrap().doorbells += 1,
            Ok(None) => {}
            Err(_) => {
                wire.heard.lock().unwrap().closed = true;
                return;
            }
        }
    }
}

fn note(heard: &mut Heard, request: &Request) {
    heard.requests += 1;
    match request {
        Request::Release { lease } => {
            heard.leases -= 1;
            heard.released.push(*lease);
        }
        Request::Cancel { op } => heard.cancelled.push(*op),
        _ => {}
    }
}

fn wait(end: &SidecarEnd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    let _ = poll(&mut [PollFd::new(&end.socket, PollFlags::IN)], Some(&timeout));
}

pub fn report(bytes: u64) -> Report {
    Report {
        fabric: FabricKind::Local,
        bytes,
        copied: 0,
        verified: 0,
        relayed: 0,
        delta: 0,
        queued: Duration::ZERO,
        waited: Duration::ZERO,
        in_flight: Duration::from_micros(3),
        origin: None,
    }
}

pub fn failed(op: OpId, code: FailureCode, kept: bool) -> Reply {
    Reply::Answer {
        op,
        answer: Answer::Failed { failure: Failure::new(code, format!("{code:?}, says the test")), kept },
    }
}

/// A sidecar of one worker that follows the protocol.
#[derive(Default)]
pub struct Honest {
    published: HashMap<Key, Blob>,
    /// The number of leases of each blob, including blobs that were replaced or deleted.
    leases: BTreeMap<u64, u64>,
    blobs: BTreeMap<u64, Blob>,
    waiting: Vec<(OpId, Fetch)>,
    next: u64,
    /// At how many bytes per second it says that versions leave the node.
    link_rate: u64,
}

#[derive(Clone)]
struct Blob {
    id: u64,
    pushed: OpId,
    offset: u64,
    meta: TensorMeta,
    version: Version,
    refs: u64,
}

impl Honest {
    /// A sidecar whose versions leave the node with that many bytes per second.
    pub fn with_link_rate(link_rate: u64) -> Honest {
        Honest { link_rate, ..Honest::default() }
    }
}

impl Script for Honest {
    fn request(&mut self, wire: &mut Wire, request: Request) {
        match request {
            Request::Command { op, command: Command::Push(push) } => self.push(wire, op, push),
            Request::Command { op, command: Command::Fetch(fetch) } => {
                if !self.answer(wire, op, &fetch) {
                    self.waiting.push((op, fetch));
                }
            }
            Request::Release { lease } => {
                let blob = self.leases.remove(&lease.0).unwrap();
                self.unref(wire, blob);
            }
            Request::Cancel { op } => {
                let before = self.waiting.len();
                self.waiting.retain(|(waiting, _)| *waiting != op);
                if self.waiting.len() < before {
                    wire.reply(&failed(op, FailureCode::Cancelled, false));
                }
            }
            Request::Command { op, command: Command::Delete { key } } => match self.published.remove(&key) {
                Some(blob) => {
                    wire.reply(&Reply::Answer { op, answer: Answer::Deleted });
                    self.unref(wire, blob.id);
                }
                None => wire.reply(&failed(op, FailureCode::UnknownKey, false)),
            },
            other => panic!("{other:?}"),
        }
    }
}

impl Honest {
    fn push(&mut self, wire: &mut Wire, op: OpId, push: Push) {
        let last = self.published.get(&push.key).map(|blob| blob.version);
        let version = push.version.unwrap_or(Version(last.map_or(1, |v| v.0 + 1)));
        if last.is_some_and(|last| version <= last) {
            return wire.reply(&failed(op, FailureCode::VersionNotRising, false));
        }
        self.next += 1;
        let blob = Blob { id: self.next, pushed: op, offset: push.offset, meta: push.meta.clone(), version, refs: 1 };
        self.blobs.insert(blob.id, blob.clone());
        wire.heard.lock().unwrap().pushed += 1;
        let old = self.published.insert(push.key.clone(), blob);
        let (link_rate, report) = (self.link_rate, report(push.meta.len_bytes()));
        wire.reply(&Reply::Answer { op, answer: Answer::Pushed { version, link_rate, report } });
        if let Some(old) = old {
            self.unref(wire, old.id);
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting = waiting.into_iter().filter(|(op, fetch)| !self.answer(wire, *op, fetch)).collect();
    }

    fn answer(&mut self, wire: &mut Wire, op: OpId, fetch: &Fetch) -> bool {
        let Some(found) = self.published.get(&fetch.key) else { return false };
        if fetch.select.missed(found.version) {
            wire.reply(&failed(op, FailureCode::VersionGone, false));
            return true;
        }
        if !fetch.select.takes(found.version) {
            return false;
        }
        let found = found.clone();
        self.blobs.get_mut(&found.id).unwrap().refs += 1;
        self.next += 1;
        self.leases.insert(self.next, found.id);
        let len = found.meta.len_bytes();
        wire.reply(&Reply::Answer {
            op,
            answer: Answer::Fetched {
                lease: LeaseId(self.next),
                tensor: FetchedTensor {
                    version: found.version,
                    meta: found.meta,
                    slice: LocalSlice { segment: ARENA, offset: found.offset, len },
                    ranges: 0,
                    is_part: false,
                    publication: 0,
                    report: report(len),
                },
            },
        });
        true
    }

    fn unref(&mut self, wire: &mut Wire, id: u64) {
        let blob = self.blobs.get_mut(&id).unwrap();
        blob.refs -= 1;
        if blob.refs == 0 {
            wire.reply(&Reply::Returned { pushed: blob.pushed, offset: blob.offset });
            wire.heard.lock().unwrap().pushed -= 1;
            self.blobs.remove(&id);
        }
    }
}
