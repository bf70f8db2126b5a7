//! Requests: what a worker asks of its sidecar.

use super::{Destination, LeaseId, OpId, RosterAsk};
use crate::fabric::{AtomicOp, FabricKind};
use crate::tensor::{Excerpt, Gathered, Key, Name, Retention, Select, TensorMeta, Version};
use crate::trace::TraceContext;
use std::num::NonZeroU64;
use std::time::Duration;

/// One record in a worker's submission ring.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    clippy::large_enum_variant,
    reason = "a request is taken apart at once, and a box would allocate for each command"
)]
pub enum Request {
    /// Begins an operation. It gets exactly one [`Answer`](super::Answer).
    Command {
        /// The number of the operation. No other operation of the session that waits for its answer has the same.
        op: OpId,
        /// The operation.
        command: Command,
    },
    /// Gives up an operation. Its answer is [`Answer::Failed`](super::Answer::Failed) with
    /// [`FailureCode::Cancelled`](super::FailureCode::Cancelled), unless another one was faster.
    Cancel {
        /// The number of the operation.
        op: OpId,
    },
    /// Gives back what a fetch handed out. It has no answer.
    Release {
        /// The lease that [`Answer::Fetched`](super::Answer::Fetched) named.
        lease: LeaseId,
    },
    /// The worker no longer reads what it found on its board under this ticket, which the board shows no more. It has no answer.
    Unmarked {
        /// The ticket that the board named.
        ticket: u64,
    },
    /// The board shall no longer name a notice of this worker for the key: the worker wants the notice for another key. It has no
    /// answer. The worker sees on the board that it was done, and announces no version of the key until then.
    Unannounce {
        /// The key.
        key: Key,
    },
    /// The worker wants to know how many versions of its key are published, until there are none: those of a stream wait for their
    /// fetches. [`Reply::Unfetched`](super::Reply::Unfetched) says it at once, and whenever a version has got all its fetches. A later
    /// request for the key takes its place. Nothing says by itself that the key has got another owner or none: ask again.
    CountUnfetched {
        /// The worker's number of this request, which the replies repeat.
        number: u64,
        /// The key.
        key: Key,
    },
    /// Bytes that the worker has fetched do not have the digest of their push. The sidecar counts that, and tells its operator. It has no
    /// answer.
    WrongDigest {
        /// Which bytes of which version, and where they came from. At most [`MAX_WRONG_DIGEST_BYTES`].
        text: String,
    },
}

/// The most bytes of the text of a [`Request::WrongDigest`].
pub const MAX_WRONG_DIGEST_BYTES: usize = 1024;

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Command {
    /// Publish a tensor that lies in the worker's arena. The worker must not change the range until
    /// [`Reply::Returned`](super::Reply::Returned) or [`Answer::Failed`](super::Answer::Failed) gives it back.
    Push(Push),
    /// Ask for a version of a key.
    Fetch(Fetch),
    /// Ask for a version of a key, which lands in the worker's arena where that can be. The worker must not touch the range
    /// until its [`Answer`](super::Answer).
    FetchInto(FetchInto),
    /// Ask one other node for ranges of several versions, which land together.
    Gather(Gather),
    /// Get landing slots for a later push, so that its first step does not wait for them.
    Reserve(Reserve),
    /// Take a published version back, to write its memory again.
    TakeBack(TakeBack),
    /// End a key that this worker owns.
    Delete {
        /// The key.
        key: Key,
    },
    /// Use a counter, a barrier or a roster of the job.
    Counter(CounterCommand),
}

impl Command {
    /// Whether this moves or makes something new, which a sidecar that drains refuses. A push may have been announced, so it is
    /// checked where it is handled.
    pub(crate) fn is_new_work(&self) -> bool {
        match self {
            Command::Fetch(_)
            | Command::FetchInto(_)
            | Command::Gather(_)
            | Command::Reserve(_)
            | Command::Counter(_) => true,
            Command::Push(_) | Command::TakeBack(_) | Command::Delete { .. } => false,
        }
    }
}

/// See [`Command::Counter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterCommand {
    /// The name of the counter, the barrier or the sharded state; each of the three has names of its own.
    pub name: Name,
    /// What is asked of it.
    pub ask: CounterAsk,
    /// How long it may take.
    pub timeout: Duration,
}

/// What is asked of a counter, a barrier or a roster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterAsk {
    /// Find the counter. If nobody has named it before, make it at this sidecar with the value 0. Answered by
    /// [`Answer::CounterOpened`](super::Answer::CounterOpened).
    Open,
    /// Operate on the counter that [`Answer::CounterOpened`](super::Answer::CounterOpened) named. Answered by
    /// [`Answer::Counted`](super::Answer::Counted).
    Operate {
        /// The node where it lives.
        home: Name,
        /// Tells it from other counters that had the name.
        identity: u64,
        /// The operation on its value.
        op: AtomicOp,
    },
    /// Arrive at the barrier and wait for the others. Answered by [`Answer::Released`](super::Answer::Released).
    Wait {
        /// The number of arrivals that make a round.
        members: u32,
    },
    /// Ask the roster of a sharded state. Answered by [`Answer::Roster`](super::Answer::Roster).
    Roster(RosterAsk),
}

/// See [`Command::Push`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The key.
    pub key: Key,
    /// The version; `None` is one more than the last.
    pub version: Option<Version>,
    /// Element type and shape; the length in bytes follows from them.
    pub meta: TensorMeta,
    /// Where it starts in the worker's arena, in bytes; a multiple of [`crate::memory::ALIGNMENT`].
    pub offset: u64,
    /// The worker at whose sidecar it lands. `None` leaves it where it is.
    pub to: Option<Name>,
    /// How long it may take.
    pub timeout: Duration,
    /// The fabric that must carry it.
    pub require: Option<FabricKind>,
    /// How long it stays.
    pub retention: Retention,
    /// Whether to take the key from its owner.
    pub takeover: bool,
    /// Whether higher versions of this key follow at once. The worker publishes again what its last sidecar had, and readers have seen
    /// newer versions than this one. Until the last of them is there, only a fetch of exactly this version finds it.
    pub more_follow: bool,
    /// Other tenants whose workers may read it, at most [`MAX_READERS`].
    pub readable_by: Vec<Name>,
    /// The number of ranges of the arena that make up the body, in order. Their table then lies behind the metadata; see
    /// [`crate::wire::ranges`]. 0: the body itself lies there, in one piece.
    pub ranges: u32,
    /// The trace in which it was made. Fetches of the version report it as their [origin](super::Report::origin).
    pub trace: Option<TraceContext>,
    /// The announcement, if the worker has announced the version already.
    pub announced: Option<Announced>,
    /// Its place among the deltas of the key.
    pub deltas: Deltas,
    /// What its bytes are known by at nodes that have them from elsewhere. `None`: it cannot be the base of a delta there.
    pub content: Option<Content>,
}

/// A digest of a version, by which a node names a version that it has not got from the owner of its key, as the base of a delta. The highest bit is
/// set, which tells it from the numbers of publications. It chooses a delta and proves nothing: the delta does that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content(NonZeroU64);

impl Content {
    const BIT: u64 = 1 << 63;

    /// Makes it of the first bits of a digest.
    #[must_use]
    pub fn of_digest(digest: u64) -> Content {
        // The bit makes it one that is not 0.
        Content(NonZeroU64::new(digest | Content::BIT).unwrap_or(NonZeroU64::MAX))
    }

    /// Reads one. `None`: it is none.
    #[must_use]
    pub fn from_wire(number: u64) -> Option<Content> {
        NonZeroU64::new(number).filter(|number| number.get() & Content::BIT != 0).map(Content)
    }

    /// Returns the number that stands for it in messages.
    #[must_use]
    pub fn number(self) -> NonZeroU64 {
        self.0
    }
}

/// The place of a version among the deltas of its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Deltas {
    /// It has none.
    #[default]
    None,
    /// Later versions may have deltas of this one, so nodes that get it are told to keep it.
    Follow,
    /// As [`Follow`](Deltas::Follow), and it has a [delta](crate::delta) itself, which is sent to nodes that have its base.
    Of(DeltaOf),
    /// It is not published. The worker has these bytes from elsewhere and lends them as a base, which its [fetches](Fetch::base) may name, until it cancels
    /// the push or its time is over. It has a [content](Push::content).
    Base,
}

/// The delta of a version. It belongs to the push as the version does, and is returned with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaOf {
    /// The version of the same key from which the pushed one has come.
    pub base: Version,
    /// Where that one starts in the worker's arena, as its push said. So no other version of this number is taken for it. If it is
    /// not published any more, the pushed version is published without the delta.
    pub base_offset: u64,
    /// Where the delta starts in the worker's arena, and its length, both in bytes.
    pub offset: u64,
    /// See `offset`.
    pub len: u64,
    /// Where the last deltas before it lie, and their lengths, the oldest first: at most [`MAX_CHAIN`](crate::delta::MAX_CHAIN), the last one
    /// that of the base. They are lent once more with this push. A node that has the base of one of them gets all from there on.
    pub earlier: Box<[(u64, u64)]>,
}

impl DeltaOf {
    /// Returns where the deltas lie that the push has lent, and their lengths, the oldest first.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.earlier.iter().copied().chain([(self.offset, self.len)])
    }
}

impl Push {
    /// A push of the next version, which stays where it lies until it is replaced. It has 30 s.
    #[must_use]
    pub fn new(key: Key, meta: TensorMeta, offset: u64) -> Push {
        Push {
            key,
            version: None,
            meta,
            offset,
            to: None,
            timeout: Duration::from_secs(30),
            require: None,
            retention: Retention::default(),
            takeover: false,
            more_follow: false,
            readable_by: Vec::new(),
            ranges: 0,
            trace: None,
            announced: None,
            deltas: Deltas::None,
            content: None,
        }
    }
}

/// The largest number of other tenants that a push may name.
pub const MAX_READERS: usize = 8;

/// The worker itself has shown a version, in a *notice* that other workers of its user read. From that moment on the version is
/// published, and may be read; the answer of the sidecar does not change that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// The number of the notice, below [`MAX_NOTICES`]. It belongs to another key only once the board names it no longer:
    /// see [`Request::Unannounce`].
    pub notice: u16,
    /// The number of the announcement. It starts at 1 and rises within a session. Its [ticket](announced_ticket) follows from it.
    pub count: u64,
}

/// The number of notices of a worker: a model has some thousand tensors.
pub const MAX_NOTICES: u16 = 4096;

/// The ticket of an announcement: readers put it into their hazard pointers. `None` if the session has no tickets left. Its highest bit
/// tells it from the tickets that the sidecar gives out.
#[must_use]
pub fn announced_ticket(session: u64, count: u64) -> Option<u64> {
    const COUNT_BITS: u32 = 40;
    let fits = session < 1 << (63 - COUNT_BITS) && (1..1 << COUNT_BITS).contains(&count);
    fits.then_some(1 << 63 | session << COUNT_BITS | count)
}

/// See [`Command::Reserve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    /// The key.
    pub key: Key,
    /// The tensor that will be pushed, or one as large.
    pub meta: TensorMeta,
    /// The worker at whose sidecar it will land.
    pub to: Name,
    /// How long it may take.
    pub timeout: Duration,
}

/// See [`Command::TakeBack`]. From now on nobody gets that version. Once nobody reads it, the worker may write it. If that takes too
/// long, the version is published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeBack {
    /// The key.
    pub key: Key,
    /// The version; `None` is the newest.
    pub version: Option<Version>,
    /// How long to wait for its readers.
    pub timeout: Duration,
}

/// See [`Command::Fetch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// The key.
    pub key: Key,
    /// The versions that will do.
    pub select: Select,
    /// How long to wait for it.
    pub timeout: Duration,
    /// The fabric that must carry it.
    pub require: Option<FabricKind>,
    /// The trace in which it was asked for.
    pub trace: Option<TraceContext>,
    /// Whether the worker would wait for the next version by itself, if the key's owner announced it.
    pub watches: bool,
    /// The part of the version that has to move, where it moves at all. `None`: all of it.
    pub excerpt: Option<Box<Excerpt>>,
    /// The push by which the worker lends a [base](Deltas::Base): the version may come as a delta of it, where the node has no version of the key. One that
    /// is not under way is no base.
    pub base: Option<OpId>,
}

/// See [`Command::FetchInto`]. It is answered by [`Answer::Landed`](super::Answer::Landed) if the version has landed in the
/// ranges, and by [`Answer::Fetched`](super::Answer::Fetched) if it lies elsewhere: the worker copies it then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchInto {
    /// The version.
    pub fetch: Fetch,
    /// Where it lands.
    pub to: Destination,
}

/// See [`Command::Gather`]. The node is the one where the first key was found by an earlier fetch. It has to have all of
/// the versions in memory at that moment; otherwise the command fails, and each of them can be fetched alone. Answered by
/// [`Answer::Fetched`](super::Answer::Fetched) with a body of bytes, whose version is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gather {
    /// The keys and the ranges.
    pub gathered: Gathered,
    /// How long it may take.
    pub timeout: Duration,
    /// The fabric that must carry them.
    pub require: Option<FabricKind>,
    /// The trace in which they were asked for.
    pub trace: Option<TraceContext>,
}
