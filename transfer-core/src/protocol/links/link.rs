//! One link that is up.

use super::credits::Credits;
use super::numbers::Numbers;
use super::outbox::InFlight;
use super::{Links, Outbox};
use crate::fabric::{Capabilities, FabricKind, LinkId};
use crate::op::{Failure, FailureCode};
use crate::protocol::control::PeerInfo;
use crate::protocol::meters::PathId;
use crate::protocol::slab::Slab;
use crate::protocol::snapshot::Carried;

/// A link that is up, and its peer.
pub(crate) struct Link {
    peer: PeerInfo,
    kind: FabricKind,
    limits: Capabilities,
    /// Where its transfers are counted.
    path: PathId,
    pub(super) credits: Credits,
    /// The peer broke the contract; what it says until the link is down does not count.
    pub(super) ending: bool,
    pub(super) outbox: Outbox,
    pub(super) numbers: Numbers,
    pub(super) in_flight: Slab<InFlight>,
    /// What it has carried to the peer, and from there.
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

    /// The peer.
    pub(crate) fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// The fabric that carries it.
    pub(crate) fn kind(&self) -> FabricKind {
        self.kind
    }

    /// What its fabric can do.
    pub(crate) fn limits(&self) -> &Capabilities {
        &self.limits
    }

    /// Where its transfers are counted.
    pub(crate) fn path(&self) -> PathId {
        self.path
    }

    /// Whether the peer broke the contract.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    /// How many receive slots of the peer are free.
    pub(crate) fn credits(&self) -> u32 {
        self.credits.free()
    }

    /// How many messages and writes wait to be posted.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.len()
    }

    /// How many writes are posted and not done.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// What it has carried to the peer, and from there.
    pub(crate) fn carried(&self) -> (Carried, Carried) {
        (self.outward, self.inward)
    }

    /// Where `required` must carry a transfer and cannot on this link: what it is instead, and why.
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
    /// A tensor of this length went to the peer.
    pub(crate) fn carried_out(&mut self, link: LinkId, bytes: u64) {
        if let Some(l) = self.links.get_mut(&link) {
            l.outward.add(bytes);
        }
    }

    /// A tensor of this length came from the peer.
    pub(crate) fn carried_in(&mut self, link: LinkId, bytes: u64) {
        if let Some(l) = self.links.get_mut(&link) {
            l.inward.add(bytes);
        }
    }
}
