//! Workers that announce their pushes. The notice shows a push to other workers of the tenant at once, while the push
//! itself is in the worker's ring.

use super::worker::What;
use super::{Cluster, Happening};
use crate::memory::LocalSlice;
use crate::op::{Announced, Command, OpId, Push, Request, announced_ticket};
use crate::protocol::NoticeAt;
use crate::tensor::{Key, TensorMeta, Version};
use rand::Rng;
use std::collections::BTreeMap;

/// The number of notices that a worker uses: so few that they often go to other keys.
const NOTICES: u16 = 1;

/// The contents of a notice.
#[derive(Debug, Clone)]
pub(crate) struct Noticed {
    pub(crate) ticket: u64,
    pub(crate) version: Version,
    pub(crate) meta: TensorMeta,
    pub(crate) slice: LocalSlice,
}

/// A worker's own state of its notices.
#[derive(Debug, Default)]
pub(super) struct Notices {
    count: u64,
    by_key: BTreeMap<String, Notice>,
    /// The number of the push that each operation made.
    pushes: BTreeMap<OpId, usize>,
}

#[derive(Debug)]
struct Notice {
    at: u16,
    next: u64,
    is_wanted: bool,
    /// The sidecar was asked to let go of it.
    goes: bool,
}

impl Cluster {
    /// Puts a request into the worker's ring. The sidecar takes it later.
    pub(super) fn put_into_ring(&mut self, worker: usize, request: Request) {
        let w = &mut self.workers[worker];
        w.ring.push_back(request);
        let at = self.soon() + self.delay * [0, 0, 5][self.rng.random_range(0..3)];
        self.later(at, Happening::TakeRing(worker));
    }

    /// Makes the sidecar take all requests in a worker's ring.
    pub(super) fn take_ring(&mut self, worker: usize) {
        while let Some(request) = self.workers[worker].ring.pop_front() {
            let w = &self.workers[worker];
            let Some(session) = w.session else { return };
            let (now, node) = (self.clock(w.node), w.node);
            self.nodes[node].driver.node.request(now, session, request);
        }
    }

    /// Answers the requests that wait because a ring may contain an announced version, after a look at all rings of the
    /// node. Returns whether there were any.
    pub(super) fn answer_asked(&mut self, node: usize) -> bool {
        let asked = self.nodes[node].driver.node.asked();
        if asked == 0 {
            return false;
        }
        for worker in 0..self.workers.len() {
            if self.workers[worker].node == node {
                self.take_ring(worker);
            }
        }
        let now = self.clock(node);
        self.nodes[node].driver.node.answer_asked(now, asked, |_| false);
        true
    }

    /// Announces a push if that is possible. Otherwise it withdraws the notice of the key.
    pub(super) fn announce(&mut self, worker: usize, op: OpId, number: usize, push: &mut Push) {
        let w = &self.workers[worker];
        let (Some(session), Some(arena)) = (w.session, &w.arena) else { return };
        let segment = arena.segment;
        let others = w.ops.iter().any(|(other, asked)| {
            *other != op
                && match &asked.what {
                    What::Push { number, is_announced, .. } => !is_announced && self.pushed[*number].key == push.key,
                    What::Delete => true,
                    _ => false,
                }
        });
        let w = &mut self.workers[worker];
        w.notices.pushes.insert(op, number);
        let Some(notice) = w.notices.by_key.get_mut(push.key.as_str()) else { return };
        let at = NoticeAt { session, notice: notice.at };
        let version = push.version.unwrap_or(Version(notice.next.max(1)));
        let plain = push.to.is_none() && push.meta.metadata_bytes() == 0 && push.trace.is_none();
        let ticket = announced_ticket(session.0, w.notices.count + 1);
        let board = &mut self.nodes[w.node].board;
        match ticket.filter(|_| plain && notice.is_wanted && !notice.goes && !others && version.0 >= notice.next) {
            Some(ticket) => {
                w.notices.count += 1;
                notice.next = version.0 + 1;
                push.version = Some(version);
                push.announced = Some(Announced { notice: at.notice, count: w.notices.count });
                if let Some(What::Push { is_announced, .. }) = w.ops.get_mut(&op).map(|asked| &mut asked.what) {
                    *is_announced = true;
                }
                self.pushed[number].version = Some(version);
                self.tally.announced += 1;
                let (meta, slice) =
                    (push.meta.clone(), LocalSlice { segment, offset: push.offset, len: push.meta.len_bytes() });
                board.notices.insert((at.session, at.notice), Noticed { ticket, version, meta, slice });
            }
            None => drop(board.notices.remove(&(at.session, at.notice))),
        }
    }

    /// Withdraws the notice of a key that is about to be deleted, because its versions begin anew.
    pub(super) fn end_notice(&mut self, worker: usize, key: &Key) {
        let w = &mut self.workers[worker];
        if let (Some(session), Some(notice)) = (w.session, w.notices.by_key.get_mut(key.as_str())) {
            notice.is_wanted = false;
            self.nodes[w.node].board.notices.remove(&(session, notice.at));
        }
    }

    /// Handles the end of a push, with its version if it succeeded.
    pub(super) fn push_answered(&mut self, worker: usize, number: usize, announced: bool, version: Option<Version>) {
        let key = self.pushed[number].key.clone();
        let w = &mut self.workers[worker];
        let Some(notice) = w.notices.by_key.get_mut(key.as_str()) else { return };
        match (version, w.session) {
            (Some(version), _) => notice.next = notice.next.max(version.0 + 1),
            (None, Some(session)) if announced => {
                notice.is_wanted = false;
                self.nodes[w.node].board.notices.remove(&(session, notice.at));
            }
            _ => {}
        }
    }

    /// Handles the reply WATCHED: a worker waits for the version after this push.
    pub(super) fn watched(&mut self, worker: usize, pushed: OpId) {
        let number = self.workers[worker].notices.pushes[&pushed];
        let (key, version) = (self.pushed[number].key.to_string(), self.pushed[number].version);
        let next = version.map_or(0, |v| v.0 + 1);
        let is_named = self.names_a_notice(worker, &key);
        let notices = &mut self.workers[worker].notices;
        let used = notices.by_key.len() as u16;
        if let Some(notice) = notices.by_key.get_mut(&key) {
            (notice.is_wanted, notice.next, notice.goes) = (true, next, notice.goes && is_named);
        } else if let Some(at) = if used < NOTICES { Some(used) } else { self.take_notice(worker) } {
            let notice = Notice { at, next, is_wanted: true, goes: false };
            self.workers[worker].notices.by_key.insert(key, notice);
        }
    }

    fn names_a_notice(&self, worker: usize, key: &str) -> bool {
        let w = &self.workers[worker];
        self.nodes[w.node].board.find(w.domain, key).is_some_and(|shown| shown.notice.is_some())
    }

    /// Takes the notice of another key if the board does not name it. Otherwise the sidecar is asked for one, later.
    fn take_notice(&mut self, worker: usize) -> Option<u16> {
        let w = &self.workers[worker];
        let is_announced = |key: &str| {
            let announces = |what: &What| match what {
                What::Push { number, is_announced, .. } => *is_announced && self.pushed[*number].key.as_str() == key,
                _ => false,
            };
            w.ops.values().any(|asked| announces(&asked.what))
        };
        let free: Vec<String> = w.notices.by_key.keys().filter(|key| !is_announced(key)).cloned().collect();
        let old = free.get(self.rng.random_range(0..free.len().max(1)))?.clone();
        if !self.names_a_notice(worker, &old) {
            return self.workers[worker].notices.by_key.remove(&old).map(|notice| notice.at);
        }
        let notice = self.workers[worker].notices.by_key.get_mut(&old)?;
        if !std::mem::replace(&mut notice.goes, true) {
            let key = Key::new(&old).ok()?;
            self.put_into_ring(worker, Request::Unannounce { key });
        }
        None
    }

    /// Returns whether a request is put into the ring. That is always so if others wait there, or if the request is an
    /// announced push.
    pub(super) fn goes_by_ring(&mut self, worker: usize, request: &Request) -> bool {
        let is_announced =
            matches!(request, Request::Command { command: Command::Push(push), .. } if push.announced.is_some());
        is_announced || !self.workers[worker].ring.is_empty() || self.rng.random_range(0..20) == 0
    }
}
