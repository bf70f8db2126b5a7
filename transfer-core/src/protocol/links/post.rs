//! Posts the messages and writes that wait, in order, as credits and header cells allow.

use super::outbox::InFlight;
use super::{Links, Out, OutWrite, Purpose};
use crate::fabric::{LinkId, WorkId};
use crate::plan;
use crate::protocol::action::{Actions, Post, Write};
use crate::protocol::ids::BlobId;
use crate::protocol::rules::Broken;
use crate::protocol::slab::Id;
use crate::wire::message::{Body, Message, Role};

impl Links {
    /// Adds a message or a write to the queue of a link. A queue over its limit ends the link.
    pub(crate) fn post(&mut self, link: LinkId, out: Out, actions: &mut Actions) {
        let limit = self.queue_limit;
        let Some(l) = self.links.get_mut(&link) else { return };
        l.outbox.push(out);
        if l.outbox.len() > limit {
            let what = format!("it takes nothing: {limit} messages and writes wait for it, the limit");
            return self.violation(link, &what, actions);
        }
        self.mark_dirty(link);
    }

    /// Handles the use of one of this node's receive slots. Returns `false` if the message or immediate that used it
    /// does not count.
    pub(crate) fn slot_used(&mut self, link: LinkId, actions: &mut Actions) -> bool {
        let Some(l) = self.links.get_mut(&link).filter(|l| !l.ending) else { return false };
        match l.credits.slot_used() {
            Ok(true) => self.mark_dirty(link),
            Ok(false) => {}
            Err(what) => {
                self.violation(link, &what, actions);
                return false;
            }
        }
        true
    }

    /// Handles credits that the peer gives back. Returns `false` if the peer gives back more credits than it
    /// has receive slots, which ends its link.
    pub(crate) fn given_back(&mut self, link: LinkId, credits: u16, actions: &mut Actions) -> bool {
        let Some(l) = self.links.get_mut(&link) else { return false };
        if let Err(what) = l.credits.given_back(credits) {
            self.violation(link, &what, actions);
            return false;
        }
        if credits > 0 {
            self.mark_dirty(link);
        }
        true
    }

    fn mark_dirty(&mut self, link: LinkId) {
        if let Some(l) = self.links.get_mut(&link)
            && l.outbox.list()
        {
            self.dirty.push(link);
        }
    }

    /// Frees the header cell of a write. Links that waited for a cell are flushed again.
    pub(super) fn free_cell(&mut self, cell: u32) {
        for starved in self.cells.give_back(cell) {
            self.mark_dirty(starved);
        }
    }

    /// Handles a write that is placed at the peer. Returns its version and its purpose.
    pub(crate) fn write_done(&mut self, link: LinkId, work: WorkId) -> Option<(BlobId, Purpose)> {
        let flight = self.links.get_mut(&link)?.in_flight.remove(Id::from_u64(work.0))?;
        self.free_cell(flight.cell);
        Some((flight.blob, flight.purpose))
    }

    /// Posts the messages and writes that credits and header cells allow.
    pub(crate) fn flush(&mut self, actions: &mut Actions) {
        if self.dirty.is_empty() {
            return;
        }
        let share = self.cells.share(self.links.len());
        let mut dirty = std::mem::take(&mut self.dirty);
        for link in dirty.drain(..) {
            self.flush_link(link, share, actions);
        }
        // Its memory is used again.
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
    }

    fn flush_link(&mut self, link: LinkId, share: usize, actions: &mut Actions) {
        let Some(l) = self.links.get_mut(&link) else { return };
        l.outbox.unlist();
        while l.credits.may_post() {
            match l.outbox.pop() {
                None => break,
                Some(Out::Message(mut message)) => {
                    l.credits.spend();
                    message.credits = l.credits.take_owed();
                    if self.rules.breaks(Broken::ForgetsCredits) {
                        message.credits = message.credits.saturating_sub(1);
                    }
                    actions.push(Post::Send { link, message: message.encode() });
                }
                Some(Out::Write(write)) => {
                    let found: u64 = write.body.iter().map(|slice| slice.len).sum();
                    if found != write.header.body_len {
                        // Nothing makes such a write. Sent, it would pass memory that was not written for a tensor.
                        let what = format!("this node would have sent it {found} bytes as {}", write.header.body_len);
                        l.outbox.put_back(Out::Write(write));
                        return self.violation(link, &what, actions);
                    }
                    let Some(cell) = self.cells.take(link, l.in_flight.len(), share) else {
                        l.outbox.put_back(Out::Write(write));
                        break;
                    };
                    l.credits.spend();
                    let OutWrite { blob, body, slot, header: mut bytes, purpose } = write;
                    let header = self.cells.slice(cell);
                    let pieces = plan::pieces(header, &body, &slot, l.limits()).unwrap_or_default();
                    let work = WorkId(l.in_flight.insert(InFlight { blob, cell, purpose }).to_u64());
                    bytes.pieces = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
                    let last = pieces.len().saturating_sub(1);
                    for (i, piece) in pieces.into_iter().enumerate() {
                        let is_last = i == last;
                        actions.push(Post::Write(Box::new(Write {
                            link,
                            work: if is_last { work } else { WorkId(u64::MAX) },
                            header: is_last.then(|| (header, bytes.encode())),
                            sgl: piece.sgl,
                            remote: piece.remote,
                            immediate: is_last.then_some(slot.number.0),
                        })));
                    }
                }
            }
        }
        if l.credits.is_ack_due() {
            l.credits.spend();
            let mut ack = Message::new(Role::Pull, 0, Body::Ack);
            ack.credits = l.credits.take_owed();
            actions.push(Post::Send { link, message: ack.encode() });
        }
    }
}
