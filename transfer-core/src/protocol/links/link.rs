//! One link that is up.

use super::credits::Credits;
use super::numbers::Numbers;
use super::outbox::InFlight;
use super::{Links, Outbox};
use crate::fabric::{Capabilities, FabricKind, LinkId};
use crate::op::{Failure, FailureCode};
use crate::protocol::control::PeerInfo;
use crate::protocol::ids::BlobId;
use crate::protocol::meters::PathId;
use crate::protocol::slab::Slab;
use crate::protocol::snapshot::Carried;

/// A link that is up, and its peer.
pub(crate) struct Link {
    peer: PeerInfo,
    kind: FabricKind,
    limits: Capabilities,
    /// The path under which its transfers are counted.
    path: PathId,
    pub(super) credits: Credits,
    /// The peer broke the contract. Its messages and immediates do not count until the link is down.
    pub(super) ending: bool,
    pub(super) outbox: Outbox,
    pub(super) numbers: Numbers,
    pub(super) in_flight: Slab<InFlight>,
    /// The tensors that went to the peer, and those that came from it.
    outward: Carried,
    inward: Carried,
}

impl Link {
    pub(super) fn new(peer: PeerInfo, kind: FabricKind, limits: Capabilities, path: PathId) -> Link {
        let credits = Credits::new(peer.receive_slots, limits.receive_slots);
        Link {
            peer,
            kind,
            limits,
            path,
            credits,
            ending: false,
            outbox: Outbox::default(),
            numbers: Numbers::new(),
            in_flight: Slab::default(),
            outward: Carried::default(),
            inward: Carried::default(),
        }
    }

    /// Returns how many messages and immediates of the peer have come.
    pub(crate) fn heard(&self) -> u64 {
        self.credits.used()
    }

    /// Returns the peer.
    pub(crate) fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Returns the kind of fabric that carries the link.
    pub(crate) fn kind(&self) -> FabricKind {
        self.kind
    }

    /// Returns the capabilities of the link's fabric.
    pub(crate) fn limits(&self) -> &Capabilities {
        &self.limits
    }

    /// Returns the path under which the link's transfers are counted.
    pub(crate) fn path(&self) -> PathId {
        self.path
    }

    /// Whether the peer broke the contract.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Returns how many receive slots of the peer are free.
    pub(crate) fn credits(&self) -> u32 {
        self.credits.free()
    }

    /// Returns how many messages and writes wait to be posted.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.len()
    }

    /// Returns how many writes are posted and have not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the versions that are being written to the peer.
    pub(crate) fn written(&self) -> impl Iterator<Item = BlobId> {
        self.in_flight.iter().map(|(_, flight)| flight.blob)
    }

    /// Returns what the link has carried to the peer, and what it has carried from the peer.
    pub(crate) fn carried(&self) -> (Carried, Carried) {
        (self.outward, self.inward)
    }

    /// Returns a failure if `required` must carry a transfer and this link is of another kind. The failure names the
    /// kind of this link, and why it is not the required one.
    pub(crate) fn unmet(&self, required: Option<FabricKind>) -> Option<Failure> {
        let required = required.filter(|kind| *kind != self.kind)?;
        let mut text = format!("{required} is required, but the link to node {:?} is {}", self.peer.name, self.kind);
        if let Some(passed) = self.peer.passed_over.iter().find(|passed| passed.fabric == required) {
            text.push_str(", because ");
            text.push_str(&passed.why);
        }
        Some(Failure::new(FailureCode::RequireUnmet, text))
    }

    #[cfg(test)]
    pub(super) fn all_credits(&self) -> (u32, u32, u32) {
        (self.credits.free(), self.credits.owed(), self.peer.receive_slots)
    }

    #[cfg(test)]
    pub(super) fn set_vouches(&mut self, vouches: crate::protocol::tenant::Vouches) {
        self.peer.vouches = vouches;
    }
}

impl Links {
    /// Counts a tensor of this length that went to the peer.
    pub(crate) fn carried_out(&mut self, link: LinkId, bytes: u64) {
        if let Some(l) = self.links.get_mut(&link) {
            l.outward.add(bytes);
        }
    }

    /// Counts a tensor of this length that came from the peer.
    pub(crate) fn carried_in(&mut self, link: LinkId, bytes: u64) {
        if let Some(l) = self.links.get_mut(&link) {
            l.inward.add(bytes);
        }
    }
}
