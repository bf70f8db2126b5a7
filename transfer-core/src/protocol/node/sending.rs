//! Messages and writes to peers. `protocol/links` posts them.

use super::flows::Sending;
use crate::fabric::{DownReason, LinkId};
use crate::protocol::ids::OperationId;
use crate::protocol::links::Out;
use crate::tensor::Name;
use crate::wire::message::{Body, Message, NameRef, Role};

impl Sending<'_> {
    /// Returns the link to a node. If there is none, the operation waits and a link is requested.
    pub(super) fn connect_for(&mut self, id: OperationId, node: &Name) -> Option<LinkId> {
        self.links.connect(id, node, self.actions)
    }

    pub(super) fn send(&mut self, link: LinkId, role: Role, index: u32, body: Body) {
        self.post(link, Out::Message(Message::new(role, index, body)));
    }

    pub(super) fn post(&mut self, link: LinkId, out: Out) {
        self.links.post(link, out, self.actions);
    }

    /// Returns the numbers of a message's names on a link. Names that are new to the peer are sent to it first.
    pub(super) fn number<const N: usize>(&mut self, link: LinkId, names: [&Name; N]) -> [NameRef; N] {
        self.links.number(link, names, self.actions)
    }

    /// Ends a link whose peer broke the contract.
    pub(super) fn violation(&mut self, link: LinkId, what: &str) {
        self.links.violation(link, what, self.actions);
    }

    pub(super) fn disconnect(&mut self, link: LinkId, reason: DownReason) {
        self.links.disconnect(link, reason, self.actions);
    }
}
