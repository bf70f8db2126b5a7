//! Publishing: a worker's push becomes a version of its key, if the worker may publish it.

use crate::delta::head_bytes;
use crate::exchange::Label;
use crate::fabric::FabricKind;
use crate::memory::{ALIGNMENT, LocalSlice, padded};
use crate::op::{Announced, Answer, Deltas, Failure, FailureCode, MAX_NOTICES, OpId, Push, Report, announced_ticket};
use crate::protocol::action::NoticeAt;
use crate::protocol::ids::{RecordId, SessionId};
use crate::protocol::keys::{Blob, Claimant, Claiming, Owner, Record, Source};
use crate::protocol::meters::{Operation, PathId};
use crate::protocol::node::flows::Pushing;
use crate::protocol::node::replies::WorkersTransfer;
use crate::protocol::node::rules::key_owned;
use crate::protocol::sessions::{Op, OpKind, PushOp, PushStage, Session};
use crate::tensor::{Key, Life, Name, Retention, Spill, Version};
use crate::time::Time;
use crate::wire::ranges::{ArenaRange, table_bytes};
use std::time::Duration;

/// Returns the failure for a version that cannot be pushed, because no number above it is left for the next one.
pub(in crate::protocol::node) fn too_high(key: &Key, version: Version) -> Option<Failure> {
    let text =
        || format!("key {key:?} cannot be at {version}: the last version that can be pushed is {}", Version::LAST);
    (version > Version::LAST).then(|| Failure::new(FailureCode::Invalid, text()))
}

/// Returns the failure of a push whose retention only works at its own sidecar, or not at all.
fn stays_nowhere(push: &Push, local: bool) -> Option<Failure> {
    let Retention { life, spill, .. } = push.retention;
    let key = &push.key;
    let text = match (life, spill) {
        (Life::Parent, _) if key.parent().is_none() => {
            format!("key {key:?} has no parent with which its version could stay: it needs a '/' behind its first part")
        }
        (Life::Parent, _) | (_, Spill::Allowed | Spill::Now) if !local => format!(
            "key {key:?} goes to another node, where its version cannot stay with its parent and cannot be written to disk: \
             push it at this worker's own sidecar"
        ),
        _ => return None,
    };
    Some(Failure::new(FailureCode::Invalid, text))
}

/// The memory of a push.
pub(super) struct PushedMemory {
    /// The tensor, or its metadata and the table of the ranges of its body.
    pub(super) slice: LocalSlice,
    /// The ranges of its body, if there are several.
    pub(super) parts: Vec<LocalSlice>,
    /// Whether some of it is registered memory.
    pub(super) is_registered: bool,
}

/// Checks a push and returns the memory that it publishes.
fn pushed_slice(s: &Session, push: &Push, ranges: &[ArenaRange]) -> Result<PushedMemory, Failure> {
    let (arena, arena_len) = s.arena();
    let invalid = |text: String| Err(Failure::new(FailureCode::Invalid, text));
    let len = match push.ranges {
        0 => push.meta.len_bytes(),
        n => push.meta.body_offset() + table_bytes(n),
    };
    // Behind registered memory there is no padding.
    let room = if push.offset < arena_len { padded(len) } else { Some(len) };
    let Some(slice) = room
        .and_then(|room| s.locate(push.offset, room)?.sub(0, len))
        .filter(|_| push.offset.is_multiple_of(ALIGNMENT))
    else {
        return invalid(format!(
            "the pushed range starts at {} and has {len} bytes; it must start at a multiple of {ALIGNMENT} and end within the arena \
             of {arena_len} bytes, or within registered memory",
            push.offset
        ));
    };
    if ranges.len() as u64 != u64::from(push.ranges) {
        return invalid(format!(
            "the push names a table of {} ranges, of which {} were read",
            push.ranges,
            ranges.len()
        ));
    }
    let mut parts = Vec::with_capacity(ranges.len());
    for r in ranges {
        let Some(part) = s.locate(r.offset, r.len) else {
            return invalid(format!(
                "{} bytes at {} of the body do not lie within the arena of {arena_len} bytes, or within registered memory",
                r.len, r.offset
            ));
        };
        parts.push(part);
    }
    let body_len = push.meta.len_bytes() - push.meta.body_offset();
    let sum = ranges.iter().try_fold(0_u64, |sum, r| sum.checked_add(r.len));
    if let Deltas::Of(of) = &push.deltas
        && let Some((offset, len)) =
            of.ranges().find(|(offset, len)| offset.checked_add(*len).is_none_or(|end| end > arena_len))
    {
        return invalid(format!(
            "the delta of {len} bytes at {offset} does not lie within the arena of {arena_len} bytes"
        ));
    }
    if let Deltas::Of(of) = &push.deltas {
        // Readers make room for all of them, so they are bounded by the version.
        let (len, count) = (push.meta.len_bytes(), of.ranges().count() as u64);
        let most = len.saturating_add(count * head_bytes(len));
        let sum = of.ranges().try_fold(0_u64, |sum, (_, len)| sum.checked_add(len));
        if sum.is_none_or(|sum| sum > most) {
            return invalid(format!(
                "{count} deltas come to {sum:?} bytes, and those of a version of {len} bytes to {most} at most"
            ));
        }
    }
    if push.ranges > 0 && sum != Some(body_len) {
        return invalid(format!("the ranges of the body come to {sum:?} bytes, and the description says {body_len}"));
    }
    let is_registered = std::iter::once(&slice).chain(&parts).any(|part| part.segment != arena);
    Ok(PushedMemory { slice, parts, is_registered })
}

impl Pushing<'_> {
    /// Returns the ticket of the version that a push has announced, and the notice that shows it. `None` if the push
    /// announces nothing. The error says why the announcement is invalid.
    fn announced(&mut self, session: SessionId, push: &Push) -> Result<Option<(u64, NoticeAt)>, Failure> {
        let Some(Announced { notice, count }) = push.announced else { return Ok(None) };
        let Some(s) = self.sessions.get(session) else { return Ok(None) };
        let (before, tenant) = (s.announced(), s.tenant());
        let invalid = |text: String| Err(Failure::new(FailureCode::Invalid, text));
        let Some(ticket) = announced_ticket(session.0, count).filter(|_| count > before) else {
            return invalid(format!("announcement {count} of this worker does not follow {before}"));
        };
        self.sessions.announce(session, count);
        if notice >= MAX_NOTICES {
            return invalid(format!("notice {notice} is none: a worker has {MAX_NOTICES}"));
        }
        if !self.keys.has_board(tenant) {
            return invalid("a version is announced, and this sidecar has no board".to_owned());
        }
        if push.ranges > 0 || push.to.is_some() {
            return invalid("only a tensor of one range that stays at its own sidecar can be announced".to_owned());
        }
        Ok(Some((ticket, NoticeAt { session, notice })))
    }

    /// Handles a worker's push. The caller has copied out of the arena the `ranges` of its body, if there are several,
    /// and its label, if it is a part of an exchange that has one. With an `error` of its metadata the push is refused.
    pub(in crate::protocol::node) fn push(
        &mut self,
        now: Time,
        session: SessionId,
        op: OpId,
        mut push: Push,
        (ranges, label): (&[ArenaRange], Option<Label>),
        error: Option<Failure>,
    ) {
        let Some(s) = self.sessions.get(session) else { return };
        let arena = s.arena().0;
        let memory = match pushed_slice(s, &push, ranges) {
            Ok(memory) => memory,
            Err(failure) => return answering!(self).refuse_push(session, op, &push, failure),
        };
        if push.deltas == Deltas::Base {
            return self.lend_base(now, (session, op), push, memory, error);
        }
        let PushedMemory { slice, parts, is_registered } = memory;
        if slice.segment != arena && push.deltas != Deltas::None {
            // A delta lies in the arena, and its version does not.
            push.deltas = Deltas::Follow;
        }
        if is_registered && push.announced.is_some() {
            let text = "a version in registered memory is announced, where no other process can read it";
            let failure = Failure::new(FailureCode::Invalid, text);
            return answering!(self).refuse_push(session, op, &push, failure);
        }
        let announced = match self.announced(session, &push) {
            Ok(announced) => announced,
            Err(failure) => return answering!(self).refuse_push(session, op, &push, failure),
        };
        let unwelcome = error.or_else(|| self.common.draining.then(|| access!(self).is_draining()));
        let unwelcome = unwelcome.or_else(|| self.too_many_partitions(&push.key, label.as_ref()));
        let unwelcome = unwelcome.or_else(|| access!(self).no_name(session, &push.key));
        let unwelcome = unwelcome.or_else(|| access!(self).may_push(session, &push.key, push.to.as_ref()).err());
        let unwelcome = unwelcome.or_else(|| push.version.and_then(|version| too_high(&push.key, version)));
        let busy =
            || access!(self).is_busy(session).or_else(|| access!(self).too_many_ranges(slice.segment, push.ranges));
        // An announced push to a key that the worker owns waits for nothing: limits on waiting work do not apply.
        let is_own = || self.keys.owner(&push.key).is_some_and(|owner| owner.is(session));
        let failure = unwelcome.or_else(|| if announced.is_some() && is_own() { None } else { busy() });
        let failure = failure.or_else(|| limits!(self).too_many_versions(session));
        // An announced version may have readers already. Its push is refused further down, where the ticket holds the
        // version.
        if announced.is_none()
            && let Some(failure) = failure
        {
            return answering!(self).refuse_push(session, op, &push, failure);
        }
        let local = push.to.as_ref().is_none_or(|to| self.sessions.named(to).is_some());
        if let Some(failure) = stays_nowhere(&push, local) {
            return answering!(self).refuse_push(session, op, &push, failure);
        }
        if push.takeover && !local {
            let text = "a push that takes a key over publishes it at its own sidecar: push it there first, then to the other worker";
            return answering!(self).refuse_push(session, op, &push, Failure::new(FailureCode::Invalid, text));
        }
        let (readers, failure) = match access!(self).readers_of_push(&push, local) {
            Ok(readers) => (readers, failure),
            Err(unknown) if announced.is_some() => (Vec::new(), failure.or(Some(unknown))),
            Err(unknown) => return answering!(self).refuse_push(session, op, &push, unknown),
        };
        let Some(tenant) = self.sessions.tenant_of(session) else { return };
        let blob = Blob::new(slice, push.meta, tenant, Source::Arena(op));
        let mut blob = blob.retained(push.retention).traced(push.trace).with_deltas(push.deltas, push.content);
        if push.ranges > 0 {
            blob = blob.made_of(parts.into());
        }
        blob = blob.registered(is_registered);
        self.sessions.use_regions(blob.registered_slices());
        self.sessions.occupy(slice.segment, push.ranges);
        let blob = self.keys.insert(blob);
        self.keys.share(blob, readers);
        let op = Op {
            session,
            id: op,
            key: push.key,
            since: now,
            deadline: now + push.timeout,
            require: push.require,
            kind: OpKind::Push(PushOp {
                version: push.version,
                takeover: push.takeover,
                more_follow: push.more_follow,
                to: push.to,
                blob,
                copy: None,
                label: label.map(Box::new),
                stage: PushStage::Claiming,
                posted: Time::NEVER,
            }),
        };
        if let Some((ticket, at)) = announced {
            self.keys.hold_announced(blob, ticket, at);
            if let Some(failure) = failure {
                return answering!(self).end_push_with_failure(&op, failure);
            }
        }
        if local { self.push_here(now, op) } else { self.push_there(now, op) }
    }

    /// Publishes a tensor at this sidecar, where it already lies.
    pub(in crate::protocol::node) fn push_here(&mut self, now: Time, op: Op) {
        let record_id = self.keys.find_or_make(&op.key);
        let Some(owner) = self.keys.record(record_id).map(Record::owner) else { return };
        let Some(session) = self.sessions.get(op.session) else { return };
        let (name, tenant) = (session.name(), session.tenant());
        let takes_over = matches!(op.kind, OpKind::Push(PushOp { takeover: true, .. }));
        match owner {
            owner if owner.is(op.session) => self.publish_op(now, record_id, op),
            Owner::Claiming(claiming)
                if claiming.who == Claimant::Session(op.session)
                    || claiming.who == Claimant::Gone && (&claiming.owner, claiming.tenant) == (name, tenant) =>
            {
                let session = op.session;
                let id = self.sessions.begin(op);
                self.keys.join_claim(record_id, session, id);
            }
            Owner::Nobody => {
                let owner = (name.clone(), tenant);
                if let Some(failure) = limits!(self).too_many_keys(op.session) {
                    return answering!(self).end_push_with_failure(&op, failure);
                }
                let who = Claimant::Session(op.session);
                let id = self.sessions.begin(op);
                self.claim(record_id, Claiming { pushes: vec![id], ..Claiming::new(owner, who, takes_over) });
            }
            // The same worker pushed from another node before, and has come to this one.
            Owner::Landed(landed) if (&landed.owner, landed.tenant) == (name, tenant) => {
                let flow = landed.flow;
                self.keys.give(record_id, Owner::Session(op.session));
                if let Some(flow) = flow {
                    room!(self).recall(flow);
                }
                self.publish_op(now, record_id, op);
            }
            // The directory still has the key under this worker's name.
            Owner::Outlived(outlived) if (&outlived.owner, outlived.domain) == (name, tenant) => {
                self.keys.give(record_id, Owner::Session(op.session));
                self.publish_op(now, record_id, op);
            }
            owner if takes_over => {
                let before = self.sessions.owner_tenant(owner);
                match before.filter(|before| *before != tenant) {
                    Some(before) => {
                        let failure = access!(self).of_another_tenant(&format!("key {:?}", op.key), before, tenant);
                        answering!(self).end_push_with_failure(&op, failure);
                    }
                    None => self.take_over(record_id, op),
                }
            }
            owner => {
                let failure = key_owned(&op.key, self.sessions.owner_name(owner), &self.config.name);
                answering!(self).end_push_with_failure(&op, failure);
            }
        }
    }

    /// Publishes an operation's tensor or refuses it, and ends the operation.
    pub(in crate::protocol::node) fn publish_op(&mut self, now: Time, record: RecordId, mut op: Op) {
        let label = op.take_label();
        let OpKind::Push(PushOp { version, blob, to, more_follow, .. }) = &op.kind else { return };
        let (blob, more_follow) = (*blob, *more_follow);
        let Some(next) = self.keys.record(record).map(Record::next_version) else { return };
        let version = version.unwrap_or(Version(next.max(1)));
        if let Some(failure) = too_high(&op.key, version) {
            return answering!(self).end_push_with_failure(&op, failure);
        }
        if version.0 < next {
            let last = Version(next - 1);
            let text = format!("key {:?} is at {last}; {version} would not be above it", op.key);
            return answering!(self).end_push_with_failure(&op, Failure::new(FailureCode::VersionNotRising, text));
        }
        if let Some(kind) = op.require
            && kind != FabricKind::Local
        {
            let target = to.as_ref().map_or("nobody else", Name::as_str);
            let text = format!("{kind} is required, but the tensor goes to {target:?} and stays at this sidecar");
            return answering!(self).end_push_with_failure(&op, Failure::new(FailureCode::RequireUnmet, text));
        }
        let bytes = self.keys.blob(blob).map_or(0, |b| b.meta.len_bytes());
        let queued = now.since(op.since);
        let report = Report {
            fabric: FabricKind::Local,
            bytes,
            copied: 0,
            verified: 0,
            relayed: 0,
            delta: 0,
            queued,
            waited: Duration::ZERO,
            in_flight: Duration::ZERO,
            origin: None,
        };
        let link_rate = self.keys.take_link_rate(record, blob);
        let answer = Answer::Pushed { version, link_rate, report };
        self.keys.set_more_follow(record, more_follow);
        self.keys.prove_base(record, blob, self.config.rules);
        // The operation's reference becomes the publication's. The waiters are served before the pusher is answered,
        // because they have waited longer.
        answering!(self).publish(now, record, blob, version);
        memory!(self).may_be_spilled(op.session, &op.key, blob);
        self.exchange_part_came(now, &op, blob, label);
        let (operation, session, path) = (Operation::Push, op.session, PathId::HERE);
        self.meters.finished(operation, path, &report);
        let (key, version, outcome, since, trace) =
            (&op.key, Some(version), Ok(report), op.since, access!(self).trace_of(&op));
        replies!(self)
            .note_ended(now, WorkersTransfer { operation, session, key, version, path, outcome, since, trace });
        self.actions.answer(session, op.id, answer);
        if to.is_none() {
            replies!(self).tell_watched(record, &op, blob);
        }
    }
}
