//! One peer: what goes to it, and what comes from it.

use crate::fabric::{Capabilities, FabricKind};
use crate::op::{Failure, FailureCode};
use crate::protocol::control::PeerInfo;
use crate::protocol::links::{Credits, InFlight, Numbers, Outbox};
use crate::protocol::meters::PathId;
use crate::protocol::slab::Slab;
use crate::protocol::snapshot::Carried;

/// A link that is up.
pub(crate) struct Link {
    pub(crate) peer: PeerInfo,
    pub(super) kind: FabricKind,
    pub(super) limits: Capabilities,
    /// Where its transfers are counted.
    pub(super) path: PathId,
    pub(super) credits: Credits,
    /// The peer broke the contract; what it says until the link is down does not count.
    pub(super) ending: bool,
    pub(super) outbox: Outbox,
    pub(super) numbers: Numbers,
    pub(super) in_flight: Slab<InFlight>,
    pub(super) traffic: Traffic,
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
            traffic: Traffic::default(),
        }
    }

    /// Where `required` must carry a transfer and cannot on this link: what it is instead, and why.
    pub(super) fn unmet(&self, required: Option<FabricKind>) -> Option<Failure> {
        let required = required.filter(|kind| *kind != self.kind)?;
        let mut text = format!("{required} is required, but the link to node {:?} is {}", self.peer.name, self.kind);
        if let Some(passed) = self.peer.passed_over.iter().find(|passed| passed.fabric == required) {
            text.push_str(", because ");
            text.push_str(&passed.why);
        }
        Some(Failure::new(FailureCode::RequireUnmet, text))
    }
}

/// What a link has carried in each direction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traffic {
    pub(super) outward: Carried,
    pub(super) inward: Carried,
}
