//! Ends that take more than one round: a worker's end concerns each of its keys and leases, of which it may have a
//! million, and a link's end each request and lease of its peer. The other workers do not wait for that.
//!
//! The events of a round end at most [`ENDS_PER_ROUND`] things. The rest waits in a queue, with which [`Node::timeout`](crate::protocol::Node::timeout) goes
//! on. A round is over when all of its actions are taken.

use super::lost_link::LostLink;
use crate::memory::SegmentId;
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::ids::{BlobId, RecordId, SessionId};
use crate::protocol::keys::{Claimant, Older, Owner};
use crate::protocol::node::flows::Ownership;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;
use std::collections::VecDeque;

/// The most versions and leases that end in one round, plus as many of one key.
pub(in crate::protocol) const ENDS_PER_ROUND: u32 = 64;

/// Something that has ended, with everything that has to end with it.
pub(in crate::protocol::node) enum Ending {
    /// A session, with its keys.
    Session(Leaving),
    /// The leases of a session whose worker no longer reads.
    Leases(SessionId),
    /// Keys that stayed with a parent, which is gone.
    Orphans(Vec<Key>),
    /// Versions of a key that has ended. Nobody finds them.
    Versions(Older),
    /// Versions that the peer of a lost link held, and that no process reads.
    Read(std::vec::IntoIter<BlobId>),
    /// What was in flight on a link that is down.
    Link(Box<LostLink>),
    /// The keys of a session that has lost its name, from this place on. `None`: all were looked at.
    Name { session: SessionId, from: Option<u32> },
}

/// A session that has ended and still owns keys. Its name is taken until it has none.
pub(in crate::protocol::node) struct Leaving {
    pub(in crate::protocol::node) session: SessionId,
    pub(in crate::protocol::node) name: Name,
    pub(in crate::protocol::node) tenant: Tenant,
    pub(in crate::protocol::node) arena: SegmentId,
    pub(in crate::protocol::node) why: String,
    /// The place of the first key that was not looked at. `None`: all were.
    pub(in crate::protocol::node) from: Option<u32>,
    /// The older versions of that key below this one were looked at.
    pub(in crate::protocol::node) version: u64,
}

/// What has ended and is not done, in order.
#[derive(Default)]
pub(in crate::protocol::node) struct Endings {
    queue: VecDeque<Ending>,
    /// The number of things that have ended in this round.
    ended: u32,
}

impl Endings {
    /// Begins another round.
    pub(in crate::protocol::node) fn begin_round(&mut self) {
        self.ended = 0;
    }

    pub(in crate::protocol::node) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Lets something end in the rounds that follow.
    pub(in crate::protocol::node) fn later(&mut self, ending: Ending) {
        self.queue.push_back(ending);
    }

    pub(in crate::protocol::node) fn iter(&self) -> impl Iterator<Item = &Ending> {
        self.queue.iter()
    }
}

impl Ownership<'_> {
    /// Ends something, as far as this round goes.
    pub(in crate::protocol::node) fn end(&mut self, now: Time, ending: Ending) {
        self.endings.queue.push_back(ending);
        self.go_on_ending(now);
    }

    /// Goes on with what has ended, as far as this round goes.
    pub(in crate::protocol::node) fn go_on_ending(&mut self, now: Time) {
        while self.endings.ended < ENDS_PER_ROUND
            && let Some(mut ending) = self.endings.queue.pop_front()
        {
            let ended = match &mut ending {
                Ending::Session(leaving) => self.end_next_key(now, leaving),
                Ending::Leases(session) => self.end_next_lease(*session),
                Ending::Orphans(keys) => self.end_next_orphan(now, keys),
                Ending::Versions(older) => older.pop().map(|blob| {
                    memory!(self).release(blob);
                    1
                }),
                Ending::Read(blobs) => blobs.next().map(|blob| {
                    memory!(self).release(blob);
                    1
                }),
                Ending::Link(lost) => self.end_next_of_link(now, lost),
                Ending::Name { session, from } => self.end_next_of_name(now, *session, from),
            };
            if let Some(ended) = ended {
                self.common.step();
                self.endings.ended = self.endings.ended.saturating_add(ended.max(1));
                // In turns, so that a worker with little does not wait for one with much.
                self.endings.queue.push_back(ending);
            }
        }
    }

    /// Ends the next key of a session. Returns the number of its versions. `None`: that was all.
    fn end_next_key(&mut self, now: Time, leaving: &mut Leaving) -> Option<u32> {
        let Leaving { session, name, tenant, arena, .. } = leaving;
        let session = *session;
        if let Some(record) = leaving.from.and_then(|from| self.keys.next_key_of(session, from)) {
            let versions = self.versions_of(record);
            let owner = self.keys.record(record).map(|r| r.owner());
            // What it was about to take over is another worker's.
            let claims = matches!(owner, Some(Owner::Claiming(c)) if c.who == Claimant::Session(session));
            // The key that the round before stopped at may have gone meanwhile.
            let version = if leaving.from == Some(record.index()) { leaving.version } else { 0 };
            if !claims && let Some(next) = self.end_older(record, version) {
                (leaving.from, leaving.version) = (Some(record.index()), next);
                return Some(ENDS_PER_ROUND);
            }
            (leaving.from, leaving.version) = (record.index().checked_add(1), 0);
            let owner = match self.keys.record(record).map(|r| r.owner()) {
                Some(Owner::Landed(landed)) => (landed.owner.clone(), landed.tenant),
                Some(Owner::Claiming(c)) if c.who != Claimant::Session(session) => {
                    self.former_owner_left(now, record, (name.clone(), *tenant));
                    return Some(versions);
                }
                _ => (name.clone(), *tenant),
            };
            self.owner_left(now, record, owner, None);
            return Some(versions);
        }
        self.keys.session_closed(session);
        self.sessions.forget(session);
        if self.sessions.abandon(*arena) {
            memory!(self).arena_unused(*arena);
        }
        let why = std::mem::take(&mut leaving.why);
        self.actions.push(HostAction::Control(Control::SessionClosed { session, worker: name.clone(), why }));
        None
    }

    fn end_next_lease(&mut self, session: SessionId) -> Option<u32> {
        let blob = self.sessions.take_lease(session)?;
        memory!(self).release(blob);
        Some(1)
    }

    /// Ends the next of these keys, and adds those that stayed with it.
    fn end_next_orphan(&mut self, now: Time, keys: &mut Vec<Key>) -> Option<u32> {
        let key = keys.pop()?;
        let Some(id) = self.keys.find(&key) else { return Some(1) };
        let versions = self.versions_of(id);
        match self.keys.record(id).map(|r| r.owner()) {
            Some(Owner::Outlived(_)) => {
                self.end_key(now, id);
                // Nobody has the key now.
                keys.extend(self.parents.end(&key));
            }
            Some(Owner::Claiming(_)) => {
                if let Some(parent) = key.parent() {
                    self.parents.add(now, parent, key);
                }
            }
            _ => {}
        }
        Some(versions)
    }

    /// Returns how many versions of a key end in one event.
    pub(in crate::protocol::node) fn versions_of(&self, record: RecordId) -> u32 {
        self.keys.record(record).map_or(0, |r| r.count()).min(ENDS_PER_ROUND)
    }
}
