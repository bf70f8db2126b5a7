//! Finding the version that a worker fetches: at this node, at the key's known owner, or through the directory.

use crate::op::{Destination, Failure, FailureCode, Fetch, OpId};
use crate::protocol::ids::{OperationId, RecordId, SessionId};
use crate::protocol::keys::{Concerned, Picked, Record, Waiter};
use crate::protocol::node::flows::Fetching;
use crate::protocol::sessions::{FetchOp, FetchStage, Op, OpKind};
use crate::tensor::{Key, Name, Select, Version};
use crate::time::Time;
use crate::wire::ranges::ArenaRange;

/// How many times a fetch asks the directory again because the key is not where the directory said.
pub(in crate::protocol::node) const MAX_REDIRECTS: u32 = 16;

impl Fetching<'_> {
    /// Handles a fetch, which is `to` land in the worker's arena if it says so.
    pub(in crate::protocol::node) fn fetch(
        &mut self,
        now: Time,
        session: SessionId,
        op: OpId,
        mut fetch: Fetch,
        to: Option<Destination>,
    ) {
        let Some(s) = self.sessions.get(session) else { return };
        let is_registered = |range: &ArenaRange| s.locate(range.offset, range.len).is_some();
        let checked = to.as_ref().map(|to| to.check_ranges(&fetch.key, s.arena().1, is_registered));
        if let Some(Err(failure)) = checked {
            return replies!(self).refuse(session, op, failure);
        }
        if let Some(failure) = access!(self).is_busy(session) {
            return replies!(self).refuse(session, op, failure);
        }
        if let Some(failure) = lookup!(self).other_stream(session, &fetch.key, fetch.select) {
            return replies!(self).refuse(session, op, failure);
        }
        let found = self.keys.find(&fetch.key);
        if self.config.watch_all && fetch.watches {
            self.keys.watch(&fetch.key);
        }
        let behind = found.filter(|record| self.keys.may_be_behind(*record, Some(session)));
        // In the usual case the version is published here, and no operation is needed.
        if let Some(record) = found.filter(|_| behind.is_none()) {
            fetch.select = lookup!(self).resolve_latest(record, fetch.select);
            match self.keys.pick(record, fetch.select) {
                Picked::Blob(blob) if lookup!(self).needs_copy(session, blob) => {
                    let Fetch { key, select, timeout, require, trace, watches: _, excerpt, base: _ } = fetch;
                    let kind = OpKind::Fetch(FetchOp {
                        select,
                        stage: FetchStage::Waiting,
                        redirects: 0,
                        trace,
                        excerpt,
                        gathered: None,
                        to: None,
                        base: None,
                    });
                    let op = Op { session, id: op, key, since: now, deadline: now + timeout, require, kind };
                    return answering!(self).hand_over_copy(now, op, blob);
                }
                Picked::Blob(blob) => {
                    let (require, excerpt) = (fetch.require, fetch.excerpt.as_deref());
                    return match memory!(self).hand_over(now, session, op, (&fetch.key, blob, excerpt), require, now) {
                        Ok(report) => {
                            let version = self.keys.blob(blob).map_or(Version(0), |b| b.version);
                            replies!(self).note_handed_over(now, session, &fetch.key, version, report, fetch.trace);
                            memory!(self).read_stream_here(session, &fetch.key, fetch.select);
                            self.keys.want_on_board(record);
                            self.keys.show(record, self.actions);
                            answering!(self).fetched_here(now, record, blob);
                        }
                        Err(failure) => replies!(self).refuse(session, op, failure),
                    };
                }
                Picked::Gone(newest) => {
                    let Some(reader) = self.sessions.tenant_of(session) else { return };
                    let failure = access!(self).version_gone(record, reader, &fetch.key, fetch.select, newest);
                    return replies!(self).refuse(session, op, failure);
                }
                Picked::NotYet => {}
            }
        }
        let to = to.filter(|to| access!(self).may_open(session, to.ranges.len()));
        let key = fetch.key.clone();
        let id = self.sessions.begin(Op {
            session,
            id: op,
            key: fetch.key,
            since: now,
            deadline: now + fetch.timeout,
            require: fetch.require,
            kind: OpKind::Fetch(FetchOp {
                select: fetch.select,
                stage: FetchStage::Waiting,
                redirects: 0,
                trace: fetch.trace,
                excerpt: fetch.excerpt,
                gathered: None,
                to: to.map(Box::new),
                base: fetch.base,
            }),
        });
        match behind {
            Some(record) => {
                self.keys.wait(record, Waiter::Local(id), fetch.select);
                self.keys.ask_later(record, Concerned::One(Waiter::Local(id)));
            }
            None => self.start_fetch(now, id),
        }
        if fetch.watches {
            self.keys.watch(&key);
        }
    }

    /// Looks for a fetch's key: at this node, at the key's known owner, then through the directory.
    pub(in crate::protocol::node) fn start_fetch(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.sessions.op_mut(id) else { return };
        let OpKind::Fetch(FetchOp { stage, select, .. }) = &mut op.kind else { return };
        *stage = FetchStage::Waiting;
        let (key, select, op_session) = (op.key.clone(), *select, op.session);
        let record_id = self.keys.find_or_make(&key);
        if let Some(reader) = self.sessions.tenant_of(op_session)
            && self.keys.pick(record_id, select) == Picked::NotYet
            && let Some(failure) = lookup!(self).ended_stream(reader, &key, select)
        {
            self.keys.tidy(record_id, self.actions);
            return answering!(self).fail_op(id, failure);
        }
        let is_owned = self.keys.record(record_id).is_some_and(Record::is_owned);
        if !is_owned && let Some(node) = self.keys.location(&key).cloned() {
            self.keys.tidy(record_id, self.actions);
            return self.fetch_from(now, id, &node);
        }
        self.wait_here(now, id, record_id, select, 0);
    }

    pub(in crate::protocol::node) fn fetch_from(&mut self, now: Time, id: OperationId, node: &Name) {
        match sending!(self).connect_for(id, node) {
            Some(link) => self.start_pull(now, id, link),
            None => {
                self.sessions.set_fetch_stage(id, FetchStage::Connecting(node.clone()));
            }
        }
    }

    /// Handles the directory's answer about where a key is.
    pub(in crate::protocol::node) fn located(&mut self, now: Time, key: &Key, node: &Name, sequence: u64) {
        let mine = *node == self.config.name;
        if !mine {
            self.parents.located(key);
            self.keys.remember_location(key, node, sequence);
        }
        let Some(id) = self.keys.find(key) else { return };
        self.keys.resolved(id);
        if self.keys.record(id).is_none_or(Record::is_owned) {
            return;
        }
        if mine {
            // The entry is this node's own, and its removal is on the way.
            return self.keys.resolve(id, sequence, self.actions);
        }
        for waiter in self.keys.take_waiters(id) {
            match waiter {
                Waiter::Local(op) => self.fetch_from(now, op, node),
                Waiter::Remote(link, index) => answering!(self).not_owner(now, link, index, key),
            }
        }
        self.keys.tidy(id, self.actions);
    }

    /// Handles the answer of a node that does not own the key, although the directory said so. The directory is asked
    /// for a newer entry, but not without limit: two nodes that each say that the other owns the key would keep the
    /// fetch going until its deadline, and the directory busy.
    pub(in crate::protocol::node) fn wrong_owner(&mut self, now: Time, id: OperationId, why: Failure) {
        let Some(Op { kind: OpKind::Fetch(FetchOp { redirects, stage, .. }), .. }) = self.sessions.op_mut(id) else {
            return;
        };
        *redirects += 1;
        if *redirects <= MAX_REDIRECTS {
            return self.look_again(now, id);
        }
        *stage = FetchStage::Waiting;
        let text =
            format!("{}; that was the answer {MAX_REDIRECTS} times, each after asking the directory anew", why.text);
        answering!(self).fail_op(id, Failure::new(FailureCode::NotOwner, text));
    }

    /// Asks the directory for a newer entry of a key, because the remembered owner is wrong.
    fn look_again(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.sessions.op_mut(id) else { return };
        let OpKind::Fetch(FetchOp { stage, select, .. }) = &mut op.kind else { return };
        *stage = FetchStage::Waiting;
        let (key, select) = (op.key.clone(), *select);
        let newer_than = self.keys.forget_location(&key);
        let record = self.keys.find_or_make(&key);
        self.wait_here(now, id, record, select, newer_than);
    }

    /// Makes a fetch wait: for a version of the key if it is owned here, else for the directory to locate the key.
    fn wait_here(&mut self, now: Time, id: OperationId, record: RecordId, select: Select, newer_than: u64) {
        let of_another = self.sessions.op(id).and_then(|op| lookup!(self).other_stream(op.session, &op.key, select));
        if let Some(failure) = of_another {
            return answering!(self).fail_op(id, failure);
        }
        self.keys.wait(record, Waiter::Local(id), select);
        match self.keys.record(record).is_some_and(Record::is_owned) {
            true => answering!(self).serve(now, record, Concerned::One(Waiter::Local(id))),
            false => self.keys.resolve(record, newer_than, self.actions),
        }
    }
}
