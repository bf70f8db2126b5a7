//! Fetches whose version comes from other nodes than its owner. The owner has said which publication it is, what its digest is, and
//! which nodes have it or are receiving it. They are asked one after the other, and last the owner itself.
//!
//! Such a request is for one publication, so every fetch for which the owner has named that one may share it.

use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::protocol::action::HostAction;
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::{BlobId, OperationId, PullId};
use crate::protocol::keys::Blob;
use crate::protocol::meters::PathId;
use crate::protocol::node::flows::Fetching;
use crate::protocol::node::replies::Carried;
use crate::protocol::relays::{Proof, Redirect, Redirected, Route};
use crate::protocol::rules::Broken;
use crate::protocol::sessions::{FetchOp, FetchStage, OpKind};
use crate::protocol::transfers::{PullState, Readers};
use crate::tensor::{Name, TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::Header;
use crate::wire::message::{MAX_SOURCES, NameRef};
use std::num::NonZeroU64;
use std::sync::Arc;

impl Fetching<'_> {
    /// Handles the message REDIRECT: other nodes have the version.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn pull_redirected(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        (version, identity): (Version, NonZeroU64),
        digest: [u8; 16],
        sources: [NameRef; MAX_SOURCES],
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let named: Result<Vec<Name>, _> = sources.iter().map(|name| self.links.look_up(link, *name).cloned()).collect();
        let mut sources = match named {
            Ok(sources) => sources,
            Err(what) => return sending!(self).violation(link, &what),
        };
        let Some(p) = self.transfers.pull(link, id) else { return };
        if p.state == PullState::Cancelling {
            return;
        }
        let is_late = self.landing.has_landed(link, p.slot) || p.opened_memory().is_some();
        if is_late || !p.may_be_redirected() || !p.takes(version) {
            return sending!(self).violation(link, &format!("REDIRECT for request {index:#x}, which did not allow it"));
        }
        let Some((owner_name, incarnation)) =
            self.links.peer_of(link).map(|peer| (peer.name.clone(), peer.incarnation))
        else {
            return;
        };
        pull_slots!(self).settle_speculation(link, id);
        let Some(mut p) = self.end_without_bytes(link, id) else { return };
        sources.retain(|name| *name != self.config.name);
        let redirect = Redirect { owner: link, owner_name, incarnation, identity, version, digest, meta, sources };
        let to = Redirected(Arc::new(redirect));
        self.relays.seek((link, p.domain, p.key.clone()), &to);
        let (readers, next) = p.take_readers();
        for op in &readers {
            self.set_route(*op, Route::Relayed(to.clone()));
            self.sessions.set_fetch_stage(*op, FetchStage::Waiting);
        }
        drop(to);
        self.ask_others(now, readers);
        if !next.is_empty() {
            self.begin_pull(now, link, next, p.wanted(), None, None);
        }
    }

    fn set_route(&mut self, op: OperationId, to: Route) {
        if let Some(OpKind::Fetch(FetchOp { route, tried, .. })) = self.sessions.op_mut(op).map(|op| &mut op.kind) {
            (*route, *tried) = (to, 0);
        }
    }

    /// Asks the next node for each of these fetches.
    pub(in crate::protocol::node) fn ask_others(&mut self, now: Time, readers: Readers) {
        for op in readers {
            self.ask_another(now, op);
        }
    }

    /// Asks the next of the nodes that the owner has named, and last the owner.
    pub(in crate::protocol::node) fn ask_another(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.sessions.op_mut(id) else { return };
        let (session, key) = (op.session, op.key.clone());
        let OpKind::Fetch(FetchOp { route: Route::Relayed(to), tried, .. }) = &mut op.kind else { return };
        let to = to.0.clone();
        let next = to.sources.get(*tried).filter(|next| !to.sources[..*tried].contains(next)).cloned();
        *tried += 1;
        let has_more = *tried < to.sources.len();
        let Some(domain) = self.sessions.tenant_of(session) else { return };
        if self.hand_out_relayed(now, id, &to) {
            return;
        }
        match next {
            Some(node) => self.fetch_from(now, id, &node),
            None if has_more => self.ask_another(now, id),
            None => {
                self.meters.asked_again();
                self.set_route(id, Route::Direct);
                self.fetch_from(now, id, &to.owner_name);
                let of = (to.owner, domain, key);
                // It is sought no longer by this fetch.
                drop(to);
                answering!(self).relay_all(now, &of, None);
            }
        }
    }

    /// Answers a fetch with the version that the owner has named, if it is here.
    fn hand_out_relayed(&mut self, now: Time, id: OperationId, to: &Redirect) -> bool {
        let Some(op) = self.sessions.op(id) else { return false };
        let Some(domain) = self.sessions.tenant_of(op.session) else { return false };
        let found = self.bases.find(&(to.owner, domain, op.key.clone()));
        let Some((held, _)) = found.filter(|(held, _)| held.identity == to.identity) else { return false };
        let (Some(op), Some(b)) = (self.sessions.finish(id), self.keys.blob(held.blob)) else { return false };
        let (version, bytes, origin) = (b.version, b.meta.len_bytes(), b.trace());
        let report = self.shared_report(now, &op, bytes, origin);
        self.hand_to(now, to.owner, &op, (held.blob, version, false), (PathId::HERE, report));
        true
    }

    /// Returns until when a node may take that its owner has named.
    pub(super) fn stalls_at(&self, now: Time, readers: &[OperationId], route: &Route) -> Option<Time> {
        let redirect = route.redirect()?;
        let left = readers.iter().filter_map(|op| self.sessions.op(*op)).map(|op| op.deadline.since(now)).max();
        Some(now + redirect.patience(left.unwrap_or_default()))
    }

    /// Gives up the requests to nodes that have taken too long, and asks others.
    pub(in crate::protocol::node) fn end_stalled(&mut self, now: Time) {
        while let Some((link, id)) = self.transfers.take_stalled(now) {
            if self.transfers.pull(link, id).is_some_and(|p| p.state != PullState::Cancelling) {
                self.give_up_relay(now, link, id);
            }
        }
    }

    /// Gives up a request to a node that the owner has named, and asks another one.
    fn give_up_relay(&mut self, now: Time, link: LinkId, id: PullId) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let (mut readers, next) = p.take_readers();
        readers.extend(next);
        if let Some(held) = pull_slots!(self).cancel_pull(link, id) {
            memory!(self).release(held);
        }
        self.ask_others(now, readers);
    }

    /// Compares a version that has landed, and did not come from its owner, with the owner's digest. Its slot is closed.
    pub(super) fn prove_relayed(&mut self, link: LinkId, id: PullId, blob: Blob, header: Header, copied: u64) {
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        (p.slot, p.state) = (None, PullState::Proving);
        let (slice, origin) = (blob.slice(), p.origin_of(header.version));
        let blob = self.keys.insert(blob.at(header.version, origin));
        let came = Proof::Came(link, id, blob, Box::new((header, copied)));
        let tag = self.proofs.insert(came).to_u64();
        let of = std::iter::once(slice).filter(|slice: &LocalSlice| slice.len > 0).collect();
        self.actions.push(HostAction::Digest { of, tag });
    }

    /// Handles the digest of a version that did not come from its owner.
    pub(in crate::protocol::node) fn relayed_proved(
        &mut self,
        now: Time,
        (link, id): (LinkId, PullId),
        blob: BlobId,
        (header, copied): (Header, u64),
        digest: [u8; 16],
    ) {
        let proving = self.transfers.pull(link, id).filter(|p| p.state == PullState::Proving);
        let (Some(p), Some(l)) = (proving, self.links.get(link)) else {
            // Nobody waits for it any more.
            return memory!(self).release(blob);
        };
        let (kind, path, peer) = (l.kind(), l.path(), l.peer().name.clone());
        let is_right = p.redirect().is_some_and(|redirect| redirect.digest == digest);
        if !is_right && !self.config.rules.breaks(Broken::BelievesRelays) {
            let key = p.key.clone();
            if let Some(untold) = self.failure_rate.next(now) {
                self.actions.report(NodeEvent::RelayRefused { key, peer, untold });
            }
            self.meters.relay_refused();
            memory!(self).release(blob);
            return self.give_up_relay(now, link, id);
        }
        let Some(pull) = self.transfers.end_pull(link, id) else { return memory!(self).release(blob) };
        let carried = Carried { kind, path, copied, waited_us: header.waited_us, delta: 0 };
        self.came_as(now, link, pull, blob, &header, carried);
    }
}
