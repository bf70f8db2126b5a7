//! Round trips to a peer, for an operator.

use super::Node;
use crate::fabric::LinkId;
use crate::protocol::action::HostAction;
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
        self.send(link, Role::Pull, index, Body::Ping);
        Ok(())
    }

    /// Handles a PONG that answers an operator's PING. A PONG that answers none is ignored.
    pub(super) fn operator_pong(&mut self, link: LinkId, index: u32) {
        if let Some(token) = self.pings.answered(link, index) {
            self.actions.push(HostAction::Ponged { token, lost: None });
        }
    }

    /// Ends the PINGs of a link that is gone.
    pub(super) fn pings_lost(&mut self, link: LinkId, why: &str) {
        for token in self.pings.link_down(link) {
            self.actions.push(HostAction::Ponged { token, lost: Some(why.to_owned()) });
        }
    }
}
