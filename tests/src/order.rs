//! What a test tells a worker, and what it hears: one JSON value per line.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A line to a worker. It carries out each order on a thread of its own and answers when that is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// Comes back with the answer.
    pub id: u64,
    /// What to do.
    pub order: Order,
}

/// A line from a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// From [`Line::id`]; 0 for what a worker says first: whether it is connected.
    pub id: u64,
    /// What came of it.
    pub result: Result<Answer, Trouble>,
}

/// A tensor, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The element type's short name.
    pub dtype: String,
    /// The dimensions.
    pub shape: Vec<u64>,
    /// See [`crate::pattern`].
    pub seed: u64,
}

impl Spec {
    /// A tensor of that many bytes.
    #[must_use]
    pub fn bytes(len: u64, seed: u64) -> Spec {
        Spec { dtype: "u8".into(), shape: vec![len], seed }
    }

    /// Its checksum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        crate::pattern::sum_of(self)
    }
}

/// How a tensor is pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Allocated in the arena, filled, and given away.
    Owned,
    /// Allocated, filled, frozen, and pushed as such.
    Frozen,
    /// Bytes that lie elsewhere: copied once.
    Foreign,
}

/// Which version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Select {
    /// The newest.
    Latest,
    /// This one.
    Exactly(u64),
    /// This or a newer one.
    AtLeast(u64),
}

/// See [`crate::Worker::push`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PushOrder {
    pub key: String,
    pub tensor: Spec,
    pub way: Way,
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

/// Until what.
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
    /// A copy of each version.
    Snapshot,
    /// The update waits for the readers.
    Gate,
    /// Two buffers that take turns.
    TwoBuffers,
}

/// See [`Order::Update`] and [`Order::Watch`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct UpdateOrder {
    pub key: String,
    pub way: InPlace,
    /// How many elements, of 8 bytes.
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
    /// Keep it under this name until [`Order::Release`]; without it, the tensor is read and dropped.
    pub hold: Option<String>,
}

/// What is done to a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Read it.
    Get,
    /// Add this.
    Add(u64),
    /// Make it the second number where it is the first.
    Swap(u64, u64),
}

/// See [`crate::Worker::count`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CountOrder {
    pub name: String,
    pub change: Change,
    /// How often, one after the other.
    pub times: u64,
    pub timeout: Duration,
}

/// See [`crate::Worker::meet`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MeetOrder {
    pub name: String,
    pub members: u32,
    /// How many rounds, one after the other.
    pub times: u64,
    pub timeout: Duration,
}

/// The rounds of a pair: one leads, one follows. In each round the leader pushes, the follower fetches exactly that version, checks it and
/// pushes its own, and the leader fetches and checks that.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExchangeOrder {
    /// Whether this one leads.
    pub leads: bool,
    /// The leader's key; the follower's is this with "-back".
    pub key: String,
    /// Where the leader's tensor shall land, if anywhere.
    pub to: Option<String>,
    /// The first round's version.
    pub first: u64,
    /// The tensors' size.
    pub len: u64,
}

/// One side of a job of two workers on two nodes. In each round each of them gets tensors of all these lengths from the other one, counts, and
/// meets the other one at a barrier.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobOrder {
    /// What all its names begin with.
    pub name: String,
    /// The other one, where this one leads: it pushes to there. What the other one pushes stays where it is, and is fetched.
    pub to: Option<String>,
    /// The first round: it is the version, and rises from one order to the next.
    pub first: u64,
    /// How many rounds.
    pub rounds: u64,
    /// The lengths in bytes.
    pub lens: Vec<u64>,
}

/// What to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    /// Fill a tensor and push it.
    Push(PushOrder),
    /// Fetch a tensor and read it.
    Fetch(FetchOrder),
    /// The same, given up after this long: its future is dropped. For those with the async face.
    PushBriefly(PushOrder, Duration),
    /// See [`Order::PushBriefly`].
    FetchBriefly(FetchOrder, Duration),
    /// Read a held tensor again.
    Read(String),
    /// Drop a held tensor.
    Release(String),
    /// End a key.
    Delete(String),
    /// Open a counter, now and not again with [`Order::Count`]. Answered with the name of its home.
    Open(String),
    /// Operate on a counter; opened with the first.
    Count(CountOrder),
    /// Arrive at a barrier and wait.
    Meet(MeetOrder),
    /// Say how much of the arena is free.
    ArenaFree,
    /// Write nonsense over all memory that is shared with the sidecar and can be written: the arena and both rings. From this seed.
    Scribble(u64),
    /// Leave a child behind that holds the sockets of this process open. Answered with its process id.
    LeaveChild,
    /// Fork a child that drops what it inherits, of which nothing works, and that connects at this socket by itself and fetches this key.
    /// Answered with where it failed: 0 is nowhere.
    Fork(std::path::PathBuf, String),
    /// Push the tensor again and again, until something fails.
    PushStorm(PushOrder),
    /// Fetch the latest again and again, reading each, until something fails.
    FetchStorm(FetchOrder),
    /// Take the newest version of a key back, and drop it.
    TakeBack(String, Duration),
    /// Publish versions 1 to the last of weights that are updated in place, as fast as it goes: every element is the version's number.
    Update(UpdateOrder),
    /// Fetch the newest again and again until the last version has come, and look at every element of each, twice. Answered with how
    /// many versions were seen.
    Watch(UpdateOrder),
    /// Do some rounds of a job, checking every byte. Answered with what each took, in microseconds.
    Job(JobOrder),
    /// Begin an exchange. Answered at once.
    Exchange(ExchangeOrder),
    /// How many rounds are done.
    Rounds,
    /// To a leader: begin no round any more. Answered after the running one, with its version.
    Hold,
    /// End the exchange after the round of this version. Answered at once.
    FinishWith(u64),
    /// Wait for the end of the exchange. Answered with its last version.
    Finished,
}

/// What came of an order.
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
    /// Bytes, or a version, or rounds.
    Number(u64),
    /// What each round of a job took, in microseconds.
    Times(Vec<u64>),
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

/// The last round at a barrier, and in how many of them this worker was the last to arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Met {
    pub round: u64,
    pub led: u64,
    pub path: String,
}

/// Where bytes lie: the file behind a mapping, and the place in it. Equal in two processes only if it is the same memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The file's inode.
    pub inode: u64,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Whether this process may write there.
    pub writable: bool,
}

/// How a transfer went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Report {
    pub fabric: String,
    pub bytes: u64,
    pub copied: u64,
    /// As it prints.
    pub text: String,
}

/// A finished push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Pushed {
    pub version: u64,
    pub report: Report,
    /// Where the tensor was filled, where that was in the arena.
    pub place: Option<Place>,
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
    pub place: Option<Place>,
}

/// An error of the client library, as its caller sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The sidecar's code, or else the name of the error's variant.
    pub kind: String,
    /// Who has to change something.
    pub fault: String,
    /// Whether the same call may succeed later.
    pub can_retry: bool,
    /// What people read.
    pub text: String,
}

impl Trouble {
    /// Checks the kind, and that the text names all of this.
    ///
    /// # Panics
    /// Where it does not.
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
