//! What goes out: messages and writes in order, as credits and header cells allow.

use super::Node;
use crate::fabric::{LinkId, WorkId};
use crate::plan;
use crate::protocol::action::{Post, Write};
use crate::protocol::links::{InFlight, Out, Purpose};
use crate::protocol::slab::Id;
use crate::tensor::Name;
use crate::time::Time;
use crate::wire::message::{Body, Message, NameRef, Role};

impl Node {
    pub(crate) fn send(&mut self, link: LinkId, role: Role, index: u32, body: Body) {
        self.post(link, Out::Message(Message::new(role, index, body)));
    }

    pub(super) fn post(&mut self, link: LinkId, out: Out) {
        let limit = self.config.max_queued_per_link;
        if let Some(l) = self.links.get_mut(&link) {
            l.outbox.push(out);
            if l.outbox.len() > limit {
                self.violation(link, &format!("it takes nothing: {limit} messages and writes wait for it, the limit"));
                return;
            }
            if l.outbox.list() {
                self.dirty.push(link);
            }
        }
    }

    /// The numbers of the names of one message on a link; the peer is told where it has to be.
    pub(super) fn number<const N: usize>(&mut self, link: LinkId, names: [&Name; N]) -> [NameRef; N] {
        let limit = self.config.max_names_per_link;
        names.map(|name| {
            let Some(l) = self.links.get_mut(&link) else { return NameRef { id: 0, generation: 0 } };
            let (number, new) = l.numbers.names_out.number(name, &names, limit);
            #[cfg(test)]
            let new = new
                && !(self.config.broken == Some(crate::protocol::broken::Broken::ReusesNames) && number.generation > 0);
            if new {
                self.send(link, Role::Pull, 0, Body::Name { name: number, text: name.clone() });
            }
            number
        })
    }

    /// Posts what credits and header cells allow.
    pub(super) fn flush(&mut self) {
        let share = self.cells.share(self.links.len());
        for link in std::mem::take(&mut self.dirty) {
            if let Some(l) = self.links.get_mut(&link) {
                l.outbox.unlist();
                while l.credits.may_post() {
                    match l.outbox.pop() {
                        None => break,
                        Some(Out::Message(mut message)) => {
                            l.credits.spend();
                            message.credits = l.credits.take_owed();
                            #[cfg(test)]
                            if self.config.broken == Some(crate::protocol::broken::Broken::ForgetsCredits) {
                                message.credits = message.credits.saturating_sub(1);
                            }
                            self.actions.push(Post::Send { link, message: message.encode() });
                        }
                        Some(Out::Write(write)) => {
                            let Some(cell) = self.cells.take(link, l.in_flight.len(), share) else {
                                l.outbox.put_back(Out::Write(write));
                                break;
                            };
                            l.credits.spend();
                            let header = self.cells.slice(cell);
                            let pieces =
                                plan::pieces(header, &write.body, write.slot.remote, &l.limits).unwrap_or_default();
                            let flight = InFlight { blob: write.blob, cell, purpose: write.purpose };
                            let work = WorkId(l.in_flight.insert(flight).to_u64());
                            let mut bytes = write.header;
                            bytes.pieces = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
                            let last = pieces.len().saturating_sub(1);
                            for (i, piece) in pieces.into_iter().enumerate() {
                                let is_last = i == last;
                                self.actions.push(Post::Write(Box::new(Write {
                                    link,
                                    work: if is_last { work } else { WorkId(u64::MAX) },
                                    header: is_last.then(|| (header, bytes.encode())),
                                    sgl: piece.sgl,
                                    remote: piece.remote,
                                    immediate: is_last.then_some(write.slot.number.0),
                                })));
                            }
                        }
                    }
                }
                if l.credits.is_ack_due() {
                    l.credits.spend();
                    let mut ack = Message::new(Role::Pull, 0, Body::Ack);
                    ack.credits = l.credits.take_owed();
                    self.actions.push(Post::Send { link, message: ack.encode() });
                }
            }
        }
    }

    pub(super) fn mark_dirty(&mut self, link: LinkId) {
        if let Some(l) = self.links.get_mut(&link)
            && l.outbox.list()
        {
            self.dirty.push(link);
        }
    }

    /// A write no longer needs its header. Links that waited for a cell go on.
    pub(super) fn free_cell(&mut self, cell: u32) {
        for starved in self.cells.give_back(cell) {
            self.mark_dirty(starved);
        }
    }

    pub(super) fn write_done(&mut self, now: Time, link: LinkId, work: WorkId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(flight) = l.in_flight.remove(Id::from_u64(work.0)) else { return };
        self.free_cell(flight.cell);
        match flight.purpose {
            Purpose::Serve(index) => {
                self.serve_written(now, link, index);
                self.unhold(flight.blob);
            }
            Purpose::Push(op) => self.push_landed(now, link, op, flight.blob),
        }
    }
}
