//! Publishing: what a worker pushes becomes visible, and those who wait for it are served.

use super::claims::key_owned;
use super::node::Node;
use super::ops::{Op, OpKind, PushStage};
use super::slab::Id;
use super::store::{Blob, Claimant, Owner, Record, Source, Waiter};
use super::{Action, SessionId};
use crate::fabric::{FabricKind, LinkId};
use crate::memory::{ALIGNMENT, LocalSlice, padded};
use crate::op::{Failure, FailureCode, Push, Reply, Report};
use crate::tensor::{Key, Name, Select, Version};
use crate::time::Time;
use crate::wire::message::{Body, Role};
use std::time::Duration;

impl Node {
    pub(super) fn push(&mut self, now: Time, session: SessionId, push: Push) {
        let Some(s) = self.sessions.get(&session) else { return };
        let len = push.meta.len_bytes();
        let end = padded(len).and_then(|n| n.checked_add(push.offset));
        if !push.offset.is_multiple_of(ALIGNMENT) || end.is_none_or(|end| end > s.arena_len) {
            let text = format!(
                "the pushed range starts at {} and has {len} bytes; it must start at a multiple of {ALIGNMENT} and end within \
                 the arena of {} bytes",
                push.offset, s.arena_len
            );
            return self.refuse(session, push.op, Failure::new(FailureCode::Invalid, text));
        }
        if let Some(failure) = self.is_busy(session) {
            return self.refuse(session, push.op, failure);
        }
        let Some(s) = self.sessions.get(&session) else { return };
        let slice = LocalSlice { segment: s.arena, offset: push.offset, len };
        let blob = Blob {
            slice,
            meta: push.meta,
            version: Version(0),
            refs: 1,
            domain: s.domain,
            source: Source::Arena(Some(session)),
        };
        if let Some(arena) = self.arenas.get_mut(&slice.segment) {
            arena.blobs += 1;
        }
        let local = push.to.as_ref().is_none_or(|to| self.workers.contains_key(to));
        let blob = self.store.blobs.insert(blob);
        let op = Op {
            session,
            id: push.op,
            key: push.key,
            since: now,
            deadline: now + push.timeout,
            require: push.require,
            kind: OpKind::Push {
                version: push.version,
                to: push.to,
                blob,
                stage: PushStage::Claiming,
                posted: Time::NEVER,
            },
        };
        if local { self.push_here(now, op) } else { self.push_there(now, op) }
    }

    /// Publishes at this sidecar, where the tensor lies already.
    pub(super) fn push_here(&mut self, now: Time, op: Op) {
        let record_id = self.store.find_or_make(&op.key);
        let Some(record) = self.store.records.get_mut(record_id) else { return };
        let Some(session) = self.sessions.get(&op.session) else { return };
        match &mut record.owner {
            Owner::Session(owner) if *owner == op.session => {
                self.publish_op(now, record_id, op);
            }
            Owner::Claiming(claiming)
                if claiming.who == Claimant::Session(op.session)
                    || claiming.who == Claimant::Gone && claiming.owner == session.name =>
            {
                claiming.who = Claimant::Session(op.session);
                let id = self.keep_op(op);
                if let Some(Owner::Claiming(claiming)) = self.store.records.get_mut(record_id).map(|r| &mut r.owner) {
                    claiming.pushes.push(id);
                }
            }
            Owner::Nobody => {
                let (key, owner) = (op.key.clone(), session.name.clone());
                let who = Claimant::Session(op.session);
                let id = self.keep_op(op);
                self.claim(record_id, key, owner, who, vec![id]);
            }
            Owner::Session(other) => {
                let owner = self.sessions.get(other).map(|s| s.name.clone());
                self.refuse_owned(op, owner.as_ref());
            }
            Owner::Claiming(claiming) => {
                let owner = claiming.owner.clone();
                self.refuse_owned(op, Some(&owner));
            }
            // The same worker pushed from another node before; it has come to this one.
            Owner::Landed(landed) if landed.owner == session.name => {
                let flow = landed.flow;
                record.owner = Owner::Session(op.session);
                record.next_version = 0;
                if let Some((link, flow)) = flow {
                    self.recall(link, flow);
                }
                self.publish_op(now, record_id, op);
            }
            Owner::Landed(landed) => {
                let owner = landed.owner.clone();
                self.refuse_owned(op, Some(&owner));
            }
        }
    }

    pub(super) fn refuse_owned(&mut self, op: Op, owner: Option<&Name>) {
        let failure = key_owned(&op.key, owner, &self.config.name);
        self.end_push_with_failure(&op, failure);
    }

    /// Publishes an operation's tensor, or says why not, and ends the operation.
    pub(super) fn publish_op(&mut self, now: Time, record: Id<Record>, op: Op) {
        let OpKind::Push { version, blob, to, .. } = &op.kind else { return };
        let blob = *blob;
        let Some(next) = self.store.records.get(record).map(|r| r.next_version) else { return };
        let version = version.unwrap_or(Version(next.max(1)));
        if version.0 < next {
            let last = Version(next - 1);
            let text = format!("key {:?} is at {last}; {version} would not be above it", op.key);
            return self.end_push_with_failure(&op, Failure::new(FailureCode::VersionNotRising, text));
        }
        if let Some(kind) = op.require
            && kind != FabricKind::Local
        {
            let target = to.as_ref().map_or("nobody else", Name::as_str);
            let text = format!("{kind} is required, but the tensor goes to {target:?} and stays at this sidecar");
            return self.end_push_with_failure(&op, Failure::new(FailureCode::RequireUnmet, text));
        }
        let bytes = self.store.blobs.get(blob).map_or(0, |b| b.meta.len_bytes());
        let queued = now.since(op.since);
        let report = Report {
            fabric: FabricKind::Local,
            bytes,
            copied: 0,
            queued,
            waited: Duration::ZERO,
            flew: Duration::ZERO,
        };
        let reply = Reply::Pushed { op: op.id, version, report };
        // The operation's reference becomes the publication's. Those who wait are served first: they wait longer than the pusher.
        self.publish(now, record, blob, version);
        self.actions.push_back(Action::Reply { session: op.session, reply });
    }

    /// Makes a blob the newest version of its key. The caller's reference becomes the publication's.
    pub(super) fn publish(&mut self, now: Time, record: Id<Record>, blob: Id<Blob>, version: Version) {
        if let Some(b) = self.store.blobs.get_mut(blob) {
            b.version = version;
        }
        let Some(r) = self.store.records.get_mut(record) else { return };
        r.next_version = version.0.saturating_add(1);
        match r.published.replace(blob) {
            Some(old) => self.unhold(old),
            None => self.store.published += 1,
        }
        self.serve_waiters(now, record);
    }

    /// Answers everybody whose version is there, or can never be.
    pub(super) fn serve_waiters(&mut self, now: Time, record: Id<Record>) {
        let Some(r) = self.store.records.get_mut(record) else { return };
        let Some(blob) = r.published else { return };
        if r.waiters.is_none() {
            return;
        }
        let waiters = r.take_waiters();
        let key = r.key.clone();
        let Some(version) = self.store.blobs.get(blob).map(|b| b.version) else { return };
        for waiter in waiters {
            let select = match waiter {
                Waiter::Local(id) => match self.ops.get(id).map(|op| &op.kind) {
                    Some(OpKind::Fetch { select, .. }) => *select,
                    _ => continue,
                },
                Waiter::Remote(link, index) => match self.serve_select(link, index) {
                    Some(select) => select,
                    None => continue,
                },
            };
            if select.takes(version) {
                match waiter {
                    Waiter::Local(id) => {
                        if let Some(op) = self.finish_op(id)
                            && let Err(failure) = self.hand_over(now, op.session, op.id, blob, op.require, op.since)
                        {
                            self.refuse(op.session, op.id, failure);
                        }
                    }
                    Waiter::Remote(link, index) => self.serve_published(now, link, index, blob),
                }
            } else if select.missed(version) {
                let failure = version_gone(&key, select, version);
                match waiter {
                    Waiter::Local(id) => self.fail_op(id, failure),
                    Waiter::Remote(link, index) => self.end_serve(link, index, failure),
                }
            } else if let Some(r) = self.store.records.get_mut(record) {
                r.wait(waiter);
            }
        }
    }

    pub(super) fn not_owner(&mut self, link: LinkId, index: u32, key: &Key) {
        let text = format!("node {:?} does not own key {key:?}", self.config.name);
        self.end_serve(link, index, Failure::new(FailureCode::NotOwner, text));
    }

    pub(super) fn end_serve(&mut self, link: LinkId, index: u32, failure: Failure) {
        let blob = self.links.get_mut(&link).and_then(|l| l.serves.remove(&index)).and_then(|s| s.blob);
        if let Some(blob) = blob {
            self.unhold(blob);
        }
        self.send(link, Role::Pull, index, Body::ErrorStatus(failure));
    }
}

pub(super) fn version_gone(key: &Key, select: Select, newest: Version) -> Failure {
    Failure::new(
        FailureCode::VersionGone,
        format!("{select} of key {key:?} was asked for, but it is at {newest} already"),
    )
}
