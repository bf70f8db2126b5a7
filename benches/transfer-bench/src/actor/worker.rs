//! The tasks of a worker in a benchmark: it uses the client as any program would.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use super::batches::{self, Batches};
use super::bell::Bell;
use super::bundles::Bundles;
use super::columns::Columns;
use super::copy;
use super::pace::Pace;
use super::read::{ReadStream, read_all};
use super::reshard::Reshard;
use super::shuffle::{Shuffle, Shuffler};
use super::slices::Slices;
use super::states::States;
use crate::clock::now_ns;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::task::Waker;
use std::time::Duration;
use transfer_client::{Begun, BlockingClient, DType, Error, Key, NodeConfig, PushError, Pushed};

/// A task of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerTask {
    /// Begins a session.
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The worker's name.
        name: String,
        /// The arena, in bytes.
        arena_bytes: u64,
        /// The longest polling time of a call before it sleeps; `None`: the client's default.
        spin: Option<Duration>,
    },
    /// Starts a sidecar inside of the process, and begins a session with it. Answers with the address at which it listens.
    Embed {
        /// The settings of its node: keys of the configuration file, and values. The node's name is the worker's.
        settings: Vec<(String, String)>,
        /// The worker's name.
        name: String,
        /// The arena, in bytes.
        arena_bytes: u64,
        /// As in [`WorkerTask::Connect`].
        spin: Option<Duration>,
    },
    /// Ends the session.
    Disconnect,
    /// Writes `tensors` tensors of `len` bytes, and drops them, so that the pages of the arena are in use from then on.
    Prefill {
        /// The length of each tensor in bytes.
        len: u64,
        /// The number.
        tensors: usize,
    },
    /// Pushes versions of a key, one at a time. Answers with the moments just before.
    Push {
        /// The key.
        key: String,
        /// The tensor's length in bytes.
        len: u64,
        /// The versions.
        versions: std::ops::Range<u64>,
        /// The pace.
        pace: Pace,
        /// The target worker.
        to: Option<String>,
    },
    /// Fetches versions of a key, one at a time. Answers with the moments just after, and the copied bytes.
    Fetch {
        /// The key.
        key: String,
        /// The versions.
        versions: std::ops::Range<u64>,
        /// The path at which each arrival is reported.
        turns: Option<PathBuf>,
    },
    /// Pushes a tensor to another worker, and waits for the one that it pushes back, or the other way round. Answers with the
    /// moment before each round, and that after the last.
    PingPong {
        /// The key of what it pushes.
        give: String,
        /// The key of what it fetches.
        take: String,
        /// The other worker; `None` where both have one sidecar.
        to: Option<String>,
        /// The tensors' length in bytes.
        len: u64,
        /// The versions.
        versions: std::ops::Range<u64>,
        /// Whether it pushes first.
        first: bool,
    },
    /// Fetches the newest version of a key, and drops it, repeatedly. Answers with the durations, and the copied bytes.
    FetchAgain {
        /// The key.
        key: String,
        /// The number of times.
        count: u64,
    },
    /// Fetches a version and reads all of it twice. Answers with the two durations.
    ReadTwice {
        /// The key.
        key: String,
        /// The version.
        version: u64,
    },
    /// Pushes memory that lies outside the arena, and copies it to ordinary memory, too. Answers with the durations of
    /// both.
    CopyIn {
        /// The length in bytes.
        len: usize,
        /// The number of times.
        rounds: u64,
        /// The number of threads.
        threads: usize,
    },
    /// Pushes the same bytes repeatedly, several at a time, each under its own key. Answers with the first and the last moment.
    Stream {
        /// The prefix of the keys.
        prefix: String,
        /// The length of each tensor in bytes.
        len: u64,
        /// The number of keys.
        in_flight: usize,
        /// The number of pushes of each key.
        count: u64,
        /// The versions begin above this one.
        above: u64,
        /// The target worker.
        to: String,
    },
    /// Pushes several ranges of the arena in turn, to a worker that reads every byte. Answers with the moment before the first.
    PushToReader(ReadStream),
    /// Fetches and reads the messages of `PushToReader`. Answers with the moment after the last.
    ReadStream(ReadStream),
    /// Pushes batches, up to two ahead of the consumer. Answers with the moment before the first.
    PushBatches(Batches),
    /// Fetches the batches of `PushBatches`. Answers with the moment after the last.
    FetchBatches(Batches),
    /// A task with a record batch and a dense tensor.
    Columns(Columns),
    /// Pushes a bundle and a tensor.
    PushBundles(Bundles),
    /// Fetches what `PushBundles` has pushed.
    FetchBundles(Bundles),
    /// A task with slices of a matrix.
    Slices(Slices),
    /// A task with a sharded state.
    Reshard(Reshard),
    /// Pushes a state, or fetches it into tensors.
    States(States),
    /// A task in an exchange of record batches.
    Shuffle(Shuffle),
    /// Publishes many small tensors under keys of 32 bytes. Rank 2, 64 bytes each.
    Publish {
        /// The number.
        count: u64,
    },
}

/// A worker, connected or not.
#[derive(Debug, Default)]
pub(super) struct Worker {
    client: Option<BlockingClient>,
    shuffler: Shuffler,
}

impl Worker {
    pub(super) fn perform(&mut self, task: WorkerTask) -> Result<Answer, Failed> {
        match task {
            WorkerTask::Connect { socket, name, arena_bytes, spin } => {
                let mut connect = BlockingClient::connect(&socket).name(name).arena_bytes(arena_bytes);
                if let Some(spin) = spin {
                    connect = connect.spin(spin);
                }
                self.client = Some(connect.timeout(CALL_TIMEOUT).call()?);
                return Ok(Answer::Done);
            }
            WorkerTask::Embed { settings, name, arena_bytes, spin } => {
                let config =
                    settings.iter().fold(NodeConfig::new(&name), |config, (key, value)| config.set(key, value));
                let mut connect = BlockingClient::embedded_with(config).name(name).arena_bytes(arena_bytes);
                if let Some(spin) = spin {
                    connect = connect.spin(spin);
                }
                self.client = Some(connect.timeout(CALL_TIMEOUT).call()?);
                let address = transfer_client::embedded_addresses().and_then(|addresses| addresses.grpc);
                return Ok(Answer::Listens(address));
            }
            WorkerTask::Disconnect => {
                *self = Worker::default();
                return Ok(Answer::Done);
            }
            _ => {}
        }
        let client = self.client.as_ref().ok_or("the worker is not connected")?;
        match task {
            WorkerTask::Connect { .. } | WorkerTask::Embed { .. } | WorkerTask::Disconnect => Ok(Answer::Done),
            WorkerTask::Prefill { len, tensors } => prefill(client, len, tensors),
            WorkerTask::Push { key, len, versions, pace, to } => {
                push(client, &key, len, versions, &pace, to.as_deref())
            }
            WorkerTask::Fetch { key, versions, turns } => fetch(client, &key, versions, turns),
            WorkerTask::PingPong { give, take, to, len, versions, first } => {
                ping_pong(client, (&give, &take), to.as_deref(), len, versions, first)
            }
            WorkerTask::FetchAgain { key, count } => fetch_again(client, &key, count),
            WorkerTask::ReadTwice { key, version } => read_twice(client, &key, version),
            WorkerTask::CopyIn { len, rounds, threads } => copy::copy_in(client, len, rounds, threads),
            WorkerTask::Stream { prefix, len, in_flight, count, above, to } => {
                stream(client, &prefix, len, in_flight, above + 1..above + 1 + count, &to)
            }
            WorkerTask::PushToReader(stream) => stream.push(client),
            WorkerTask::ReadStream(stream) => stream.read(client),
            WorkerTask::PushBatches(batches) => batches.push(client),
            WorkerTask::FetchBatches(batches) => batches.fetch(client),
            WorkerTask::Columns(columns) => columns.perform(client),
            WorkerTask::PushBundles(bundles) => bundles.push(client),
            WorkerTask::FetchBundles(bundles) => bundles.fetch(client),
            WorkerTask::Slices(slices) => slices.perform(client),
            WorkerTask::Reshard(task) => task.perform(client),
            WorkerTask::States(task) => task.perform(client),
            WorkerTask::Shuffle(task) => self.shuffler.perform(task, client),
            WorkerTask::Publish { count } => batches::publish(client, count),
        }
    }
}

fn prefill(client: &BlockingClient, len: u64, tensors: usize) -> Result<Answer, Failed> {
    let mut all = (0..tensors).map(|_| client.allocate(DType::U8, [len])).collect::<Result<Vec<_>, _>>()?;
    all.iter_mut().for_each(|tensor| tensor.as_mut_bytes().fill(3));
    Ok(Answer::Done)
}

fn push(
    client: &BlockingClient,
    key: &str,
    len: u64,
    versions: std::ops::Range<u64>,
    pace: &Pace,
    to: Option<&str>,
) -> Result<Answer, Failed> {
    let key = Key::new(key)?;
    let mut ticker = pace.start()?;
    let (mut ns, mut copied) = (Vec::new(), 0);
    for version in versions {
        // Its contents are left over from an earlier tensor, because producing is not measured.
        let tensor = client.allocate_wait(DType::U8, [len]).timeout(CALL_TIMEOUT).call()?;
        ticker.wait()?;
        ns.push(now_ns());
        let mut push = client.push_tensor(&key, tensor).version(version).timeout(CALL_TIMEOUT);
        if let Some(to) = to {
            push = push.to(to);
        }
        copied += push.call().map_err(Error::from)?.report.copied;
    }
    Ok(Answer::Times { ns, copied })
}

fn fetch(
    client: &BlockingClient,
    key: &str,
    versions: std::ops::Range<u64>,
    turns: Option<PathBuf>,
) -> Result<Answer, Failed> {
    let key = Key::new(key)?;
    let turns = turns.map(|path| Bell::connect(&path)).transpose()?;
    let (mut ns, mut copied) = (Vec::new(), 0);
    for version in versions {
        let tensor = client.fetch(&key).exactly(version).timeout(CALL_TIMEOUT).call()?;
        ns.push(now_ns());
        copied += tensor.report().copied;
        drop(tensor);
        if let Some(turns) = &turns {
            // After the last version, the producer may be gone.
            let _ = turns.ring();
        }
    }
    Ok(Answer::Times { ns, copied })
}

fn fetch_again(client: &BlockingClient, key: &str, count: u64) -> Result<Answer, Failed> {
    let key = Key::new(key)?;
    let (mut ns, mut copied) = (Vec::new(), 0);
    for _ in 0..count {
        let started = now_ns();
        let tensor = client.fetch(&key).timeout(CALL_TIMEOUT).call()?;
        ns.push(now_ns() - started);
        copied += tensor.report().copied;
    }
    Ok(Answer::Times { ns, copied })
}

fn read_twice(client: &BlockingClient, key: &str, version: u64) -> Result<Answer, Failed> {
    let tensor = client.fetch(key).exactly(version).timeout(CALL_TIMEOUT).call()?;
    let read = || {
        let started = now_ns();
        read_all(tensor.as_bytes());
        now_ns() - started
    };
    Ok(Answer::Times { ns: vec![read(), read()], copied: tensor.report().copied })
}

fn stream(
    client: &BlockingClient,
    prefix: &str,
    len: u64,
    in_flight: usize,
    versions: std::ops::Range<u64>,
    to: &str,
) -> Result<Answer, Failed> {
    // One thread, as the others have. All pushes share one range of the arena, as the baseline has one buffer.
    let mut tensor = client.allocate(DType::U8, [len])?;
    tensor.as_mut_bytes().fill(3);
    let tensor = tensor.freeze();
    let keys = (0..in_flight).map(|i| Key::new(&format!("{prefix}/{i}"))).collect::<Result<Vec<_>, _>>()?;
    let mut copied = 0;
    let mut count = |pushed: Result<Pushed, PushError>| -> Result<(), Error> {
        copied += pushed.map_err(Error::from)?.report.copied;
        Ok(())
    };
    let mut under_way: VecDeque<Begun<'_, Result<Pushed, PushError>>> = VecDeque::new();
    let started = now_ns();
    for version in versions {
        for key in &keys {
            if under_way.len() == in_flight
                && let Some(mut push) = under_way.pop_front()
            {
                count(push.wait(CALL_TIMEOUT).ok_or(Error::NoAnswer { waited: CALL_TIMEOUT })?)?;
            }
            let mut push = client.push_frozen(key, &tensor).version(version).to(to).timeout(CALL_TIMEOUT).begin();
            // This sends it.
            match push.poll(Waker::noop()) {
                ControlFlow::Break(pushed) => count(pushed)?,
                ControlFlow::Continue(_) => under_way.push_back(push),
            }
        }
    }
    for mut push in under_way {
        count(push.wait(CALL_TIMEOUT).ok_or(Error::NoAnswer { waited: CALL_TIMEOUT })?)?;
    }
    Ok(Answer::Times { ns: vec![started, now_ns()], copied })
}

fn ping_pong(
    client: &BlockingClient,
    (give, take): (&str, &str),
    to: Option<&str>,
    len: u64,
    versions: std::ops::Range<u64>,
    first: bool,
) -> Result<Answer, Failed> {
    let (give, take) = (Key::new(give)?, Key::new(take)?);
    let (mut ns, mut copied) = (Vec::new(), 0);
    for version in versions {
        let push = || -> Result<u64, Failed> {
            let tensor = client.allocate_wait(DType::U8, [len]).timeout(CALL_TIMEOUT).call()?;
            let mut push = client.push_tensor(&give, tensor).version(version).timeout(CALL_TIMEOUT);
            if let Some(to) = to {
                push = push.to(to);
            }
            Ok(push.call().map_err(Error::from)?.report.copied)
        };
        ns.push(now_ns());
        if first {
            copied += push()?;
        }
        copied += client.fetch(&take).exactly(version).timeout(CALL_TIMEOUT).call()?.report().copied;
        if !first {
            copied += push()?;
        }
    }
    ns.push(now_ns());
    Ok(Answer::Times { ns, copied })
}
