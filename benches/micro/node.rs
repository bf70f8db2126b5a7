//! The state machine's share of a hand-over between two workers of one sidecar, without any I/O.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;
use transfer_benches::Runner;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::op::{Answer, Command, Fetch, LeaseId, OpId, Push, Reply, Request};
use transfer_core::protocol::{Action, Claim, Control, DirectoryNews, HostAction, Node, NodeConfig, SessionId, Tenant};
use transfer_core::tensor::{DType, InvalidName, InvalidShape, Key, Name, Select, TensorMeta, Version};
use transfer_core::time::Time;
use transfer_core::trace::TraceContext;

const PRODUCER: SessionId = SessionId(1);
const CONSUMER: SessionId = SessionId(2);
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum Failed {
    Name(#[allow(dead_code, reason = "printed")] InvalidName),
    Shape(#[allow(dead_code, reason = "printed")] InvalidShape),
}

fn main() -> Result<(), Failed> {
    let runner = Runner::from_arguments();
    // With metrics: the node measures the times of transfers, and records each.
    let mut bench = Bench::with(1, false)?;
    runner.measure("node: push, fetch, release; untimed", 1, || bench.hand_over(false));
    let mut bench = Bench::with(1, true)?;
    runner.measure("node: push, fetch, release; timed", 1, || bench.hand_over(false));
    bench.node.trace(true);
    runner.measure("node: push, fetch, release; timed, traced", 1, || {
        bench.hand_over(false);
        bench.node.take_ended().count()
    });
    bench.trace = TraceContext::new([1; 16], [2; 8], 1).ok();
    runner.measure("node: push, fetch, release; timed, traced, in a trace", 1, || {
        bench.hand_over(false);
        bench.node.take_ended().count()
    });
    bench.node.trace(false);
    runner.measure("node: push, fetch, release; timed, in a trace", 1, || bench.hand_over(false));
    for keys in [1, 1000, 100_000] {
        let mut bench = Bench::new(keys)?;
        runner.measure(&format!("node: push, fetch, release; {keys} keys"), 1, || bench.hand_over(false));
        let mut bench = Bench::new(keys)?;
        runner.measure(&format!("node: fetch before its push, release; {keys} keys"), 1, || bench.hand_over(true));
        let mut bench = Bench::new(keys)?;
        runner.measure(&format!("node: push that replaces one; {keys} keys"), 1, || bench.push());
    }
    Ok(())
}

struct Bench {
    node: Node,
    keys: Vec<Key>,
    meta: TensorMeta,
    next: u64,
    handed_over: u64,
    /// Memory for the actions that are carried out.
    actions: VecDeque<Action>,
    /// The trace context of pushes and fetches.
    trace: Option<TraceContext>,
}

impl Bench {
    fn new(keys: usize) -> Result<Bench, Failed> {
        Bench::with(keys, true)
    }

    fn with(keys: usize, timed: bool) -> Result<Bench, Failed> {
        let name = |text: &str| Name::new(text).map_err(Failed::Name);
        let headers = LocalSlice { segment: SegmentId(0), offset: 0, len: 64 * 64 };
        let mut config = NodeConfig::new(name("bench")?, 1);
        config.timed = timed;
        let mut node = Node::new(config, headers);
        for (session, worker) in [(PRODUCER, "producer"), (CONSUMER, "consumer")] {
            let arena = SegmentId(session.0 as u32);
            node.session_opened(session, name(worker)?, Tenant::User(0), arena, 1 << 40);
        }
        let keys = (0..keys).map(|i| Key::new(&format!("model/layers/{i}/attention/w_qkv")));
        let keys = keys.collect::<Result<Vec<_>, _>>().map_err(Failed::Name)?;
        let meta = TensorMeta::of(DType::F32, &[64, 16]).map_err(Failed::Shape)?;
        let mut bench = Bench { node, keys, meta, next: 0, handed_over: 0, actions: VecDeque::new(), trace: None };
        // This makes all keys known, with an owner.
        (0..bench.keys.len()).for_each(|_| bench.push());
        Ok(bench)
    }

    fn now(&self) -> Time {
        Time(self.next * 1000)
    }

    /// The next key and version.
    fn turn(&self) -> (Key, Version) {
        let (keys, at) = (self.keys.len() as u64, self.next);
        (self.keys[(at % keys) as usize].clone(), Version(at / keys + 1))
    }

    fn push(&mut self) {
        let (key, version) = self.turn();
        let push = Push {
            version: Some(version),
            timeout: TIMEOUT,
            trace: self.trace,
            ..Push::new(key, self.meta.clone(), self.next * 4096 % (1 << 40))
        };
        let request = Request::Command { op: OpId(self.next), command: Command::Push(push) };
        self.node.request(self.now(), PRODUCER, request);
        self.next += 1;
        self.act();
    }

    fn fetch(&mut self, key: Key, version: Version) {
        let fetch = Fetch {
            key,
            select: Select::Exactly(version),
            timeout: TIMEOUT,
            require: None,
            trace: self.trace,
            watches: false,
            excerpt: None,
            base: None,
        };
        let request = Request::Command { op: OpId(self.next), command: Command::Fetch(fetch) };
        self.node.request(self.now(), CONSUMER, request);
        self.act();
    }

    fn hand_over(&mut self, fetch_first: bool) -> u64 {
        let (key, version) = self.turn();
        if fetch_first {
            self.fetch(key, version);
            self.push();
        } else {
            self.push();
            self.fetch(key, version);
        }
        self.handed_over
    }

    /// Executes the node's actions, like the engine and the control plane.
    fn act(&mut self) {
        let mut lease: Option<LeaseId> = None;
        let mut actions = std::mem::take(&mut self.actions);
        while self.node.take_actions(&mut actions) {
            for action in actions.drain(..) {
                match action {
                    Action::Host(HostAction::Reply {
                        reply: Reply::Answer { answer: Answer::Fetched { lease: id, .. }, .. },
                        ..
                    }) => lease = Some(id),
                    Action::Host(HostAction::Reply {
                        reply: Reply::Answer { answer: Answer::Failed { failure, .. }, .. },
                        ..
                    }) => {
                        // A benchmark of failures would be misleading.
                        eprintln!("{failure}");
                        std::process::exit(1);
                    }
                    Action::Host(HostAction::Control(Control::Claim(Claim { key, .. }))) => {
                        self.node.directory_news(self.now(), DirectoryNews::Claimed { key, result: Ok(1) });
                    }
                    _ => {}
                }
                if let Some(lease) = lease.take() {
                    self.handed_over += 1;
                    self.node.request(self.now(), CONSUMER, Request::Release { lease });
                }
            }
        }
        self.actions = actions;
    }
}
