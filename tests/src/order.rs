//! The messages between a test and a worker: orders and answers, one JSON value per line.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A line to a worker. The worker carries out each order on a thread of its own, and answers when the order is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// The id of the answer.
    pub id: u64,
    /// The order.
    pub order: Order,
}

/// A line from a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// [`Line::id`]; 0 for a worker's first line, which says whether it is connected.
    pub id: u64,
    /// The result of the order.
    pub result: Result<Answer, Trouble>,
}

/// The type, the shape and the contents of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The element type's short name.
    pub dtype: String,
    /// The dimensions.
    pub shape: Vec<u64>,
    /// The seed of the contents: see [`crate::pattern`].
    pub seed: u64,
}

impl Spec {
    /// Describes a one-dimensional `u8` tensor of `len` bytes.
    #[must_use]
    pub fn bytes(len: u64, seed: u64) -> Spec {
        Spec { dtype: "u8".into(), shape: vec![len], seed }
    }

    /// Returns the tensor's checksum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        crate::pattern::sum_of(self)
    }
}

/// How a tensor is pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushMode {
    /// Allocated in the arena, filled, and pushed as it is.
    Owned,
    /// Allocated, filled, frozen, and pushed frozen.
    Frozen,
    /// Bytes outside the arena: copied once.
    Foreign,
}

/// The version that a fetch asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Select {
    /// The newest.
    Latest,
    /// Exactly this version.
    Exactly(u64),
    /// This version or a newer one.
    AtLeast(u64),
}

/// See [`crate::Worker::push`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PushOrder {
    pub key: String,
    pub tensor: Spec,
    pub way: PushMode,
    pub version: Option<u64>,
    pub to: Option<String>,
    pub timeout: Duration,
    pub require: Option<String>,
    pub keep: Keep,
    pub takeover: bool,
    pub readable_by: Vec<String>,
}

/// How long a pushed version stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Keep {
    pub until: Until,
    pub outlives: bool,
}

/// The event that ends a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Until {
    #[default]
    Replaced,
    Fetched(u32),
    Deleted,
}

/// A way to publish weights that are updated in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InPlace {
    /// Each version is a copy.
    Snapshot,
    /// The update waits until no reader reads the last version.
    TakeBack,
    /// Two buffers that take turns.
    TwoBuffers,
}

/// See [`Order::Update`] and [`Order::Watch`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct UpdateOrder {
    pub key: String,
    pub way: InPlace,
    /// The number of elements, of 8 bytes each.
    pub len: u64,
    /// The last version.
    pub last: u64,
}

/// See [`crate::Worker::fetch`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FetchOrder {
    pub key: String,
    pub select: Select,
    pub timeout: Duration,
    pub require: Option<String>,
    /// Keeps the tensor under this name until [`Order::Release`]. Without a name, the tensor is read and dropped.
    pub hold: Option<String>,
}

/// An operation on a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Reads the counter.
    Get,
    /// Adds this number.
    Add(u64),
    /// Sets the counter to the second number if it has the first.
    Swap(u64, u64),
}

/// See [`crate::Worker::count`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CountOrder {
    pub name: String,
    pub change: Change,
    /// The number of operations, one after the other.
    pub times: u64,
    pub timeout: Duration,
}

/// See [`crate::Worker::meet`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MeetOrder {
    pub name: String,
    pub members: u32,
    /// The number of rounds, one after the other.
    pub times: u64,
    pub timeout: Duration,
}

/// An exchange between a leader and a follower. In each round the leader pushes. The follower fetches exactly that
/// version, checks it, and pushes its own. The leader fetches and checks the follower's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExchangeOrder {
    /// Whether this worker leads.
    pub leads: bool,
    /// The leader's key; the follower's is this with "-back".
    pub key: String,
    /// The worker at whose sidecar the leader's tensor shall land, if any.
    pub to: Option<String>,
    /// The version of the first round.
    pub first: u64,
    /// The size of each tensor.
    pub len: u64,
}

/// One side of a job of two workers on two nodes. In each round each of them gets tensors of all given lengths from the
/// other, counts, and meets the other at a barrier.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobOrder {
    /// The prefix of all names of the job.
    pub name: String,
    /// The other worker, if this one leads: the leader pushes to it. The other worker's tensors stay where they are,
    /// and the leader fetches them.
    pub to: Option<String>,
    /// The first round. The round is the version, and rises from one order to the next.
    pub first: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// The lengths in bytes.
    pub lens: Vec<u64>,
}

/// A step of an exchange of record batches.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ShuffleOrder {
    Open {
        name: String,
        partitions: u32,
        tasks: u32,
        deadline: Option<Duration>,
    },
    Join(String),
    /// Write this many rows, whose partitions take turns, and do not commit.
    Write {
        name: String,
        task: u32,
        attempt: u32,
        rows: u64,
    },
    Commit {
        name: String,
        task: u32,
        attempt: u32,
    },
    /// Read a partition, and hold its batches or drop them. Answered with task, attempt and number of each row, sorted.
    Read {
        name: String,
        partition: u32,
        hold: bool,
        timeout: Duration,
    },
    Release(String),
}

/// An order to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    /// Fill a tensor and push it.
    Push(PushOrder),
    /// Fetch a tensor and read it.
    Fetch(FetchOrder),
    /// Push, and drop the push's future if it is not done after this time. For workers with the async client.
    PushBriefly(PushOrder, Duration),
    /// Fetch, and drop the fetch's future if it is not done after this time. For workers with the async client.
    FetchBriefly(FetchOrder, Duration),
    /// Fetch a bundle, and hold a tensor of it under its key.
    HoldBundle(String),
    /// Read a held tensor again.
    Read(String),
    /// Drop a held tensor.
    Release(String),
    /// Delete a key.
    Delete(String),
    /// Open a counter, which [`Order::Count`] then does not open again. Answered with the name of its home.
    Open(String),
    /// Operate on a counter. The first operation opens it.
    Count(CountOrder),
    /// Arrive at a barrier and wait.
    Meet(MeetOrder),
    /// Say how much of the arena is free.
    ArenaFree,
    /// Overwrite with random bytes all memory that is shared with the sidecar and writable: the arena and both rings.
    /// The bytes follow from this seed.
    Scribble(u64),
    /// Leave behind a child that holds the sockets of this process open. Answered with its process id.
    LeaveChild,
    /// Fork a child that drops what it inherits, checks that all inherited calls fail, connects at this socket itself,
    /// and fetches this key. Answered with the number of the check that failed, 0 if none.
    Fork(std::path::PathBuf, String),
    /// Push the tensor repeatedly, until a push fails.
    PushStorm(PushOrder),
    /// Fetch and read the newest version repeatedly, until a fetch fails.
    FetchStorm(FetchOrder),
    /// Take back the newest version of a key, and drop it.
    TakeBack(String, Duration),
    /// Publish versions 1 to `last` of weights that are updated in place, as fast as possible. Every element is the
    /// version's number.
    Update(UpdateOrder),
    /// Fetch the newest version repeatedly until the last one has come, and check every element of each version
    /// twice. Answered with the number of versions seen.
    Watch(UpdateOrder),
    /// Do some rounds of a job, and check every byte. Answered with the time of each round, in microseconds.
    Job(JobOrder),
    /// Begin an exchange. Answered at once.
    Exchange(ExchangeOrder),
    /// Take part in an exchange of record batches.
    Shuffle(ShuffleOrder),
    /// Return the number of rounds that are done.
    Rounds,
    /// Begin no further round, for a leader. Answered after the running round, with its version.
    Hold,
    /// End the exchange after the round of this version. Answered at once.
    FinishWith(u64),
    /// Wait for the end of the exchange. Answered with its last version.
    Finished,
}

/// The answer to an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Answer {
    Connected {
        node: String,
        incarnation: u64,
    },
    Pushed(Pushed),
    Fetched(Fetched),
    /// A checksum.
    Sum(u64),
    /// Bytes, a version, or rounds.
    Number(u64),
    /// The time of each round of a job, in microseconds.
    Times(Vec<u64>),
    /// Task, attempt and number of rows of an exchange.
    Rows(Vec<(u32, u32, u64)>),
    /// The home of a counter.
    Home(String),
    Counted(Counted),
    Met(Met),
    Done,
}

/// The last operation on a counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Counted {
    pub old: u64,
    /// Whether a swap was made.
    pub swapped: bool,
    pub path: String,
    pub fabric: String,
}

/// The last round at a barrier, and the number of rounds in which this worker was the last to arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Met {
    pub round: u64,
    pub led: u64,
    pub path: String,
}

/// The place of bytes in memory: the file behind a mapping, and the offset in it. It is equal in two processes only if
/// both map the same memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedBytes {
    /// The file's inode.
    pub inode: u64,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// Whether this process may write there.
    pub writable: bool,
}

/// The report of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Report {
    pub fabric: String,
    pub bytes: u64,
    pub copied: u64,
    pub relayed: u64,
    /// The report as it is printed.
    pub text: String,
}

/// A finished push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Pushed {
    pub version: u64,
    pub report: Report,
    /// The place of the tensor, if it was filled in the arena.
    pub place: Option<MappedBytes>,
}

/// A finished fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Fetched {
    pub version: u64,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub len: u64,
    pub sum: u64,
    pub report: Report,
    pub place: Option<MappedBytes>,
}

/// An error of the client library, as its caller sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The sidecar's code; without one, the name of the error's variant.
    pub kind: String,
    /// The party that has to change something.
    pub fault: String,
    /// Whether the same call may succeed later.
    pub can_retry: bool,
    /// The message for people.
    pub text: String,
}

impl Trouble {
    /// Checks the kind, and that the text contains all of these words.
    ///
    /// # Panics
    /// If the kind is another one, or a word is missing.
    #[track_caller]
    pub fn expect(&self, kind: &str, words: &[&str]) {
        assert_eq!(self.kind, kind, "{self}");
        for word in words {
            assert!(self.text.contains(word), "{word:?} is missing in {self}");
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (fault: {}, retry: {}): {}", self.kind, self.fault, self.can_retry, self.text)
    }
}
