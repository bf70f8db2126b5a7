//! The nodes to which there is a link, and the operations that wait for one.

use super::{Link, Links, Lost};
use crate::fabric::{Capabilities, DownReason, FabricKind, LinkId};
use crate::protocol::action::{Actions, FabricAction, HostAction};
use crate::protocol::control::{Control, PeerInfo};
use crate::protocol::ids::OperationId;
use crate::protocol::meters::PathId;
use crate::tensor::Name;

/// The state of the link to a node.
pub(super) enum Peer {
    Up(LinkId),
    /// The control plane was asked for a link, and these operations wait for it.
    Connecting(Vec<OperationId>),
}

/// The state of a peer before its link came up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Operations that were waiting for a link. Empty if there were none.
    Waiting(Vec<OperationId>),
    /// An earlier link to the same node, which has connected again.
    Link(LinkId),
}

impl Links {
    /// Handles a link that came up. Returns the state of its peer before.
    pub(crate) fn up(
        &mut self,
        link: LinkId,
        peer: PeerInfo,
        (kind, limits): (FabricKind, Capabilities),
        path: PathId,
    ) -> Before {
        let name = peer.name.clone();
        self.links.insert(link, Link::new(peer, kind, limits, path));
        match self.peers.insert(name, Peer::Up(link)) {
            Some(Peer::Up(old)) => Before::Link(old),
            Some(Peer::Connecting(waiting)) => Before::Waiting(waiting),
            None => Before::Waiting(Vec::new()),
        }
    }

    /// Removes a link that is drained: nothing from the peer can arrive, and no write reads this node's memory any
    /// more. Returns what was in flight and in the queue.
    pub(crate) fn down(&mut self, link: LinkId) -> Option<Lost> {
        let mut l = self.links.remove(&link)?;
        let peer = l.peer().name.clone();
        if matches!(self.peers.get(&peer), Some(Peer::Up(current)) if *current == link) {
            self.peers.remove(&peer);
        }
        let mut in_flight = Vec::new();
        for id in l.in_flight.ids(|_| true) {
            if let Some(flight) = l.in_flight.remove(id) {
                self.free_cell(flight.cell);
                in_flight.push((flight.blob, flight.purpose));
            }
        }
        Some(Lost { peer, in_flight, unsent: l.outbox.take_all() })
    }

    /// Returns the link to a node. If there is none, the control plane is asked for one, and the operation waits for
    /// it.
    pub(crate) fn connect(&mut self, id: OperationId, node: &Name, actions: &mut Actions) -> Option<LinkId> {
        match self.peers.get_mut(node) {
            Some(Peer::Up(link)) => return Some(*link),
            Some(Peer::Connecting(waiting)) => waiting.push(id),
            None => {
                self.peers.insert(node.clone(), Peer::Connecting(vec![id]));
                actions.push(HostAction::Control(Control::Connect { peer: node.clone() }));
            }
        }
        None
    }

    /// Returns the link to this incarnation of a node, if there is one.
    pub(crate) fn up_to(&self, node: &Name, incarnation: u64) -> Option<LinkId> {
        let Some(Peer::Up(link)) = self.peers.get(node) else { return None };
        self.peer_of(*link).filter(|peer| peer.incarnation == incarnation).map(|_| *link)
    }

    /// Returns the link to a node. If there is none, the control plane is asked for one, and no operation waits for it.
    pub(crate) fn reach(&mut self, node: &Name, actions: &mut Actions) -> Option<LinkId> {
        match self.peers.get(node) {
            Some(Peer::Up(link)) => Some(*link),
            Some(Peer::Connecting(_)) => None,
            None => {
                self.peers.insert(node.clone(), Peer::Connecting(Vec::new()));
                actions.push(HostAction::Control(Control::Connect { peer: node.clone() }));
                None
            }
        }
    }

    /// Handles a link that cannot be made. Returns the operations that waited for it.
    pub(crate) fn connect_failed(&mut self, node: &Name) -> Vec<OperationId> {
        match self.peers.get_mut(node) {
            Some(Peer::Connecting(waiting)) => {
                let waiting = std::mem::take(waiting);
                self.peers.remove(node);
                waiting
            }
            Some(Peer::Up(_)) | None => Vec::new(),
        }
    }

    /// Ends a link whose peer broke the contract. Later messages and immediates of the peer do not count.
    pub(crate) fn violation(&mut self, link: LinkId, what: &str, actions: &mut Actions) {
        if let Some(l) = self.links.get_mut(&link)
            && !std::mem::replace(&mut l.ending, true)
        {
            self.disconnect(link, DownReason::Violation(what.to_owned()), actions);
        }
    }

    /// Ends a link.
    pub(crate) fn disconnect(&mut self, link: LinkId, reason: DownReason, actions: &mut Actions) {
        if self.links.contains_key(&link) {
            actions.push(FabricAction::Disconnect { link, reason });
        }
    }
}
