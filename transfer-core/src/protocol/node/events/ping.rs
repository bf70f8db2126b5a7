//! Round trips to a peer, for an operator.

use crate::fabric::LinkId;
use crate::protocol::action::HostAction;
use crate::protocol::node::Node;
use crate::protocol::pings::MAX_PINGS_PER_LINK;
use crate::wire::message::{Body, Role};

/// The reason why no PING was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPinged {
    /// The link is gone.
    #[error("{0} is gone")]
    NoLink(LinkId),
    /// The peer has left too many PINGs unanswered.
    #[error("node {peer:?} has left {MAX_PINGS_PER_LINK} pings unanswered, and as many may be under way")]
    Unanswered {
        /// The peer.
        peer: String,
    },
}

impl Node {
    /// Sends a PING over a link, behind what waits for it. [`HostAction::Ponged`] with this token follows.
    ///
    /// # Errors
    /// [`NotPinged`].
    pub fn ping(&mut self, link: LinkId, token: u64) -> Result<(), NotPinged> {
        if self.links.get(link).is_none() {
            return Err(NotPinged::NoLink(link));
        }
        let Some(index) = self.pings.begin(link, token) else {
            return Err(NotPinged::Unanswered { peer: self.links.peer_name(link).to_owned() });
        };
        sending!(self).send(link, Role::Pull, index, Body::Ping);
        Ok(())
    }

    /// Handles a PONG that answers an operator's PING. A PONG that answers none is ignored.
    pub(in crate::protocol::node) fn operator_pong(&mut self, link: LinkId, index: u32) {
        if let Some(token) = self.pings.answered(link, index) {
            self.actions.push(HostAction::Ponged { token, lost: None });
        }
    }
}
