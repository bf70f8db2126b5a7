//! The end of fetches into the memory of workers. A fetch that fails ends when no peer can write there any more: when the grant
//! is revoked, or the link has ended.

use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::op::{Answer, Failure};
use crate::protocol::ids::{OperationId, PullId};
use crate::protocol::node::flows::Answering;
use crate::protocol::rules::Broken;
use crate::protocol::sessions::{FetchOp, FetchStage, Op, OpKind};
use crate::protocol::transfers::PullState;
use std::time::Duration;

/// How long a peer may take to confirm that it will not write. Then its link is ended.
pub(super) const CLOSING: Duration = Duration::from_secs(1);

impl Answering<'_> {
    /// Gives up the request of a fetch whose memory is open to a peer. Returns `true` if the fetch fails later, when the memory
    /// is closed.
    pub(super) fn waits_for_memory(&mut self, id: OperationId, failure: &Failure) -> bool {
        let Some(Op { kind: OpKind::Fetch(FetchOp { stage, .. }), .. }) = self.sessions.op(id) else { return false };
        let (link, pull) = match stage {
            FetchStage::Pulling(link, pull) => (*link, *pull),
            FetchStage::Closing(..) => return true,
            FetchStage::Waiting | FetchStage::Connecting(_) | FetchStage::Copying(_) => return false,
        };
        let Some(p) = self.transfers.pull(link, pull) else {
            // The link is lost. Its request ends in one of the next rounds, and knows whether the memory may be half new.
            let waits = self.sessions.op(id).is_some_and(|op| op.destination().is_some());
            if waits {
                self.sessions.set_fetch_stage(id, FetchStage::Closing(link, Box::new(failure.clone())));
            }
            return waits;
        };
        if p.opened_memory().is_none() {
            return false;
        }
        if self.config.rules.breaks(Broken::ReturnsBeforeClosed) {
            return false;
        }
        self.await_end(id, link, failure);
        if let Some(held) = pull_slots!(self).leave_pull(link, pull) {
            memory!(self).release(held);
        }
        true
    }

    /// Closes the memory of a request to which the peer has answered that nothing comes. Returns `false` if no memory is open.
    pub(in crate::protocol::node) fn close_destination(&mut self, link: LinkId, id: PullId, failure: &Failure) -> bool {
        let Some(p) = self.transfers.pull_mut(link, id) else { return false };
        let Some(slot) = p.slot.filter(|_| p.opened_memory().is_some()) else { return false };
        p.state = PullState::Closing;
        let reader = p.readers().first().copied();
        if let Some(reader) = reader {
            self.await_end(reader, link, failure);
        }
        room!(self).drop_slot(link, slot);
        true
    }

    fn await_end(&mut self, id: OperationId, link: LinkId, failure: &Failure) {
        self.sessions.set_fetch_stage(id, FetchStage::Closing(link, Box::new(failure.clone())));
        self.sessions.put_off(id, self.common.latest + CLOSING);
    }

    /// Handles the end of the grant in the memory of a request's worker. Nothing of use has landed there.
    pub(in crate::protocol::node) fn destination_closed(&mut self, link: LinkId, id: PullId) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let Some(memory) = p.opened_memory().map(<[LocalSlice]>::to_vec) else { return };
        let (may_be_torn, reader) = (p.may_be_torn(), p.readers().first().copied());
        p.slot = None;
        p.close_memory();
        if p.state == PullState::Closing {
            self.transfers.end_pull(link, id);
        }
        memory!(self).close_memory(&memory);
        if let Some(reader) = reader {
            self.fail_closed(reader, may_be_torn, None);
        }
    }

    /// Fails the fetches of a request whose memory was open to a link that has ended.
    pub(in crate::protocol::node) fn lost_with_memory(
        &mut self,
        memory: &[LocalSlice],
        readers: &[OperationId],
        may_be_torn: bool,
        failure: &Failure,
    ) {
        memory!(self).close_memory(memory);
        for reader in readers {
            self.fail_closed(*reader, may_be_torn, Some(failure));
        }
    }

    /// Fails a fetch whose memory is closed, with the failure for which it waits or with this one.
    fn fail_closed(&mut self, id: OperationId, may_be_torn: bool, failure: Option<&Failure>) {
        let Some(Op { kind: OpKind::Fetch(FetchOp { stage, .. }), .. }) = self.sessions.op(id) else { return };
        let failure = match (stage, failure) {
            (FetchStage::Closing(_, failure), _) => failure.as_ref().clone(),
            (_, Some(failure)) => failure.clone(),
            (_, None) => return,
        };
        let Some(op) = self.sessions.finish(id) else { return };
        replies!(self).note_failed(&op, failure.code);
        if !may_be_torn {
            return replies!(self).refuse(op.session, op.id, failure);
        }
        replies!(self).failed(op.session, &failure);
        self.actions.answer(op.session, op.id, Answer::Torn { failure });
    }
}
