//! Reports: how an operation went.

use crate::fabric::FabricKind;
use crate::trace::TraceContext;
use std::fmt;
use std::time::Duration;

/// How a transfer went: the fabric, the bytes copied, and the time of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The fabric that carried it. A fetch that shares what another worker's fetch has brought to this node moved nothing,
    /// and is local.
    pub fabric: FabricKind,
    /// The length of the tensor in bytes.
    pub bytes: u64,
    /// The bytes that CPUs copied, on both sides together. A socket's copies in the kernel count.
    pub copied: u64,
    /// Of a fetch that verifies: the bytes of the body that were compared with the digests of the push, always whole chunks. 0 for
    /// a version without digests, and for one that is read where its pusher has it, on this host: nothing was moved.
    pub verified: u64,
    /// Of a fetch: the bytes that came in place of the version, as a [delta](crate::delta) of one that was here. 0: it came as a whole.
    pub delta: u64,
    /// Of a fetch: the bytes that came from another node than the one that owns the key, because the version
    /// [spreads](crate::protocol::NodeConfig::fan_out). They are those of the owner: they were compared with its digest.
    pub relayed: u64,
    /// The time from the request until it was on its way: it waited for the directory, a connection, credits or memory.
    pub queued: Duration,
    /// The time until the version was published.
    pub waited: Duration,
    /// The time from there until it was here.
    pub in_flight: Duration,
    /// Of a fetch: the trace of the push that made the version, if that push named one.
    pub origin: Option<TraceContext>,
}

impl Report {
    /// The report of what was sent to a peer, and has begun to move when it had `waited`.
    pub(crate) fn of_sent(
        fabric: FabricKind,
        bytes: u64,
        copied: u64,
        (waited, in_flight): (Duration, Duration),
        origin: Option<TraceContext>,
    ) -> Report {
        let (verified, relayed, delta, queued) = (0, 0, 0, Duration::ZERO);
        Report { fabric, bytes, copied, verified, delta, relayed, queued, waited, in_flight, origin }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fabric={} bytes={} copied={} B queued={:?} waited={:?} in_flight={:?}",
            self.fabric, self.bytes, self.copied, self.queued, self.waited, self.in_flight
        )?;
        for (what, bytes) in [("verified", self.verified), ("delta", self.delta), ("relayed", self.relayed)] {
            if bytes > 0 {
                write!(f, " {what}={bytes} B")?;
            }
        }
        Ok(())
    }
}

/// The way by which an operation on a counter was done. The numbers are part of the wire format.
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
    /// All paths, in the order of their numbers.
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
    /// The way by which it was done.
    pub path: CounterPath,
    /// The fabric of the link, or of the device. `Local` if no fabric had a part in it.
    pub fabric: FabricKind,
    /// The time from the request until it was on its way.
    pub queued: Duration,
    /// The time from there until it was done; at a barrier, until the last arrival.
    pub in_flight: Duration,
}

impl fmt::Display for CounterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CounterReport { path, fabric, queued, in_flight } = self;
        write!(f, "path={} fabric={fabric} queued={queued:?} in_flight={in_flight:?}", path.name())
    }
}
