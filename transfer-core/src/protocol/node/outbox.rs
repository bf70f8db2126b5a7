//! Messages and writes to peers. `protocol/links` posts them.

use super::Node;
use crate::fabric::{DownReason, LinkId, WorkId};
use crate::protocol::links::{Out, Purpose};
use crate::tensor::Name;
use crate::time::Time;
use crate::wire::message::{Body, Message, NameRef, Role};

impl Node {
    pub(crate) fn send(&mut self, link: LinkId, role: Role, index: u32, body: Body) {
        self.post(link, Out::Message(Message::new(role, index, body)));
    }

    pub(super) fn post(&mut self, link: LinkId, out: Out) {
        self.links.post(link, out, &mut self.actions);
    }

    /// Returns the numbers of a message's names on a link. Names that are new to the peer are sent to it first.
    pub(super) fn number<const N: usize>(&mut self, link: LinkId, names: [&Name; N]) -> [NameRef; N] {
        self.links.number(link, names, &mut self.actions)
    }

    /// Ends a link whose peer broke the contract.
    pub(super) fn violation(&mut self, link: LinkId, what: &str) {
        self.links.violation(link, what, &mut self.actions);
    }

    pub(super) fn disconnect(&mut self, link: LinkId, reason: DownReason) {
        self.links.disconnect(link, reason, &mut self.actions);
    }

    pub(super) fn write_done(&mut self, now: Time, link: LinkId, work: WorkId) {
        match self.links.write_done(link, work) {
            Some((blob, Purpose::Serve(index))) => {
                self.serve_written(now, link, index);
                self.unhold(blob);
            }
            Some((blob, Purpose::Push(op))) => self.push_landed(now, link, op, blob),
            None => {}
        }
    }
}
