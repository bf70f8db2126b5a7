//! The properties that a fabric states about itself.

use super::PostError;
use crate::memory::{LocalSlice, RemoteSlice};
use std::fmt;

/// The means that carried a transfer, as named by reports and by `require`. The numbers are part of the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum FabricKind {
    /// By reference between two workers of one sidecar, without a fabric.
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
    /// All kinds, in the order of their numbers, which begin with 1.
    pub const ALL: [FabricKind; 5] =
        [FabricKind::Local, FabricKind::Tcp, FabricKind::Shm, FabricKind::Verbs, FabricKind::Sim];

    /// The kinds that are used for links between nodes, the preferred one first. Shared memory works only between two
    /// nodes of one host, and is the fastest.
    pub const BEST_FIRST: [FabricKind; 3] = [FabricKind::Shm, FabricKind::Verbs, FabricKind::Tcp];

    /// Returns the kind with this number on the wire.
    #[must_use]
    pub fn from_wire(n: u8) -> Option<FabricKind> {
        FabricKind::ALL.into_iter().find(|k| *k as u8 == n)
    }

    /// Returns the name that configuration and reports use.
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

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<FabricKind> {
        FabricKind::ALL.into_iter().find(|k| k.name() == name)
    }
}

const _: () = {
    let mut place = 0;
    while place < FabricKind::ALL.len() {
        assert!(FabricKind::ALL[place] as usize == place + 1);
        place += 1;
    }
};

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The capabilities of a fabric. The planner and the protocol ask for these, never for the fabric's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The most elements in the gather list of one write.
    pub max_sge: usize,
    /// The largest write, in bytes.
    pub max_write_bytes: u64,
    /// The largest message, in bytes. At least [`Capabilities::MIN_MESSAGE_BYTES`].
    pub max_message_bytes: usize,
    /// The number of receive slots that this side offers to the peer of a link: the limit of messages and immediates in
    /// flight.
    pub receive_slots: u32,
    /// How many times a CPU copies each byte on the sending side. A socket's copy into the kernel counts.
    pub sender_copies: u32,
    /// The least number of times that a CPU copies each byte on the receiving side. [`super::FabricEvent::Immediate`]
    /// has the exact number of bytes.
    pub receiver_copies: u32,
    /// Whether a write beyond its grant, but inside the registered segment, is refused. If not, as on the software RDMA
    /// device (docs/adr/0001), a grant opens its whole segment to that link.
    pub checks_bounds: bool,
    /// The scope of a grant's key.
    pub isolation: Isolation,
    /// Whether peers can change words of this side's memory without help of its processor, by
    /// [`super::Atomics::post_atomic`]. If so, this side must use [`super::Atomics::post_local_atomic`] on those words.
    pub atomics: bool,
    /// Whether a device may acknowledge a write to its sender before this side's [`super::Fabric::poll`] has reported
    /// the immediate. In that case the next poll finds it.
    pub acknowledges_unannounced: bool,
}

/// The scope of a grant's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Each grant has a key of its own, which ends with the grant.
    Grant,
    /// All grants into one segment share its key. A revoke waits until the peer has said that it will not write again,
    /// and closes nothing by itself.
    Segment,
}

impl Capabilities {
    /// The length of a message that every fabric must be able to send. The largest control message fits.
    pub const MIN_MESSAGE_BYTES: usize = 1024;

    /// Returns modest defaults. A fabric overrides those that differ.
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
            acknowledges_unannounced: false,
        }
    }

    /// Checks a write against the limits, and its gather list against its length. Returns that length.
    ///
    /// # Errors
    /// [`PostError::Limit`].
    pub fn check_write(&self, sgl: &[LocalSlice], remote: &RemoteSlice) -> Result<u64, PostError> {
        PostError::check("elements", sgl.len() as u64, self.max_sge as u64)?;
        PostError::check("bytes", remote.len, self.max_write_bytes)?;
        // The sum saturates at 64 bits. A device would wrap around and report success for the truncated write
        // (docs/adr/0001).
        let gathered = sgl.iter().fold(0_u64, |sum, slice| sum.saturating_add(slice.len));
        if gathered == remote.len {
            Ok(gathered)
        } else {
            Err(PostError::Limit { what: "gathered bytes", value: gathered, limit: remote.len })
        }
    }

    /// Checks the length of a message against the limit.
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
