//! A sidecar for tests, and a worker that uses its rings directly.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use hyper_util::rt::TokioIo;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Answer, Command, Fetch, FetchedTensor, OpId, Push, Reply, Request};
use transfer_core::tensor::{DType, Key, Name, Select, TensorMeta};
use transfer_core::wire::Writer;
use transfer_core::wire::session::{read_reply, write_request};
use transfer_memory::ring::MAX_RECORD_BYTES;
use transfer_memory::session::{FromSidecar, SessionError, WorkerEnd, WorkerOptions};
use transfer_server::config::{Config, DirectoryPlace, FabricsConfig, Locking, Size};
use transfer_server::{Sidecar, StartError};

/// The longest time that a step may take before a test fails.
pub const SOON: Duration = Duration::from_secs(20);

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A sidecar whose sockets are in a directory of its own.
pub struct Node {
    pub sidecar: Sidecar,
    pub dir: TempDir,
}

impl Node {
    /// Starts a node that listens on loopback, with tcp alone. `change` may change its configuration.
    pub fn try_start(node: &str, change: impl FnOnce(&mut Config)) -> Result<Node, StartError> {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::single(name(node), &dir.path().join("worker.sock"));
        config.listen = Some("127.0.0.1:0".parse().unwrap());
        config.admin_socket = Some(dir.path().join("admin.sock"));
        config.pool_bytes = Size(4 << 20);
        config.lock = Locking::No;
        config.fabrics = FabricsConfig::none();
        change(&mut config);
        Ok(Node { sidecar: Sidecar::start(config)?, dir })
    }

    pub fn start(node: &str) -> Node {
        Node::try_start(node, |_| ()).unwrap()
    }

    /// Starts a node that uses the directory of `host`.
    pub fn join(node: &str, host: &Node) -> Node {
        let url = host.url();
        Node::try_start(node, |c| c.directory = DirectoryPlace::At(url)).unwrap()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.sidecar.addresses().grpc.unwrap())
    }

    pub fn worker(&self, worker: &str) -> Result<Worker, SessionError> {
        Worker::connect(&self.sidecar.addresses().socket, worker)
    }
}

/// Connects to a node's gRPC services over its Unix socket.
pub async fn over_unix(node: &Node) -> Channel {
    let path = node.sidecar.addresses().admin_socket.clone().unwrap();
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(path).await?)) }
    });
    Endpoint::from_static("http://unix").connect_with_connector(connect).await.unwrap()
}

/// Calls `ready` until it returns `true`.
#[track_caller]
pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !ready() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct Worker {
    pub end: WorkerEnd,
    next_op: u64,
    next_offset: u64,
}

impl Worker {
    pub fn connect(socket: &Path, worker: &str) -> Result<Worker, SessionError> {
        let options = WorkerOptions { name: name(worker), arena_bytes: 1 << 20, timeout: SOON };
        Ok(Worker { end: WorkerEnd::connect(socket, &options)?, next_op: 1, next_offset: 0 })
    }

    /// Violates the protocol, and waits until the sidecar throws the worker out.
    pub fn talks_nonsense(&mut self) {
        assert!(self.end.submission.try_push(&[0xff; 16]).unwrap());
        self.end.submission.publish();
        self.end.socket.ring().unwrap();
        let deadline = Instant::now() + SOON;
        while self.end.socket.receive(deadline).is_ok() {}
        assert!(Instant::now() < deadline, "it was not thrown out");
    }

    fn submit(&mut self, request: &Request) {
        let mut record = Writer::new();
        write_request(&mut record, request);
        assert!(self.end.submission.try_push(record.as_slice()).unwrap());
        self.end.submission.publish();
        if self.end.submission.should_wake() {
            self.end.socket.ring().unwrap();
        }
    }

    /// Sends a command, and waits for its answer. Maps the segments that come with the answer.
    fn ask(&mut self, command: Command) -> Answer {
        self.next_op += 1;
        self.submit(&Request::Command { op: OpId(self.next_op), command });
        let deadline = Instant::now() + SOON;
        let mut buffer = [0; MAX_RECORD_BYTES];
        loop {
            if let Some(record) = self.end.completion.try_pop(&mut buffer).unwrap() {
                match read_reply(record).unwrap() {
                    Reply::Answer { answer, .. } => return answer,
                    _ => continue,
                }
            }
            if self.end.completion.prepare_sleep() {
                self.take_message(deadline);
            }
            self.end.completion.awake();
        }
    }

    fn take_message(&mut self, deadline: Instant) {
        match self.end.socket.receive(deadline).unwrap() {
            FromSidecar::Segment(passed) => drop(self.end.segments.adopt(passed).unwrap()),
            FromSidecar::Doorbell => {}
            other => panic!("{other:?}"),
        }
    }

    /// Publishes bytes.
    pub fn push(&mut self, key: &str, bytes: &[u8]) -> Answer {
        let offset = self.next_offset;
        self.next_offset += (bytes.len() as u64).next_multiple_of(64);
        self.end.arena.copy_in(offset, bytes).unwrap();
        let push = Push {
            timeout: SOON,
            ..Push::new(Key::new(key).unwrap(), TensorMeta::of(DType::U8, &[bytes.len() as u64]).unwrap(), offset)
        };
        self.ask(Command::Push(push))
    }

    /// Fetches bytes. Returns the fabric that carried them, too.
    pub fn fetch(&mut self, key: &str, timeout: Duration) -> Result<(Vec<u8>, FabricKind), String> {
        self.fetch_over(None, key, timeout)
    }

    /// Fetches bytes over the required fabric only.
    pub fn fetch_over(
        &mut self,
        require: Option<FabricKind>,
        key: &str,
        timeout: Duration,
    ) -> Result<(Vec<u8>, FabricKind), String> {
        let key = Key::new(key).unwrap();
        let answer = self.ask(Command::Fetch(Fetch {
            key,
            select: Select::Latest,
            timeout,
            require,
            trace: None,
            watches: false,
            excerpt: None,
            base: None,
        }));
        match answer {
            Answer::Fetched { lease, tensor: FetchedTensor { slice, report, .. } } => {
                while self.end.segments.get(slice.segment).is_none() {
                    self.take_message(Instant::now() + SOON);
                }
                let mut bytes = vec![0; slice.len as usize];
                self.end.segments.get(slice.segment).unwrap().copy_out(slice.offset, &mut bytes).unwrap();
                self.submit(&Request::Release { lease });
                Ok((bytes, report.fabric))
            }
            Answer::Failed { failure, .. } => Err(failure.text),
            other => panic!("{other:?}"),
        }
    }
}
