//! Ranges of several versions that are fetched from one node together: the request, and what its owner does with it. Behind
//! that, the two sides are those of any fetch; see `pull` and `serve`.
//!
//! The owner sends all of the ranges or none, and waits for nothing: each version is published and in memory when the
//! request comes, or the request fails and names the key. The asker can still fetch each version alone. So there is one
//! description, one slot, one transfer and one lease for all of them.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Gather, OpId};
use crate::protocol::ids::{BlobId, SessionId};
use crate::protocol::keys::{Blob, Parts, Picked, Record, Source};
use crate::protocol::node::flows::Fetching;
use crate::protocol::sessions::{FetchOp, FetchStage, Op, OpKind};
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Serve;
use crate::tensor::{BodyRange, DType, Gathered, GatheredPart, Key, Select, TensorMeta};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::message::{Body, NameRef, Role};
use std::sync::Arc;

/// The most pieces of memory in which the ranges of one request may lie. They are found while the request is handled.
const MAX_PIECES: usize = 4096;

impl Fetching<'_> {
    /// Handles a worker's request for ranges of several versions. Only the node where the first key was found before is
    /// asked, and only once.
    pub(in crate::protocol::node) fn gather(&mut self, now: Time, session: SessionId, op: OpId, gather: Gather) {
        if let Some(failure) = access!(self).is_busy(session) {
            return replies!(self).refuse(session, op, failure);
        }
        let Gather { gathered, timeout, require, trace } = gather;
        let Some((key, _)) = gathered.keys().next() else {
            let failure = Failure::new(FailureCode::Invalid, "there is nothing to gather");
            return replies!(self).refuse(session, op, failure);
        };
        let Some(node) = self.keys.location(&key).cloned() else {
            let text = format!("it is not known which other node has key {key:?}: fetch it alone first");
            return replies!(self).refuse(session, op, Failure::new(FailureCode::NotOwner, text));
        };
        let id = self.sessions.begin(Op {
            session,
            id: op,
            key,
            since: now,
            deadline: now + timeout,
            require,
            kind: OpKind::Fetch(FetchOp {
                base: None,
                select: Select::Latest,
                stage: FetchStage::Waiting,
                redirects: 0,
                trace,
                excerpt: None,
                gathered: Some(Arc::new(gathered)),
                to: None,
            }),
        });
        self.fetch_from(now, id, &node);
    }

    /// Handles the message GATHER_REQUEST: a peer fetches ranges of several versions.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn gather_request(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        stem: NameRef,
        tenant: NameRef,
        parts: Vec<GatheredPart>,
        trace: Option<TraceContext>,
    ) {
        let gathered = match self.links.look_up(link, stem) {
            Ok(stem) => Gathered::new(stem.clone(), parts),
            Err(what) => return sending!(self).violation(link, &what),
        };
        let gathered = match gathered {
            Ok(gathered) => gathered,
            Err(e) => return sending!(self).violation(link, &e.to_string()),
        };
        let Some(reader) = answering!(self).admits(link, index, tenant, false) else { return };
        match self.gathered_blob(link, reader, &gathered) {
            Ok((key, blob)) => {
                let mut serve = Serve::of_gathered(now, (key, stem.id), reader, trace);
                serve.publish(now, blob);
                self.transfers.begin_serve(link, index, serve);
                answering!(self).answer_published(link, index);
            }
            Err(failure) => sending!(self).send(link, Role::Pull, index, Body::ErrorStatus(failure)),
        }
    }

    /// Makes a blob that consists of these ranges, and holds their versions. Also returns the first key.
    fn gathered_blob(&mut self, link: LinkId, reader: Tenant, gathered: &Gathered) -> Result<(Key, BlobId), Failure> {
        let mut first = None;
        let mut parts = Vec::with_capacity(gathered.parts().len());
        for (key, range) in gathered.keys() {
            parts.push((self.find_part(link, reader, &key, range)?, range));
            first.get_or_insert(key);
        }
        let meta = TensorMeta::of(DType::U8, &[gathered.len_bytes()]);
        let slice = parts.first().and_then(|(blob, _)| self.keys.blob(*blob)).map(|b| b.slice());
        let (Some(key), Some(slice), Ok(meta)) = (first, slice, meta) else {
            // A request has parts, and their lengths add up.
            return Err(Failure::new(FailureCode::Invalid, "there is nothing to gather"));
        };
        let blobs = parts.iter().filter_map(|(blob, range)| Some((self.keys.blob(*blob)?, *range)));
        let pieces: usize = blobs.map(|(b, range)| b.cut(range).count()).sum();
        if pieces > MAX_PIECES {
            let text = format!(
                "the ranges that are asked for together, of key {key:?} and others, lie in {pieces} pieces of memory, above the limit \
                 of {MAX_PIECES}: fetch them alone"
            );
            return Err(Failure::new(FailureCode::Invalid, text));
        }
        for (blob, _) in &parts {
            self.keys.hold(*blob);
        }
        let blob = Blob::new(slice, meta, reader, Source::Gathered(Box::new(Parts(parts.into()))));
        Ok((key, self.keys.insert(blob)))
    }

    /// Finds the version of which a range is asked for together with others.
    fn find_part(&self, link: LinkId, reader: Tenant, key: &Key, range: BodyRange) -> Result<BlobId, Failure> {
        self.common.step();
        let name = &self.config.name;
        let failure = |code, text: String| Err(Failure::new(code, text));
        let record = self.keys.find(key).filter(|id| self.keys.record(*id).is_some_and(Record::is_owned));
        let Some(record) = record else {
            return failure(FailureCode::NotOwner, format!("node {name:?} does not own key {key:?}"));
        };
        let blob = match self.keys.pick(record, lookup!(self).resolve_latest(record, Select::Latest)) {
            Picked::Blob(blob) if !self.keys.may_be_behind(record, None) => blob,
            _ => {
                let text = format!(
                    "key {key:?} has no version at node {name:?} now, and a request for several waits for none"
                );
                return failure(FailureCode::UnknownKey, text);
            }
        };
        access!(self).may_read(reader, key, blob)?;
        access!(self).has_parts(key, blob)?;
        let Some(b) = self.keys.blob(blob) else {
            return failure(FailureCode::UnknownKey, format!("key {key:?} has no version at node {name:?}"));
        };
        if b.on_disk().is_some() {
            let text = format!("key {key:?} lies on the disk of node {name:?}: fetch it alone");
            return failure(FailureCode::Invalid, text);
        }
        if access!(self).is_unreadable(link, blob) {
            let text = format!("key {key:?} is copied at node {name:?} before it is sent: fetch it alone");
            return failure(FailureCode::Invalid, text);
        }
        let body_len = b.meta.len_bytes() - b.meta.body_offset();
        match range.end() {
            Some(end) if end <= body_len => Ok(blob),
            _ => {
                let BodyRange { offset, len } = range;
                let text = format!("key {key:?} has a body of {body_len} bytes, asked was for {len} bytes at {offset}");
                failure(FailureCode::Invalid, text)
            }
        }
    }
}
