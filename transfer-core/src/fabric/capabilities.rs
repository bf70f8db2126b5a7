//! What a fabric says about itself.

use super::PostError;
use crate::memory::{LocalSlice, RemoteSlice};
use std::fmt;

/// What carried a transfer, as reports and `require` name it. The numbers are part of the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum FabricKind {
    /// Handed over by reference between two workers of one sidecar; no fabric at all.
    Local = 1,
    /// Sockets between two sidecars.
    Tcp = 2,
    /// Shared memory between two sidecars of one host.
    Shm = 3,
    /// RDMA verbs, RC queue pairs.
    Verbs = 4,
    /// The simulated fabric of the tests.
    Sim = 5,
}

impl FabricKind {
    /// Every kind, in the order of its number.
    pub const ALL: [FabricKind; 5] =
        [FabricKind::Local, FabricKind::Tcp, FabricKind::Shm, FabricKind::Verbs, FabricKind::Sim];

    /// The kinds that links between nodes are made over, the preferred one first. Shared memory is there only between two nodes of
    /// one host, and nothing is faster.
    pub const BEST_FIRST: [FabricKind; 3] = [FabricKind::Shm, FabricKind::Verbs, FabricKind::Tcp];

    /// The kind with this number on the wire.
    #[must_use]
    pub fn from_wire(n: u8) -> Option<FabricKind> {
        FabricKind::ALL.into_iter().find(|k| *k as u8 == n)
    }

    /// The name, as configuration and reports write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FabricKind::Local => "local",
            FabricKind::Tcp => "tcp",
            FabricKind::Shm => "shm",
            FabricKind::Verbs => "verbs",
            FabricKind::Sim => "sim",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<FabricKind> {
        FabricKind::ALL.into_iter().find(|k| k.name() == name)
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a fabric can do. The planner and the protocol ask these, never the fabric's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The longest gather list of one write, in elements.
    pub max_sge: usize,
    /// The longest write, in bytes.
    pub max_write_bytes: u64,
    /// The longest message, in bytes. At least [`Capabilities::MIN_MESSAGE_BYTES`].
    pub max_message_bytes: usize,
    /// How many receive slots the peer of a link has: messages and immediates in flight.
    pub receive_slots: u32,
    /// How many times a CPU copies each byte on the sending side (a socket's copy into the kernel counts).
    pub sender_copies: u32,
    /// How many times a CPU copies each byte on the receiving side at least; [`super::FabricEvent::Immediate`] tells exactly.
    pub receiver_copies: u32,
    /// Whether a write beyond its grant, but inside the registered segment, is refused. Where it is not, as on the software RDMA
    /// device (docs/adr/0001), a grant opens its whole segment to that link.
    pub checks_bounds: bool,
    /// What one grant opens.
    pub isolation: Isolation,
    /// Whether peers can change words of this side's memory with no help of its processor: [`super::Atomics::post_atomic`]. Where it
    /// is so, this side must use [`super::Atomics::post_local_atomic`] on those words.
    pub atomics: bool,
    /// Whether a device acknowledges a write to its sender before this side's [`super::Fabric::poll`] has reported the immediate. It
    /// is there to be polled by then.
    pub acknowledges_unheard: bool,
}

/// How closely a grant opens what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Each grant has a key of its own, which ends with it.
    Grant,
    /// All grants into one segment share its key: a revoke waits for the peer's word, and closes nothing by itself.
    Segment,
}

impl Capabilities {
    /// What every fabric must be able to send in one message; the largest control message fits.
    pub const MIN_MESSAGE_BYTES: usize = 1024;

    /// The modest defaults from which a fabric's own are made.
    #[must_use]
    pub const fn new() -> Capabilities {
        Capabilities {
            max_sge: 16,
            max_write_bytes: 1 << 30,
            max_message_bytes: Capabilities::MIN_MESSAGE_BYTES,
            receive_slots: 256,
            sender_copies: 0,
            receiver_copies: 0,
            checks_bounds: true,
            isolation: Isolation::Grant,
            atomics: false,
            acknowledges_unheard: false,
        }
    }

    /// Holds a write against the limits, and its gather list against its length. Answers that length.
    ///
    /// # Errors
    /// [`PostError::Limit`].
    pub fn check_write(&self, sgl: &[LocalSlice], remote: &RemoteSlice) -> Result<u64, PostError> {
        PostError::check("elements", sgl.len() as u64, self.max_sge as u64)?;
        PostError::check("bytes", remote.len, self.max_write_bytes)?;
        // In 64 bits, and never around: a device would wrap, and send the rest with success (docs/adr/0001).
        let gathered = sgl.iter().fold(0_u64, |sum, slice| sum.saturating_add(slice.len));
        if gathered == remote.len {
            Ok(gathered)
        } else {
            Err(PostError::Limit { what: "gathered bytes", value: gathered, limit: remote.len })
        }
    }

    /// Holds the length of a message against the limit.
    ///
    /// # Errors
    /// [`PostError::Limit`].
    pub fn check_message(&self, message: &[u8]) -> Result<(), PostError> {
        PostError::check("message bytes", message.len() as u64, self.max_message_bytes as u64)
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities::new()
    }
}
