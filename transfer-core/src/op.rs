//! What a worker asks of its sidecar, and what it hears.
//!
//! These are the values; [`crate::wire::session`] has their bytes in the rings.

use crate::fabric::{AtomicOp, FabricKind};
use crate::memory::LocalSlice;
use crate::tensor::{Key, Name, Retention, Select, TensorMeta, Version};
use crate::trace::TraceContext;
use std::fmt;
use std::time::Duration;

/// What a worker calls one of its operations; comes back with the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// What a sidecar calls the range that a fetch handed out, until the worker releases it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A worker's request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Command {
    /// Publish a tensor that lies in the worker's arena. From here until [`Reply::Returned`] or [`Reply::Failed`] the range is not
    /// the worker's to change.
    Push(Push),
    /// Ask for a version of a key.
    Fetch(Fetch),
    /// Give back what a fetch handed out. No reply.
    Release {
        /// As [`Reply::Fetched`] named it.
        lease: LeaseId,
    },
    /// Give up an operation. Its reply is [`Reply::Failed`] with [`FailureCode::Cancelled`], unless it was faster.
    Cancel {
        /// The operation to end.
        op: OpId,
    },
    /// Get landing slots for a push to come, so that its first step waits for nothing.
    Prepare(Prepare),
    /// Take a published version back, to write its memory again.
    TakeBack(TakeBack),
    /// End a key that this worker owns.
    Delete {
        /// What to call it in the reply.
        op: OpId,
        /// The key.
        key: Key,
    },
    /// Something about a counter or a barrier of the job.
    Counter(CounterCommand),
    /// The worker reads no more what it found on its board by this ticket, which the board shows no more. No reply.
    Unmarked {
        /// As the board named it.
        ticket: u64,
    },
}

impl Command {
    /// The operation that its reply names. `None` for what has no reply of its own.
    pub(crate) fn op(&self) -> Option<OpId> {
        match self {
            Command::Push(push) => Some(push.op),
            Command::TakeBack(command) => Some(command.op),
            Command::Delete { op, .. } => Some(*op),
            Command::Release { .. } | Command::Cancel { .. } | Command::Unmarked { .. } => None,
            Command::Fetch(_) | Command::Prepare(_) | Command::Counter(_) => self.begins(),
        }
    }

    /// The operation, where this begins one that moves or makes something. What gives something back or up does not, and a push may have been
    /// announced: that is looked at by itself.
    pub(crate) fn begins(&self) -> Option<OpId> {
        match self {
            Command::Fetch(fetch) => Some(fetch.op),
            Command::Prepare(prepare) => Some(prepare.op),
            Command::Counter(counter) => Some(counter.op),
            Command::Push(_)
            | Command::Release { .. }
            | Command::Cancel { .. }
            | Command::TakeBack(_)
            | Command::Delete { .. }
            | Command::Unmarked { .. } => None,
        }
    }
}

/// See [`Command::Counter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterCommand {
    /// What to call it in the reply.
    pub op: OpId,
    /// The counter's or barrier's name; each of the two has names of its own.
    pub name: Name,
    /// What to do.
    pub ask: CounterAsk,
    /// How long it may take.
    pub timeout: Duration,
}

/// What is asked of a counter or a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterAsk {
    /// Find the counter; make it, at this sidecar and with the value 0, where nobody has named it before. Answered by
    /// [`Reply::CounterOpened`].
    Open,
    /// Operate on the counter that [`Reply::CounterOpened`] named. Answered by [`Reply::Counted`].
    Operate {
        /// The node where it lives.
        home: Name,
        /// Which counter of that name there.
        identity: u64,
        /// What to do.
        op: AtomicOp,
    },
    /// Arrive at the barrier and wait for the others. Answered by [`Reply::Released`].
    Wait {
        /// How many arrivals make a round.
        members: u32,
    },
}

/// See [`Command::Push`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// What to call it in the reply.
    pub op: OpId,
    /// The key.
    pub key: Key,
    /// The version; `None` is one more than the last.
    pub version: Option<Version>,
    /// Element type and shape; the length in bytes follows from them.
    pub meta: TensorMeta,
    /// Where it starts in the worker's arena, in bytes; a multiple of [`crate::memory::ALIGNMENT`].
    pub offset: u64,
    /// Where it shall land: at this worker's sidecar; `None` leaves it where it is.
    pub to: Option<Name>,
    /// How long it may take.
    pub timeout: Duration,
    /// What must carry it.
    pub require: Option<FabricKind>,
    /// How long it stays.
    pub retention: Retention,
    /// Whether to take the key from whoever owns it.
    pub takeover: bool,
    /// Higher versions of this key follow at once: the worker publishes again what its last sidecar had. Until the last of them is there, only
    /// a fetch of exactly this version finds it, for readers have seen a newer one.
    pub more_follow: bool,
    /// Other tenants whose workers may read it, at most [`MAX_READERS`].
    pub readable_by: Vec<Name>,
    /// Of how many ranges of the arena the body is made, in order. Their table lies behind the metadata then; see
    /// [`crate::wire::ranges`]. 0: the body itself lies there, in one piece.
    pub ranges: u32,
    /// What made it, for whoever traces: who fetches the version hears it, see [`Report::origin`].
    pub trace: Option<TraceContext>,
    /// Where the worker has announced it already.
    pub announced: Option<Announced>,
}

/// How many other tenants a push may name.
pub const MAX_READERS: usize = 8;

/// The worker itself has shown a version, in a *notice* that the workers of its user read. It is published and read from that moment on, whatever
/// the sidecar answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// In which of the worker's notices: below [`MAX_NOTICES`]. A notice is of one key as long as the session lasts.
    pub notice: u16,
    /// The number of the announcement, from 1 on, rising within a session: its [ticket](announced_ticket) follows from that.
    pub count: u64,
}

/// How many notices a worker has.
pub const MAX_NOTICES: u16 = 256;

/// By which ticket readers mark what a session has announced by this number. `None` where it has no tickets left. Its highest bit tells it from
/// those that the sidecar gives out.
#[must_use]
pub fn announced_ticket(session: u64, count: u64) -> Option<u64> {
    const COUNT_BITS: u32 = 40;
    let fits = session < 1 << (63 - COUNT_BITS) && (1..1 << COUNT_BITS).contains(&count);
    fits.then_some(1 << 63 | session << COUNT_BITS | count)
}

/// See [`Command::Prepare`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepare {
    /// What to call it in the reply.
    pub op: OpId,
    /// The key.
    pub key: Key,
    /// What will be pushed, or something as large.
    pub meta: TensorMeta,
    /// The worker at whose sidecar it will land.
    pub to: Name,
    /// How long it may take.
    pub timeout: Duration,
}

/// See [`Command::TakeBack`]: from here on nobody gets that version any more, and once nobody reads it, it is the worker's to write.
/// Where that takes too long, it is published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeBack {
    /// What to call it in the reply.
    pub op: OpId,
    /// The key.
    pub key: Key,
    /// Which version; `None` is the newest.
    pub version: Option<Version>,
    /// How long its readers may take.
    pub timeout: Duration,
}

/// See [`Command::Fetch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// What to call it in the reply.
    pub op: OpId,
    /// The key.
    pub key: Key,
    /// Which version.
    pub select: Select,
    /// How long to wait for it.
    pub timeout: Duration,
    /// What must carry it.
    pub require: Option<FabricKind>,
    /// What asked for it, for whoever traces.
    pub trace: Option<TraceContext>,
    /// The worker would wait for the next version by itself, if the key's owner announced it.
    pub watches: bool,
}

/// What a worker hears.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The version is visible; with `to`, it has landed there.
    Pushed {
        /// The operation.
        op: OpId,
        /// The version that it got.
        version: Version,
        /// How it went.
        report: Report,
    },
    /// The tensor is here, and stays until the lease is released.
    Fetched {
        /// The operation.
        op: OpId,
        /// To be released.
        lease: LeaseId,
        /// Which version it is.
        version: Version,
        /// Element type and shape.
        meta: TensorMeta,
        /// Where it lies; with `ranges`, where its metadata and the table of its ranges lie.
        slice: LocalSlice,
        /// Of how many ranges of that segment its body is made. 0: it lies in one piece, behind the metadata.
        ranges: u32,
        /// How it went.
        report: Report,
    },
    /// The landing slots are there.
    Prepared {
        /// The operation.
        op: OpId,
    },
    /// Nobody can reach that version any more: its range is the worker's to write.
    TakenBack {
        /// The operation.
        op: OpId,
        /// Which version it was.
        version: Version,
        /// The push that published it.
        pushed: OpId,
        /// Where it starts in the worker's arena.
        offset: u64,
    },
    /// The key is gone.
    Deleted {
        /// The operation.
        op: OpId,
    },
    /// The operation ended without success. A range that was pushed is the worker's again, unless `kept`.
    Failed {
        /// The operation.
        op: OpId,
        /// Why.
        failure: Failure,
        /// A transfer may still read the pushed range: [`Reply::Returned`] follows when it does not any more.
        kept: bool,
    },
    /// The counter exists.
    CounterOpened {
        /// The operation.
        op: OpId,
        /// The node where it lives, as long as its sidecar does.
        home: Name,
        /// Tells it from those that had the name before.
        identity: u64,
    },
    /// The operation on a counter is done.
    Counted {
        /// The operation.
        op: OpId,
        /// What the counter held before.
        old: u64,
        /// How it went.
        report: CounterReport,
    },
    /// All have arrived at the barrier.
    Released {
        /// The operation.
        op: OpId,
        /// Which round this was, from 0.
        round: u64,
        /// This arrival was the last one of its round. There is one in each.
        leader: bool,
        /// How it went.
        report: CounterReport,
    },
    /// Somebody here would watch a notice for the next versions of that key. Follows the reply to the push.
    Watched {
        /// The push that published this one.
        pushed: OpId,
    },
    /// Nobody can reach this pushed range any more: it is the worker's again.
    Returned {
        /// The push that lent it.
        pushed: OpId,
        /// Where it starts in the worker's arena.
        offset: u64,
    },
}

/// How a transfer went: what carried it, what was copied, and where the time went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// What carried it.
    pub fabric: FabricKind,
    /// Length of the tensor in bytes.
    pub bytes: u64,
    /// Bytes copied by a CPU, on both sides together; a socket's copies in the kernel count.
    pub copied: u64,
    /// From the request until it was on its way: waiting for the directory, a connection, credits or memory.
    pub queued: Duration,
    /// Waiting for the version to be published.
    pub waited: Duration,
    /// From there until it was here.
    pub flew: Duration,
    /// Of a fetch: what pushed the version, where that push said so.
    pub origin: Option<TraceContext>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fabric={} bytes={} copied={} B queued={:?} waited={:?} flew={:?}",
            self.fabric, self.bytes, self.copied, self.queued, self.waited, self.flew
        )
    }
}

/// Who did an operation on a counter. The numbers are part of the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum CounterPath {
    /// This worker's own sidecar, by its processor.
    Here = 1,
    /// This worker's own sidecar, by the device that does it for peers too.
    Device = 2,
    /// The device of the counter's home, with no message and no processor there.
    OneSided = 3,
    /// The sidecar of the counter's home, asked by a message.
    Message = 4,
}

impl CounterPath {
    /// All that there are, in the order of their numbers.
    pub const ALL: [CounterPath; 4] =
        [CounterPath::Here, CounterPath::Device, CounterPath::OneSided, CounterPath::Message];

    /// The path with this number on the wire.
    #[must_use]
    pub fn from_wire(n: u8) -> Option<CounterPath> {
        CounterPath::ALL.into_iter().find(|p| *p as u8 == n)
    }

    /// The name, as reports write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CounterPath::Here => "here",
            CounterPath::Device => "device",
            CounterPath::OneSided => "one-sided",
            CounterPath::Message => "message",
        }
    }
}

/// How an operation on a counter or barrier went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterReport {
    /// Who did it.
    pub path: CounterPath,
    /// What carried it: the fabric of the link, or of the device; `Local` where no fabric had a part in it.
    pub fabric: FabricKind,
    /// From the request until it was on its way.
    pub queued: Duration,
    /// From there until it was done; at a barrier, until the last one came.
    pub flew: Duration,
}

impl fmt::Display for CounterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CounterReport { path, fabric, queued, flew } = self;
        write!(f, "path={} fabric={fabric} queued={queued:?} flew={flew:?}", path.name())
    }
}

/// Why an operation failed: a code to act on, and a text that names the thing, the value and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// What to act on.
    pub code: FailureCode,
    /// For people. At most [`Failure::MAX_TEXT_BYTES`] travel.
    pub text: String,
}

impl Failure {
    /// How much of the text travels, in bytes.
    pub const MAX_TEXT_BYTES: usize = 900;

    /// A failure with this code and text.
    #[must_use]
    pub fn new(code: FailureCode, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }
}

/// What kind of failure. The numbers are part of the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum FailureCode {
    /// The request makes no sense. Caller's fault.
    Invalid = 1,
    /// Nobody published that key before the deadline.
    UnknownKey = 2,
    /// The deadline passed.
    Deadline = 3,
    /// The asked version was replaced, or skipped.
    VersionGone = 4,
    /// The pushed version is not above the last one.
    VersionNotRising = 5,
    /// Another worker owns the key.
    KeyOwned = 6,
    /// No worker of that name is connected anywhere.
    UnknownWorker = 7,
    /// Larger than the pool it would have to land in.
    TooLarge = 8,
    /// No room in the pool before the deadline.
    PoolFull = 9,
    /// The other node cannot be reached.
    PeerUnreachable = 10,
    /// The link broke while the operation was under way.
    PeerLost = 11,
    /// `require` cannot be met.
    RequireUnmet = 12,
    /// Workers of another user id may not.
    PermissionDenied = 13,
    /// The caller gave it up.
    Cancelled = 14,
    /// That node does not own the key (any more).
    NotOwner = 15,
    /// A limit of the sidecar was reached.
    Busy = 16,
    /// The sidecar is going away.
    ShuttingDown = 17,
    /// The directory cannot be reached.
    DirectoryUnreachable = 18,
    /// The counter is not there any more: its home has ended or lost the name. Open it again; that makes a new one, at 0.
    CounterLost = 19,
    /// The operation was on its way when its link broke or its time was over: it may have been done, or not.
    OutcomeUnknown = 20,
    /// The sidecar takes nothing new, for it is about to leave.
    Draining = 21,
    /// A code from a newer peer.
    Unknown = 0xffff,
}

/// Whose fault a failure is: where to look for what has to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The caller's: the same call fails again until the caller changes something.
    Caller,
    /// Another worker's or another sidecar's: it has not done its part, or is gone.
    Peer,
    /// Nobody's: memory, time or a limit did not suffice.
    Resource,
    /// What carries the messages: links, fabrics, the directory.
    Transport,
}

impl Fault {
    /// The name, as documents write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Caller => "caller",
            Fault::Peer => "peer",
            Fault::Resource => "resource",
            Fault::Transport => "transport",
        }
    }
}

impl FailureCode {
    /// All that there are, in the order of their numbers.
    pub const ALL: [FailureCode; 21] = [
        FailureCode::Invalid,
        FailureCode::UnknownKey,
        FailureCode::Deadline,
        FailureCode::VersionGone,
        FailureCode::VersionNotRising,
        FailureCode::KeyOwned,
        FailureCode::UnknownWorker,
        FailureCode::TooLarge,
        FailureCode::PoolFull,
        FailureCode::PeerUnreachable,
        FailureCode::PeerLost,
        FailureCode::RequireUnmet,
        FailureCode::PermissionDenied,
        FailureCode::Cancelled,
        FailureCode::NotOwner,
        FailureCode::Busy,
        FailureCode::ShuttingDown,
        FailureCode::DirectoryUnreachable,
        FailureCode::CounterLost,
        FailureCode::OutcomeUnknown,
        FailureCode::Draining,
    ];

    /// The code with this number on the wire; [`FailureCode::Unknown`] for a number from the future.
    #[must_use]
    pub fn from_wire(n: u16) -> FailureCode {
        FailureCode::ALL.into_iter().find(|c| *c as u16 == n).unwrap_or(FailureCode::Unknown)
    }

    /// Whose fault it is.
    #[must_use]
    pub const fn fault(self) -> Fault {
        use FailureCode as C;
        match self {
            C::Invalid
            | C::VersionGone
            | C::VersionNotRising
            | C::KeyOwned
            | C::RequireUnmet
            | C::PermissionDenied
            | C::Cancelled => Fault::Caller,
            C::UnknownKey
            | C::UnknownWorker
            | C::NotOwner
            | C::ShuttingDown
            | C::CounterLost
            | C::Draining
            | C::Unknown => Fault::Peer,
            C::Deadline | C::TooLarge | C::PoolFull | C::Busy => Fault::Resource,
            C::PeerUnreachable | C::PeerLost | C::DirectoryUnreachable | C::OutcomeUnknown => Fault::Transport,
        }
    }

    /// Whether the same call may succeed later with nothing changed by the caller.
    #[must_use]
    pub fn can_retry(self) -> bool {
        matches!(
            self,
            FailureCode::UnknownKey
                | FailureCode::Deadline
                | FailureCode::UnknownWorker
                | FailureCode::PoolFull
                | FailureCode::PeerUnreachable
                | FailureCode::PeerLost
                | FailureCode::NotOwner
                | FailureCode::Busy
                | FailureCode::DirectoryUnreachable
                | FailureCode::Draining
        )
    }
}
